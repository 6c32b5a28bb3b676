"""What would gpuguard have done with this log?

Reads kernel logs as `gpuguard scan` does (any printed form, gzip, `-` for standard input), oldest first, and prints
every decision in order, on the log's own clock: faults that end by silence and probations end when the log gets so
far. It shows what a node set to act would do, with each action done at once; nothing is acted on and nothing is
written. A stamp that falls back to the beginning is a reboot; files in the wrong order are told of on standard error.
Only a log sees these faults, so what needs another witness stays held. Without --config the shipped settings count,
not this machine's.
Exit code 0: nothing needs attention, 1: something does, 2: a PATH could not be read.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from io import BufferedIOBase
from typing import TYPE_CHECKING

from gpuguard.errors import ReadFailed
from gpuguard.runtime.printed_log import opened, printable, rfc3339

if TYPE_CHECKING:
    from gpuguard.health.policy import Settings
    from gpuguard.health.state import Health
    from gpuguard.kernel_log.reader import Found
    from gpuguard.model.events import AnyEvent
    from gpuguard.model.health import Decision, Transition
    from gpuguard.model.ids import EventId
    from gpuguard.model.instants import Instant
    from gpuguard.ports import AnyDetector, Record

EXAMPLE = "gpuguard replay --policy strict /var/log/kern.log.1 /var/log/kern.log"

WIDTH = 80
# printk's stamps are not quite in order over CPUs, by far less than this; a boot takes longer to reach a driver.
FALLS_BACK = 60.0
# Sums of seconds since 1970 are exact to 0.2 us only, and a hold that is a hair short would be told of for ever.
NUDGE = 0.001
ACTIONS_IN_WORDS = {
    "none": "nothing to do", "watch": "watch it", "test": "test it when idle", "drain": "DRAIN",
    "reset_gpu": "RESET the GPU", "reboot_node": "REBOOT the node", "replace": "REPLACE the part",
    "release": "RELEASE",
}  # fmt: skip


def arguments(parser: ArgumentParser) -> None:
    """The options of replay."""
    parser.add_argument("path", nargs="+", metavar="PATH", help="a kernel log, `-` for standard input")
    parser.add_argument("--json", action="store_true", help="one JSON object a decision")
    parser.add_argument(
        "--policy", choices=("default", "strict", "observe"), help="strict: any Xid takes the GPU out; observe: nothing"
    )
    parser.add_argument("--config", metavar="FILE", help="a site's configuration instead of the shipped settings")
    parser.add_argument(
        "--trust-user", action="store_true", help="also believe what a process wrote into the log (for drills)"
    )


def run(args: Namespace) -> int:
    """Prints the decisions."""
    import dataclasses
    import os
    from pathlib import Path

    from gpuguard.runtime.assembly import assemble

    parts = assemble(Path(args.config or os.devnull), with_sources=False)
    settings = dataclasses.replace(parts.policy, mode="drain", name=args.policy or parts.policy.name)
    print_one = _print_json if args.json else _print_text
    lines = files = unread = 0
    replay, order = Replay(parts.detectors, settings), _Order()
    for path in args.path:
        log = _Log(path, trust_user=args.trust_user)
        for found in log.read():
            order.read(found.record.utc, path)
            for told in replay.take(found, path):
                print_one(told)
        lines, files, unread = lines + log.lines, files + 1, unread + log.failed
    if not args.json:
        sys.stdout.write(_summary(replay, lines, files))
    return 2 if unread else int(replay.attention)


class LogClock:
    """The time in a log: one line of seconds, whatever its lines carry.

    Each of the two stamps a line can bear, seconds since boot and a date, is tied to that line of seconds when it is
    first met: by the other stamp beside it, else by the line before. A line without any has the time of the one
    before. A stamp since boot that falls back while the date does not is a reboot.
    """

    def __init__(self) -> None:
        self.boots = 1
        self._mono = 0.0
        self._stamp: float | None = None
        self._utc: float | None = None
        self._of_stamp: float | None = None  # what is added to a stamp since boot
        self._of_utc: float | None = None  # what is added to a date

    def read(self, record: "Record") -> "tuple[Instant, bool]":
        """The moment of a line, and whether the machine was started anew before it."""
        stamp, utc = record.boot_seconds, record.utc
        rebooted = self._rebooted(stamp, utc)
        if rebooted:
            self.boots += 1
            self._mono = 0.0
            self._of_stamp = self._of_utc = None
        if stamp is not None and self._of_stamp is None:
            self._of_stamp = 0.0 if self._of_utc is None else self._seconds_of(utc) - stamp
        if stamp is not None and self._of_stamp is not None:
            self._mono = stamp + self._of_stamp
        elif utc is not None:
            if self._of_utc is None:
                self._of_utc = 0.0 if self._of_stamp is None else self._mono - utc
            self._mono = max(self._mono - FALLS_BACK, utc + self._of_utc)
        if utc is not None:
            self._of_utc = self._mono - utc
        self._stamp = stamp if stamp is not None else self._stamp
        self._utc = utc if utc is not None else self._utc
        return self._instant(self._mono, utc), rebooted

    def _rebooted(self, stamp: float | None, utc: float | None) -> bool:
        if stamp is None or self._stamp is None or stamp >= self._stamp - FALLS_BACK:
            return False
        # Both fall back: an older part of the log was given after a newer one.
        return utc is None or self._utc is None or utc >= self._utc

    def _seconds_of(self, utc: float | None) -> float:
        return self._mono if utc is None or self._of_utc is None else utc + self._of_utc

    def at(self, mono: float) -> "Instant":
        """A moment between two lines."""
        return self._instant(mono, None if self._of_utc is None else mono - self._of_utc)

    def boot_seconds(self, mono: float) -> float | None:
        """Seconds since boot of a moment, where the log tells them."""
        return None if self._of_stamp is None else round(mono - self._of_stamp, 6)

    def _instant(self, mono: float, utc: float | None) -> "Instant":
        from gpuguard.model.ids import BootId
        from gpuguard.model.instants import Instant

        boot = BootId("log" if self.boots == 1 else f"log-{self.boots}")
        return Instant(boot=boot, mono=mono, utc=utc)


class _Order:
    """Whether the PATHs were given oldest first: a shell's `kern.log*` has the newest first.

    Told by the dates of the reports; a stamp since boot that falls back may as well be a reboot.
    """

    def __init__(self) -> None:
        self._path: str | None = None
        self._latest: float | None = None
        self._latest_path: str | None = None

    def read(self, utc: float | None, path: str) -> None:
        """A report of `path`; one that is older than the files before it is told of on standard error, once a file."""
        if utc is None:
            return
        if path != self._path and self._latest is not None and utc < self._latest - FALLS_BACK:
            sys.stderr.write(
                f"gpuguard replay: {path} begins at {rfc3339(utc, digits=0)}, before {self._latest_path} ended at "
                f"{rfc3339(self._latest, digits=0)}: what follows is out of order; name the files oldest first\n"
            )
        self._path = path
        if self._latest is None or utc > self._latest:
            self._latest, self._latest_path = utc, path


class Told:
    """One decision, and the stamps it is printed with."""

    def __init__(self, transition: "Transition", boot_seconds: float | None) -> None:
        self.transition = transition
        self.boot_seconds = boot_seconds


class Replay:
    """The real core over a log. `attention` is whether anything needed it."""

    def __init__(self, detectors: "tuple[AnyDetector, ...]", settings: "Settings") -> None:
        self._detectors, self._settings = detectors, settings
        self._clock = LogClock()
        self._health: Health | None = None
        self._due: float | None = None  # the earliest moment at which time alone may change a verdict
        self._outcomes = 0
        self.attention = False
        self.counts: Counter[str] = Counter()

    @property
    def health(self) -> "Health | None":
        """What is true at the end; None when the log told nothing."""
        return self._health

    def take(self, found: "Found", path: str) -> "Iterator[Told]":
        """The decisions that follow from one report."""
        from gpuguard.health.state import Health
        from gpuguard.model.events import Booted, LogLine
        from gpuguard.model.ids import EventId

        before = self._clock.boots
        at, rebooted = self._clock.read(found.record)
        if self._health is None:
            self._health = Health(now=at)
        if rebooted:
            previous = self._health.boot
            boot = Booted(id=EventId(f"boot:{before + 1}"), at=at, previous=previous)
            yield from self._decide(boot, found.record.boot_seconds)
        else:
            yield from self._let_pass(at.mono)
        line = LogLine(
            id=EventId(f"{path}:{found.line}"), at=at, source="logfile" if found.parsed.kind == "fm_sxid" else "kmsg",
            parsed=found.parsed, raw=found.record.text, file=path, line=found.line, repeated=found.record.repeated,
        )  # fmt: skip
        yield from self._decide(line, found.record.boot_seconds)

    def _let_pass(self, until: float) -> "Iterator[Told]":
        """What ends by itself before the next line has ended, in order."""
        from gpuguard.model.events import Tick
        from gpuguard.model.ids import EventId

        while self._due is not None and self._due <= until:
            at = self._clock.at(self._due + NUDGE)
            yield from self._decide(Tick(id=EventId(f"tick:{at.mono:.3f}"), at=at), self._clock.boot_seconds(at.mono))
            self._due = self._next_due(at.mono)

    def _next_due(self, after: float) -> float | None:
        from gpuguard.health.machine import dues

        assert self._health is not None, "time passes only after a first line"
        boot, proof = self._health.boot, self._settings.proof
        coming = [
            due.mono for subject in self._health.subjects.values() for due in dues(subject, proof) if due.boot == boot
        ]
        return min((due for due in coming if due > after), default=None)

    def _decide(self, event: "AnyEvent", boot_seconds: float | None) -> "Iterator[Told]":
        from gpuguard.health.decide import decide

        assert self._health is not None, "the first line made it"
        self._health, decision = decide(self._health, event, self._detectors, self._settings)
        for transition in decision.transitions:
            self.counts[transition.action] += 1
            self.attention = self.attention or transition.severity != "info"
            yield Told(transition, boot_seconds)
        if decision.urgent or decision.keep_event or self._due is None:
            self._due = self._next_due(event.at.mono)
        yield from self._enact(event, decision, boot_seconds)

    def _enact(self, event: "AnyEvent", decision: "Decision", boot_seconds: float | None) -> "Iterator[Told]":
        """Every wish about the drain is answered at once: done. What would be done to hardware is not told to have
        been."""
        from gpuguard.custody.ownership import about_the_drain
        from gpuguard.model.events import ActionOutcome
        from gpuguard.model.ids import EventId

        for owed in decision.owed:
            if owed.cancelled or not about_the_drain(owed.action.verb):
                continue
            self._outcomes += 1
            done = ActionOutcome(
                id=EventId(f"outcome:{self._outcomes}"), at=event.at, key=owed.action.key, result="done",
                message="replayed, not done",
            )  # fmt: skip
            yield from self._decide(done, boot_seconds)


class _Log:
    """One PATH. What cannot be read is told on standard error."""

    def __init__(self, path: str, *, trust_user: bool) -> None:
        self._path, self._trust_user = path, trust_user
        self.lines = 0
        self.failed = False

    def read(self) -> "Iterator[Found]":
        """Its reports in order."""
        try:
            with opened(self._path) as file:
                yield from self._stream(file)
        except ReadFailed as error:
            self._tell(str(error))

    def _stream(self, file: BufferedIOBase) -> "Iterator[Found]":
        from gpuguard.kernel_log.stream import CHUNK, LogStream

        stream = LogStream(trust_user=self._trust_user)
        while chunk := file.read(CHUNK):
            yield from stream.feed(chunk)
        yield from stream.finish()
        self.lines = stream.lines

    def _tell(self, why: str) -> None:
        self.failed = True
        sys.stderr.write(f"gpuguard replay: {self._path}: {why}\n")


def row(told: Told) -> dict[str, object]:
    """The object of `replay --json`, with the keys of the contract in their order."""
    transition = told.transition
    return {
        "at": rfc3339(transition.at.utc),
        "boot_seconds": told.boot_seconds,
        "subject": transition.subject,
        "uuid": transition.uuid,
        "finding": transition.finding,
        "severity": transition.severity,
        "action": transition.action,
        "state": transition.state,
        "reason": transition.reason,
        "because": [place for event_id in transition.because if (place := _place(event_id)) is not None],
    }


def _place(event_id: "EventId") -> dict[str, object] | None:
    """The line that an event is; None for what is none, as an end by time."""
    file, _, line = event_id.rpartition(":")
    if not line.isdecimal() or file in ("", "outcome", "boot"):
        return None
    return {"file": file.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"), "line": int(line)}


def _print_json(told: Told) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.encode(row(told)).decode() + "\n")


def _print_text(told: Told) -> None:
    sys.stdout.write(text(told))


def text(told: Told) -> str:
    """A decision for people, in lines of at most 80 columns."""
    import textwrap

    transition = told.transition
    when = rfc3339(transition.at.utc, digits=0)
    if when is None:
        when = f"[{told.boot_seconds:.6f}]" if told.boot_seconds is not None else "[no time]"
    moved = transition.state if transition.before == transition.state else f"{transition.before} -> {transition.state}"
    action = ACTIONS_IN_WORDS[transition.action]
    out = [f"{when}  {transition.subject}  {moved}  {action}"]
    because = [f"{place['file']}:{place['line']}" for e in transition.because if (place := _place(e))]
    words = f"{transition.finding} ({transition.severity}): {transition.reason}"
    paper = textwrap.TextWrapper(WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    out += paper.wrap(printable(words))
    if because:
        out += paper.wrap(printable("see " + ", ".join(because)))
    return "\n".join(out) + "\n"


def _summary(replay: Replay, lines: int, files: int) -> str:
    from gpuguard.health.policy import component

    counts = replay.counts
    parts = [f"{_many(counts.total(), 'decision')} from {_many(lines, 'line')} of {_many(files, 'file')}"]
    deeds = [f"{counts[name]} x {name}" for name in sorted(counts) if name != "none"]
    parts.append(", ".join(deeds) if deeds else "nothing to do")
    subjects = replay.health.subjects.values() if replay.health else ()
    left = [f"{component(s)} {s.state}" for s in subjects if s.state != "healthy"]
    parts.append(f"in the end {', '.join(left)}" if left else "in the end nothing is wrong")
    import textwrap

    return "\n".join(textwrap.wrap("; ".join(parts), WIDTH)) + "\n"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
