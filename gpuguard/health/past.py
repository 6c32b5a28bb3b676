"""Faults of a board and of a machine, remembered beyond their repair: what failed lately is likelier to fail again.

Theory. A board is known by its serial number, or by its UUID where it has none; so its record goes with it to another
slot, and a board that took its place begins at zero. A machine is known by its own serial: whatever became unfit in it
counts for it too, as a slot, a riser or a power supply outlives the boards that suffer from it.
A fault weighs `Settings.fault`, and half of that after each `half_life`. The sum does not depend on the order in which
faults are told. Ages are of UTC, since monotonic time does not survive a boot; so the newest moment that was seen is
kept. A clock that was set back makes nothing young again: every score stays what it was and goes on from the new
time. One that was far ahead for a while has aged what it met, and no more than that.
A GPU of which neither serial nor UUID is known, as one that was lost before it was ever asked, is remembered by its
machine alone: the next board at its address is not to inherit.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NewType

import msgspec

from gpuguard.model.health import SubjectHealth, Transition
from gpuguard.model.ids import NODE, SubjectId, kind_of
from gpuguard.model.instants import Instant
from gpuguard.model.past import Record, decay
from gpuguard.model.readings import Values
from gpuguard.model.units import Seconds

# `serial/1650000000001`, `uuid/GPU-...`, `node/<its serial>`.
Key = NewType("Key", str)

DAY = 86400.0
# Boards and machines that are remembered; a node sees fewer boards than that in its life.
KEPT = 256
# The driver's serials have 13 digits, those of makers of servers some 20 letters.
NAME_KEPT = 64
# While nothing happens, the newest moment is noted this often, and a set-back clock may make scores this much younger.
# Units: seconds
NOTED_EVERY = 3600.0
# What people run is no part of the machine.
NO_HARDWARE = ("job", "rank", "task", "process")
COLUMN = "node_serial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a fault weighs, and how soon that is forgotten."""

    half_life: Seconds = Seconds(10 * DAY)  # after this long a fault weighs half as much
    fault: float = 1.0  # what a confirmed fault that made its subject unfit weighs
    repeat: float = 0.5  # what a mild fault weighs that came while its subject was on probation

    def __post_init__(self) -> None:
        """Raises ValueError for what would make scores grow, or forget at once."""
        if self.half_life < 60.0:
            raise ValueError("half_life: must be at least 60 seconds")
        for name in ("fault", "repeat"):
            if not 0.0 <= getattr(self, name) <= 100.0:
                raise ValueError(f"{name}: must be between 0 and 100")


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """All that is remembered, at most KEPT records. `node` is this machine's serial, None until it was told; `newest`
    the latest moment that was noted, in seconds since 1970."""

    node: str | None = None
    newest: float = 0.0
    records: dict[Key, Record] = {}


def named(past: Past, rows: Mapping[SubjectId, Values]) -> Past:
    """The past of the machine that a sweep names; the same where it says nothing new.

    Reads   the column node_serial of the node's row
    """
    serial = rows.get(NODE, {}).get(COLUMN)
    if not isinstance(serial, str) or not serial or serial[:NAME_KEPT] == past.node:
        return past
    return msgspec.structs.replace(past, node=serial[:NAME_KEPT])


def makes_unfit(told: Transition) -> bool:
    """Whether this change is a fault to remember: a part of the machine became unfit."""
    return told.state == "unfit" and told.before != "unfit" and kind_of(told.subject) not in NO_HARDWARE


def remember(
    past: Past, subject: SubjectHealth, code: str, at: Instant, now: Instant, settings: Settings, *, mild: bool = False
) -> Past:
    """With one more fault of this subject, and of the machine it is in. `mild` is a lesser one during probation.

    What cannot be dated is not remembered: nobody could say how old it is.
    """
    utc, present = at.utc, now.utc
    if utc is None or present is None or kind_of(subject.id) in NO_HARDWARE:
        return past
    past = msgspec.structs.replace(_clocked(past, present), newest=present)
    # A line that was printed while the clock was ahead is of now at the latest.
    utc = min(utc, present)
    fault = Record(
        score=settings.repeat if mild else settings.fault, as_of=utc, faults=1, last_utc=utc, last_code=code,
        half_life=settings.half_life,
    )  # fmt: skip
    records = dict(past.records)
    for key, *others in filter(None, (_board(subject), _machine(past))):
        known = [records.pop(name) for name in (key, *others) if name in records]
        records[key] = _joined((fault, *known))
    return msgspec.structs.replace(past, records=_bounded(records, present))


