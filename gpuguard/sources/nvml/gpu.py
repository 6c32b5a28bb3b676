"""What is known of one GPU between sweeps: which calls it answers, and how its answers become a row.

A call that the machine does not support is asked no more (a field after three times), until the driver or the MIG mode
changes: then this is made anew. What failed otherwise is unknown in this row and counted; only the loss of the GPU, or
of the whole library, ends the row.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuguard.model.ids import PciAddress
from gpuguard.model.readings import Values
from gpuguard.sources.nvml import readings
from gpuguard.sources.nvml.library import (
    ABSENT_CODES,
    FATAL_CODES,
    LOST_CODES,
    Device,
    Library,
    NvmlError,
    Part,
    Value,
)
from gpuguard.sources.nvml.readings import Ask, Column, Field

STRIKES = 3  # so often a field must say that it is not supported: some answer so while the driver still starts
NO_TEXT = frozenset({"", "N/A", "[N/A]", "Unknown", "[Not Supported]", "[Unknown Error]"})
ENDS = LOST_CODES | FATAL_CODES


@dataclass(slots=True)
class Counts:
    """What went wrong, over all GPUs, since this process began."""

    errors: int = 0
    last: int = 0  # the newest of the errors
    codes: Counter[int] = field(default_factory=Counter)  # errors, by NVML's code
    columns: Counter[str] = field(default_factory=Counter)  # values that could not be, by column

    def erred(self, code: int) -> None:
        """A call failed with this code."""
        self.errors += 1
        self.last = code
        self.codes[code] += 1

    def reject(self, column: str) -> None:
        """A value of the column could not be, and is not believed."""
        self.columns[column] += 1

    def put(self, row: Values, where: Column, raw: object) -> None:
        """The column has the raw value in base units; unknown where that cannot be."""
        if type(raw) is int or type(raw) is float:
            value = raw * where.factor if where.divisor == 1 else raw / where.divisor
            if where.low <= value <= where.high:  # false for NaN
                row[where.name] = value
                return
        self.reject(where.name)
        row[where.name] = None

    def failed(self, row: Values, columns: Sequence[Column], error: NvmlError) -> None:
        """The columns are unknown: asked, and no answer.

        Raises  NvmlError where nothing else can be asked either
        """
        if error.code in ENDS:
            raise error
        self.erred(error.code)
        for where in columns:
            row.setdefault(where.name, None)


@dataclass(slots=True)
class Calls:
    """Calls of one class: each the first of its alternatives that was not found unsupported."""

    pending: list[tuple[Ask, ...]]

    def read(self, row: Values, library: Library, device: Device, counts: Counts) -> None:
        """The row has what the calls answer."""
        off = False
        for place, alternatives in enumerate(self.pending):
            left = alternatives
            while left:
                ask = left[0]
                try:
                    answer = library.call(device, ask.call, *ask.arguments)
                except NvmlError as error:
                    if error.code in ABSENT_CODES:
                        left = left[1:]
                        self.pending[place] = left
                        off = True
                        continue
                    counts.failed(row, ask.columns, error)
                    break
                fill(row, ask, answer, counts)
                break
        if off:
            self.pending = [alternatives for alternatives in self.pending if alternatives]


def fill(row: Values, ask: Ask, answer: object, counts: Counts) -> None:
    """The row has the columns of one answer."""
    if ask.text:
        text = str(answer).strip()
        row[ask.columns[0].name] = None if text in NO_TEXT else text
    elif isinstance(answer, dict):
        for where in ask.columns:
            if where.key in answer:
                counts.put(row, where, answer[where.key])
    else:
        counts.put(row, ask.columns[0], answer)


class Fields:
    """The batch of field values of one class, without those that were found unsupported."""

    __slots__ = ("_fields", "_instead", "_strikes", "_wanted")

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = list(fields)
        self._strikes: dict[tuple[int, int], int] = {}
        self._instead: dict[str, Calls] = {}
        self._wanted = tuple((entry.field, entry.scope) for entry in fields)

    def read(self, row: Values, library: Library, device: Device, counts: Counts) -> None:
        """The row has what the fields say, or the calls that stand in for them."""
        if self._wanted:
            self._read_fields(row, library, device, counts)
        for name, calls in self._instead.items():
            if name not in row:
                calls.read(row, library, device, counts)

    def _read_fields(self, row: Values, library: Library, device: Device, counts: Counts) -> None:
        try:
            values: Sequence[Value] = library.fields(device, self._wanted)
        except NvmlError as error:
            if error.code not in ABSENT_CODES:
                counts.failed(row, [entry.column for entry in self._fields], error)
                return
            values = [error] * len(self._wanted)
        dropped = False
        for entry, value in zip(self._fields, values, strict=True):
            if not isinstance(value, NvmlError):
                counts.put(row, entry.column, value)
            elif value.code in ABSENT_CODES:
                dropped = self._strike(entry) or dropped
            else:
                counts.failed(row, (entry.column,), value)
        if dropped:
            self._fields = [e for e in self._fields if self._strikes.get((e.field, e.scope), 0) < STRIKES]
            self._wanted = tuple((entry.field, entry.scope) for entry in self._fields)

    def _strike(self, entry: Field) -> bool:
        key = (entry.field, entry.scope)
        self._strikes[key] = self._strikes.get(key, 0) + 1
        if entry.instead and entry.column.name not in self._instead:
            self._instead[entry.column.name] = Calls([entry.instead])
        return self._strikes[key] >= STRIKES


class Metrics:
    """The GPM metrics of a GPU or a GPU instance, without those that were found unsupported."""

    __slots__ = ("_columns", "_instance", "_strikes", "_wanted")

    def __init__(self, columns: Mapping[int, Column], instance: int | None = None) -> None:
        self._columns = dict(columns)
        self._wanted = tuple(columns)
        self._instance = instance
        self._strikes: dict[int, int] = {}

    def read(self, row: Values, library: Library, device: Device, counts: Counts) -> None:
        """The row has the metrics over the time since the last sweep; the first time they are unknown."""
        if not self._wanted:
            return
        columns = self._columns
        try:
            values = library.gpm(device, self._wanted, self._instance)
        except NvmlError as error:
            if error.code in ABSENT_CODES:
                self._wanted = ()
            else:
                counts.failed(row, tuple(columns.values()), error)
            return
        if values is None:
            for metric in self._wanted:
                row[columns[metric].name] = None
            return
        for metric, value in zip(self._wanted, values, strict=True):
            if not isinstance(value, NvmlError):
                counts.put(row, columns[metric], value)
            elif value.code in ABSENT_CODES:
                self._strikes[metric] = self._strikes.get(metric, 0) + 1
            else:
                counts.failed(row, (columns[metric],), value)
        if any(strikes >= STRIKES for strikes in self._strikes.values()):
            self._wanted = tuple(m for m in self._wanted if self._strikes.get(m, 0) < STRIKES)


@dataclass(slots=True)
class Instance:
    """A GPU instance of a GPU in MIG mode, with its compute instances."""

    number: int
    parts: list[Part]
    metrics: Metrics
    memory: Calls

    @property
    def shape(self) -> tuple[tuple[int, str], ...]:
        """What tells one layout from another."""
        return tuple((part.compute_instance, part.device.uuid) for part in self.parts)


def instances(parts: Sequence[Part]) -> list[Instance]:
    """The GPU instances in the order of their numbers; memory and metrics are theirs, not the compute instances'."""
    by_number: dict[int, list[Part]] = {}
    for part in parts:
        by_number.setdefault(part.gpu_instance, []).append(part)
    return [
        Instance(number, own, Metrics(readings.GPM_OF_PART, number), Calls([readings.MEMORY_OF_PART]))
        for number, own in sorted(by_number.items())
    ]


