"""What the core is told. The state is a fold of these and of nothing else; simultaneous ones are ordered by the core.

Units   instants and durations are whole seconds on the clock of whoever calls
"""

from typing import Literal

import msgspec

from gpuguard.scheduler.request import Job


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """One fact. `at` is when it was so, not when it was told."""

    at: int


class NodeJoined(Event, frozen=True, kw_only=True, tag="node_joined"):
    """A node, or what it says of itself anew.

    Shape   gpus: how many. gpu_memory: MiB of each. cpus in cores, memory in MiB, bandwidths in MiB/s; None does not
            constrain. placement: what `topology.placement` says, None where the wiring is not known. watts: what it
            draws in full use, for the budget of its pool
    """

    node: str
    gpus: int
    gpu_type: str = ""
    gpu_memory: int | None = None
    cpus: float | None = None
    memory: float | None = None
    memory_bandwidth: float | None = None
    network_bandwidth: float | None = None
    rack: str = ""
    pod: str = ""
    pool: str = ""
    watts: float | None = None
    placement: dict[str, object] | None = None


class NodeLeft(Event, frozen=True, kw_only=True, tag="node_left"):
    """A node that an operator took out of the cluster; its jobs are lost."""

    node: str


class Submitted(Event, frozen=True, kw_only=True, tag="submitted"):
    job: Job


class Cancelled(Event, frozen=True, kw_only=True, tag="cancelled"):
    job: str
    by: str = ""


class Prepared(Event, frozen=True, kw_only=True, tag="prepared"):
    """Images, data and addresses stand; the program begins."""

    job: str


class Progressed(Event, frozen=True, kw_only=True, tag="progressed"):
    """The job's first own sign of progress."""

    job: str


class Checkpointed(Event, frozen=True, kw_only=True, tag="checkpointed"):
    """The job saved all it needs to go on from here. `complete` false: not enough to resume or to be extended."""

    job: str
    complete: bool = True


class ExtensionAsked(Event, frozen=True, kw_only=True, tag="extension_asked"):
    job: str
    seconds: int


class Ended(Event, frozen=True, kw_only=True, tag="ended"):
    """The job's processes are gone.

    Shape   proof: it showed that it completed (last step, final checkpoint, mark). run: of which run this is told, as
            its Start counted; None: of the one that runs, if it was told after that had started
    """

    job: str
    code: int = 0
    signal: int = 0
    proof: bool | None = None
    run: int | None = None


class Hung(Event, frozen=True, kw_only=True, tag="hung"):
    """The agents' verdict on a running job; `run` as in Ended."""

    job: str
    culprit: str = ""
    run: int | None = None


class ConditionMet(Event, frozen=True, kw_only=True, tag="condition_met"):
    name: str
    met: bool = True


class DrainAsked(Event, frozen=True, kw_only=True, tag="drain_asked"):
    """An agent or a person wants a node, or some of its GPUs, to take no new work.

    Shape   id: the same id again is the same event. gpus: their numbers; empty: the node. severity: suspect (to be
            looked into), confirmed (known bad). expires: the instant at which it lapses by itself, None: never
    """

    id: str
    node: str
    gpus: tuple[int, ...] = ()
    severity: Literal["suspect", "confirmed"] = "suspect"
    cause: str = ""
    seen: int
    expires: int | None = None
    running: Literal["keep", "end"] = "keep"


class DrainLifted(Event, frozen=True, kw_only=True, tag="drain_lifted"):
    id: str
    node: str
    by: str = ""


class Diagnosed(Event, frozen=True, kw_only=True, tag="diagnosed"):
    """What the second look at a node found."""

    node: str
    passed: bool
    cause: str = ""


class HeartbeatLost(Event, frozen=True, kw_only=True, tag="heartbeat_lost"):
    node: str


class HeartbeatBack(Event, frozen=True, kw_only=True, tag="heartbeat_back"):
    node: str


class NodeLost(Event, frozen=True, kw_only=True, tag="node_lost"):
    """A node is proven dead (powered off, rebooted): what ran on it is gone."""

    node: str


class OrphanFound(Event, frozen=True, kw_only=True, tag="orphan_found"):
    """Memory that no running job owns is held on these GPUs."""

    node: str
    gpus: tuple[int, ...]


class Cleaned(Event, frozen=True, kw_only=True, tag="cleaned"):
    """These GPUs are back to their idle memory."""

    node: str
    gpus: tuple[int, ...]


AnyEvent = (
    NodeJoined | NodeLeft | Submitted | Cancelled | Prepared | Progressed | Checkpointed | ExtensionAsked | Ended | Hung
    | ConditionMet | DrainAsked | DrainLifted | Diagnosed | HeartbeatLost | HeartbeatBack | NodeLost | OrphanFound
    | Cleaned
)  # fmt: skip