def aged(past: Past, now: Instant) -> Past:
    """The past with the newest moment noted; the same while that would tell nothing new.

    To be called with each tick: it changes something once in NOTED_EVERY, when the clock was set back, and never where
    nothing is remembered.
    """
    if now.utc is None or not past.records or 0.0 <= now.utc - past.newest < NOTED_EVERY:
        return past
    return msgspec.structs.replace(_clocked(past, now.utc), newest=now.utc)


def score(past: Past, key: Key, now: float) -> float:
    """How faulty it was of late, at `now` in seconds since 1970; 0 where nothing is remembered."""
    record = past.records.get(key)
    return 0.0 if record is None else record.score_at(max(now, past.newest))


def of(past: Past, subject: SubjectHealth) -> Record | None:
    """What is remembered of a GPU's board or, for the node, of this machine; None where nothing is.

    Its score is as of the newest moment that was noted, so that no clock makes it greater.
    """
    keys = _machine(past) if subject.id == NODE else _board(subject)
    known = [past.records[key] for key in keys if key in past.records]
    return _at(_joined(known), past.newest) if known else None


def elsewhere(past: Past, subjects: Iterable[SubjectHealth]) -> dict[Key, Record]:
    """What is remembered of boards that none of these subjects is, and of machines that this one is not."""
    known = {*_machine(past), *(key for subject in subjects for key in _board(subject))}
    return {key: _at(record, past.newest) for key, record in sorted(past.records.items()) if key not in known}


def _board(subject: SubjectHealth) -> tuple[Key, ...]:
    """The keys under which a GPU's board may be remembered, the one to use first."""
    if kind_of(subject.id) != "gpu":
        return ()
    serial, uuid = subject.serial, subject.uuid
    keys = [Key(f"serial/{serial[:NAME_KEPT]}")] if serial else []
    return (*keys, Key(f"uuid/{uuid[:NAME_KEPT]}")) if uuid else tuple(keys)


def _machine(past: Past) -> tuple[Key, ...]:
    return (Key(f"node/{past.node}"),) if past.node else ()


def _joined(records: Iterable[Record]) -> Record:
    """One record of several of the same board: whichever is told first, the sum is the same."""
    several = list(records)
    as_of = max(record.as_of for record in several)
    newest = max(several, key=lambda record: (record.last_utc, record.last_code))
    # The fault that is told now stands first: what it says of half-lives is what the site wants now.
    half_life = several[0].half_life
    return Record(
        score=sum(record.score * decay(as_of - record.as_of, half_life) for record in several), as_of=as_of,
        faults=sum(record.faults for record in several), last_utc=newest.last_utc, last_code=newest.last_code,
        half_life=half_life,
    )  # fmt: skip


def _at(record: Record, utc: float) -> Record:
    """The same record with its score as of a later moment."""
    if utc <= record.as_of:
        return record
    return msgspec.structs.replace(record, score=record.score_at(utc), as_of=utc)


def _clocked(past: Past, utc: float) -> Past:
    """Scores that go on from `utc`: where the clock was set back, each is what it was before that."""
    if utc >= past.newest:
        return past
    dated = {
        key: msgspec.structs.replace(record, score=record.score_at(past.newest), as_of=utc)
        for key, record in past.records.items()
    }
    return msgspec.structs.replace(past, records=dated)


def _bounded(records: dict[Key, Record], utc: float) -> dict[Key, Record]:
    """At most KEPT: those go first that weigh least by now."""
    if len(records) <= KEPT:
        return records
    least = sorted(records, key=lambda key: (records[key].score_at(utc), records[key].last_utc, key))
    return {key: record for key, record in records.items() if key not in least[: len(records) - KEPT]}
