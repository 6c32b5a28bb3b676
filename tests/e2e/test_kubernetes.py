"""The drain in a real API server: what is written, what is left alone, and who may do what.

The official client is the witness.
"""

import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from gpuguard.actuators.kubernetes.node import CONDITION, DRAIN, REBOOT, UNFIT
from gpuguard.custody.ownership import VERBS
from gpuguard.model.actions import Action
from tests.support.apiserver import ApiException, ApiServer, until
from tests.support.wishes import remedy, wish

pytestmark = pytest.mark.kubernetes

REASON = "gpuguard:7f3a gpu3 lost xid79"


def condition(server: ApiServer, node: str) -> tuple[str, str] | None:
    found = [c for c in server.seen(node).status.conditions or () if c.type == CONDITION]
    return (found[0].status, found[0].message) if found else None


def test_a_node_is_cordoned_and_given_back(apiserver: ApiServer) -> None:
    name, other = apiserver.node(), apiserver.node()
    here = apiserver.actuator(name)
    outcome = here.perform(wish("drain"))
    assert (outcome.result, outcome.node_state) == ("done", "Ready")
    seen = apiserver.seen(name)
    assert seen.spec.unschedulable is True
    assert (seen.metadata.annotations[DRAIN], seen.metadata.labels[UNFIT]) == (REASON, "true")
    assert apiserver.taints(name) == [(UNFIT, "NoSchedule")]
    assert condition(apiserver, name) == ("True", REASON)
    assert apiserver.events(name) == ["GpuguardDrained"]
    assert {c.type for c in seen.status.conditions} >= {"Ready"}, "the kubelet's condition is none of our business"
    report = here.read_state()
    assert (report.state, report.drained, report.ours) == ("Ready,SchedulingDisabled", True, "7f3a")
    assert here.perform(wish("release")).result == "done"
    seen = apiserver.seen(name)
    assert not seen.spec.unschedulable
    assert not seen.spec.taints
    assert UNFIT not in (seen.metadata.labels or {})
    assert not seen.metadata.annotations
    assert condition(apiserver, name) == ("False", "gpuguard released its drain")
    assert apiserver.events(name) == ["GpuguardDrained", "GpuguardReleased"]
    assert not apiserver.seen(other).spec.unschedulable


def test_what_stands_is_not_written_again(apiserver: ApiServer) -> None:
    name = apiserver.node()
    here = apiserver.actuator(name)
    for verb in ("drain", "update_reason", "release"):
        assert here.perform(wish(verb)).result == "done"
        version = apiserver.seen(name).metadata.resource_version
        if verb != "update_reason":
            assert here.perform(wish(verb)).result == "done"
        assert apiserver.seen(name).metadata.resource_version == version


def test_a_drain_that_stands_still_gets_its_condition_and_event(apiserver: ApiServer) -> None:
    name = apiserver.node()
    here = apiserver.actuator(name)
    here.perform(wish("drain"))
    apiserver.core.patch_node_status(name, {"status": {"conditions": [{"type": CONDITION, "$patch": "delete"}]}})
    apiserver.core.delete_namespaced_event(f"gpuguard.7f3a.drain.{name}", "default")
    assert condition(apiserver, name) is None
    assert here.perform(wish("drain")).result == "done"
    assert condition(apiserver, name) == ("True", REASON)
    assert apiserver.events(name) == ["GpuguardDrained"]


def test_a_reason_is_changed_and_an_orphan_adopted(apiserver: ApiServer) -> None:
    name = apiserver.node()
    here = apiserver.actuator(name)
    here.perform(wish("drain"))
    assert here.perform(wish("update_reason", code="xid95")).result == "done"
    assert apiserver.seen(name).metadata.annotations[DRAIN] == "gpuguard:7f3a gpu3 lost xid95"
    assert condition(apiserver, name) == ("True", "gpuguard:7f3a gpu3 lost xid95")
    assert here.perform(wish("release", token="beef")).result == "foreign"
    assert here.perform(wish("adopt", token="beef")).result == "foreign", "it is not what stands"
    assert here.perform(wish("adopt")).result == "done"
    assert here.perform(wish("release")).result == "done"


@pytest.mark.parametrize("reason", [None, "", "Bob: fan", f"{REASON} Bob: keep"])
def test_a_foreign_cordon_is_never_touched(apiserver: ApiServer, reason: str | None) -> None:
    name = apiserver.node()
    annotations = {} if reason is None else {DRAIN: reason}
    apiserver.core.patch_node(name, {"spec": {"unschedulable": True}, "metadata": {"annotations": annotations}})
    here, before = apiserver.actuator(name), apiserver.seen(name)
    for verb in VERBS:
        assert here.perform(wish(verb)).result == "foreign"
    for verb in ("evict", "reboot"):
        assert apiserver.actuator(name, evict="severe").perform(remedy(verb)).result == "foreign"
    assert apiserver.seen(name).metadata.resource_version == before.metadata.resource_version
    assert apiserver.events(name) == []


