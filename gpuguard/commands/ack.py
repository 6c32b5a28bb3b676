"""A person clears a finding that stands: it counts no longer, and the history says for ever who said so and why.

One fault prints many lines. The word for its strongest code, which `gpuguard why` names, clears the lesser ones of the
same incident with it; a fault that another source saw by itself (a GPU that does not answer on the bus) stays.

Goes through the running agent; without one this command writes it down itself.
Exit codes  0 cleared, 2 no such finding stands, or it could not be written down, 64 usage error
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuguard.health.state import Health
    from gpuguard.model.health import SubjectHealth
    from gpuguard.ports import Actuator, Clock

EXAMPLE = "gpuguard ack xid64 --gpu 3b:00 --by mia --reason 'board replaced'"


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    from gpuguard.runtime.known import options

    parser.add_argument("finding", metavar="FINDING", help="as `gpuguard why` names it: xid79, sxid20034, gpu_lost")
    whom = parser.add_mutually_exclusive_group()
    whom.add_argument("--gpu", metavar="GPU", help="on this GPU alone (default: wherever it stands)")
    whom.add_argument("--job", metavar="ID", help="on this job alone: slurm/8123, or 8123")
    parser.add_argument("--by", metavar="NAME", required=True, help="who says so")
    parser.add_argument("--reason", metavar="TEXT", required=True, help="why it counts no longer")
    options(parser)


def run(args: Namespace) -> int:
    """Clears the finding and tells what follows."""
    from pathlib import Path

    from gpuguard.runtime.clock import SystemClock

    return answer(args, SystemClock(Path(args.root)))


def answer(args: Namespace, clock: "Clock", *, target: "Actuator | None" = None) -> int:
    """The same by a clock that is given; actions that follow go to `target` when no agent runs.

    Raises  UsageError; ActionRefused when it does not stand, with what does; StoreFailed, ReadFailed when it cannot be
            written down
    """
    from gpuguard.errors import ActionRefused, StoreFailed
    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.control import Word
    from gpuguard.runtime.known import config_path, find_subject, look_up, state_dir
    from gpuguard.runtime.person import UNWRITTEN, must_say_something, speak

    must_say_something(args)
    folder = state_dir(args)
    known = look_up(folder, clock)
    try:
        _, health = known.memory()
        whom = find_subject(health, args.gpu or args.job) if args.gpu or args.job else None
        code = args.finding.lower()
        holders = [s for s in _holders(health, code) if whom is None or s.id == whom.id]
    finally:
        known.close()
    if not holders:
        raise ActionRefused(f"{code} does not stand{f' on {whom.id}' if whom else ''}; {_standing(health)}")
    word = Word(verb="ack", by=args.by, reason=args.reason, code=code, subject=whom.id if whom else None)
    parts = assemble(config_path(args), with_sources=False)
    told = speak(folder, parts, word, alive=known.alive, clock=clock, target=target)
    after = look_up(folder, clock)
    try:
        _, now = after.memory()
    finally:
        after.close()
    if any(s.id in {old.id for old in holders} for s in _holders(now, code)):
        raise StoreFailed(UNWRITTEN)
    return _tell(args, code, told.message, holders, now)


def _holders(health: "Health", code: str) -> "list[SubjectHealth]":
    return [s for s in health.subjects.values() if any(f.finding.code == code for f in s.standing)]


def _cleared(old: "SubjectHealth", code: str, now: "SubjectHealth") -> list[str]:
    """The codes that the person's word ended on this subject, the one that was named first."""
    from gpuguard.incident.join import explained_by

    root = next(s for s in old.standing if s.finding.code == code)
    left = {s.finding.code for s in now.standing}
    return [code, *(lesser for lesser in explained_by(root, old.standing) if lesser not in left)]


def _standing(health: "Health") -> str:
    from gpuguard.runtime.words import listed

    found = [
        f"{standing.finding.code} on {subject.pci or subject.id}"
        for subject in health.subjects.values()
        for standing in subject.standing
    ]
    return f"what stands is {listed(found)}" if found else "nothing stands on this node"


def _tell(args: Namespace, code: str, message: str, before: "list[SubjectHealth]", health: "Health") -> int:
    from gpuguard.runtime.words import page

    subjects = [health.subject(s.id) for s in before]
    if args.json:
        import json

        facts = {
            "done": True, "finding": code, "by": args.by, "reason": args.reason,
            "subjects": [
                {
                    "subject": s.id, "before": old.state, "state": s.state, "remedy": s.remedy,
                    "cleared": _cleared(old, code, s), "findings": [f.finding.code for f in s.standing],
                }
                for old, s in zip(before, subjects, strict=True)
            ],
            "drain": health.drain.state if health.drain else None,
        }  # fmt: skip
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        sys.stdout.write(page(_lines(args, code, message, before, health)))
    return 0


def _lines(args: Namespace, code: str, message: str, before: "list[SubjectHealth]", health: "Health") -> Iterator[str]:
    from gpuguard.runtime.words import listed, named, paragraph

    yield from paragraph(f"{code} is acknowledged by {args.by}: {args.reason} ({message}).")
    for old in before:
        now = health.subject(old.id)
        _, *lesser = _cleared(old, code, now)
        also = f"; with it {listed(lesser)}" if lesser else ""
        rest = [f.finding.code for f in now.standing if f.finding.severity != "info"]
        more = f"; still stands: {', '.join(rest)}" if rest else ""
        yield from paragraph(
            f"{named(now)}: {old.state} -> {now.state}; cleared: {code}{also}{more}", indent=2, hanging=2
        )
    drain = health.drain
    if drain is None:
        yield from paragraph("No drain of gpuguard's stands on this node.", indent=2)
    elif any(health.subject(old.id).state == "returning" for old in before):
        yield from paragraph(
            f"The drain {drain.token} is given back once the part stayed clean; `gpuguard resume --yes` does it now.",
            indent=2, hanging=2,
        )  # fmt: skip
    else:
        yield from paragraph(f"The drain {drain.token} is {drain.state}: {drain.reason}", indent=2, hanging=2)
