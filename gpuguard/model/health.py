"""What is true of each subject: standing findings, incidents, states, the drain, and what changed."""

from typing import Literal

import msgspec

from gpuguard.model.actions import Action, Question
from gpuguard.model.events import SourceLevel
from gpuguard.model.findings import Finding, Remedy, Severity
from gpuguard.model.ids import BootId, EventId, GpuSerial, GpuUuid, IncidentId, PciAddress, SubjectId, TokenId
from gpuguard.model.instants import Instant
from gpuguard.model.past import Record
from gpuguard.model.readings import Group, Quantity
from gpuguard.model.story import StoryEntry

State = Literal["healthy", "watched", "unfit", "unknown", "returning"]
STATES: tuple[State, ...] = ("healthy", "watched", "unfit", "unknown", "returning")

DecidedAction = Literal["none", "watch", "test", "drain", "reset_gpu", "reboot_node", "replace", "release"]
PolicyName = Literal["default", "strict", "observe"]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that stands on a subject.

    `finding` is the strongest report of it. `sources` are the independent witnesses of it. `secondary_to` names the
    root cause when another finding of the same incident explains this one. `remedy` is the finding's, raised by what
    was already tried. `fresh` is false when the report was old news at the time it was read; `confirmed` is true
    once enough witnesses agree, and stays so. `raw` is the line, kept while a witness for it may still be asked.
    """

    finding: Finding
    incident: IncidentId
    first: Instant
    last: Instant
    count: int
    sources: tuple[str, ...]
    remedy: Remedy
    because: tuple[EventId, ...]
    secondary_to: str | None = None
    fresh: bool = True
    confirmed: bool = False
    raw: str = ""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy that was seen to be applied while this fault stood."""

    code: str
    remedy: Remedy
    at: Instant


class Cleared(msgspec.Struct, frozen=True, kw_only=True):
    """When a finding was ended by a remedy, a detector or a person: what is read later of before then is over."""

    code: str
    at: Instant


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """A person cleared a measured finding while it went on, as grave as it was then."""

    code: str
    severity: Severity
    remedy: Remedy


class SubjectHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known of one subject.

    `probation_from` is set while it is returning: since when it is to show that it is well. `passes` counts the looks
    since then that found nothing, `passed` is the newest of them, `proven` when a test of it passed. `tested` is since
    when it may be used again: it stays on probation from then on. `seen` is the newest boot in which it answered on
    the bus, None for what nobody looked for there. `last_fault` is the code that made it unfit the last time.
    `accepted` are measured findings that a person cleared while they went on: they are told again when they were gone
    once, or become graver.
    """

    id: SubjectId
    since: Instant
    state: State = "healthy"
    remedy: Remedy = "none"
    pci: PciAddress | None = None
    uuid: GpuUuid | None = None
    serial: GpuSerial | None = None
    index: int | None = None
    standing: tuple[Standing, ...] = ()
    applied: tuple[Applied, ...] = ()
    cleared: tuple[Cleared, ...] = ()
    probation_from: Instant | None = None
    passes: int = 0
    passed: Instant | None = None
    proven: Instant | None = None
    tested: Instant | None = None
    seen: BootId | None = None
    last_fault: str | None = None
    accepted: tuple[Accepted, ...] = ()


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One root cause and its consequences on one subject. `name` is the code of its strongest member."""

    id: IncidentId
    subject: SubjectId
    name: str
    opened: Instant
    last: Instant
    members: tuple[str, ...]
    part_of: IncidentId | None = None


DrainState = Literal["owed", "standing", "foreign", "refused", "held", "releasing", "overridden"]


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """The one drain of this node that gpuguard wants or holds.

    `reason` is the text for the scheduler. `by` is 'gpuguard' or the person who asked. `foreign` means that somebody
    else holds the node; `held` that the fleet's budget or a common cause forbids it, which a person is to decide;
    `overridden` that somebody took ours away, which is respected until another fault comes.
    `written` is when the target last said that it stands; `told` when its reason was last changed; `writes` how
    often something was to be written. With `dry_run` nothing outside was touched.
    `pending` is the key of the one action that is owed for it, or that was refused; `covered` are the subjects for
    which it was last owed, each with the moment it became unfit. `severe` tells whether what runs on the node should
    not stay: a mild fault drains after the job. `kept` is why it is not given back by itself, though nothing speaks
    against it.
    """

    token: TokenId
    subject: SubjectId
    code: str
    reason: str
    since: Instant
    by: str = "gpuguard"
    state: DrainState = "owed"
    message: str = ""
    node_state: str | None = None
    written: Instant | None = None
    told: Instant | None = None
    writes: int = 0
    pending: str = ""
    covered: tuple[str, ...] = ()
    dry_run: bool = True
    because: tuple[EventId, ...] = ()
    severe: bool = True
    kept: str = ""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A person keeps gpuguard's hands off this node for so long. Units: seconds"""

    by: str
    reason: str
    since: Instant
    seconds: float


class SourceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What the core knows of a source."""

    name: str
    level: SourceLevel
    reason: str
    since: Instant


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a subject changed, or a new finding stands on it; a line of `replay --json`."""

    at: Instant
    subject: SubjectId
    uuid: GpuUuid | None
    finding: str
    severity: Severity
    action: DecidedAction
    before: State
    state: State
    remedy: Remedy
    reason: str
    incident: IncidentId | None
    because: tuple[EventId, ...]


class Owed(msgspec.Struct, frozen=True, kw_only=True):
    """An action newly owed, or one that is owed no longer."""

    action: Action
    cancelled: bool = False


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from one event, besides the new health.

    `urgent` is false when only counts moved: such a decision may be written together with later ones. `failed` names
    the checks that crashed on this event.
    """

    transitions: tuple[Transition, ...] = ()
    story: tuple[StoryEntry, ...] = ()
    owed: tuple[Owed, ...] = ()
    questions: tuple[Question, ...] = ()
    keep_event: bool = False
    urgent: bool = False
    failed: tuple[str, ...] = ()


class FindingView(msgspec.Struct, frozen=True, kw_only=True):
    """A standing finding as people and scrapers see it. Units: seconds since 1970 and seconds of age."""

    subject: SubjectId
    code: str
    check: str
    severity: Severity
    confirmed: bool
    remedy: Remedy
    reason: str
    count: int
    first_utc: float | None
    last_utc: float | None
    sources: tuple[str, ...]
    secondary_to: str | None
    latched: bool
    because: tuple[EventId, ...]


class SubjectView(msgspec.Struct, frozen=True, kw_only=True):
    """One subject's health now. `index` is the driver's number of a GPU, also of one that it does not list any more;
    `past` what is remembered of its board."""

    id: SubjectId
    state: State
    remedy: Remedy
    uuid: GpuUuid | None
    serial: GpuSerial | None
    findings: tuple[FindingView, ...]
    index: int | None = None
    past: Record | None = None


class SourceView(msgspec.Struct, frozen=True, kw_only=True):
    """One source as supervision sees it. `last_success_utc` in seconds since 1970."""

    name: str
    level: SourceLevel
    reason: str
    last_success_utc: float | None
    lost: int
    restarts: int


class XidSeen(msgspec.Struct, frozen=True, kw_only=True):
    """How often a GPU reported one Xid since the agent began, and when last, in seconds since 1970.

    `pci` is None where the driver did not say which GPU; `last_utc` where the log carries no date. What only the
    driver's library reported has a date and no count: the log is what is counted.
    """

    pci: PciAddress | None
    xid: int
    count: int
    last_utc: float | None


class ShellFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What only the shell knows about the agent itself.

    `events` counts by (kind, code); `results` by (verb, result); `actions` by state; `latency` are cumulative
    histogram counts of seconds by upper bound, with their sum and the count of all. `xids` are the newest Xids by GPU
    and code; `gpu_success` is when each GPU last answered, in seconds since 1970. `listen` is where it serves /metrics,
    '' for nowhere. `notices` counts by (form, fate) what people were told; empty where no webhook is configured.
    """

    version: str
    mode: str
    policy: PolicyName
    sources: tuple[SourceView, ...] = ()
    events: dict[str, int] = {}
    xids: tuple[XidSeen, ...] = ()
    results: dict[str, int] = {}
    actions: dict[str, int] = {}
    latency: tuple[tuple[float, int], ...] = ()
    latency_sum: float = 0.0
    latency_count: int = 0
    store_errors: int = 0
    mailbox_depth: int = 0
    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    actuator_ok: bool | None = None
    check_errors: dict[str, int] = {}
    gpu_success: dict[SubjectId, float] = {}
    listen: str = ""
    notices: dict[str, int] = {}


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The node at one moment: what metrics, `check` and `status` are computed from.

    `level` is 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN; `confirmed` tells whether a CRITICAL may keep jobs away;
    `line` is the one sentence for people. `pause` is a person's, while it lasts. `readings` is what was measured last,
    and `quantities` tells what its columns are; it changes with every sweep and is no part of what is written down.
    `past` is what is remembered of the machine as a whole.
    """

    at: Instant
    boot: BootId
    level: int
    confirmed: bool
    line: str
    subjects: tuple[SubjectView, ...]
    drain: Drain | None
    shell: ShellFacts
    pause: Pause | None = None
    readings: dict[SubjectId, dict[str, Group]] = {}
    quantities: tuple[Quantity, ...] = ()
    past: Record | None = None
