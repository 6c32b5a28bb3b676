"""The world of Kubernetes: one Node of the fake API server, without a socket in between."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gpuguard.actuators import kubernetes
from gpuguard.actuators.kubernetes import actuator, eviction
from gpuguard.actuators.kubernetes.node import DRAIN, REBOOT
from gpuguard.custody.ownership import Condition
from gpuguard.ports import Actuator
from gpuguard.web.access import Access
from gpuguard.web.client import Answer, NoAnswer
from gpuguard.web.kubernetes import Api
from tests.support.custody_world import NODE, Failure, How, World
from tests.support.fake_kube import NODES, UTC, FakeKube

Json = dict[str, Any]  # Any: what JSON holds
PATH = f"{NODES}/{NODE}"
# Taints by which others say what goes on with a node.
TAINTS: Mapping[Condition, str] = {
    "maintenance": "node.kubernetes.io/out-of-service",
    "powered": "ToBeDeletedByClusterAutoscaler",
    "unregistered": "node.cloudprovider.kubernetes.io/uninitialized",
}
REBOOTING = "weave.works/kured-reboot-in-progress"


class InKubernetes(World):
    """Kubernetes of before managedFields: who set a cordon is told by the annotation alone."""

    name = "kubernetes"
    modules = (actuator, eviction)
    compare_and_set = True
    states = frozenset(
        # No node is silent without being NotReady, none is failing, and each word that is looked at is known.
        state
        for state in World.states
        if state[0] not in ("silent", "failing", "strange")
    )
    remedies = ("reboot",)

    def __init__(self) -> None:
        self.kube = FakeKube(NODE)
        super().__init__()

    def start(self) -> Actuator:
        made = actuator.Kubernetes(kubernetes.Settings(node=NODE), {})
        made._reached = Api(Access(server="http://127.0.0.1:1", origin="here"))
        made._reached._client = self  # type: ignore[assignment]  # only `ask` is asked for
        return made

    # As others leave it

    def be(self, condition: Condition) -> None:
        self.away = Failure("garbled", before=True) if condition == "unreadable" else None
        if condition == "down":
            self._ready("Unknown")
        elif condition == "rebooting":
            self._annotate(REBOOTING, "now")
        elif condition in TAINTS:
            taint = {"key": TAINTS[condition], "effect": "NoSchedule"}
            self.kube.change({"spec": {"taints": [*self._taints(), taint]}})

    def settle(self) -> None:
        self._ready("True")
        self._annotate(REBOOTING, None)
        self.kube.change({"spec": {"taints": self._taints()}})

    def standing(self) -> str | None:
        here = self.kube.here()
        annotations: Json = here["metadata"].get("annotations") or {}
        return str(annotations.get(DRAIN, "")) if here["spec"].get("unschedulable") else None

    def drain(self, reason: str) -> None:
        """A cordon with these words in our place; without any, `kubectl cordon` and a deleted annotation."""
        self.kube.change({"spec": {"unschedulable": True}})
        self._annotate(DRAIN, reason or None)

    def lift(self) -> None:
        """`kubectl uncordon` takes the cordon alone."""
        self.kube.change({"spec": {"unschedulable": None}})

    def reboot(self, boot: str) -> None:
        self._annotate(REBOOT, None)

    def beside(self) -> object:
        # Not the Events: they are news, and one may be lost with the call that was to tell it.
        conditions: list[Json] = self.kube.here()["status"]["conditions"]
        return {c["type"]: (c["status"], c.get("reason"), c.get("message")) for c in conditions}

    # In place of the client

    def ask(
        self,
        method: str,
        path: str,
        *,
        until: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """What the API server says to one question."""
        return self.call(until, lambda: self._served(method, path, body or b"", dict(headers or {})))

    def fail(self, how: How, until: float) -> Answer:
        if how == "hang":
            raise NoAnswer("https://api: timed out", sent=True)
        if how == "garbled":
            return Answer(status=200, body=b'{"metadata": {"na', utc=UTC + self.time.now)
        return Answer(status=503, body=b'{"kind": "Status", "message": "etcd is away"}')

    def _served(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        before = self.standing()
        status, thing, _ = self.kube.answer(method, path, headers.get("Content-Type", ""), body)
        if (method, urlsplit(path).path, status) == ("PATCH", PATH, 200):
            self.wrote(body.decode(), before)
        return Answer(status=status, body=json.dumps(thing).encode(), utc=UTC + self.time.now)

    def _annotate(self, key: str, text: str | None) -> None:
        self.kube.change({"metadata": {"annotations": {key: text}}})

    def _taints(self) -> list[Json]:
        taints: list[Json] = self.kube.here()["spec"].get("taints") or []
        return [taint for taint in taints if taint["key"] not in TAINTS.values()]

    def _ready(self, status: str) -> None:
        others = [c for c in self.kube.here()["status"]["conditions"] if c["type"] != "Ready"]
        self.kube.change({"status": {"conditions": [*others, {"type": "Ready", "status": status}]}})