@dataclass(slots=True)
class Gpu:
    """One GPU, by its UUID."""

    uuid: str
    device: Device
    index: int
    pci: PciAddress
    pci_id: str | None = None
    fast: Calls = field(default_factory=lambda: Calls(list(readings.FAST)))
    fast_fields: Fields = field(default_factory=lambda: Fields(readings.FAST_FIELDS))
    metrics: Metrics = field(default_factory=lambda: Metrics(readings.GPM))
    medium: Calls = field(default_factory=lambda: Calls(list(readings.MEDIUM)))
    medium_fields: Fields = field(default_factory=lambda: Fields(readings.MEDIUM_FIELDS))
    slow: Calls = field(default_factory=lambda: Calls(list(readings.SLOW)))
    off: set[str] = field(default_factory=set)  # other calls that are not supported
    link_strikes: dict[int, int] = field(default_factory=dict)
    link_kinds: set[int] = field(default_factory=set)  # fields that its links were found to have
    link_count: int | None = None
    link_peers: dict[int, str] = field(default_factory=dict)  # what each link ends at, once that was told
    mig_mode: int | None = None
    mig_pending: int | None = None
    instances: list[Instance] = field(default_factory=list)
    code: int = 0  # why it could not be read as a whole; 0 while it can
    named: bool = True  # the UUID is its own; false where another GPU tells the same one, or it tells none

    @property
    def layout(self) -> tuple[object, ...]:
        """What tells one way to be cut up from another."""
        return (self.mig_mode, *((instance.number, *instance.shape) for instance in self.instances))