def test_a_person_who_uncordons_is_obeyed(apiserver: ApiServer) -> None:
    name = apiserver.node()
    here = apiserver.actuator(name)
    here.perform(wish("drain"))
    apiserver.core.patch_node(name, {"spec": {"unschedulable": None}})
    assert not here.read_state().drained
    outcome = here.perform(wish("update_reason", code="xid95"))
    assert (outcome.result, "gone" in outcome.message) == ("foreign", True)
    seen = apiserver.seen(name)
    assert (seen.spec.unschedulable, seen.spec.taints, seen.metadata.annotations) == (None, None, None)
    assert condition(apiserver, name) == ("False", "gpuguard released its drain")
    assert here.perform(wish("release")).result == "done"


def test_who_cordons_again_holds_the_node(apiserver: ApiServer) -> None:
    """The annotation alone does not tell; the server knows who set the field, once it keeps that."""
    name = apiserver.node()
    apply = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kept": "yes"}}}
    apiserver.core.patch_node(name, apply, field_manager="apply", _content_type="application/apply-patch+yaml")
    here = apiserver.actuator(name)
    assert here.perform(wish("drain")).result == "done"
    assert here.read_state().ours == "7f3a"
    for value in (None, True):
        apiserver.core.patch_node(name, {"spec": {"unschedulable": value}}, field_manager="kubectl-cordon")
    assert here.read_state().reason == "cordoned by kubectl-cordon"
    outcome = here.perform(wish("release"))
    assert outcome.result == "foreign"
    seen = apiserver.seen(name)
    assert seen.spec.unschedulable is True, "the cordon is theirs"
    assert (seen.spec.taints, DRAIN in (seen.metadata.annotations or {})) == (None, False), "what was ours is gone"


def test_the_taints_and_labels_of_others_survive(apiserver: ApiServer) -> None:
    name = apiserver.node({"zone": "a"})
    theirs = [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}, {"key": "x", "effect": "NoExecute"}]
    apiserver.core.patch_node(name, {"spec": {"taints": theirs}})
    added = [taint.time_added for taint in apiserver.seen(name).spec.taints]
    here = apiserver.actuator(name)
    assert here.perform(wish("drain")).result == "done"
    assert apiserver.taints(name) == [("dedicated", "NoSchedule"), ("x", "NoExecute"), (UNFIT, "NoSchedule")]
    apiserver.core.patch_node(
        name, {"spec": {"taints": [*theirs, {"key": UNFIT, "value": "7f3a", "effect": "NoSchedule"}, LATE]}}
    )
    assert here.perform(wish("release")).result == "done"
    assert apiserver.taints(name) == [("dedicated", "NoSchedule"), ("x", "NoExecute"), ("late", "NoSchedule")]
    assert [taint.time_added for taint in apiserver.seen(name).spec.taints][:2] == added
    assert apiserver.seen(name).metadata.labels == {"zone": "a"}


LATE = {"key": "late", "effect": "NoSchedule"}


def test_in_a_storm_of_writers_nothing_is_lost(apiserver: ApiServer) -> None:
    """Others change taints and labels without pause; each wish comes through in the end and takes nothing of theirs."""
    name = apiserver.node()
    stop, written, strange = threading.Event(), 0, []

    def disturb() -> None:
        nonlocal written, strange
        while not stop.is_set():
            seen = apiserver.core.read_node(name)
            taints = [t for t in apiserver.admin.sanitize_for_serialization(seen.spec.taints) or [] if t["key"] != "n"]
            taints.append({"key": "n", "value": str(written + 1), "effect": "NoSchedule"})
            change = {"metadata": {"resourceVersion": seen.metadata.resource_version}, "spec": {"taints": taints}}
            try:
                apiserver.core.patch_node(name, change)
                written += 1
            except ApiException as error:
                strange += [error] if error.status != 409 else []
            time.sleep(0.002)

    writer = threading.Thread(target=disturb)
    writer.start()
    try:
        here = apiserver.actuator(name)
        for _ in range(10):
            for verb in ("drain", "release"):
                until(f"{verb} comes through", lambda verb=verb: here.perform(wish(verb)).result == "done")
                assert bool(apiserver.seen(name).spec.unschedulable) == (verb == "drain")
    finally:
        stop.set()
        writer.join()
    assert strange == []
    taints = apiserver.seen(name).spec.taints
    assert [(t.key, t.value) for t in taints] == [("n", str(written))]


