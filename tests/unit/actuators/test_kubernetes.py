"""The drain over a fake API server: what is judged anew, what is compared, and what each failure comes to."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuguard.actuators.kubernetes import Settings, build, own_name
from gpuguard.actuators.kubernetes.actuator import TRIES, Kubernetes
from gpuguard.actuators.kubernetes.node import CONDITION, DRAIN, REBOOT, UNFIT
from gpuguard.custody.budget import Limits
from gpuguard.custody.ownership import VERBS
from gpuguard.errors import ConfigInvalid, ReadFailed
from gpuguard.model.actions import Outcome, Verb
from gpuguard.model.ids import TokenId
from gpuguard.runtime import guard
from gpuguard.runtime.guard import guarded
from tests.support.fake_kube import NODES, READY, UTC, FakeKube, serving_kube
from tests.support.wishes import reclaim, remedy, requeue, wish

REASON = "gpuguard:7f3a gpu3 lost xid79"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpuguard/leases/gpuguard-drain-budget"
CONFLICT = {"reason": "Conflict", "message": "the object has been modified"}


@pytest.fixture
def kube() -> Iterator[FakeKube]:
    with serving_kube(FakeKube()) as fake:
        yield fake


@pytest.fixture
def here(kube: FakeKube, tmp_path: Path) -> Iterator[Kubernetes]:
    made = actuator(kube, tmp_path)
    yield made
    made.close()


def actuator(kube: FakeKube, folder: Path, **changes: Any) -> Kubernetes:
    return build(Settings(node="here", kubeconfig=kube.kubeconfig(folder), **changes))


def pod(kube: FakeKube, name: str, namespace: str = "jobs", **changes: Any) -> None:
    meta = {"name": name, "namespace": namespace, **changes.pop("metadata", {})}
    kube.put(f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": meta, "spec": changes, "status": {}})


def test_a_drain_writes_all_of_it_at_once_and_tells_of_it(kube: FakeKube, here: Kubernetes) -> None:
    assert here.perform(wish("drain")).result == "done"
    node = kube.here()
    assert node["spec"]["unschedulable"] is True
    assert node["spec"]["taints"] == [{"key": UNFIT, "value": "7f3a", "effect": "NoSchedule"}]
    assert node["metadata"]["annotations"][DRAIN] == REASON
    assert [c["status"] for c in node["status"]["conditions"]] == ["True", "True"]
    assert kube.writes == [
        f"PATCH {NODES}/here", f"PATCH {NODES}/here/status", "POST /api/v1/namespaces/default/events",
    ]  # fmt: skip
    before = len(kube.writes)
    assert here.perform(wish("drain")).result == "done"
    assert kube.writes[before:] == ["POST /api/v1/namespaces/default/events"], "which the server has already"


def test_somebody_faster_is_read_and_judged_anew(kube: FakeKube, here: Kubernetes) -> None:
    kube.meanwhile(lambda: kube.change({"metadata": {"labels": {"kubelet": "was-here"}}}))
    assert here.perform(wish("drain")).result == "done"
    assert kube.here()["metadata"]["labels"] == {"kubelet": "was-here", UNFIT: "true"}
    assert kube.calls.count(f"GET {NODES}/here") == 2


def test_a_person_who_is_faster_keeps_the_node(kube: FakeKube, here: Kubernetes) -> None:
    kube.meanwhile(lambda: kube.change({"spec": {"unschedulable": True}}))
    assert here.perform(wish("drain")).result == "foreign"
    assert "annotations" not in kube.here()["metadata"]
    assert kube.here()["spec"] == {"unschedulable": True}


def test_a_release_does_not_lift_a_cordon_that_came_in_between(kube: FakeKube, here: Kubernetes) -> None:
    here.perform(wish("drain"))
    kube.meanwhile(lambda: kube.change({"metadata": {"annotations": {DRAIN: f"{REASON} Bob: keep"}}}))
    assert here.perform(wish("release")).result == "foreign"
    assert kube.here()["spec"]["unschedulable"] is True


def test_a_storm_is_not_fought_for_ever_and_nothing_is_written(
    kube: FakeKube, here: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuguard.actuators.kubernetes.actuator.PAUSE", 0.0)
    for _ in range(TRIES):
        kube.fail("PATCH", NODES, 409, CONFLICT)
    outcome = here.perform(wish("drain"))
    assert outcome.result == "deferred"
    assert "at the same moment" in outcome.message
    assert len(kube.writes) == TRIES
    assert "unschedulable" not in kube.here()["spec"]
    assert here.perform(wish("drain")).result == "done"


def test_a_write_is_not_begun_without_the_time_for_its_answer(kube: FakeKube, tmp_path: Path) -> None:
    hasty = actuator(kube, tmp_path, deadline=0.2)
    assert "too little time" in hasty.perform(wish("drain")).message
    assert kube.writes == []
    hasty.close()


@pytest.mark.parametrize(
    ("status", "body", "result", "words"),
    [
        (401, {"message": "Unauthorized"}, "deferred", "does not know who we are"),
        (403, {"message": 'User "gpuguard" cannot patch resource "nodes"'}, "deferred", "cannot patch resource"),
        (422, {"message": "Invalid"}, "refused", "please report"),
        (429, {"message": "slow down"}, "deferred", "not now"),
        (500, {"message": "etcdserver: leader changed"}, "deferred", "leader changed"),
        (503, {}, "deferred", "failed with 503"),
        (302, {}, "refused", "redirected"),
        (409, {"details": {"causes": [{"reason": "FieldManagerConflict"}]}}, "refused", "field manager"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_each_failure_says_who_acts_next(
    kube: FakeKube, here: Kubernetes, method: str, status: int, body: dict[str, Any], result: str, words: str
) -> None:
    kube.fail(method, NODES, status, body, Location="http://elsewhere.example/")
    outcome = here.perform(wish("drain"))
    assert (outcome.result, words in outcome.message) == (result, True), outcome.message
    assert (outcome.retry_after is not None) == (result == "deferred")
    assert "unschedulable" not in kube.here()["spec"]
    assert here.perform(wish("drain")).result == "done", "the next time it works"


def test_a_busy_server_says_when_to_come_back(kube: FakeKube, here: Kubernetes) -> None:
    kube.fail("GET", NODES, 429, Retry_After="17")
    assert here.perform(wish("drain")).retry_after == 17.0


def test_a_write_whose_answer_is_lost_is_found_done(kube: FakeKube, here: Kubernetes) -> None:
    kube.fail("PATCH", NODES, 504, done=True)
    assert here.perform(wish("drain")).result == "deferred"
    before = len([call for call in kube.writes if call == f"PATCH {NODES}/here"])
    assert here.perform(wish("drain")).result == "done"
    assert len([call for call in kube.writes if call == f"PATCH {NODES}/here"]) == before
    assert kube.here()["status"]["conditions"][-1]["type"] == CONDITION


def test_what_the_server_took_and_did_not_keep_is_noticed(kube: FakeKube, here: Kubernetes) -> None:
    """A webhook may take the taint away; the server says 200 all the same."""
    kube.fail("PATCH", NODES, 200, {**kube.here(), "spec": {"unschedulable": True}})
    outcome = here.perform(wish("drain"))
    assert outcome.result == "deferred"
    assert "taints" in outcome.message
    assert "webhook" in outcome.message


@pytest.mark.parametrize(("part", "what"), [("/status", "the condition"), ("/events", "the Event")])
@pytest.mark.parametrize("verb", ["drain", "release"])
def test_the_rest_stays_owed_while_the_server_is_away(
    kube: FakeKube, here: Kubernetes, part: str, what: str, verb: Verb
) -> None:
    if verb == "release":
        here.perform(wish("drain"))
    method = "PATCH" if part == "/status" else "POST"
    kube.fail(method, part, 503)
    outcome = here.perform(wish(verb))
    assert outcome.result == "deferred"
    assert what in outcome.message
    assert bool(kube.here()["spec"].get("unschedulable")) == (verb == "drain"), "the cordon itself is written"
    assert here.perform(wish(verb)).result == "done"
    assert kube.here()["status"]["conditions"][-1]["status"] == ("True" if verb == "drain" else "False")


def test_a_node_that_is_not_settled_is_left_alone(kube: FakeKube, here: Kubernetes) -> None:
    for change in (
        {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
        {"status": {"conditions": [READY]}, "spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "x"}]}},
        {"spec": {"taints": None}, "metadata": {"annotations": {"weave.works/kured-reboot-in-progress": "now"}}},
        {"metadata": {"annotations": None, "deletionTimestamp": "2026-01-01T00:00:00Z"}},
    ):
        kube.change(change)
        assert here.perform(wish("drain")).result == "deferred"
        assert here.perform(wish("release")).result in ("done", "deferred")
    assert kube.writes == []


@pytest.mark.parametrize("action", [requeue(), reclaim(1, 1.0), remedy("test"), remedy("reset")])
def test_what_is_no_affair_of_kubernetes_is_refused(kube: FakeKube, here: Kubernetes, action: Any) -> None:
    assert here.perform(action).result == "refused"
    assert kube.calls == []


@pytest.mark.parametrize("verb", ["evict", "reboot"])
def test_a_remedy_needs_our_drain(kube: FakeKube, tmp_path: Path, verb: Verb) -> None:
    here = actuator(kube, tmp_path, evict="severe")
    assert here.perform(remedy(verb)).result == "foreign"
    assert here.perform(remedy(verb, drain=None)).result == "refused"
    here.perform(wish("drain", token="beef"))
    assert here.perform(remedy(verb)).result == "foreign"
    assert REBOOT not in kube.here()["metadata"]["annotations"]
    here.close()


def test_an_eviction_goes_on_until_all_are_gone(kube: FakeKube, tmp_path: Path) -> None:
    here = actuator(kube, tmp_path, evict="severe", evict_deadline=60.0)
    here.perform(wish("drain"))
    owner = {"kind": "DaemonSet", "controller": True}
    pod(kube, "a")
    pod(kube, "b")
    pod(kube, "plugin", metadata={"ownerReferences": [owner]})
    pod(kube, "dns", "kube-system")
    pod(kube, "ours", tolerations=[{"key": UNFIT, "operator": "Exists"}])
    pod(kube, "train", tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])
    kube.policy, kube.budgets = ("policy/v1beta1",), {"b": 2}
    first = here.perform(remedy("evict", utc=UTC))
    assert (first.result, first.retry_after) == ("deferred", 10.0)
    kube.utc += 61.0
    second = here.perform(remedy("evict", utc=UTC))
    assert second.result == "refused"
    assert "jobs/b" in second.message
    assert "jobs/a" not in second.message
    here.perform(remedy("evict", utc=UTC))
    assert here.perform(remedy("evict", utc=UTC)).result == "done"
    left = sorted(path.rsplit("/", 1)[-1] for path in kube.objects if "/pods/" in path)
    assert left == ["dns", "ours", "plugin"]
    here.close()


def test_where_the_actuators_switch_is_off_no_pod_is_asked_and_both_switches_are_named(
    kube: FakeKube, here: Kubernetes
) -> None:
    here.perform(wish("drain"))
    pod(kube, "a")
    outcome = here.perform(remedy("evict", utc=UTC))
    assert outcome.result == "refused"
    assert '`evict = "severe"` in [actuators.kubernetes]' in outcome.message
    assert "`evict_pods = false` in [policy]" in outcome.message
    assert not any(call.endswith("/eviction") for call in kube.calls)


def test_a_busy_server_ends_the_round(kube: FakeKube, tmp_path: Path) -> None:
    here = actuator(kube, tmp_path, evict="severe")
    here.perform(wish("drain"))
    for name in "abc":
        pod(kube, name)
    kube.fail("POST", "/eviction", 429, Retry_After="7")
    outcome = here.perform(remedy("evict", utc=UTC))
    assert (outcome.result, outcome.retry_after) == ("deferred", 7.0)
    assert len([call for call in kube.writes if call.endswith("/eviction")]) == 1
    here.close()


DENIED = {"reason": "Forbidden", "message": 'admission webhook "keep.example" denied the request: keep'}


def test_a_pod_that_is_refused_does_not_keep_the_others(kube: FakeKube, tmp_path: Path) -> None:
    here = actuator(kube, tmp_path, evict="severe")
    here.perform(wish("drain"))
    for name in "abcd":
        pod(kube, name)
    kube.budgets = {"d": 1}
    kube.fail("POST", "pods/a/eviction", 403, DENIED)
    kube.fail("POST", "pods/c/eviction", 500, {"message": "This pod has more than one PodDisruptionBudget"})
    first = here.perform(remedy("evict", utc=UTC))
    assert (first.result, first.retry_after) == ("deferred", 10.0)
    assert "1 were refused (jobs/a" in first.message
    assert "keep.example" in first.message
    assert "1 could not be asked (jobs/c" in first.message
    assert "more than one PodDisruptionBudget" in first.message
    assert sorted(path.rsplit("/", 1)[-1] for path in kube.objects if "/pods/" in path) == ["a", "c", "d"]
    kube.fail("POST", "pods/a/eviction", 403, DENIED)
    assert here.perform(remedy("evict", utc=UTC)).result == "deferred", "the others have their grace period"
    kube.fail("POST", "pods/a/eviction", 403, DENIED)
    last = here.perform(remedy("evict", utc=UTC))
    assert last.result == "refused", "nobody else is waited for any more"
    assert "jobs/a" in last.message
    assert "keep.example" in last.message
    here.perform(remedy("evict", utc=UTC))
    assert here.perform(remedy("evict", utc=UTC)).result == "done"
    here.close()


def test_at_the_deadline_everybody_who_is_left_is_named_with_the_reason(kube: FakeKube, tmp_path: Path) -> None:
    here = actuator(kube, tmp_path, evict="severe", evict_deadline=60.0)
    here.perform(wish("drain"))
    for name in "ab":
        pod(kube, name)
    kube.budgets = {"b": 1}
    kube.fail("POST", "pods/a/eviction", 403, DENIED)
    kube.utc += 61.0
    outcome = here.perform(remedy("evict", utc=UTC))
    assert outcome.result == "refused"
    for said in ("jobs/a", "keep.example", "jobs/b", "PodDisruptionBudget", "a person decides"):
        assert said in outcome.message
    here.close()


@pytest.mark.parametrize("status", [500, 429])
def test_a_pod_that_the_server_failed_at_is_asked_last(kube: FakeKube, tmp_path: Path, status: int) -> None:
    here = actuator(kube, tmp_path, evict="severe")
    here.perform(wish("drain"))
    for name in "ab":
        pod(kube, name)
    kube.budgets = {"b": 1}
    kube.fail("POST", "pods/a/eviction", status)
    for _ in range(2):
        here.perform(remedy("evict", utc=UTC))
    asked = [call.split("/")[-2] for call in kube.writes if call.endswith("/eviction")]
    assert asked == (["a", "b", "b", "a"] if status == 500 else ["a", "b", "a"])
    here.close()


def test_no_way_to_the_server_is_an_outcome() -> None:
    here = Kubernetes(Settings(node="here"), {})
    for verb in VERBS:
        outcome = here.perform(wish(verb))
        assert outcome.result == "refused"
        assert "kubeconfig" in outcome.message
    assert "kubeconfig" in (here.read_state().error or "")
    assert "kubeconfig" in (here.read_fleet().error or "")


def test_a_node_of_another_name_is_refused_with_the_next_step(kube: FakeKube, tmp_path: Path) -> None:
    here = build(Settings(node="there", kubeconfig=kube.kubeconfig(tmp_path)))
    outcome = here.perform(wish("drain"))
    assert outcome.result == "refused"
    assert "set `node`" in outcome.message
    here.close()


def budgeted(here: Kubernetes, ledger: guard.Kind = "lease") -> Outcome:
    """What comes of a drain that the fleet's budget stands before."""
    return guarded(here, guard.Settings(ledger=ledger), Limits()).perform(wish("drain"))


