"""What can be measured, and what was measured last.

Four values that are never mixed up: a quantity that a subject does not have is missing from its row (absent); one that
was asked for without an answer, or answered with what cannot be, is None (unknown); zero is 0; and whether a value is
healthy is for a detector to say. A tuple holds one value for each part, in the order of their numbers (NVLink 0, 1).
"""

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from gpuguard.model.ids import SubjectId
from gpuguard.model.instants import Instant, seconds_between

Scalar = int | float | str | None
Value = int | float | str | tuple[int | float | str | None, ...] | None
Values = dict[str, Value]

# What a row is about; the word before the first colon of a subject's name.
SubjectKind = Literal[
    "node", "gpu", "mig", "process", "nvswitch", "port", "disk", "nic", "bridge", "task", "rank", "job"
]  # fmt: skip
Unit = Literal[
    "celsius", "watts", "joules", "hertz", "ratio", "bytes", "bytes_per_second", "seconds", "lanes",
    "bits_per_second", "count", "flag", "code", "mask", "text",
]  # fmt: skip
Rate = Literal["fast", "medium", "slow"]


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be measured of one kind of subject: from this it is read, judged, kept and exported.

    `name` is the column. `kind` gauge goes up and down, counter only up until a reset, text identifies. What lies
    outside of `low` and `high` cannot be and is unknown. `metric` is the exported name after `gpuguard_`, less the
    `_total` of a counter ('' where it is the name, None where it is not exported by itself); `labels` tell apart
    columns of one metric; `each` is the label for the place in a tuple, or with `keyed` for the name before each value
    of it; `beside` are labels whose value stands at the same place in another column, by that column. `keep` says that
    its course is kept on disk.
    """

    name: str
    of: SubjectKind
    unit: Unit
    help: str
    kind: Literal["gauge", "counter", "text"] = "gauge"
    low: float | None = None
    high: float | None = None
    metric: str | None = ""
    labels: dict[str, str] = {}
    each: str = ""
    keyed: bool = False
    beside: dict[str, str] = {}
    keep: bool = False

    @property
    def exported(self) -> str | None:
        """The name of its metric, without `_total`; None where it has none of its own."""
        if self.metric is None or self.kind == "text":
            return None
        return f"gpuguard_{(self.metric or self.name).removesuffix('_total')}"


def plausible(quantity: Quantity, value: Value) -> bool:
    """Whether a value can be: within the bounds of its quantity, and no NaN. Unknown is plausible."""
    if value is None or isinstance(value, str):
        return True
    if isinstance(value, tuple):
        return all(plausible(quantity, part) for part in (value[1::2] if quantity.keyed else value))
    if math.isnan(value):
        return False
    return (quantity.low is None or value >= quantity.low) and (quantity.high is None or value <= quantity.high)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What one source said of one subject in its newest sweep of one class; good for `valid_for` seconds."""

    source: str
    rate: Rate
    at: Instant
    valid_for: float
    values: Values


# The newest groups of each subject, by `<source>/<rate>`.
Readings = dict[SubjectId, dict[str, Group]]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one subject at the moment of a sweep: all that is not too old, whatever source read it.

    `source` is that of the sweep; `values` holds what is absent not at all, and what is unknown as None.
    """

    subject: SubjectId
    at: Instant
    source: str
    values: Mapping[str, Value]

    def number(self, name: str) -> float | None:
        """The value as a number; None where it is absent, unknown or no number."""
        value = self.values.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def bits(self, name: str) -> int | None:
        """The value as a mask; None where it is absent, unknown or can be none."""
        value = self.number(name)
        return int(value) if value is not None and value >= 0 and value % 1 == 0 else None

    def text(self, name: str) -> str | None:
        """The value as text; None where it is absent, unknown or no text."""
        value = self.values.get(name)
        return value if isinstance(value, str) else None

    def parts(self, name: str) -> tuple[int | float | str | None, ...]:
        """The values of each part; empty where they are absent or unknown."""
        value = self.values.get(name)
        return value if isinstance(value, tuple) else ()


def merged(groups: Mapping[str, Group], now: Instant) -> Values:
    """One row of all groups that still hold; of two sources that tell the same, one that knows comes before one that
    does not, and then the later name."""
    values: Values = {}
    for key in sorted(groups):
        group = groups[key]
        age = seconds_between(group.at, now)
        if age is None or age > group.valid_for:
            continue
        if values:
            values.update({k: v for k, v in group.values.items() if v is not None or k not in values})
        else:
            values = dict(group.values)
    return values
