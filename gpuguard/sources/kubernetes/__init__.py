"""What Kubernetes says of the pods on this node: those that run, and those that ended a moment ago.

Reads     GET /api/v1/pods?fieldSelector=spec.nodeName=NODE once, from the server's cache (resourceVersion=0); from then
          on a watch from where that list ended, which goes on where the last one ended
Emits     a Sweep with a row for each pod, job:kubernetes/<uid>, and one for the node that says whether all are known
Source    Kubernetes v1.20.2 and v1.36.2 as observed; https://kubernetes.io/docs/reference/using-api/api-concepts/

A watch is what a list in each round is not: the server finds changes of a node's pods by an index, and sends, of some
30 pods with 5 to 10 kB each, only those that changed. Asked anew each `every`, it also notices a server that went
silent, which a connection that is open for hours does not. It ends with a bookmark, so that the next one may begin
there. Nodes begin at different moments, told apart by their names. There is never more than one call in flight.

A server that is slow or away is asked less and less, and until it answers nothing is said of what only it can know:
never that there are no jobs. Where the agent is given no access (docs/kubernetes.md), the source is absent after a look
at the environment, and the client is not even loaded.
"""

import hashlib
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gpuguard.errors import Absent, ActionDeferred, ActionRefused, ConfigInvalid
from gpuguard.model.ids import NODE, job
from gpuguard.model.instants import Instant
from gpuguard.model.jobs import NODE as OF_NODE
from gpuguard.model.jobs import REPORTED, job_id
from gpuguard.model.readings import Quantity
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sources.kubernetes.pods import Facts, Pod, PodList, columns, facts
from gpuguard.sweeping.rounds import Rounds, Rows

if TYPE_CHECKING:
    from gpuguard.web.kubernetes import Api, Watch

NAME = "kubernetes"
KNOWN = "scheduler_jobs_known"
QUANTITIES: tuple[Quantity, ...] = (*REPORTED, *(quantity for quantity in OF_NODE if quantity.name == KNOWN))
PODS: Final = "/api/v1/pods"
ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
# A node takes 110 pods by itself, 500 on the largest; what ended lies beside them.
PODS_MOST = 1024
WAIT_MOST = 600.0  # between two questions to a server that does not answer
SOON = 1.0  # after a change that is told at once
# Supervision wants a sign of life each minute, and a watch goes on for `every`.
EVERY_MOST = 40.0
NODE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the API server is reached, and as whom: an identity that may list and watch pods. Units: seconds.

    An agent that is given neither has the pod's own service account, where one is mounted, and otherwise no access.
    $KUBECONFIG does not count: it is that of whoever started the agent, and mostly may do everything.
    """

    kubeconfig: str = ""  # a kubeconfig with a token or a certificate in it
    account: str = ""  # a folder with token and ca.crt, where that is not the usual one of a pod's service account
    node: str = ""  # the Node's name; without it $NODE_NAME, then the host name
    every: Seconds = Seconds(30.0)  # for so long one watch goes on
    kept: Seconds = Seconds(900.0)  # a pod that ended is told of for this long
    deadline: Seconds = Seconds(5.0)  # for a list, and for the end of a watch beyond `every`

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin, or that name nothing."""
        if min(self.kept, self.deadline) <= 0:
            raise ValueError("kept and deadline must be above 0")
        if not 1.0 <= self.every <= EVERY_MOST:
            raise ValueError(f"every: must lie between 1 and {EVERY_MOST:g} seconds")
        for name in ("kubeconfig", "account"):
            path = getattr(self, name)
            if path and not path.startswith("/"):
                raise ValueError(f"{name}: must be an absolute path")
        if self.kubeconfig and self.account:
            raise ValueError("account: must be empty where kubeconfig is set")
        if self.node and not NODE_NAME.fullmatch(self.node):
            raise ValueError("node: must be the name of a Node")


class _Noted(msgspec.Struct, kw_only=True):
    """The newest word on one pod, and since when it is over. Units: seconds of this boot."""

    pod: Facts
    over: float | None = None


