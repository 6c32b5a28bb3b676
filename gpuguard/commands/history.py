"""What happened on this node: faults, actions and what came of them, returns, acknowledgements, boots.

What is remembered of boards and of the machine, by serial number, stands at the end; a board keeps it in another slot.

`--gpu` follows one GPU by its UUID where that is known, wherever it was plugged in, also after it was taken out, and
shows the course of what was measured of it: since when `--since` says, else over the last day.
Exit codes  0 told, 2 no such GPU or no memory, 64 usage error
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuguard.health.state import Health
    from gpuguard.model.health import SubjectHealth
    from gpuguard.model.story import StoryEntry
    from gpuguard.ports import Clock, StoreReader
    from gpuguard.runtime.plot import Course

EXAMPLE = "gpuguard history --gpu 3b:00 --since 7d"

LIMIT = 50
SEARCHED = 100_000
UNITS = {"min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}

# Any: the answer is JSON, which mixes types.
Facts = dict[str, Any]


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    from gpuguard.runtime.known import options

    whom = parser.add_mutually_exclusive_group()
    whom.add_argument("--gpu", metavar="GPU", help="one GPU: index, PCI address, UUID or serial")
    whom.add_argument("--job", metavar="ID", help="one job: slurm/8123, or 8123")
    parser.add_argument("--since", metavar="WHEN", type=_when, help="2h, 7d, or a date such as 2026-03-01")
    parser.add_argument("--limit", metavar="N", type=_positive, default=LIMIT, help=f"newest N (default: {LIMIT})")
    options(parser)


def run(args: Namespace) -> int:
    """Prints the answer."""
    from pathlib import Path

    from gpuguard.runtime.clock import SystemClock

    return answer(args, SystemClock(Path(args.root)))


def answer(args: Namespace, clock: "Clock") -> int:
    """The same by a clock that is given.

    Raises  NotUnderstood for a GPU that is not known; StoreFailed without a memory
    """
    from gpuguard.runtime.known import find_subject, look_up, state_dir

    known = look_up(state_dir(args), clock)
    try:
        reader, health = known.memory()
        whom = find_subject(health, args.gpu or args.job) if args.gpu or args.job else None
        since = _since(args.since, known.now.utc)
        story = reader.story(since=since, limit=SEARCHED)
        course = (
            _course(reader, whom, since, known.now.utc) if args.gpu and whom is not None and known.now.utc else None
        )
    finally:
        known.close()
    entries = list(story) if whom is None else _of(story, whom)
    shown = entries[-args.limit :]
    if args.json:
        import json

        facts = {
            "gpu": _identity(whom) if whom is not None else None, "gpus": [_identity(s) for s in _gpus(health)],
            "past": list(_past(whom, health, known.now.utc)),
            "entries": [_told(entry) for entry in shown], "left_out": len(entries) - len(shown),
            "course": course.facts() if course is not None else None,
        }  # fmt: skip
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        from gpuguard.runtime.words import page

        lines = list(_lines(shown, len(entries) - len(shown), whom, health))
        lines += _past_lines(_past(whom, health, known.now.utc))
        sys.stdout.write(page([*lines, *(course.lines() if course is not None else ())]))
    return 0


def _course(reader: "StoreReader", whom: "SubjectHealth", since: float | None, now: float) -> "Course":
    from gpuguard.model.samples import Stretch
    from gpuguard.runtime.plot import DAY, Course

    start = now - DAY if since is None else since
    name = whom.uuid or whom.id
    stretches: list[Stretch] = []
    # Minutes where the full rate is forgotten already, or has not been for an hour yet.
    full = reader.samples(name, "full", start, now + 60.0)
    if not full or full[0].start > start + 3600.0:
        until = full[0].start // 3600.0 * 3600.0 if full else now
        stretches += reader.samples(name, "minute", start - 3600.0, until)
    return Course(start, now, (*stretches, *full))


def _when(text: str) -> tuple[str, float]:
    """`ago` and seconds, or `date` and seconds since 1970."""
    import re
    from datetime import UTC, datetime

    if match := re.fullmatch(r"(\d{1,6})(min|h|d|w)", text):
        return "ago", float(match[1]) * UNITS[match[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is neither a span (30min, 2h, 7d, 4w) nor an ISO date") from error
    return "date", (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= SEARCHED:
        raise ArgumentTypeError(f"{text!r} is not a number from 1 to {SEARCHED}")
    return int(text)


def _since(asked: tuple[str, float] | None, now: float | None) -> float | None:
    if asked is None:
        return None
    how, seconds = asked
    return seconds if how == "date" else (now or 0.0) - seconds


def _of(story: "Sequence[StoryEntry]", whom: "SubjectHealth") -> "list[StoryEntry]":
    """The entries about one GPU.

    Verdicts carry the UUID; what carries none belongs to the GPU that the verdicts at this address name at the time.
    """
    if whom.uuid is None:
        return [entry for entry in story if entry.subject == whom.id]
    places = {entry.subject for entry in story if entry.detail.get("uuid") == whom.uuid} | {whom.id}
    at_place: dict[str, object] = {}
    found = []
    for entry in story:
        uuid = entry.detail.get("uuid")
        if uuid is not None:
            at_place[entry.subject] = uuid
        occupant = at_place.get(entry.subject)
        if uuid == whom.uuid or (uuid is None and entry.subject in places and occupant in (None, whom.uuid)):
            found.append(entry)
    return found


def _gpus(health: "Health") -> "list[SubjectHealth]":
    here = [s for name, s in sorted(health.subjects.items()) if s.pci is not None]
    return here + [s for _, s in sorted(health.retired.items())]


def _past(whom: "SubjectHealth | None", health: "Health", now: float | None) -> Iterator[Facts]:
    """What is remembered: of one GPU, or of everything here and of boards that are here no more."""
    from gpuguard.health import past
    from gpuguard.model.ids import NODE
    from gpuguard.runtime.chain import past_facts
    from gpuguard.runtime.words import named

    subjects = [*_gpus(health), health.subject(NODE)]
    for subject in subjects if whom is None else [whom]:
        facts = past_facts(past.of(health.past, subject), now)
        if facts is not None:
            taken_out = subject.uuid is not None and subject.uuid in health.retired
            name = f"a GPU that was at {subject.pci}" if taken_out else named(subject)
            yield {"of": name, "subject": subject.id, "uuid": subject.uuid, "serial": subject.serial, **facts}
    if whom is None:
        for key, record in past.elsewhere(health.past, subjects).items():
            facts = past_facts(record, now)
            kind, _, name = key.partition("/")
            if facts is not None:
                yield {
                    "of": f"not here: {kind} {name}", "subject": None, "uuid": name if kind == "uuid" else None,
                    "serial": None if kind == "uuid" else name, **facts,
                }  # fmt: skip


def _past_lines(told: Iterable[Facts]) -> Iterator[str]:
    from gpuguard.runtime.words import paragraph

    rows = list(told)
    if rows:
        yield "remembered"
    for facts in rows:
        serial = f", serial {facts['serial']}" if facts["serial"] and facts["subject"] else ""
        yield from paragraph(f"{facts['of']}{serial}: {facts['text']}", indent=2, hanging=2)


def _identity(subject: "SubjectHealth") -> Facts:
    return {"subject": subject.id, "pci": subject.pci, "uuid": subject.uuid, "serial": subject.serial}


def _told(entry: "StoryEntry") -> Facts:
    return {
        "at": entry.at.utc, "boot": entry.at.boot, "mono": entry.at.mono, "kind": entry.kind,
        "subject": entry.subject, "text": entry.text, "event_id": entry.event_id, "cause": entry.cause,
        "detail": dict(entry.detail),
    }  # fmt: skip


def _lines(
    entries: "Iterable[StoryEntry]", left_out: int, whom: "SubjectHealth | None", health: "Health"
) -> Iterator[str]:
    from gpuguard.runtime.words import date, named, paragraph

    if whom is not None:
        taken_out = whom.uuid is not None and whom.uuid in health.retired
        name = f"GPU last seen at {whom.pci}, taken out" if taken_out else named(whom)
        serial = f", serial {whom.serial}" if whom.serial else ""
        what = f": {whom.uuid or 'UUID not known'}{serial}" if whom.pci is not None or whom.uuid is not None else ""
        yield from paragraph(f"{name}{what}")
    if left_out:
        yield f"({left_out:,} older entries left out; --limit shows more)"
    entries = list(entries)
    if not entries:
        yield "No fault, no action and no return is on record."
    day = ""
    for entry in entries:
        today, _, hour = date(entry.at.utc).partition(" ") if entry.at.utc is not None else ("without a date", "", "")
        if today != day:
            day = today
            yield day
        hour = hour or f"{entry.at.mono:9.0f}"
        yield from paragraph(
            f"{hour}  {_place(entry.subject):<8} {_whose(entry.subject)}{_text(entry.kind, entry.text, entry.detail)}",
            hanging=20,
        )


def _place(subject: str) -> str:
    """A subject in few characters: its address without the domain."""
    kind, _, address = subject.partition(":")
    short = address.removeprefix("0000:")
    return {"gpu": short, "nvswitch": f"sw {short}"}.get(kind, kind)


def _whose(subject: str) -> str:
    """The name of what has no place on the bus, before what happened to it: it may be long."""
    from gpuguard.runtime.words import LONE, tidy

    kind, _, name = subject.partition(":")
    return f"{tidy(name)}: " if name and kind not in ("gpu", "nvswitch", *LONE) else ""


def _text(kind: str, text: str, detail: Mapping[str, object]) -> str:
    if kind == "verdict" and detail.get("action") not in (None, "none"):
        return f"{text} [{detail['action']}]"
    return text