def test_behind_the_budget_a_node_of_another_name_is_refused_at_once(kube: FakeKube, tmp_path: Path) -> None:
    here = build(Settings(node="there", kubeconfig=kube.kubeconfig(tmp_path)))
    outcome = budgeted(here)
    assert (outcome.result, here.read_state().refused) == ("refused", True)
    assert "set `node` in [actuators.kubernetes]" in outcome.message
    here.close()


OTHER = {"metadata": {"name": "other", "labels": {"nvidia.com/gpu.present": "true"}}, "spec": {}}


@pytest.mark.parametrize(
    ("method", "part", "named"),
    [
        ("GET", f"{NODES}/here", f"GET {NODES}/here"), ("GET", "/leases/", f"GET {LEASE}"),
        ("POST", "/leases", f"POST {LEASE.rpartition('/')[0]}"), ("GET", NODES, f"GET {NODES}"),
    ],
)  # fmt: skip
def test_behind_the_budget_a_missing_right_is_named_and_asked_for_again(
    kube: FakeKube, here: Kubernetes, method: str, part: str, named: str
) -> None:
    kube.forbidden = lambda way, path: way == method and (path == part or (part != NODES and part in path))
    kube.put(f"{NODES}/other", OTHER)
    outcome = budgeted(here)
    assert outcome.result == "deferred"
    assert f"does not allow {named} " in outcome.message
    assert "deploy/kubernetes" in outcome.message
    assert "unschedulable" not in kube.here()["spec"]
    kube.forbidden = lambda way, path: False
    assert budgeted(here).result == "done", "once the right is there"


