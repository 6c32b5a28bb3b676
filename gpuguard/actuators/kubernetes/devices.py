"""The verdict on one GPU for dynamic resource allocation (DRA): a DeviceTaintRule for each device made of it.

A rule stands beside what the DRA driver says of its own devices in its ResourceSlices (keys gpu.nvidia.com/xid,
/gpu-lost, /unmonitored) and has a key of its own: neither side writes the other's, and a device is free when both have
let it go. A rule of ours is created and deleted, never changed; one that a person edited is the person's.

Only a recorded API has been seen: no server of the tests has the kind.

Reads     ResourceSlices of this node and driver: the devices whose resource.kubernetes.io/pciBusID is the GPU's, which
          are the GPU itself, its MIG instances and its passthrough twin
Source    https://kubernetes.io/docs/concepts/resource-management/dynamic-resource-allocation/device-taints/ (v1.37);
          k8s.io/api/resource/v1beta2/types.go: a selector has driver, pool and device, and nothing else; effect None
          is for information; kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/deviceinfo.go and
          device_health.go
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from gpuguard.custody.token import parse_reason
from gpuguard.errors import ActionDeferred
from gpuguard.model.actions import Action, DrainVerb
from gpuguard.web.kubernetes import AlreadyThere, Api, Conflict, NotThere, path_of

Mode = Literal["off", "inform", "enforce"]
Effect = Literal["None", "NoSchedule", "NoExecute"]
GROUP: Final = "resource.k8s.io"
# Newest first; in v1alpha3 the selector is another one.
VERSIONS: Final = ("v1", "v1beta2")
DRIVER: Final = "gpu.nvidia.com"
BUS: Final = "resource.kubernetes.io/pciBusID"
TAINT: Final = "gpuguard.io/unfit"
REASON: Final = "gpuguard.io/drain"
NODE: Final = "gpuguard.io/node"
TOKEN: Final = "gpuguard.io/token"
MANAGED: Final = "app.kubernetes.io/managed-by"
# A GPU has itself, 7 instances at most and a twin; more is no answer to act upon.
DEVICES_MOST: Final = 32
_GPU = re.compile(r"gpu:([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.ASCII)
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)

Json = dict[str, Any]  # Any: what JSON holds


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a pool, by the names that a rule selects it by."""

    pool: str
    name: str


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """An attribute's value, where it is text."""

    string: str | None = None


class SliceDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device as its driver publishes it."""

    name: str
    attributes: Mapping[str, Value] | None = None


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Which pool, and how often it was published anew: only the newest counts."""

    name: str
    generation: int = 0


class SliceSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a driver publishes of a node."""

    driver: str
    pool: Pool
    node_name: str = ""
    devices: tuple[SliceDevice, ...] | None = None


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """One ResourceSlice."""

    spec: SliceSpec


class Slices(msgspec.Struct, frozen=True, kw_only=True):
    """A list of them."""

    items: tuple[Slice, ...] | None = None


class RuleMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whose rule it is. `generation` counts changes of what it asks for."""

    name: str
    uid: str = ""
    resource_version: str = ""
    generation: int = 1
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One DeviceTaintRule."""

    metadata: RuleMetadata


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """A list of them."""

    items: tuple[Rule, ...] | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A version of an API group."""

    version: str


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """Which versions of the group are served."""

    versions: tuple[Group, ...] = ()


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of objects, by the name in its path."""

    name: str


class Kinds(msgspec.Struct, frozen=True, kw_only=True):
    """What a version serves."""

    resources: tuple[Kind, ...] = ()


class Devices:
    """The rules of one node. Every call ends by `until`, seconds of time.monotonic()."""

    def __init__(self, node: str, mode: Mode) -> None:
        self._node, self._mode = node, mode
        self._version = ""

    def follow(self, action: Action, verb: DrainVerb, api: Api, until: float) -> str:
        """The rules say what the node's drain says now; what became of it in words, '' where there is nothing to say.

        Raises  ActionDeferred when the rest is to be asked for again, ActionRefused when a person is needed
        """
        if self._mode == "off":
            return ""
        version = self._version = self._version or served(api, until)
        if not version:
            return f"this API server has no DeviceTaintRule in {GROUP} {' or '.join(reversed(VERSIONS))}"
        if verb == "release":
            return self._lift(action, api, version, until)
        return self._mark(action, api, version, until)

    def _mark(self, action: Action, api: Api, version: str, until: float) -> str:
        match = _GPU.fullmatch(action.subject)
        if match is None:
            return ""  # of the whole node, for which its own taint stands
        query = {"fieldSelector": f"spec.nodeName={self._node},spec.driver={DRIVER}"}
        found = api.get(path_of("apis", GROUP, version, "resourceslices"), Slices, until, query=query)
        devices = devices_at(match[1], self._node, (slice.spec for slice in found.items or ()))
        if not devices:
            return f"no device of {DRIVER} has the address {match[1]}"
        if len(devices) > DEVICES_MOST:
            return f"{len(devices)} devices of {DRIVER} have the address {match[1]}; none was tainted"
        effect = effect_of(self._mode, severe=action.severe)
        made = 0
        for device in devices:
            rule = rule_of(version, self._node, device, action.token, action.reason, effect)
            try:
                api.post(path_of("apis", GROUP, version, "devicetaintrules"), rule, dict, until)
                made += 1
            except AlreadyThere:
                continue  # of an earlier sending, or a person's by now
        return f"{made} of {len(devices)} devices newly tainted, effect {effect}" if made else ""

    def _lift(self, action: Action, api: Api, version: str, until: float) -> str:
        folder = path_of("apis", GROUP, version, "devicetaintrules")
        query = {"labelSelector": f"{MANAGED}=gpuguard,{NODE}={_short(self._node)}"}
        gone = kept = 0
        for rule in api.get(folder, Rules, until, query=query).items or ():
            match ours(rule, self._node, action.token):
                case "ours":
                    gone += self._deleted(api, folder, rule, until)
                case "changed":
                    kept += 1
        told = [f"{gone} device taints lifted"] if gone else []
        told += [f"{kept} device taints were changed by somebody and stay"] if kept else []
        return "; ".join(told)

    def _deleted(self, api: Api, folder: str, rule: Rule, until: float) -> bool:
        """Whether it is gone by our hand.

        Raises  ActionDeferred when somebody changed it since: it is looked at again
        """
        sure = {"uid": rule.metadata.uid, "resourceVersion": rule.metadata.resource_version}
        body = msgspec.json.encode({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": sure})
        try:
            api.ask("DELETE", f"{folder}/{path_of(rule.metadata.name)[1:]}", until, body)
        except NotThere:
            return False
        except Conflict as error:
            raise ActionDeferred(f"the rule {rule.metadata.name} was changed meanwhile", error.retry_after) from error
        return True


def served(api: Api, until: float) -> str:
    """The newest version that has DeviceTaintRule; '' where none has.

    Raises  ActionDeferred, ActionRefused
    """
    try:
        versions = {group.version for group in api.get(path_of("apis", GROUP), Groups, until).versions}
    except NotThere:
        return ""
    for version in VERSIONS:
        if version in versions:
            try:
                kinds = api.get(path_of("apis", GROUP, version), Kinds, until).resources
            except NotThere:
                continue
            if any(kind.name == "devicetaintrules" for kind in kinds):
                return version
    return ""


def effect_of(mode: Mode, *, severe: bool) -> Effect:
    """What the taint does: nothing but inform, keep pods away, or end those that are there as well."""
    if mode != "enforce":
        return "None"
    return "NoExecute" if severe else "NoSchedule"


def devices_at(address: str, node: str, slices: Iterable[SliceSpec]) -> tuple[Device, ...]:
    """The devices that the driver made of the GPU at this PCI address, from the newest generation of each pool."""
    mine = [spec for spec in slices if spec.driver == DRIVER and spec.node_name == node]
    newest: dict[str, int] = {}
    for spec in mine:
        newest[spec.pool.name] = max(spec.pool.generation, newest.get(spec.pool.name, 0))
    found = {
        Device(pool=spec.pool.name, name=device.name)
        for spec in mine if spec.pool.generation == newest[spec.pool.name]
        for device in spec.devices or ()
        if _NAME.fullmatch(device.name) and _address(device) == _spelled(address)
    }  # fmt: skip
    return tuple(sorted(found, key=lambda device: (device.pool, device.name)))


def rule_of(version: str, node: str, device: Device, token: str, reason: str, effect: Effect) -> Json:
    """The object. Its name is the same for the same drain, device and whether it acts: a second sending makes no second
    one, and one that only informed stands in nobody's way."""
    own = hashlib.blake2s(f"{node}/{device.pool}/{device.name}".encode(), digest_size=5).hexdigest()
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {
            "name": f"gpuguard-{token}-{device.name}-{own}{'-told' if effect == 'None' else ''}",
            "labels": {MANAGED: "gpuguard", NODE: _short(node), TOKEN: token},
            "annotations": {REASON: reason, NODE: node},
        },
        "spec": {
            "deviceSelector": {"driver": DRIVER, "pool": device.pool, "device": device.name},
            "taint": {"key": TAINT, "value": token, "effect": effect},
        },
    }


def ours(rule: Rule, node: str, token: str) -> Literal["ours", "changed", "other"]:
    """Whose a rule with our labels is: of this drain as we made it, of it and changed by somebody, or of neither."""
    labels, annotations = rule.metadata.labels or {}, rule.metadata.annotations or {}
    if labels.get(TOKEN) != token or annotations.get(NODE) != node:
        return "other"
    untouched = rule.metadata.generation <= 1 and parse_reason(annotations.get(REASON, "")) == token
    return "ours" if untouched else "changed"


def _address(device: SliceDevice) -> str:
    value = (device.attributes or {}).get(BUS)
    return _spelled(value.string) if value is not None and value.string else ""


def _spelled(address: str) -> str:
    """One spelling: NVML has eight digits for the domain, sysfs four."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"


def _short(node: str) -> str:
    """The node as a label's value: a name may be longer than a label."""
    return hashlib.blake2s(node.encode(), digest_size=8).hexdigest()
