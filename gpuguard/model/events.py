"""What sources saw: the only thing that enters the core.

Every event has an id that is the same each time the same fact is read (boot and sequence, file and line), so that
a fact read twice is known as one.
"""

from typing import Any, Literal

import msgspec

from gpuguard.model.actions import Result
from gpuguard.model.ids import (
    NODE,
    BootId,
    EventId,
    GpuSerial,
    GpuUuid,
    PciAddress,
    SubjectId,
    TokenId,
    gpu,
    nvswitch,
)
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Rate, Values

# Any: nested JSON values; the codec of the store cannot resolve an alias that names itself.
DetailValue = str | int | float | bool | None | list[Any] | dict[str, Any]

Kind = Literal[
    "xid", "sxid", "gpu_lost", "rm_init_failed", "aer", "oom", "hung_task", "nvlink",
    "gpu_identity", "gsp", "log_loss", "dpc", "pcie_hotplug", "driver_probe_failed", "driver_mismatch", "peermem",
    "soft_lockup", "rcu_stall", "watchdog", "crash_dump", "fm_sxid",
]  # fmt: skip

SourceLevel = Literal["watching", "degraded", "blind"]


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """What a grammar understood of one kernel message; the fields of an event of `scan --json`.

    `fatal` is what the text itself says, never policy. `detail` holds facts taken from the text.
    """

    kind: Kind
    xid: int | None = None
    pci: PciAddress | None = None
    pid: int | None = None
    process: str | None = None
    fatal: bool | None = None
    detail: dict[str, DetailValue] = {}


# Kinds whose address is that of a GPU; the address of `aer`, `dpc` and `pcie_hotplug` may be any device's.
GPU_KINDS: frozenset[str] = frozenset(
    {"xid", "gpu_lost", "rm_init_failed", "nvlink", "gsp", "gpu_identity", "driver_probe_failed", "watchdog"}
)
SWITCH_KINDS: frozenset[str] = frozenset({"sxid", "fm_sxid"})


def subject_of(parsed: Parsed) -> SubjectId:
    """Whom a kernel message is about: a GPU, an NVSwitch, else the node."""
    if parsed.pci is not None and parsed.kind in GPU_KINDS:
        return gpu(parsed.pci)
    if parsed.pci is not None and parsed.kind in SWITCH_KINDS:
        return nvswitch(parsed.pci)
    return NODE


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """A fact, and when it was so."""

    id: EventId
    at: Instant


class LogLine(Event, frozen=True, kw_only=True, tag="log_line"):
    """One report in a kernel log, with all its lines joined in `raw`.

    `source` is the name of the source that read it; `file` and `line` tell where for printed logs; `backlog` is
    true for what was already in the ring when the agent began to watch. `repeated` counts identical reports that
    were merged into this one.
    """

    source: str
    parsed: Parsed
    raw: str
    file: str | None = None
    line: int | None = None
    backlog: bool = False
    repeated: int = 1


class LinesLost(Event, frozen=True, kw_only=True, tag="lines_lost"):
    """A source knows that it did not see everything."""

    source: str
    count: int
    reason: str


class SourceChanged(Event, frozen=True, kw_only=True, tag="source_changed"):
    """A source's own state changed; `reason` names the next step when it is not watching."""

    source: str
    level: SourceLevel
    reason: str


class GpuProbed(Event, frozen=True, kw_only=True, tag="gpu_probed"):
    """Whether the GPU at an address answers in PCI config space.

    `present` is false when the kernel no longer lists the device; `answers` is false when its config space reads
    as all ones. `known` is true when this GPU was seen present earlier in this boot.
    """

    source: str
    pci: PciAddress
    present: bool
    answers: bool
    uuid: GpuUuid | None = None
    serial: GpuSerial | None = None


class Sweep(Event, frozen=True, kw_only=True, tag="sweep"):
    """Everything that one source measured in one go, by subject.

    `rate` is its class; `valid_for` tells for how many seconds nothing newer is to be expected.
    Shape   rows: subject -> column -> value; see model/readings.py for absent and unknown
    """

    source: str
    rate: Rate
    valid_for: float
    rows: dict[SubjectId, Values]


class Booted(Event, frozen=True, kw_only=True, tag="booted"):
    """The agent started; `previous` is the boot its memory ends in, None for an empty memory."""

    previous: BootId | None


class Tick(Event, frozen=True, kw_only=True, tag="tick"):
    """Time went by; nothing else happened."""


class ActionOutcome(Event, frozen=True, kw_only=True, tag="action_outcome"):
    """What came of an action; its fields are those of `model.actions.Outcome`."""

    key: str
    result: Result
    message: str
    retry_after: float | None = None
    node_state: str | None = None


class Acknowledged(Event, frozen=True, kw_only=True, tag="acknowledged"):
    """A person clears a finding; None for the subject means every subject on which it stands."""

    code: str
    subject: SubjectId | None
    by: str
    reason: str


class OperatorAsked(Event, frozen=True, kw_only=True, tag="operator_asked"):
    """A person asks for a drain or a release through gpuguard, or that it keeps its hands off this node for `seconds`,
    or no longer."""

    wish: Literal["drain", "release", "adopt", "pause", "unpause"]
    by: str
    reason: str
    token: TokenId | None = None
    seconds: float | None = None


AnyEvent = (
    LogLine
    | LinesLost
    | SourceChanged
    | GpuProbed
    | Sweep
    | Booted
    | Tick
    | ActionOutcome
    | Acknowledged
    | OperatorAsked
)


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far a source has read; written in the same transaction as what followed from it.

    `position` is the source's own: a kmsg sequence number, a journald cursor, an inode and offset.
    """

    source: str
    boot: BootId
    position: str


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Events that a source hands over together, and the cursor that is true once they are decided.

    `alive` is false for what a source tells of its own failure, which is no sign of life.
    """

    source: str
    events: tuple[AnyEvent, ...]
    cursor: Cursor | None = None
    alive: bool = True
