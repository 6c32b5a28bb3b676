"""What a Node says, in the neutral words, and what is written to it."""

from typing import Any

import msgspec
import pytest

from gpuguard.actuators.kubernetes import writes
from gpuguard.actuators.kubernetes.eviction import Pod, elapsed, stays_because
from gpuguard.actuators.kubernetes.node import CONDITION, DRAIN, UNFIT, Node, other_cordon, parse_node
from gpuguard.custody.ownership import NEUTRAL, condition_of, holder_of
from gpuguard.model.ids import TokenId
from tests.support.wishes import remedy

REASON = "gpuguard:7f3a gpu3 lost xid79"
OURS = {"metadata": {"annotations": {DRAIN: REASON}}, "spec": {"unschedulable": True}}
THEIRS = {"metadata": {"annotations": {DRAIN: "Bob"}}}


def node(*changes: dict[str, Any]) -> Node:
    thing: dict[str, Any] = {"metadata": {"name": "here", "resourceVersion": "7"}}
    for change in changes:
        for key, value in change.items():
            thing[key] = {**thing.get(key, {}), **value}
    return msgspec.convert(thing, Node)


def ready(status: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": "Ready", "status": status}]}}


@pytest.mark.parametrize(
    ("thing", "state", "condition", "holder"),
    [
        (node(), "Registered", "settled", "nobody"),
        (node(ready("True")), "Ready", "settled", "nobody"),
        (node(ready("False")), "NotReady", "down", "nobody"),
        (node(ready("Unknown"), OURS), "Unknown,SchedulingDisabled", "down", "ours"),
        (node(ready("True"), OURS), "Ready,SchedulingDisabled", "settled", "ours"),
        (node({"spec": {"unschedulable": True}}), "Registered,SchedulingDisabled", "settled", "unexplained"),
        (node(OURS, THEIRS), "Registered,SchedulingDisabled", "settled", "foreign"),
        (node(OURS, {"spec": {"unschedulable": False}}), "Registered", "settled", "nobody"),
        (node({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), "Registered", "unregistered", "nobody"),
        (
            node({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}}),
            "Registered", "powered", "nobody",
        ),
    ],
)  # fmt: skip
def test_what_a_node_says(thing: Node, state: str, condition: str, holder: str) -> None:
    report = parse_node(thing)
    assert set(report.flags) <= set(NEUTRAL)
    assert (report.state, condition_of(report), holder_of(report, TokenId("7f3a"))) == (state, condition, holder)
    assert report.drained == ("DRAIN" in report.flags)


@pytest.mark.parametrize(
    ("managers", "other"),
    [
        ((), ""), (("gpuguard",), ""), (("kubectl-cordon",), "kubectl-cordon"), (("gpuguard", "kubectl"), ""),
        (("before-first-apply",), ""), (("",), "somebody"),
    ],
)  # fmt: skip
def test_who_cordoned(managers: tuple[str, ...], other: str) -> None:
    fields = {"f:spec": {"f:unschedulable": {}}}
    told = [{"manager": manager, "fieldsV1": fields} for manager in managers]
    told.append({"manager": "kubelet", "subresource": "status", "fieldsV1": fields})
    told.append({"manager": "taints", "fieldsV1": {"f:spec": {"f:taints": {}}}})
    thing = node(OURS, {"metadata": {"annotations": {DRAIN: REASON}, "managedFields": told}})
    assert other_cordon(thing) == other
    assert (parse_node(thing).ours is None) == bool(other)


def test_taints_are_written_whole() -> None:
    theirs = {"key": "x", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    old = {"key": UNFIT, "value": "0bad", "effect": "NoSchedule"}
    thing = node({"spec": {"taints": [theirs, old]}})
    asked = writes.drain_of(thing, REASON, 0.0)
    assert asked["spec"]["taints"] == [theirs, {"key": UNFIT, "value": "7f3a", "effect": "NoSchedule"}]
    assert asked["metadata"]["resourceVersion"] == "7"
    assert writes.release_of(thing, cordon=True)["spec"] == {"taints": [theirs], "unschedulable": None}
    assert writes.release_of(thing, cordon=False)["spec"] == {"taints": [theirs]}


def test_a_taint_with_our_key_that_somebody_else_set_is_theirs() -> None:
    theirs = {"key": UNFIT, "effect": "NoExecute"}
    thing = node({"spec": {"taints": [theirs]}})
    assert theirs in writes.drain_of(thing, REASON, 0.0)["spec"]["taints"]
    assert writes.release_of(thing, cordon=True)["spec"]["taints"] == [theirs]


def test_what_lacks_in_an_answer_is_named() -> None:
    asked = writes.drain_of(node(), REASON, 0.0)
    assert writes.missing(node(), asked) == f"{DRAIN}, gpuguard.io/drained-at, {UNFIT}, unschedulable, taints"
    assert writes.missing(node(OURS), writes.release_of(node(OURS), cordon=True)) == f"{DRAIN}, unschedulable"
    assert writes.missing(node(), writes.release_of(node(OURS), cordon=True)) == ""


def test_a_condition_is_written_when_it_changes() -> None:
    wanted = {"unfit": True, "reason": "Drained", "message": REASON, "utc": 0.0}
    first = writes.condition_of(node(), **wanted)
    assert first is not None
    said = first["status"]["conditions"][0]
    assert said["lastTransitionTime"] == said["lastHeartbeatTime"] == "1970-01-01T00:00:00Z"
    stands = node({"status": {"conditions": [said]}})
    assert writes.condition_of(stands, **wanted) is None
    other = writes.condition_of(stands, **{**wanted, "message": "x"})
    assert other is not None
    assert "lastTransitionTime" not in other["status"]["conditions"][0], "it is as unfit as it was"
    assert writes.condition_of(node(), unfit=False, reason="Released", message="", utc=0.0) is None
    assert said["type"] == CONDITION


def test_an_events_name_is_the_deeds() -> None:
    assert writes.event_name("here", "7f3a", "update_reason") == "gpuguard.7f3a.update-reason.here"
    assert len(writes.event_name("n" * 253, "7f3a", "drain")) == 253


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-01", "2026-13-01T00:00:00Z"])
def test_what_is_no_moment_is_none(text: str) -> None:
    assert writes.moment(text) is None
    assert writes.moment(writes.stamp(1_780_000_000.7)) == 1_780_000_000.0


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        ({}, False),
        ({"status": {"phase": "Failed"}}, True),
        ({"metadata": {"name": "p", "annotations": {"kubernetes.io/config.mirror": "1"}}}, True),
        ({"metadata": {"name": "p", "ownerReferences": [{"kind": "DaemonSet", "controller": True}]}}, True),
        ({"metadata": {"name": "p", "ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}}, False),
        ({"metadata": {"name": "p", "namespace": "kube-system"}}, True),
        ({"spec": {"tolerations": [{"operator": "Exists"}]}}, True),
        ({"spec": {"tolerations": [{"operator": "Exists", "effect": "NoExecute"}]}}, False),
        ({"spec": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}}, False),
        ({"spec": {"tolerations": [{"key": UNFIT}]}}, True),
    ],
)
def test_who_stays(changes: dict[str, Any], stays: bool) -> None:
    thing = msgspec.convert({"metadata": {"name": "p"}, **changes}, Pod)
    assert (stays_because(thing) is not None) == stays


def test_time_does_not_run_backwards() -> None:
    assert elapsed(remedy("evict", utc=100.0), 160.0) == 60.0
    assert elapsed(remedy("evict", utc=100.0), 90.0) == 0.0
    assert elapsed(remedy("evict"), 90.0) == 0.0
