"""Pods of this node as the API server tells them: what is known, unknown, over, and how seldom it is asked."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuguard.errors import Absent, ActionDeferred
from gpuguard.model.readings import Values
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.kubernetes import KNOWN, Kubernetes, Settings, build
from gpuguard.sources.kubernetes.pods import PodList
from gpuguard.sweeping.owners import owner_of
from gpuguard.web.kubernetes import Change, Expired

AWAY = ActionDeferred("the API server does not answer", 5.0)


def pod(name: str, uid: str, phase: str = "Running", version: str = "5", **metadata: object) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": uid, "resourceVersion": version, **metadata},
        "spec": {}, "status": {"phase": phase},
    }  # fmt: skip


class Server:
    """An API server in a few lines: a list, the changes of the next watch, and what it raises in place of both."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.changes: list[tuple[str, dict[str, Any]]] = []
        self.failure: Exception | None = None
        self.asked: list[Mapping[str, str]] = []
        self.open = 0

    def get(self, path: str, kind: type[PodList], until: float, *, query: Mapping[str, str]) -> PodList:
        assert path == "/api/v1/pods"
        self._ask(query)
        return msgspec.convert({"metadata": {"resourceVersion": "10"}, "items": self.pods}, kind)

    def watch(self, path: str, until: float, *, query: Mapping[str, str]) -> "Server":
        assert path == "/api/v1/pods"
        self._ask(query)
        self.open += 1
        return self

    def _ask(self, query: Mapping[str, str]) -> None:
        assert not self.open, "a second call is in flight"
        self.asked.append(query)
        if self.failure is not None:
            raise self.failure

    def __iter__(self) -> Iterator[Change]:
        while self.changes:
            kind, thing = self.changes.pop(0)
            yield Change(type=kind, object=msgspec.Raw(msgspec.json.encode(thing)))

    def close(self) -> None:
        self.open = 0


class Bench:
    """A node with the source, the server and a clock."""

    def __init__(self, **settings: Any) -> None:
        self.clock, self.server = ManualClock(), Server()
        self.source = Kubernetes(
            Settings(kubeconfig="/nonexistent/config", node="node1", **settings), Path("/"), self.clock, {}
        )
        self.source._api = self.server  # type: ignore[assignment]

    def look(self, later: float = 30.0) -> dict[str, Values]:
        self.clock.advance(later)
        rows = {str(name): values for name, values in self.source.sweep(self.clock.now()).items()}
        self.rest = self.source.rest()
        return rows


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    assert bench.look() == {"node": {KNOWN: None}}
    assert bench.server.asked == [], "in the first round every node of a cluster may begin in the same moment"
    return bench


def test_nodes_begin_at_different_moments() -> None:
    rests = set()
    for number in range(50):
        source = Kubernetes(
            Settings(kubeconfig="/nonexistent/config", node=f"node{number}"), Path("/"), ManualClock(), {}
        )
        source._api = Server()  # type: ignore[assignment]
        source.sweep(ManualClock().now())
        rests.add(source.rest())
    assert len(rests) == 50
    assert 0.0 <= min(rests) < 5.0
    assert 25.0 < max(rests) <= 30.0


def test_one_list_and_then_changes_alone(bench: Bench) -> None:
    bench.server.pods = [pod("a", "0a"), pod("b", "0b")]
    rows = bench.look()
    assert bench.server.asked == [{"fieldSelector": "spec.nodeName=node1", "resourceVersion": "0"}]
    assert bench.rest == 0.0
    assert rows.keys() == {"job:kubernetes/0a", "job:kubernetes/0b", "node"}
    assert rows["node"] == {KNOWN: 1}
    assert bench.look() == rows
    assert bench.server.asked[-1]["resourceVersion"] == "10"
    assert bench.server.asked[-1]["timeoutSeconds"] == "30"
    assert bench.rest == 30.0, "where the server ends a watch at once it is not asked all the time"
    bench.server.changes = [("BOOKMARK", {"metadata": {"resourceVersion": "90"}})]
    bench.look()
    bench.look()
    assert bench.server.asked[-1]["resourceVersion"] == "90"
    assert len(bench.server.asked) == 4


def test_the_row_is_of_the_job_that_the_cgroup_names(bench: Bench) -> None:
    uid = "8c1e0f5e-9a52-4dbb-8ac5-6f0f9a1f6d3d"
    bench.server.pods = [pod("a", uid)]
    group = f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid.replace('-', '_')}.slice/x.scope"
    assert f"job:{owner_of(group).job}" in bench.look()


def test_a_change_is_told_at_once(bench: Bench) -> None:
    bench.look()
    bench.server.changes = [("MODIFIED", pod("a", "0a", "Pending", "11")), ("MODIFIED", pod("a", "0a", version="12"))]
    assert bench.look()["job:kubernetes/0a"]["job_state"] == "PENDING"
    assert bench.rest == 1.0
    assert bench.server.open == 0
    assert bench.look()["job:kubernetes/0a"]["job_state"] == "RUNNING"
    bench.server.changes = [("DELETED", pod("a", "0a", version="13"))]
    row = bench.look()["job:kubernetes/0a"]
    assert (row["job_alive"], row["job_state"], bench.rest) == (0, "DELETED", 1.0)
    assert bench.server.asked[-1]["resourceVersion"] == "12"