@pytest.mark.parametrize("status", [403, 404])
def test_where_nobody_asked_for_a_lease_the_nodes_themselves_are_the_book(
    kube: FakeKube, here: Kubernetes, status: int
) -> None:
    kube.put(f"{NODES}/other", OTHER)
    kube.forbidden = lambda way, path: "/leases" in path and status == 403
    if status == 404:
        kube.fail("POST", "/leases", 404)
    assert budgeted(here, "auto").result == "done"
    assert kube.here()["spec"]["unschedulable"] is True


@pytest.mark.parametrize("part", [f"{NODES}/here", "/leases/"])
def test_behind_the_budget_a_server_that_fails_is_waited_for(kube: FakeKube, here: Kubernetes, part: str) -> None:
    kube.fail("GET", part, 503)
    assert guarded(here, guard.Settings(), Limits()).perform(wish("drain")).result == "deferred"


def test_a_namespace_that_is_not_there_is_told_at_once(kube: FakeKube, here: Kubernetes) -> None:
    kube.put(f"{NODES}/other", OTHER)
    kube.fail("POST", "/leases", 404)
    outcome = budgeted(here)
    assert (outcome.result, "make the namespace gpuguard" in outcome.message) == ("deferred", True)


def test_the_name_is_set_or_the_pods_or_the_hosts() -> None:
    assert own_name(Settings(node="a"), {"NODE_NAME": "b"}) == "a"
    assert own_name(Settings(), {"NODE_NAME": "b.example"}) == "b.example"
    assert own_name(Settings(), {}) == own_name(Settings(), {}).lower()
    with pytest.raises(ConfigInvalid, match="cannot be the name"):
        own_name(Settings(), {"NODE_NAME": "../x"})


