"""How the whole fleet stands, by a few small questions.

Names and annotations alone are asked for, page by page: a Node has 5 to 30 kB, most of which is nobody's business here.

Source  Kubernetes v1.20.2 and v1.36.2 as observed; fields that nodes can be selected by: metadata.name and
        spec.unschedulable (pkg/apis/core/v1/conversion.go)
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from gpuguard.actuators.kubernetes.node import DRAIN, SINCE, TARGET, Metadata
from gpuguard.actuators.kubernetes.writes import moment
from gpuguard.custody.token import parse_reason
from gpuguard.errors import ActionRefused
from gpuguard.ports import FleetDrain, FleetReport
from gpuguard.web.kubernetes import METADATA_ONLY, Api

T = TypeVar("T")
PAGE: Final = 250
# A page more than this is no cluster: Kubernetes is made for 5,000 nodes.
PAGES_MOST: Final = 400
# What the device plugins of NVIDIA call what they offer, whole GPUs and parts of them.
RESOURCES: Final = ("nvidia.com/gpu", "nvidia.com/mig-")
NODES: Final = "/api/v1/nodes"


class _Names(msgspec.Struct, frozen=True, kw_only=True):
    metadata: Metadata


class _Capacity(msgspec.Struct, frozen=True, kw_only=True):
    capacity: dict[str, str] | None = None


class _Measured(msgspec.Struct, frozen=True, kw_only=True):
    metadata: Metadata
    status: _Capacity = _Capacity()


class _More(msgspec.Struct, frozen=True, kw_only=True):
    next: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _More = _More()
    items: tuple[msgspec.Raw, ...] | None = None


def read_fleet(api: Api, selector: str, until: float) -> FleetReport:
    """How many nodes have GPUs, and those drained with a token of ours.

    Where the selector finds none, as nobody labels nodes here, those are counted that have GPUs to offer; where none
    has, as GPUs are handed out without a device plugin, all nodes.
    Raises  ActionDeferred, ActionRefused
    """
    nodes = sum(_stays(n) for n in _listed(api, _Names, {"labelSelector": selector}, until, METADATA_ONLY))
    if nodes == 0:
        every = [n for n in _listed(api, _Measured, {}, until, "application/json") if _stays(n)]
        nodes = sum(map(_has_gpus, every)) or len(every)
    if nodes == 0:
        raise ActionRefused("the API server lists no node at all; may gpuguard's user list nodes?")
    cordoned = _listed(api, _Names, {"fieldSelector": "spec.unschedulable=true"}, until, METADATA_ONLY)
    drains = tuple(drain for node in cordoned if (drain := _drain(node)) is not None)
    return FleetReport(target=TARGET, nodes=nodes, drains=drains)


def _listed(api: Api, kind: type[T], query: Mapping[str, str], until: float, accept: str) -> Iterator[T]:
    more = ""
    for _ in range(PAGES_MOST):
        asked = {**query, "limit": str(PAGE), **({"continue": more} if more else {})}
        page = api.get(NODES, _Page, until, query=asked, accept=accept)
        for item in page.items or ():
            try:
                yield msgspec.json.decode(item, type=kind)
            except msgspec.ValidationError as error:
                raise ActionRefused(f"the API server's list of nodes is not understood: {error}") from error
        more = page.metadata.next
        if not more:
            return
    raise ActionRefused(f"the API server's list of nodes has no end after {PAGES_MOST} pages")


def _stays(node: _Names | _Measured) -> bool:
    return node.metadata.deletion_timestamp is None


def _has_gpus(node: _Measured) -> bool:
    """Whether it has GPUs to offer; also where their number has become 0, as it does when one fails."""
    return any(name.startswith(RESOURCES) for name in node.status.capacity or {})


def _drain(node: _Names) -> FleetDrain | None:
    annotations = node.metadata.annotations or {}
    reason = annotations.get(DRAIN, "")
    token = parse_reason(reason)
    if token is None:
        return None
    return FleetDrain(
        node=node.metadata.name,
        token=token,
        code=reason.split()[-1],
        since_utc=moment(annotations.get(SINCE, "")),
    )
