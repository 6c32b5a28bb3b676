"""Who held how much memory of a GPU, for how long, and when it was given back.

A process holds memory from when it was first seen to until its GPU is asked and names it no more, or names it with
nothing. That nobody could ask is no release: a row that is unknown, a source that is away, a GPU that does not answer.
After a reboot there are other processes. A number that comes back with another name is another process, and so is one
that comes back after it gave its memory back.

A row outlives its sweep by up to three sweeps, so a release is told that much late.
"""

from collections.abc import Iterator, Mapping

import msgspec

from gpuguard.model.ids import PciAddress, SubjectId, gpu, kind_of
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.readings import Row, Values

KEPT = 3600.0  # seconds that a record is kept after its end: long enough to be asked "who was that?"
MOST = 128  # records of a node: eight GPUs with a dozen processes each


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """One process on one GPU: `since` when it holds memory there, when it was `seen` to last, at most `peak` bytes.

    `released` is when it was found to hold none, None while it holds some.
    """

    name: str
    since: Instant
    seen: Instant
    peak: int
    released: Instant | None = None

    def values(self, at: Instant) -> Values:
        """The columns that follow: how long until it was last seen, or until it gave the memory back."""
        values: Values = {
            "process_held_seconds": max(0.0, seconds_between(self.since, self.seen) or 0.0),
            "process_peak_bytes": self.peak,
        }
        if self.released is not None:
            values["process_released_seconds"] = max(0.0, seconds_between(self.released, at) or 0.0)
        return values


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a node, by the subject of the process on the GPU."""

    records: dict[SubjectId, Holding] = {}

    def seen(self, rows: Mapping[SubjectId, Row], at: Instant) -> "Holdings":
        """With what is known of all processes and GPUs at this moment."""
        measured = {
            subject
            for subject, row in rows.items()
            if kind_of(subject) == "gpu" and row.number("process_count") is not None
        }
        records = {
            subject: _told(holding, rows.get(subject), _gpu_of(subject) in measured, at)
            for subject, holding in self.records.items()
            if holding.since.boot == at.boot and not _is_old(holding, at)
        }
        for subject, row in rows.items():
            held = row.number("process_memory_bytes") if kind_of(subject) == "process" else None
            if held is not None and held > 0 and not _goes_on(records.get(subject), row):
                name = row.text("process_name") or ""
                records[subject] = Holding(name=name, since=at, seen=at, peak=int(held))
        return Holdings(records=_bounded(records))

    def values(self, at: Instant) -> Iterator[tuple[SubjectId, Values]]:
        """The columns of each process that holds memory, or did within the last hour."""
        for subject, holding in self.records.items():
            yield subject, holding.values(at)


def _told(holding: Holding, row: Row | None, measured: bool, at: Instant) -> Holding:
    """The record with what is known now; one that is over stays as it is."""
    if holding.released is not None:
        return holding
    if row is None:
        return msgspec.structs.replace(holding, released=at) if measured else holding
    held = row.number("process_memory_bytes")
    if held == 0:
        return msgspec.structs.replace(holding, released=at)
    name = holding.name or row.text("process_name") or ""
    return msgspec.structs.replace(holding, name=name, seen=at, peak=max(holding.peak, int(held or 0)))


def _goes_on(holding: Holding | None, row: Row) -> bool:
    """Whether the row is of the process that there is a record of."""
    if holding is None or holding.released is not None:
        return False
    name = row.text("process_name")
    return not name or not holding.name or name == holding.name


def _is_old(holding: Holding, at: Instant) -> bool:
    return (seconds_between(holding.released or holding.seen, at) or 0.0) > KEPT


def _bounded(records: dict[SubjectId, Holding]) -> dict[SubjectId, Holding]:
    """The newest of them: those that are over go first, then those that are held longest."""
    if len(records) <= MOST:
        return records

    def place(subject: SubjectId) -> tuple[bool, float]:
        holding = records[subject]
        return holding.released is None, (holding.released or holding.since).mono

    order = sorted(records, key=place)
    dropped = frozenset(order[: len(records) - MOST])
    return {subject: holding for subject, holding in records.items() if subject not in dropped}


def _gpu_of(process: SubjectId) -> SubjectId:
    """The GPU in the name of a process on it, process:<pci>/<pid>."""
    return gpu(PciAddress(process.partition(":")[2].rpartition("/")[0]))
