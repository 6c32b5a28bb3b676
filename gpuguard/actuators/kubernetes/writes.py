"""What is written to a Node, and whether the answer says that it stands.

The list of taints is one value to the API server: whoever names one deletes the others. So it is written whole, with
cordon, annotation and label, under the resourceVersion that was read: when somebody was faster, nothing of it is
written. The condition merges by its type, so it needs no version and disturbs no kubelet. The server ignores a field in
the wrong place and says 200: what it answers is compared with what was asked.

Source  Kubernetes v1.20.2 and v1.36.2 as observed
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gpuguard.actuators.kubernetes.node import CONDITION, DRAIN, EFFECT, REBOOT, SINCE, UNFIT, Node, Taint, is_ours
from gpuguard.custody.token import parse_reason
from gpuguard.model.actions import DrainVerb

# Events about a node lie in this namespace, as those of the kubelet do: those of an object without a namespace must.
EVENTS: Final = "default"
EVENT_NAME_MOST: Final = 253
_REASONS: Final[Mapping[str, str]] = {
    "drain": "GpuguardDrained",
    "update_reason": "GpuguardReason",
    "release": "GpuguardReleased",
    "adopt": "GpuguardAdopted",
    "evict": "GpuguardEvicting",
    "reboot": "GpuguardRebootRequested",
}

Json = dict[str, Any]  # Any: what JSON holds


def drain_of(node: Node, reason: str, utc: float) -> Json:
    """The node takes no new pods, and says why."""
    return {
        "metadata": {
            "resourceVersion": node.metadata.resource_version,
            "annotations": {DRAIN: reason, SINCE: stamp(utc)},
            "labels": {UNFIT: "true"},
        },
        "spec": {"unschedulable": True, "taints": _encoded(_with_ours(node, reason))},
    }


def reason_of(node: Node, reason: str) -> Json:
    """Our drain has another reason; the cordon is not touched."""
    return {
        "metadata": {
            "resourceVersion": node.metadata.resource_version,
            "annotations": {DRAIN: reason},
            "labels": {UNFIT: "true"},
        },
        "spec": {"taints": _encoded(_with_ours(node, reason))},
    }


def release_of(node: Node, *, cordon: bool) -> Json:
    """Nothing of ours stands on the node; with `cordon` it takes new pods again."""
    annotations = dict.fromkeys(key for key in (DRAIN, SINCE, REBOOT) if key in node.annotations)
    spec: Json = {"taints": _encoded(_others(node)) or None}
    if cordon:
        spec["unschedulable"] = None
    return {
        "metadata": {
            "resourceVersion": node.metadata.resource_version,
            "annotations": annotations,
            "labels": {UNFIT: None},
        },
        "spec": spec,
    }


def reboot_of(node: Node, request: str) -> Json:
    """Whatever reboots nodes here is asked to."""
    return {"metadata": {"resourceVersion": node.metadata.resource_version, "annotations": {REBOOT: request}}}


def missing(after: Node, asked: Json) -> str:
    """What of a write the server did not take, in words; '' for nothing."""
    lacks = []
    metadata, spec = asked["metadata"], asked.get("spec", {})
    for where, has in (("annotations", after.annotations), ("labels", after.metadata.labels or {})):
        lacks += [key for key, value in metadata.get(where, {}).items() if has.get(key) != value]
    if "unschedulable" in spec and after.spec.unschedulable != bool(spec["unschedulable"]):
        lacks.append("unschedulable")
    if "taints" in spec:
        wanted = [(t.get("value", ""), t["effect"]) for t in spec["taints"] or () if t["key"] == UNFIT]
        if sorted((t.value, t.effect) for t in after.taints if t.key == UNFIT) != sorted(wanted):
            lacks.append("taints")
    return ", ".join(lacks)


def condition_of(node: Node, *, unfit: bool, reason: str, message: str, utc: float) -> Json | None:
    """Our condition as it should be; None where it is so already: nothing is written that changes nothing."""
    status, now = ("True" if unfit else "False"), node.condition(CONDITION)
    if now is None and not unfit:
        return None  # it was never unfit, as far as anybody can see
    if now is not None and (now.status, now.reason, now.message) == (status, reason, message):
        return None
    at = stamp(utc)
    wanted = {"type": CONDITION, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": at}
    if now is None or now.status != status:
        wanted["lastTransitionTime"] = at
    return {"status": {"conditions": [wanted]}}


def event_name(node: str, token: str, verb: str) -> str:
    """The same for the same deed, so that a second sending makes no second Event."""
    return f"gpuguard.{token}.{verb.replace('_', '-')}.{node}"[:EVENT_NAME_MOST].rstrip("-.")


def event_of(node: str, token: str, verb: str, message: str, utc: float) -> Json:
    """An Event that `kubectl describe node` shows."""
    at = stamp(utc)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event_name(node, token, verb), "namespace": EVENTS},
        # The kubelet gives a node's name as its uid, and that is what `kubectl describe` looks for.
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "reason": _REASONS[verb],
        "message": message[:1000],
        "type": "Normal" if verb == "release" else "Warning",
        "source": {"component": "gpuguard", "host": node},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def again(message: str, utc: float) -> Json:
    """An Event of ours happened once more, with other words."""
    return {"message": message[:1000], "lastTimestamp": stamp(utc)}


def condition_words(verb: DrainVerb, reason: str) -> tuple[bool, str, str]:
    """Whether the node is unfit after a verb, and reason and message of the condition."""
    if verb == "release":
        return False, "Released", "gpuguard released its drain"
    return True, "Drained", reason


def stamp(utc: float) -> str:
    """A moment as Kubernetes writes it, by the second."""
    return datetime.fromtimestamp(int(utc), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> float | None:
    """Seconds since 1970 of such a text; None for any other."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _others(node: Node) -> tuple[Taint, ...]:
    return tuple(taint for taint in node.taints if not is_ours(taint))


def _with_ours(node: Node, reason: str) -> tuple[Taint, ...]:
    """Ours beside all others. The server takes no two of one key and effect: another's keeps pods away as ours does."""
    others = _others(node)
    ours = Taint(key=UNFIT, value=str(parse_reason(reason) or ""), effect=EFFECT)
    return others if any((t.key, t.effect) == (UNFIT, EFFECT) for t in others) else (*others, ours)


def _encoded(taints: tuple[Taint, ...]) -> list[Json]:
    return [msgspec.to_builtins(taint) for taint in taints]
