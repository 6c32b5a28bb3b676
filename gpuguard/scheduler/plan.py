"""What one pass decided: decisions in order, each with its rule, and what is planned for those that wait."""

from collections.abc import Mapping

import msgspec


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What a job holds on one node.

    Shape   mask: a bit for each of its GPUs; milli: of each. near_cpus, nics: the processors and network cards next to
            these GPUs, as far as the node told its wiring
    """

    node: str
    mask: int
    milli: int
    cpus: int
    """Thousandths of a core."""
    memory: int
    near_cpus: str = ""
    nics: tuple[str, ...] = ()


class Decision(msgspec.Struct, frozen=True, kw_only=True, tag_field="do"):
    """`rule`: a word that docs explain; `why`: a sentence with facts; `cause`: the event or job behind it."""

    rule: str
    why: str = ""
    cause: str = ""


class Start(Decision, frozen=True, kw_only=True, tag="start"):
    """The job holds these places and shall be started there.

    Shape   network: how far the nodes are from each other, best first: node, rack, pod, core. run: counts the job's
            runs from 0; whoever tells what came of one may say it
    """

    job: str
    shares: tuple[Share, ...]
    network: str = "node"
    run: int = 0


class Hold(Decision, frozen=True, kw_only=True, tag="hold"):
    """GPUs kept for one job until it starts or `until` has passed; `victims` are those that make room."""

    job: str
    shares: tuple[Share, ...]
    until: int
    victims: tuple[str, ...]


class Release(Decision, frozen=True, kw_only=True, tag="release"):
    """A hold that ended without a start."""

    job: str


class Preempt(Decision, frozen=True, kw_only=True, tag="preempt"):
    """SIGTERM now, SIGKILL after `grace` seconds."""

    job: str
    preemptor: str
    grace: int


class Kill(Decision, frozen=True, kw_only=True, tag="kill"):
    job: str
    grace: int = 0


class Requeue(Decision, frozen=True, kw_only=True, tag="requeue"):
    """The job waits again, with its id, age and charge; `resume` names whether it has a checkpoint to go on from."""

    job: str
    resume: bool


class Finish(Decision, frozen=True, kw_only=True, tag="finish"):
    """A job's last word: completed, failed, cancelled, timeout, suspicious, node_lost."""

    job: str
    outcome: str


class Refuse(Decision, frozen=True, kw_only=True, tag="refuse"):
    job: str


class Extend(Decision, frozen=True, kw_only=True, tag="extend"):
    job: str
    until: int


class Drain(Decision, frozen=True, kw_only=True, tag="drain"):
    """A node (or GPUs of it) takes no new work; `state` is the node's new state."""

    node: str
    gpus: tuple[int, ...] = ()
    state: str


class Undrain(Decision, frozen=True, kw_only=True, tag="undrain"):
    node: str
    gpus: tuple[int, ...] = ()


class Diagnose(Decision, frozen=True, kw_only=True, tag="diagnose"):
    """The shell shall have the node looked into, and tell Diagnosed."""

    node: str


class Reclaim(Decision, frozen=True, kw_only=True, tag="reclaim"):
    """The agent shall end what holds memory on these GPUs and tell Cleaned."""

    node: str
    gpus: tuple[int, ...]


class Alert(Decision, frozen=True, kw_only=True, tag="alert"):
    about: str


AnyDecision = (
    Start | Hold | Release | Preempt | Kill | Requeue | Finish | Refuse | Extend | Drain | Undrain | Diagnose | Reclaim
    | Alert
)  # fmt: skip


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """A planned start: no other job is started that would move it."""

    job: str
    start: int
    nodes: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`wake`: the instant at which the core wants to be asked again even if nothing happens, None: no need."""

    at: int
    decisions: tuple[AnyDecision, ...]
    reservations: tuple[Reservation, ...] = ()
    wake: int | None = None
    counts: Mapping[str, int] = {}