class Kubernetes(Rounds):
    """The pods of this node."""

    def __init__(self, settings: Settings, root: Path, clock: Clock, environ: Mapping[str, str]) -> None:
        """Asks nothing yet."""
        super().__init__(NAME, self.sweep, clock, every=settings.every, rest=self.rest)
        self._settings, self._root, self._environ = settings, root, environ
        self._node = settings.node or environ.get("NODE_NAME") or os.uname().nodename.lower()
        self._api: Api | None = None
        self._watch: Watch | None = None
        self._guard = threading.Lock()
        self._noted: dict[str, _Noted] = {}
        self._version = ""  # up to where everything is known; '' for nothing is
        self._current = False  # whether the newest question was answered
        self._begun = False
        self._silences = 0
        self._not_before = 0.0
        self._next: float | None = None
        self.why = ""  # why the list is not complete, for a log

    def rest(self) -> float:
        """Until the next round: none after a list, a moment after news, `every` where the server ended a watch early.
        Before the first question a part of `every` that follows from the node's name, so that a thousand nodes that
        were started together ask one after the other."""
        rest, self._next = self._next, None
        return float(self._settings.every) if rest is None else rest

    def stop(self) -> None:
        """`run` returns at once, also while the server has nothing to tell."""
        super().stop()
        with self._guard:
            if self._watch is not None:
                self._watch.close()

    def sweep(self, now: Instant) -> Rows:
        """A row for each pod of this node, and one for the node; what is new since the last time is in them.

        Raises  Absent where the agent has no access to an API server, or another machine is looked at
        """
        api = self._reached()
        if not self._begun:
            self._begun, self._next = True, self._spread() * self._settings.every
        elif now.mono >= self._not_before:
            self._ask(api, now)
        return self._rows(now)

    # --- the server ---------------------------------------------------------------------------------------------------

    def _reached(self) -> "Api":
        if self._root.resolve() != Path("/"):
            raise Absent("Kubernetes knows this machine, not a recorded one")
        settings = self._settings
        if not (settings.kubeconfig or self._environ.get("KUBERNETES_SERVICE_HOST")):
            raise Absent("this is no pod, and no kubeconfig is set in [sources.kubernetes]")
        folder = Path(settings.account or ACCOUNT)
        if not settings.kubeconfig and not (folder / "token").exists():
            raise Absent(f"the agent has no token in {folder}; docs/kubernetes.md tells how to let it list pods")
        if not NODE_NAME.fullmatch(self._node):
            raise Absent(f"{self._node[:80]!r} cannot be a Node's name; set `node` in [sources.kubernetes]")
        if self._api is None:
            # Here, as on a machine without Kubernetes nobody needs TLS.
            from gpuguard.web.access import from_kubeconfig, in_cluster
            from gpuguard.web.kubernetes import Api

            try:
                access = (
                    from_kubeconfig(Path(settings.kubeconfig))
                    if settings.kubeconfig
                    else in_cluster(self._environ, folder)
                )
            except ConfigInvalid as error:
                raise Absent(str(error)) from error
            self._api = Api(access)
        return self._api

    def _ask(self, api: "Api", now: Instant) -> None:
        """What the server tells now is noted, or it is known to be silent."""
        from gpuguard.web.kubernetes import Expired

        began = time.monotonic()
        try:
            if self._version:
                self._follow(api, now, began)
            else:
                self._list(api, now, began + self._settings.deadline)
                self._next = 0.0
        except Expired as error:
            # Nothing was missed but the server's memory of it: a new list tells what became of each pod.
            self._version, self.why, self._next = "", str(error), SOON
            self._current = False
            return
        except (ActionDeferred, ActionRefused) as error:
            if self._stopping.is_set():
                return  # we hung up ourselves
            self.why, self._current = str(error), False
            self._silences += 1
            most = min(self._settings.every * 2.0 ** min(self._silences, 8), WAIT_MOST)
            # Half of it is the node's own, so that the nodes do not come back as one.
            self._not_before = now.mono + most * (0.5 + 0.5 * self._spread())
            return
        self.why, self._current, self._silences = "", True, 0

    def _list(self, api: "Api", now: Instant, until: float) -> None:
        query = {"fieldSelector": f"spec.nodeName={self._node}", "resourceVersion": "0"}
        try:
            told = api.get(PODS, PodList, until, query=query)
        finally:
            api.close()  # there is seldom a second list; a watch has a connection of its own
        pods = {pod.key: pod for told_of in told.items or () if (pod := facts(told_of)) is not None}
        for key in self._noted.keys() - pods.keys():
            self._gone(self._noted[key].pod, now)
        for pod in pods.values():
            self._note(pod, now)
        self._version = told.metadata.resource_version

    def _follow(self, api: "Api", now: Instant, began: float) -> None:
        """What changed was noted, until the watch ended or brought something that is told at once."""
        every = self._settings.every
        query = {
            "fieldSelector": f"spec.nodeName={self._node}", "resourceVersion": self._version,
            "allowWatchBookmarks": "true", "timeoutSeconds": str(int(every)),
        }  # fmt: skip
        watch = api.watch(PODS, began + every + self._settings.deadline, query=query)
        with self._guard:
            self._watch = watch
        try:
            if self._stopping.is_set():
                return
            for change in watch:
                if self._take(change.type, bytes(change.object), now):
                    self._next = SOON
                    return
        finally:
            with self._guard:
                self._watch = None
            watch.close()

    def _take(self, kind: str, text: bytes, now: Instant) -> bool:
        """Whether a pod came or is over: what others wait for.

        Raises  ActionRefused when it is no pod
        """
        try:
            told = msgspec.json.decode(text, type=Pod)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ActionRefused(f"the watch tells of what is no pod: {error}") from error
        self._version = told.metadata.resource_version or self._version
        pod = facts(told)
        if kind == "BOOKMARK" or pod is None:
            return False
        before = self._noted.get(pod.key)
        was_over = before is not None and before.over is not None
        if kind == "DELETED":
            self._gone(pod, now)
            return not was_over
        self._note(pod, now)
        return before is None or (pod.over and not was_over)

    # --- what is known ------------------------------------------------------------------------------------------------

    def _note(self, pod: Facts, now: Instant) -> None:
        before = self._noted.get(pod.key)
        since = before.over if before is not None else None
        self._noted[pod.key] = _Noted(pod=pod, over=(now.mono if since is None else since) if pod.over else None)

    def _gone(self, pod: Facts, now: Instant) -> None:
        """The server has it no more: it is over, unless it only showed a pod that the kubelet has by itself."""
        if pod.mirror:
            self._noted.pop(pod.key, None)
            return
        before = self._noted.get(pod.key)
        since = before.over if before is not None and before.over is not None else now.mono
        self._noted[pod.key] = _Noted(pod=pod, over=since)

    def _rows(self, now: Instant) -> Rows:
        kept = {
            key: noted for key, noted in self._noted.items()
            if noted.over is None or now.mono - noted.over < self._settings.kept
        }  # fmt: skip
        if len(kept) > PODS_MOST:
            # Those that run come first, then those that ended last.
            newest = sorted(kept.items(), key=lambda item: (item[1].over is not None, -(item[1].over or 0.0)))
            kept = dict(newest[:PODS_MOST])
        self._noted = kept
        rows: Rows = {}
        for key, noted in kept.items():
            alive = False if noted.over is not None else (True if self._current else None)
            rows[job(job_id("kubernetes", key))] = columns(noted.pod, alive, now.utc)
        rows[NODE] = {KNOWN: 1 if self._current and len(kept) < PODS_MOST else None}
        return rows

    def _spread(self) -> float:
        """A number from 0 to 1 that is this node's own."""
        digest = hashlib.blake2s(self._node.encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") / 2**32


def build(settings: Settings, root: Path, clock: Clock) -> Kubernetes:
    """The source for the machine under `root`."""
    return Kubernetes(settings, root, clock, os.environ)