@pytest.mark.parametrize(
    "changes",
    [
        {"node": "A"}, {"node": "a/b"}, {"node": "a..b"}, {"kubeconfig": "x"}, {"deadline": 0.1}, {"deadline": 31.0},
        {"evict_deadline": 0.0}, {"gpu_nodes": " "}, {"namespace": "a/b"},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_named(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(changes))}: "):
        Settings(**changes)


def test_the_fleet_is_what_has_gpus(kube: FakeKube, here: Kubernetes) -> None:
    assert here.read_fleet().nodes == 1, "where none is known to have GPUs, all count"
    kube.change({"status": {"capacity": {"nvidia.com/gpu": "0"}}})
    here.perform(wish("drain"))
    report = here.read_fleet()
    assert (report.error, report.nodes) == (None, 1)
    assert [(d.node, d.token, d.code, d.since_utc) for d in report.drains] == [("here", "7f3a", "xid79", UTC)]
    for name in "ab":
        kube.put(
            f"{NODES}/{name}", {"metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"}}, "spec": {}}
        )
    assert here.read_fleet().nodes == 2


def test_the_book_is_changed_by_whoever_read_it_last(kube: FakeKube, here: Kubernetes) -> None:
    ledger, soon = here.ledger(), time.monotonic() + 5.0
    page = ledger.read(soon)
    assert (page.version, page.text, page.utc) == ("", b"", UTC)
    assert ledger.write(page, b"one", soon)
    assert not ledger.write(page, b"two", soon)
    page = ledger.read(soon)
    assert page.text == b"one"
    assert ledger.write(page, b"two" * 50_000, soon)
    assert len(kube.objects[LEASE]["metadata"]["annotations"]["gpuguard.io/drain-budget"]) < 1_000
    assert not ledger.write(page, b"three", soon)
    assert ledger.read(soon).text == b"two" * 50_000
    del kube.objects[LEASE]
    assert not ledger.write(page, b"four", soon), "somebody deleted it: read again"
    kube.fail("GET", "/leases", 403, {"message": "cannot get leases"})
    with pytest.raises(ReadFailed, match="cannot get leases"):
        ledger.read(soon)


