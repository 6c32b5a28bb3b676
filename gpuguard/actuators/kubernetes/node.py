"""What the API server says of one Node, told apart, in the neutral words of custody.

A drain of ours is a cordon (`spec.unschedulable`) with our reason in an annotation beside it. A cordon without it is
somebody's who left no reason. Where the annotation stands and the cordon does not, a person has uncordoned the node:
nobody holds it, and what is left of ours is ours to take away. Where it was cordoned again since, the server knows by
whom (`managedFields`), and it is theirs.

Source  Kubernetes v1.20.2 and v1.36.2 as observed; k8s.io/api/core/v1/types.go; managedFields are not kept by v1.20 for
        objects that nobody applied
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gpuguard.custody.token import parse_reason, parse_token
from gpuguard.errors import NotUnderstood
from gpuguard.ports import NodeReport
from gpuguard.web.kubernetes import FIELD_MANAGER

TARGET: Final = "kubernetes"
# The reason of our drain, word for word; and since when it stands, by the API server's clock.
DRAIN: Final = "gpuguard.io/drain"
SINCE: Final = "gpuguard.io/drained-at"
# The request to whatever reboots nodes here: "<token> <time>".
REBOOT: Final = "gpuguard.io/reboot-requested"
# Key of the taint and of the label: for pods that tolerate, for people and programs that select.
UNFIT: Final = "gpuguard.io/unfit"
EFFECT: Final = "NoSchedule"
CONDITION: Final = "GpuguardUnfit"
# What is kept of a foreign text.
REASON_KEPT: Final = 400

# Taints by which others say that a node is about to go, or is not there yet.
_WORDS: Final[Mapping[str, str]] = {
    "ToBeDeletedByClusterAutoscaler": "POWERED",  # cluster-autoscaler, utils/taints
    "karpenter.sh/disrupted": "POWERED",  # karpenter v1, pkg/apis/v1/taints.go
    "karpenter.sh/disruption": "POWERED",  # karpenter v1beta1
    "node.cloudprovider.kubernetes.io/shutdown": "POWERED",  # k8s.io/cloud-provider/api/well_known_taints.go
    "node.cloudprovider.kubernetes.io/uninitialized": "UNREGISTERED",
    "node.kubernetes.io/out-of-service": "MAINTENANCE",  # k8s.io/api/core/v1/well_known_taints.go
}
# kured sets it while it reboots a node.
_REBOOTING: Final = "weave.works/kured-reboot-in-progress"
# To this one the server gives the fields of an object that it begins to keep managers of.
_UNKNOWN_MANAGER: Final = "before-first-apply"


class Taint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One taint, every field of it: the list is written whole."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What somebody says of the node's state. `status` is True, False or Unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class Managed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who set which fields last."""

    manager: str = ""
    subresource: str = ""
    fields_v1: dict[str, Any] | None = msgspec.field(default=None, name="fieldsV1")  # Any: a trie of field names


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Name, version, labels and annotations of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    managed_fields: tuple[Managed, ...] | None = None


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What people and controllers want of the node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What the node says of itself."""

    conditions: tuple[Condition, ...] | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One Node, as far as gpuguard looks at it."""

    metadata: Metadata
    spec: Spec = Spec()
    status: State = State()

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations, none at worst."""
        return self.metadata.annotations or {}

    @property
    def taints(self) -> tuple[Taint, ...]:
        """Its taints, none at worst."""
        return self.spec.taints or ()

    @property
    def marked(self) -> bool:
        """Whether anything of ours stands on it."""
        ours = any(map(is_ours, self.taints)) or UNFIT in (self.metadata.labels or {})
        return ours or any(key in self.annotations for key in (DRAIN, SINCE, REBOOT))

    def condition(self, kind: str) -> Condition | None:
        """What is said of it under this type, None for nothing."""
        return next((c for c in self.status.conditions or () if c.type == kind), None)


def is_ours(taint: Taint) -> bool:
    """Whether we wrote it: with our key, our effect and a token. One of our key that says else is a person's."""
    if (taint.key, taint.effect) != (UNFIT, EFFECT):
        return False
    try:
        parse_token(taint.value)
    except NotUnderstood:
        return False
    return True


def parse_node(node: Node) -> NodeReport:
    """What Kubernetes says of the node; the state is printed as kubectl does."""
    annotation = node.annotations.get(DRAIN, "")
    drained = node.spec.unschedulable
    reason = ""
    if drained:
        other = other_cordon(node)
        reason = f"cordoned by {ascii(other)[1:-1]}"[:REASON_KEPT] if other else annotation[:REASON_KEPT]
    ready = node.condition("Ready")
    flags = [_base(node)]
    flags += dict.fromkeys(_WORDS[t.key] for t in node.taints if t.key in _WORDS and _WORDS[t.key] not in flags)
    if _REBOOTING in node.annotations:
        flags.append("REBOOTING")
    if drained:
        flags.append("DRAIN")
    word = "Registered" if ready is None else {"True": "Ready", "False": "NotReady"}.get(ready.status, "Unknown")
    return NodeReport(
        target=TARGET,
        node=node.metadata.name,
        state=f"{word},SchedulingDisabled" if drained else word,
        flags=tuple(flags),
        drained=drained,
        reason=reason,
        ours=parse_reason(reason) if drained else None,
    )


def other_cordon(node: Node) -> str:
    """Who but us set the cordon that stands, where the server knows; '' where it is ours or nobody can tell."""
    setters = [m.manager for m in node.metadata.managed_fields or () if not m.subresource and _sets_cordon(m)]
    if not setters or FIELD_MANAGER in setters or _UNKNOWN_MANAGER in setters:
        return ""
    return setters[0] or "somebody"


def _base(node: Node) -> str:
    if node.metadata.deletion_timestamp is not None:
        return "UNREGISTERED"
    if any(_WORDS.get(taint.key) == "UNREGISTERED" for taint in node.taints):
        return "UNREGISTERED"
    ready = node.condition("Ready")
    return "OPEN" if ready is None or ready.status == "True" else "DOWN"


def _sets_cordon(managed: Managed) -> bool:
    spec = (managed.fields_v1 or {}).get("f:spec")
    return isinstance(spec, dict) and "f:unschedulable" in spec
