"""What was measured last, and what of it is new with one event: the working copy while that event is decided."""

from collections.abc import Iterable, Mapping, Sequence, Set

from gpuguard.model.events import Sweep
from gpuguard.model.ids import SubjectId, kind_of
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.readings import Group, Rate, Readings, Row, SubjectKind, Values, merged


class Board:
    """The newest readings; those it was made from are not changed.

    `rows` are those of the subjects of which this event brought something, and `brought` the columns it brought.
    """

    def __init__(self, readings: Readings) -> None:
        """As it stood before the event."""
        self.readings = readings
        self.rows: dict[SubjectId, Row] = {}
        self.brought: dict[SubjectId, Set[str]] = {}
        self._by_kind: dict[str, list[Row]] = {}

    def take(
        self, source: str, rate: Rate, valid_for: float, rows: Mapping[SubjectId, Values], event: Sweep
    ) -> None:  # fmt: skip
        """These rows are the newest of their source and class."""
        key = f"{source}/{rate}"
        readings = dict(self.readings)
        for name, values in rows.items():
            group = Group(source=source, rate=rate, at=event.at, valid_for=valid_for, values=values)
            readings[name] = groups = {**readings.get(name, {}), key: group}
            self.rows[name] = Row(subject=name, at=event.at, source=event.source, values=merged(groups, event.at))
            columns = values.keys()
            self.brought[name] = columns | self.brought[name] if name in self.brought else columns
        self.readings = readings
        self._by_kind = {}

    def new(self, kinds: Sequence[SubjectKind]) -> list[Row]:
        """The rows of these kinds of which this event brought something."""
        if len(self._by_kind) == 0:
            for name, row in self.rows.items():
                self._by_kind.setdefault(kind_of(name), []).append(row)
        return [row for kind in kinds for row in self._by_kind.get(kind, ())]

    def brings(self, columns: Iterable[str]) -> bool:
        """Whether one of these columns is new, of any subject."""
        wanted = frozenset(columns)
        return any(not wanted.isdisjoint(brought) for brought in self.brought.values())

    def of(self, kinds: Sequence[SubjectKind], event: Sweep) -> dict[SubjectId, Row]:
        """Everything that is known now of every subject of these kinds."""
        found: dict[SubjectId, Row] = {}
        for name, groups in self.readings.items():
            if kind_of(name) not in kinds:
                continue
            if name in self.rows:
                found[name] = self.rows[name]
            elif values := merged(groups, event.at):
                found[name] = Row(subject=name, at=event.at, source=event.source, values=values)
        return found

    def without(self, subjects: Set[SubjectId]) -> None:
        """Nothing is known of these any more."""
        if not subjects.isdisjoint(self.readings):
            self.readings = {name: groups for name, groups in self.readings.items() if name not in subjects}

    def age(self, now: Instant) -> None:
        """What was measured too long ago is forgotten, as of things that are there no longer."""
        holding = {
            name: {
                key: group
                for key, group in groups.items()
                if 0.0 <= (seconds_between(group.at, now) or 0.0) <= group.valid_for
            }
            for name, groups in self.readings.items()
        }
        if any(len(holding[name]) != len(groups) for name, groups in self.readings.items()):
            self.readings = {name: groups for name, groups in holding.items() if groups}