@pytest.mark.parametrize("text", ["zlib:!", "zlib:AAAA", "zlib:eJw="])
def test_a_book_that_cannot_be_unpacked_is_none(kube: FakeKube, here: Kubernetes, text: str) -> None:
    kube.put(LEASE, {"metadata": {"annotations": {"gpuguard.io/drain-budget": text}}})
    with pytest.raises(ReadFailed, match=r"one, `kubectl -n \S+ delete lease gpuguard-drain-budget`"):
        here.ledger().read(time.monotonic() + 5.0)


@pytest.mark.parametrize(
    "lease", [{"metadata": None}, {"metadata": {"annotations": {"gpuguard.io/drain-budget": None}}}]
)
def test_a_lease_that_is_none_says_how_to_be_rid_of_it(kube: FakeKube, here: Kubernetes, lease: Any) -> None:
    kube.fail("GET", "/leases", 200, lease)
    with pytest.raises(ReadFailed, match=r"one, `kubectl -n \S+ delete lease gpuguard-drain-budget`"):
        here.ledger().read(time.monotonic() + 5.0)


@pytest.mark.parametrize(
    ("value", "effect", "beside"), [("", "NoExecute", True), ("7f3a", "NoExecute", True), ("mine", "NoSchedule", False)]
)
def test_a_taint_of_our_key_that_another_wrote_stays(
    kube: FakeKube, here: Kubernetes, value: str, effect: str, beside: bool
) -> None:
    """The server takes no second one of the same key and effect."""
    theirs = {"key": UNFIT, "effect": effect} | ({"value": value} if value else {})
    kube.change({"spec": {"taints": [theirs]}})
    assert here.perform(wish("drain")).result == "done"
    ours = {"key": UNFIT, "value": "7f3a", "effect": "NoSchedule"}
    assert kube.here()["spec"]["taints"] == ([theirs, ours] if beside else [theirs])
    assert here.perform(wish("release")).result == "done"
    assert kube.here()["spec"]["taints"] == [theirs]


def test_what_is_left_of_another_token_is_not_ours_to_take(kube: FakeKube, here: Kubernetes) -> None:
    here.perform(wish("drain", token="beef"))
    kube.change({"spec": {"unschedulable": None}})
    before = len(kube.writes)
    assert here.perform(wish("release")).result == "done"
    assert kube.writes[before:] == []
    action = msgspec.structs.replace(wish("release"), token=TokenId("beef"))
    assert here.perform(action).result == "done"
    assert "taints" not in kube.here()["spec"]
