"""The queue between sources and the loop: bounded, and never a reason for a source to wait.

A source that waited here would lose records elsewhere (the kernel's ring), without a count. So the mailbox takes
everything, and when the loop falls behind it makes room in this order: identical reports are merged and counted in
`repeated`; then the class of report with the most members (same kind, code and address) is thinned, oldest and
newest kept, and what went is counted in a LinesLost; then all reports of a source are. Nothing else is ever dropped.

Order and cursors: batches of one source stay in order. Where room is made, all batches of a source become one, with the
newest cursor, so that a cursor is never handed over before the events it stands for.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from gpuguard.model.events import AnyEvent, Batch, GpuProbed, LinesLost, LogLine, Sweep
from gpuguard.model.ids import EventId

LIMIT = 4096  # events; a LogLine takes about 1.5 KiB, so 6 MiB: fits the agent's 70 MiB in a flood
HANDED_OVER = 512  # events that get() joins into one batch, so that a flood costs one commit and not hundreds
KEPT_OF_A_CLASS = 64  # reports of one class that thinning leaves, half from either end
KEPT_AT_LEAST = 8  # where that is not enough: classes are thinned further before any report of a small one goes

_Key = tuple[str | int | None, ...]


def merge_repeats(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """The events with the repeats of a report merged: its first and its last stay where they are, and the last
    speaks for all between them.

    Both ends stay because some reports set a level (the recovery action of Xid 154 goes up, down and up again): what
    came last must be last. Probes of an address and sweeps of a class keep the newest only, losses of one reason become
    one count.
    """
    alike: dict[_Key, list[int]] = {}
    for index, event in enumerate(events):
        if isinstance(event, LogLine):
            alike.setdefault(("line", event.source, event.raw, event.file, event.backlog), []).append(index)
        elif isinstance(event, LinesLost):
            alike.setdefault(("lost", event.source, event.reason), []).append(index)
        elif isinstance(event, GpuProbed):
            alike.setdefault(("probe", event.source, event.pci), []).append(index)
        elif isinstance(event, Sweep):
            alike.setdefault(("sweep", event.source, event.rate), []).append(index)
    merged: list[AnyEvent | None] = list(events)
    for key, places in alike.items():
        rest = places[1:] if key[0] == "line" else places
        if len(rest) < 2:
            continue
        last = events[rest[-1]]
        if isinstance(last, LogLine):
            last = replace(last, repeated=_reports(events[index] for index in rest))
        elif isinstance(last, LinesLost):
            last = replace(last, count=sum(e.count for i in rest if isinstance(e := events[i], LinesLost)))
        for index in rest:
            merged[index] = None
        merged[rest[-1]] = last
    return [event for event in merged if event is not None]


def thin_classes(
    events: Sequence[AnyEvent], room: int, *, kept: int = KEPT_OF_A_CLASS, fine: bool = True
) -> tuple[list[AnyEvent], dict[str, int]]:
    """At most `room` events, as far as dropping from the largest classes gets there, and the reports dropped by source.

    A class is a kind, a code and an address, or with `fine` false all reports of a source; `kept` of it stay. What
    goes leaves a LinesLost in its place, so the count stands where the hole is.
    """
    members: dict[_Key, list[int]] = {}
    for index, event in enumerate(events):
        if isinstance(event, LogLine):
            key: _Key = (event.source,)
            if fine:
                key = (event.source, event.parsed.kind, event.parsed.xid, event.parsed.pci)
            members.setdefault(key, []).append(index)
    thinned: list[AnyEvent | None] = list(events)
    size = len(events)
    lost: dict[str, int] = {}
    for key, places in sorted(members.items(), key=lambda item: (-len(item[1]), item[1][0])):
        if size <= room or len(places) <= kept + 1:
            break
        gone = places[kept // 2 : -(kept // 2)]
        count = _reports(events[index] for index in gone)
        source = str(key[0])
        lost[source] = lost.get(source, 0) + count
        what = " ".join(str(word) for word in key[1:] if word is not None) or "all kinds"
        for index in gone:
            thinned[index] = None
        thinned[gone[0]] = LinesLost(
            id=EventId(f"lost:{events[gone[0]].id}+{len(gone)}"),
            at=events[gone[-1]].at,
            source=source,
            count=count,
            reason=f"more reports than could be judged ({what}); the first and the last were kept",
        )
        size -= len(gone) - 1
    return [event for event in thinned if event is not None], lost


def _reports(events: Iterable[AnyEvent]) -> int:
    return sum(event.repeated for event in events if isinstance(event, LogLine))


class Mailbox:
    """Batches on their way to the loop. `put` from any thread, `get` from the loop alone."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._ready = threading.Condition()
        self._batches: deque[Batch] = deque()
        self._events = 0
        self._closed = False
        self._lost: dict[str, int] = {}
        self._compact_at = limit

    def put(self, batch: Batch) -> None:
        """The batch waits for the loop. Never blocks longer than making room takes."""
        if not batch.events and batch.cursor is None:
            return
        with self._ready:
            self._batches.append(batch)
            self._events += len(batch.events)
            if self._events > self._compact_at or len(self._batches) > self._compact_at:
                self._make_room()
            self._ready.notify()

    def get(self, timeout: float | None = None) -> Batch | None:
        """The oldest batch, joined with those of the same source right behind it; None when none came in time.

        Waits without waking up in between. After `close` what is left is still handed over.

        Units   seconds
        """
        with self._ready:
            if not self._batches and not self._closed:
                self._ready.wait(timeout)
            if not self._batches:
                return None
            first = self._batches.popleft()
            joined = [first]
            size = len(first.events)
            while (
                self._batches
                and self._batches[0].source == first.source
                and size + len(self._batches[0].events) <= HANDED_OVER
            ):
                following = self._batches.popleft()
                joined.append(following)
                size += len(following.events)
            self._events -= size
            self._compact_at = max(self._limit, min(self._compact_at, 2 * self._events))
        return first if len(joined) == 1 else _join(joined, merge=False)

    def close(self) -> None:
        """Whoever waits in `get` goes on at once, and nobody waits again."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def depth(self) -> int:
        """Events waiting."""
        return self._events

    def lost(self) -> dict[str, int]:
        """Reports dropped here so far, by source."""
        with self._ready:
            return dict(self._lost)

    def _make_room(self) -> None:
        by_source: dict[str, list[Batch]] = {}
        for batch in self._batches:
            by_source.setdefault(batch.source, []).append(batch)
        compact = {source: _join(batches, merge=True) for source, batches in by_source.items()}
        room = self._limit // 2
        for kept, fine in ((KEPT_OF_A_CLASS, True), (KEPT_AT_LEAST, True), (max(room // 4, 2), False)):
            for source in sorted(compact, key=lambda name: -len(compact[name].events)):
                excess = sum(len(batch.events) for batch in compact.values()) - room
                if excess <= 0:
                    break
                batch = compact[source]
                events, lost = thin_classes(batch.events, len(batch.events) - excess, kept=kept, fine=fine)
                compact[source] = replace(batch, events=tuple(events))
                for name, count in lost.items():
                    self._lost[name] = self._lost.get(name, 0) + count
        self._batches = deque(compact.values())
        self._events = sum(len(batch.events) for batch in self._batches)
        # What cannot shrink is kept; looking again at every put would make a flood quadratic.
        self._compact_at = max(self._limit, 2 * self._events)


def _join(batches: list[Batch], *, merge: bool) -> Batch:
    events: list[AnyEvent] = [event for batch in batches for event in batch.events]
    cursor = next((batch.cursor for batch in reversed(batches) if batch.cursor is not None), None)
    return Batch(source=batches[0].source, events=tuple(merge_repeats(events) if merge else events), cursor=cursor)
