"""What of a pod tells about a job: read from the API's object, in the columns that every scheduler's jobs have.

Source  k8s.io/api/core/v1/types.go (Pod, ContainerStatus); Kubernetes v1.20.2 and v1.36.2 as observed;
        pkg/kubelet/types/pod_update.go (a mirror pod's own uid is not the one that its control group names)
"""

import datetime
from collections.abc import Mapping

import msgspec

from gpuguard.model.readings import Values

GPU = "nvidia.com/gpu"
# Parts of GPUs under this are counted as instances, not as GPUs.
MIG = "nvidia.com/mig-"
TEXT_MOST, KEY_MOST = 80, 96
COUNT_MOST = 2**31 - 1
OUT_OF_MEMORY = "OOMKilled"
ENDED = ("Succeeded", "Failed")


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What a container is given at most."""

    limits: Mapping[str, str | int] | None = None


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """One container of a pod's plan; an init container that always restarts runs beside the others."""

    resources: Resources | None = None
    restart_policy: str | None = msgspec.field(default=None, name="restartPolicy")

    def gpus(self) -> int | None:
        """GPUs that it is given; None where that cannot be told."""
        limits = (self.resources.limits if self.resources else None) or {}
        if any(name.startswith(MIG) for name in limits):
            return None
        text = str(limits.get(GPU, 0))
        return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What of a pod's plan is of use here."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    active_deadline_seconds: int | None = None
    resource_claims: tuple[msgspec.Raw, ...] | None = None


class Terminated(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a container ended."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """How a container is; of three ways the one that is of use here."""

    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the kubelet says of one container."""

    restart_count: int = 0
    state: State | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the kubelet says of a pod."""

    phase: str = ""
    start_time: datetime.datetime | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None


class Annotations(msgspec.Struct, frozen=True, kw_only=True):
    """Those two that a mirror pod has. All others are skipped: anybody may write 256 KiB of them."""

    mirror: str | None = msgspec.field(default=None, name="kubernetes.io/config.mirror")
    hash: str = msgspec.field(default="", name="kubernetes.io/config.hash")


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who it is."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: Annotations | None = None
    deletion_timestamp: str | None = None


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod as the API server keeps it, without all that is of no use here."""

    metadata: Metadata
    spec: Spec = Spec()
    status: Status = Status()


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a pod, a few hundred bytes whatever stands in it.

    `key` is the uid that the control groups of its processes name. `mirror` says that it only shows a static pod, which
    lives on without it. `over` says that all of its containers have ended for good, `end` how. Units: seconds
    """

    key: str
    name: str
    namespace: str
    phase: str
    mirror: bool = False
    ending: bool = False
    over: bool = False
    restarts: int = 0
    gpus: int | None = None
    limit: float | None = None
    began: float | None = None
    code: int | None = None
    signal: int | None = None
    starved: bool | None = None


class ListMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Up to when a list is true."""

    resource_version: str = ""


class PodList(msgspec.Struct, frozen=True, kw_only=True):
    """All pods of this node."""

    metadata: ListMetadata = ListMetadata()
    items: tuple[Pod, ...] | None = None


def facts(pod: Pod) -> Facts | None:
    """What of a pod is of use; None for one without a uid."""
    annotations = pod.metadata.annotations or Annotations()
    mirror = annotations.mirror is not None
    key = annotations.hash if mirror else pod.metadata.uid
    if not key:
        return None
    statuses = pod.status.container_statuses or ()
    over = pod.status.phase in ENDED
    ends = [c.state.terminated for c in statuses if c.state is not None and c.state.terminated is not None]
    # The API has no word for a signal but the shell's: 128 and its number.
    worst = next((end for end in ends if end.exit_code or end.signal), Terminated())
    limit, began = pod.spec.active_deadline_seconds, pod.status.start_time
    return Facts(
        key=key[:KEY_MOST], name=printable(pod.metadata.name), namespace=printable(pod.metadata.namespace),
        phase=printable(pod.status.phase).upper(), mirror=mirror, ending=pod.metadata.deletion_timestamp is not None,
        over=over, restarts=min(max((c.restart_count for c in statuses), default=0), COUNT_MOST),
        gpus=gpus_asked(pod.spec), limit=None if limit is None or limit < 0 else float(limit),
        began=None if began is None else began.timestamp(),
        code=worst.exit_code if ends and 0 <= worst.exit_code <= COUNT_MOST else None,
        signal=min(max(0, worst.signal), COUNT_MOST) if ends else None,
        starved=any(end.reason == OUT_OF_MEMORY for end in ends) if ends or over else None,
    )  # fmt: skip


def columns(pod: Facts, alive: bool | None, utc: float | None) -> Values:
    """The row of one pod. `alive` is what is known now; what only the API server can know is unknown with it.

    job_user is the namespace: whose a pod is, is written nowhere else. job_gpus_given is absent: which GPUs the kubelet
    gave to a pod, the API does not tell. So is job_gpus_asked for a pod that has its devices by claims (DRA).
    """
    values: Values = {
        "job_alive": None if alive is None else int(alive), "job_name": pod.name, "job_user": pod.namespace,
        "job_state": None if alive is None else _state(pod, alive), "job_restarts": pod.restarts,
    }  # fmt: skip
    if pod.gpus is not None:
        values["job_gpus_asked"] = pod.gpus
    if pod.limit is not None:
        values["job_time_limit_seconds"] = pod.limit
    if alive and pod.began is not None and utc is not None:
        values["job_run_seconds"] = max(0.0, utc - pod.began)
    if alive is False:
        told = (("job_exit_code", pod.code), ("job_exit_signal", pod.signal), ("job_out_of_memory", pod.starved))
        values |= {column: int(value) for column, value in told if value is not None}
    return values


def gpus_asked(spec: Spec) -> int | None:
    """Whole GPUs that the pod holds: those of its containers together, or those of the hungriest init container.

    Source  https://kubernetes.io/docs/concepts/workloads/pods/init-containers/ (effective request)
    """
    if spec.resource_claims:
        return None
    beside = [c for c in spec.init_containers or () if c.restart_policy == "Always"]
    before = [c for c in spec.init_containers or () if c.restart_policy != "Always"]
    together = [c.gpus() for c in (*(spec.containers or ()), *beside)]
    alone = [c.gpus() for c in before]
    known = [count for count in (*together, *alone) if count is not None]
    if len(known) != len(together) + len(alone):
        return None
    return max(sum(known[: len(together)]), *known[len(together) :], 0)


def _state(pod: Facts, alive: bool) -> str:
    if alive and pod.ending:
        return "TERMINATING"
    return pod.phase if alive or pod.over else "DELETED"


def printable(text: str) -> str:
    """The text without what a terminal or a label would stumble over, at most 80 characters."""
    return "".join(c if c.isprintable() else "?" for c in text[:TEXT_MOST])
