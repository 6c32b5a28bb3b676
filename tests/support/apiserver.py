"""A real kube-apiserver with a real etcd on loopback, as the scripts of the test data start it.

There is no kubelet, no scheduler and no controller: what those would do, the test does, through the official client,
which is the witness too.

The first start on a machine builds the server, which takes minutes; both are kept in the user's cache.
"""

import shlex
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes.client
import kubernetes.config
import pytest
from kubernetes.client.exceptions import ApiException

from gpuguard.actuators.kubernetes import Settings
from gpuguard.actuators.kubernetes.actuator import Kubernetes
from tests.support.require import require
from tests.support.shared_data import shared

READY: dict[str, Any] = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
PATIENCE_S = 30.0


class ApiServer:
    """One server for the whole run. Each test takes nodes of names of its own."""

    def __init__(self, scripts: Path, folder: Path) -> None:
        self._scripts, self.folder = scripts, folder

    def up(self, *options: str) -> None:
        """It answers, at the same address with the same identities as before."""
        done = subprocess.run(
            [self._scripts / "apiserver-up", *options, self.folder], capture_output=True, text=True, check=False
        )
        require("a kube-apiserver", done.returncode == 0, done.stderr[-2000:])
        lines = (self.folder / "env").read_text().splitlines()
        self.environ = dict(shlex.split(line)[1].split("=", 1) for line in lines)
        self.kubeconfig, self.agent_kubeconfig = self.environ["KUBECONFIG"], self.environ["KUBE_AGENT_KUBECONFIG"]
        self.admin = kubernetes.config.new_client_from_config(self.kubeconfig)
        self.core = kubernetes.client.CoreV1Api(self.admin)
        self.rbac = kubernetes.client.RbacAuthorizationV1Api(self.admin)
        self.policy = kubernetes.client.CustomObjectsApi(self.admin)

    def down(self, *options: str) -> None:
        """It does not answer."""
        self.admin.rest_client.pool_manager.clear()  # or its connections would be found open when it is collected
        subprocess.run([self._scripts / "apiserver-down", *options, self.folder], check=True, capture_output=True)

    def node(self, labels: dict[str, str] | None = None) -> str:
        """A new node that is ready, as a kubelet would have registered it."""
        name = f"n-{uuid.uuid4().hex[:8]}"
        self.core.create_node({"metadata": {"name": name, "labels": labels or {}}})
        self.core.patch_node(name, {"spec": {"taints": None}})  # not-ready, which a controller would take away
        self.core.patch_node_status(name, {"status": {"conditions": [READY]}})
        return name

    def seen(self, node: str) -> Any:  # Any: the official client's model
        """The node as the witness sees it."""
        return self.core.read_node(node)

    def taints(self, node: str) -> list[tuple[str, str]]:
        """Key and effect of each taint."""
        return [(taint.key, taint.effect) for taint in self.seen(node).spec.taints or ()]

    def events(self, node: str) -> list[str]:
        """The reasons of the Events about the node, in no order."""
        found = self.core.list_namespaced_event("default", field_selector=f"involvedObject.name={node}")
        return sorted(event.reason for event in found.items)

    def pod(self, node: str, name: str, namespace: str = "default", **changes: Any) -> None:  # Any: JSON
        """A pod that runs on the node, as scheduler and kubelet would have it."""
        spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}]}
        meta = {"name": name, "labels": {"app": name}, **changes.pop("metadata", {})}
        self.core.create_namespaced_pod(namespace, {"metadata": meta, "spec": {**spec, **changes}})
        running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.core.patch_namespaced_pod_status(name, namespace, {"status": running})

    def pods(self, node: str) -> list[str]:
        """The names of the pods on the node that are not yet gone."""
        found = self.core.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={node}")
        return sorted(pod.metadata.name for pod in found.items)

    def actuator(self, node: str, *, agent: bool = False, **changes: Any) -> Kubernetes:  # Any: settings
        """gpuguard's hand on this node, with the rights of an administrator or of the agent."""
        kubeconfig = self.agent_kubeconfig if agent else self.kubeconfig
        return Kubernetes(Settings(node=node, kubeconfig=kubeconfig, **changes), {})


def until(what: str, holds: Callable[[], bool]) -> None:
    """It holds now; the test fails when it does not within some seconds."""
    last = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < last, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """The server, running. Without its scripts, which are no part of the project, the test skips."""
    server = ApiServer(shared("k8s"), tmp_path_factory.mktemp("k8s") / "server")
    server.up()
    yield server
    server.down("--purge")


__all__ = ["ApiException", "ApiServer", "apiserver", "until"]
