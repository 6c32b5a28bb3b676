"""Pods of a node, from a real API server: names and GPUs, ends, an outage, and what all of it costs the server."""

import threading
import time
from pathlib import Path

import pytest

from gpuguard.model.events import Batch, Sweep
from gpuguard.model.readings import Values
from gpuguard.runtime.clock import ManualClock, SystemClock
from gpuguard.sources.kubernetes import KNOWN, Kubernetes, Settings
from tests.support.apiserver import ApiServer, until

pytestmark = pytest.mark.kubernetes


class Running:
    """The source in a thread of its own, as the agent runs it, and what it told last."""

    def __init__(self, server: ApiServer, node: str, every: float = 1.0) -> None:
        settings = Settings(kubeconfig=server.kubeconfig, node=node, every=every, deadline=5.0)
        self.source = Kubernetes(settings, Path("/"), SystemClock(), {})
        self.rows: dict[str, Values] = {}
        self.thread = threading.Thread(target=self.source.run, args=(self._take, None))
        self.thread.start()

    def _take(self, batch: Batch) -> None:
        for event in batch.events:
            assert isinstance(event, Sweep)
            self.rows = {str(name): values for name, values in event.rows.items()}

    def stop(self) -> float:
        """How long it took to stop."""
        began = time.monotonic()
        self.source.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()
        return time.monotonic() - began


def begun(server: ApiServer, node: str, name: str, gpus: int = 0) -> str:
    """The uid of a new pod that runs on the node."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    server.pod(node, name, containers=[{"name": "c", "image": "i", "resources": {"limits": limits}}])
    return str(server.core.read_namespaced_pod(name, "default").metadata.uid)


def test_pods_come_end_and_go(apiserver: ApiServer) -> None:
    node, other = apiserver.node(), apiserver.node()
    begun(apiserver, other, f"{other}-elsewhere", gpus=8)
    uid = begun(apiserver, node, f"{node}-train", gpus=4)
    running = Running(apiserver, node)
    try:
        name = f"job:kubernetes/{uid}"
        until("the pods are known", lambda: running.rows.get("node") == {KNOWN: 1})
        assert running.rows.keys() == {name, "node"}
        row = running.rows[name]
        assert (row["job_alive"], row["job_name"], row["job_user"]) == (1, f"{node}-train", "default")
        assert (row["job_state"], row["job_gpus_asked"]) == ("RUNNING", 4)
        later = begun(apiserver, node, f"{node}-later")
        until("the new pod is told of", lambda: f"job:kubernetes/{later}" in running.rows)
        ended = {"name": "c", "image": "x", "imageID": "", "ready": False, "restartCount": 1,
                 "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}  # fmt: skip
        status = {"phase": "Failed", "containerStatuses": [ended]}
        apiserver.core.patch_namespaced_pod_status(f"{node}-train", "default", {"status": status})
        until("its end is told of", lambda: running.rows[name]["job_alive"] == 0)
        assert (running.rows[name]["job_exit_code"], running.rows[name]["job_out_of_memory"]) == (137, 1)
        apiserver.core.delete_namespaced_pod(f"{node}-later", "default")
        until("the deleted one is over", lambda: running.rows[f"job:kubernetes/{later}"]["job_alive"] == 0)
        assert running.rows[f"job:kubernetes/{later}"]["job_state"] == "DELETED"
    finally:
        running.stop()


def test_it_stops_at_once_while_the_server_has_nothing_to_tell(apiserver: ApiServer) -> None:
    running = Running(apiserver, apiserver.node(), every=30.0)
    running.source._spread = lambda: 0.0  # type: ignore[method-assign]
    until("it watches", lambda: running.source._watch is not None)
    assert running.stop() < 2.0


def test_the_watch_goes_on_where_it_ended(apiserver: ApiServer) -> None:
    """A bookmark at the end of a quiet watch moves the place on, so that it does not grow too old."""
    node, other, clock = apiserver.node(), apiserver.node(), ManualClock()
    settings = Settings(kubeconfig=apiserver.kubeconfig, node=node, every=8.0)
    source = Kubernetes(settings, Path("/"), clock, {})
    for _ in range(2):
        source.sweep(clock.advance(8.0))
        source.rest()
    before = source._version
    elsewhere = threading.Timer(0.5, apiserver.pod, (other, f"{other}-moves-on"))
    elsewhere.start()
    source.sweep(clock.advance(8.0))
    elsewhere.join()
    assert int(source._version) > int(before)
    assert source.rest() == 8.0


def test_an_outage_is_unknown_and_ends_with_it(tmp_path_factory: pytest.TempPathFactory, apiserver: ApiServer) -> None:
    """Its own server: the others' must not go away. The clock is moved by an hour, nobody sleeps for it."""
    server = ApiServer(apiserver._scripts, tmp_path_factory.mktemp("outage") / "server")
    server.up()
    try:
        node, clock = server.node(), ManualClock()
        uid = begun(server, node, "train")
        settings = Settings(kubeconfig=server.kubeconfig, node=node, every=1.0)
        source = Kubernetes(settings, Path("/"), clock, {})
        for _ in range(2):
            rows = source.sweep(clock.advance(1.0))
        assert rows["node"] == {KNOWN: 1}  # type: ignore[index]
        server.down()
        asked = 0
        for _ in range(360):
            before = source._not_before
            rows = source.sweep(clock.advance(10.0))
            asked += source._not_before != before
            assert rows["node"] == {KNOWN: None}  # type: ignore[index]
            assert rows[f"job:kubernetes/{uid}"]["job_alive"] is None  # type: ignore[index]
        assert 5 <= asked <= 60
        server.up("--keep-state")
        rows = source.sweep(clock.advance(600.0))
        assert rows["node"] == {KNOWN: 1}  # type: ignore[index]
        assert rows[f"job:kubernetes/{uid}"]["job_alive"] == 1  # type: ignore[index]
    finally:
        server.down("--purge")