def test_what_ended_is_told_of_for_a_while(bench: Bench) -> None:
    bench.server.pods = [pod("a", "0a", "Succeeded"), pod("b", "0b")]
    bench.look()
    assert "job:kubernetes/0a" in bench.look(800.0)
    rows = bench.look(200.0)
    assert "job:kubernetes/0a" not in rows
    assert "job:kubernetes/0b" in rows


def test_a_server_that_is_away_means_unknown_and_never_none(bench: Bench) -> None:
    bench.server.pods = [pod("a", "0a")]
    bench.look()
    bench.server.failure = AWAY
    rows = bench.look()
    assert rows["node"] == {KNOWN: None}
    assert (rows["job:kubernetes/0a"]["job_alive"], rows["job:kubernetes/0a"]["job_state"]) == (None, None)
    asked = len(bench.server.asked)
    for _ in range(120):
        assert bench.look()["node"] == {KNOWN: None}
        assert bench.rest == 30.0
    assert 5 <= len(bench.server.asked) - asked <= 14, "an hour, and it is asked less and less"
    bench.server.failure = None
    rows = bench.look(600.0)
    assert (rows["job:kubernetes/0a"]["job_alive"], rows["node"]) == (1, {KNOWN: 1})


def test_nodes_do_not_come_back_as_one() -> None:
    waits = set()
    for number in range(20):
        bench = Bench()
        bench.source._node = f"node{number}"
        bench.server.failure = AWAY
        bench.look()
        bench.look()
        waits.add(bench.source._not_before - bench.clock.now().mono)
    assert len(waits) == 20
    assert 30.0 <= min(waits) < max(waits) <= 60.0


def test_a_version_that_is_too_old_means_a_new_list(bench: Bench) -> None:
    bench.server.pods = [pod("a", "0a"), pod("b", "0b")]
    bench.look()
    bench.server.failure = Expired("too old resource version", 1.0)
    assert bench.look()["node"] == {KNOWN: None}
    assert bench.rest == 1.0
    bench.server.failure, bench.server.pods = None, [pod("b", "0b")]
    rows = bench.look(1.0)
    assert bench.server.asked[-1]["resourceVersion"] == "0"
    assert rows["node"] == {KNOWN: 1}
    assert (rows["job:kubernetes/0a"]["job_alive"], rows["job:kubernetes/0b"]["job_alive"]) == (0, 1)


def test_a_static_pod_whose_mirror_left_is_not_over(bench: Bench) -> None:
    marks = {"kubernetes.io/config.mirror": "77aa", "kubernetes.io/config.hash": "77aa"}
    bench.server.pods = [pod("proxy", "0a", annotations=marks)]
    assert bench.look()["job:kubernetes/77aa"]["job_alive"] == 1
    bench.server.changes = [("DELETED", pod("proxy", "0a", annotations=marks))]
    assert bench.look() == {"node": {KNOWN: 1}}


def test_of_very_many_those_that_run_come_first(bench: Bench) -> None:
    bench.server.pods = [pod(f"e{n}", f"e{n}", "Failed") for n in range(1500)] + [pod("a", "0a")]
    rows = bench.look()
    assert len(rows) == 1025
    assert rows["job:kubernetes/0a"]["job_alive"] == 1


def test_what_is_no_pod_is_not_understood_and_blinds_for_a_while_only(bench: Bench) -> None:
    bench.look()
    bench.server.changes = [("ADDED", {"metadata": 5})]
    assert bench.look()["node"] == {KNOWN: None}
    assert "no pod" in bench.source.why
    assert bench.look(600.0)["node"] == {KNOWN: 1}


@pytest.mark.parametrize(
    ("environ", "settings", "why"),
    [
        ({}, Settings(), "no pod"),
        ({"KUBECONFIG": "/root/.kube/config"}, Settings(), "no pod"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, Settings(account="/nonexistent"), "no token in /nonexistent"),
        ({}, Settings(kubeconfig="/nonexistent/config"), "cannot be read"),
        ({"NODE_NAME": "../x"}, Settings(kubeconfig="/nonexistent/config"), "cannot be a Node's name"),
    ],
)
def test_without_access_it_is_absent(environ: dict[str, str], settings: Settings, why: str) -> None:
    source = Kubernetes(settings, Path("/"), ManualClock(), environ)
    with pytest.raises(Absent, match=why):
        source.sweep(ManualClock().now())


def test_of_a_recorded_machine_nothing_is_known(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="not a recorded one"):
        build(Settings(), tmp_path, ManualClock()).sweep(ManualClock().now())


@pytest.mark.parametrize(
    "wrong",
    [
        {"every": 0.5}, {"every": 50.0}, {"kept": 0.0}, {"deadline": 0.0}, {"kubeconfig": "rel"}, {"account": "rel"},
        {"node": "A_b"}, {"kubeconfig": "/a", "account": "/b"},
    ],
)  # fmt: skip
def test_settings_that_name_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)) if len(wrong) == 1 else "account"):
        Settings(**wrong)


def test_a_machine_without_kubernetes_does_not_pay_for_its_client() -> None:
    code = """
import sys
from pathlib import Path
from gpuguard.errors import Absent
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.kubernetes import Kubernetes, Settings
try:
    Kubernetes(Settings(), Path("/"), ManualClock(), {}).sweep(ManualClock().now())
except Absent:
    print({"ssl", "http", "gpuguard.web"} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