def test_a_reboot_is_asked_for_once_and_only_under_our_drain(apiserver: ApiServer) -> None:
    name = apiserver.node()
    here = apiserver.actuator(name)
    assert here.perform(remedy("reboot")).result == "foreign"
    here.perform(wish("drain"))
    assert here.perform(remedy("reboot", drain="beef")).result == "foreign"
    assert here.perform(remedy("reboot")).result == "done"
    asked = apiserver.seen(name).metadata.annotations[REBOOT]
    assert asked.startswith("7f3a 20")
    assert here.perform(remedy("reboot")).result == "done"
    assert apiserver.seen(name).metadata.annotations[REBOOT] == asked
    assert here.perform(wish("release")).result == "done"
    assert not apiserver.seen(name).metadata.annotations


@pytest.fixture
def budget(apiserver: ApiServer) -> Iterator[str]:
    """A namespace with a PodDisruptionBudget over the pod `held`."""
    name = f"ns-{uuid.uuid4().hex[:8]}"
    apiserver.core.create_namespace({"metadata": {"name": name}})
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "held"}}}
    body = {"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec}
    apiserver.policy.create_namespaced_custom_object("policy", "v1beta1", name, "poddisruptionbudgets", body)
    allow(apiserver, name, 0)
    return name


def allow(server: ApiServer, namespace: str, number: int) -> None:
    """What the disruption controller would write."""
    status = {
        "observedGeneration": 1, "disruptionsAllowed": number, "currentHealthy": 1 + number, "desiredHealthy": 1,
        "expectedPods": 1 + number, "disruptedPods": None,
    }  # fmt: skip
    server.policy.patch_namespaced_custom_object_status(
        "policy", "v1beta1", namespace, "poddisruptionbudgets", "b", {"status": status}
    )


def test_pods_leave_as_their_budgets_allow(apiserver: ApiServer, budget: str) -> None:
    name = apiserver.node()
    daemon = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1", "controller": True}
    apiserver.pod(name, "free", budget)
    apiserver.pod(name, "held", budget)
    apiserver.pod(name, "slow", budget, terminationGracePeriodSeconds=30)
    apiserver.pod(name, "daemon", budget, metadata={"ownerReferences": [daemon]})
    apiserver.pod(name, "mirror", budget, metadata={"annotations": {"kubernetes.io/config.mirror": "x"}})
    apiserver.pod(name, "stays", budget, tolerations=[{"operator": "Exists"}])
    apiserver.pod(name, "over", budget)
    apiserver.core.patch_namespaced_pod_status("over", budget, {"status": {"phase": "Succeeded"}})
    here = apiserver.actuator(name, evict="severe")
    here.perform(wish("drain"))
    assert apiserver.actuator(name).perform(evict()).result == "refused", "`never` is the default"
    assert len(apiserver.pods(name)) == 7

    outcome = here.perform(evict())
    assert (outcome.result, outcome.retry_after) == ("deferred", 10.0)
    assert "1 are held by a PodDisruptionBudget" in outcome.message
    until("those that may go are gone", lambda: "free" not in apiserver.pods(name))
    assert apiserver.pods(name) == ["daemon", "held", "mirror", "over", "slow", "stays"]

    outcome = apiserver.actuator(name, evict="severe", evict_deadline=60.0).perform(evict(61.0))
    assert outcome.result == "refused"
    assert f"{budget}/held" in outcome.message
    assert f"{budget}/slow" in outcome.message

    apiserver.core.delete_namespaced_pod("slow", budget, grace_period_seconds=0)  # the kubelet's last word
    allow(apiserver, budget, 1)
    until("the rest is gone", lambda: here.perform(evict()).result == "done")
    assert apiserver.pods(name) == ["daemon", "mirror", "over", "stays"]


def evict(ago: float = 0.0) -> Action:
    return remedy("evict", utc=time.time() - ago)


RIGHTS = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "patch"]},
]


def test_the_agent_needs_these_rights_and_says_which_one_it_lacks(apiserver: ApiServer) -> None:
    name = apiserver.node({"nvidia.com/gpu.present": "true"})
    here = apiserver.actuator(name, agent=True, evict="severe", namespace="kube-public")
    outcome = here.perform(wish("drain"))
    assert outcome.result == "deferred"
    assert 'User "gpuguard" cannot get resource "nodes"' in outcome.message
    assert "deploy/kubernetes" in outcome.message
    assert "cannot get" in (here.read_state().error or "")
    assert "cannot list" in (here.read_fleet().error or "")

    role = {"metadata": {"name": "gpuguard-test"}, "rules": RIGHTS[:1]}
    binding = {
        "metadata": {"name": "gpuguard-test"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gpuguard-test"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "gpuguard"}],
    }
    apiserver.rbac.create_cluster_role(role)
    apiserver.rbac.create_cluster_role_binding(binding)
    try:
        until("the cordon stands", lambda: here.perform(wish("drain")).result == "done")
        told = here.perform(wish("drain"))
        assert 'cannot patch resource "nodes/status"' in told.message, "what lacks is said, and the cordon stands"
        assert 'cannot create resource "events"' in told.message
        apiserver.rbac.patch_cluster_role("gpuguard-test", {"rules": RIGHTS})
        until("nothing lacks", lambda: "cannot" not in here.perform(wish("drain")).message)
        assert apiserver.events(name) == ["GpuguardDrained"]
        apiserver.pod(name, f"p-{name}")
        until("its pods leave", lambda: here.perform(remedy("evict")).result == "done")
        assert here.perform(remedy("reboot")).result == "done"
        assert here.read_fleet().error is None
        ledger = here.ledger()
        page = ledger.read(time.monotonic() + 5.0)
        assert ledger.write(page, b"{}", time.monotonic() + 5.0)
        assert here.perform(wish("release")).result == "done"
    finally:
        apiserver.rbac.delete_cluster_role_binding("gpuguard-test")
        apiserver.rbac.delete_cluster_role("gpuguard-test")


def test_the_fleet_is_counted_by_label_and_by_what_nodes_offer(apiserver: ApiServer) -> None:
    kind = f"gpu-{uuid.uuid4().hex[:8]}"
    names = [apiserver.node({"kind": kind}) for _ in range(3)]
    apiserver.actuator(names[0]).perform(wish("drain", token="0a0a"))
    apiserver.actuator(names[1]).perform(wish("drain", token="0b0b"))
    apiserver.core.patch_node(names[1], {"spec": {"unschedulable": None}})
    report = apiserver.actuator(names[2], gpu_nodes=f"kind={kind}").read_fleet()
    assert (report.error, report.nodes) == (None, 3)
    mine = {drain.node: drain for drain in report.drains if drain.node in names}
    assert list(mine) == [names[0]], "one that a person uncordoned is not drained"
    assert (mine[names[0]].token, mine[names[0]].code) == ("0a0a", "xid79")
    assert abs((mine[names[0]].since_utc or 0.0) - time.time()) < 60.0
    apiserver.core.patch_node_status(names[2], {"status": {"capacity": {"nvidia.com/gpu": "8"}}})
    assert apiserver.actuator(names[2], gpu_nodes="no=such").read_fleet().nodes >= 1


def test_the_book_in_the_lease_has_one_writer_at_a_time(apiserver: ApiServer) -> None:
    namespace = f"ns-{uuid.uuid4().hex[:8]}"
    here = apiserver.actuator(apiserver.node(), namespace=namespace).ledger()
    soon = time.monotonic() + 20.0
    page = here.read(soon)
    assert (page.version, page.text) == ("", b"")
    assert abs(page.utc - time.time()) < 5.0
    with pytest.raises(Exception, match=f"make the namespace {namespace}"):
        here.write(page, b"one", soon)
    apiserver.core.create_namespace({"metadata": {"name": namespace}})
    assert here.write(page, b"one", soon)
    assert not here.write(page, b"two", soon), "somebody made it since"
    first = here.read(soon)
    assert first.text == b"one"
    long = b'{"node": "some-node", "token": "7f3a"},' * 16_000
    assert here.write(first, long, soon)
    assert not here.write(first, b"late", soon)
    assert here.read(soon).text == long


def test_an_outage_is_waited_for_and_nothing_is_lost(apiserver: ApiServer) -> None:
    name = apiserver.node()
    here = apiserver.actuator(name)
    assert here.perform(wish("drain")).result == "done"
    apiserver.down()
    try:
        for verb in VERBS:
            began = time.monotonic()
            outcome = here.perform(wish(verb))
            assert (outcome.result, outcome.retry_after) == ("deferred", 5.0)
            assert time.monotonic() - began < 5.0
        assert here.read_state().error is not None
        assert here.read_fleet().error is not None
    finally:
        apiserver.up("--keep-state")
    assert here.perform(wish("drain")).result == "done"
    assert here.perform(wish("release")).result == "done"
    assert not apiserver.seen(name).spec.unschedulable
