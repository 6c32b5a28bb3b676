"""The pods on this node are asked to leave, as their PodDisruptionBudgets allow.

Eviction is a request: the API server weighs it against the budgets and says 201 (the pod has its grace period now), or
429 (not now). One round asks each pod once; what is left is asked for again at the next sending, until all are gone or
`evict_deadline` has passed since the wish was decided, after which a person is told who is left.

A pod that the server refuses to evict, or fails at (an admission webhook, two budgets over one pod), is that pod's
affair: the others are asked all the same. Once only refused ones are left, a person is told of them and why.

Left where they are, as nothing is won by evicting them or somebody else answers for them:

- pods of a DaemonSet, which come straight back; mirror pods, which the API server does not own. It would accept both;
- pods that have ended;
- pods in kube-system: what the cluster itself needs is moved by whoever runs it;
- pods that tolerate every NoSchedule taint, or ours by its key: they have said that they stay, and would come back.

Source  Kubernetes v1.20.2 and v1.36.2 as observed: policy/v1beta1 is taken by both, policy/v1 by the newer (from v1.22)
"""

import time
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from gpuguard.actuators.kubernetes import Settings
from gpuguard.actuators.kubernetes.node import UNFIT, Metadata
from gpuguard.errors import ActionDeferred, ActionRefused
from gpuguard.model.actions import Action, Outcome
from gpuguard.ports import NodeReport
from gpuguard.web.kubernetes import Api, Conflict, NotTaken, NotThere, Throttled, path_of

VERSIONS: Final = ("policy/v1", "policy/v1beta1")
MIRROR: Final = "kubernetes.io/config.mirror"
# One node runs at most some hundred pods.
PAGE: Final = 200
# When what is left is asked for again: after a budget said no, and while grace periods run.
BUDGET_AGAIN: Final = 10.0
LEAVING_AGAIN: Final = 5.0
NAMES_SHOWN: Final = 5
WHY_SHOWN: Final = 300
SAID_MOST: Final = 1200
# With less time than this no further pod is asked.
ASK_NEEDS: Final = 0.2


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who made the pod."""

    kind: str = ""
    controller: bool = False


class PodMetadata(Metadata, frozen=True, kw_only=True, rename="camel"):
    """What names a pod, and its owners."""

    owner_references: tuple[Owner, ...] | None = None


class Toleration(msgspec.Struct, frozen=True, kw_only=True):
    """A taint that does not keep the pod away; no key is every key, no effect every effect."""

    key: str = ""
    operator: str = ""
    effect: str = ""


class PodSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the pod wants."""

    tolerations: tuple[Toleration, ...] | None = None


class PodState(msgspec.Struct, frozen=True, kw_only=True):
    """How far it is."""

    phase: str = ""


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod, as far as an eviction looks at it."""

    metadata: PodMetadata
    spec: PodSpec = PodSpec()
    status: PodState = PodState()

    @property
    def title(self) -> str:
        """Namespace and name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class _More(msgspec.Struct, frozen=True, kw_only=True):
    next: str = msgspec.field(default="", name="continue")


class _Pods(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _More = _More()
    items: tuple[Pod, ...] | None = None


class Told(msgspec.Struct, frozen=True):
    """What the server said of one pod, and why where it did not let it go."""

    word: Literal["leaving", "gone", "budget", "failed", "refused"]
    why: str = ""


LEAVING: Final = Told("leaving")
GONE: Final = Told("gone")


class Eviction:
    """Asks the pods of one node to leave. Remembers which version of the question the server takes, and at which pods
    it failed the last time: they come last, as one that hangs would keep the others from being asked."""

    def __init__(self, node: str, settings: Settings) -> None:
        self._node, self._settings = node, settings
        self._version = VERSIONS[0]
        self._slow: frozenset[str] = frozenset()

    def carry_on(self, action: Action, seen: NodeReport, utc: float, api: Api, until: float) -> Outcome:
        """One round of it: done when all are gone, deferred while some are left that may go, refused when all that are
        left were refused, or it took too long.

        Units   utc: the API server's clock; until: seconds of time.monotonic()
        Raises  ActionDeferred, ActionRefused
        """
        if self._settings.evict == "never":
            raise ActionRefused(
                'this site lets gpuguard evict no pod; set `evict = "severe"` in [actuators.kubernetes], '
                "or `evict_pods = false` in [policy]"
            )
        left = [pod for pod in self._pods(api, until) if stays_because(pod) is None]
        if not left:
            return Outcome(result="done", message="no pod is left on the node that was to leave")
        left.sort(key=lambda pod: pod.metadata.uid in self._slow)
        told: dict[str, Told] = {}
        pause, slow = LEAVING_AGAIN, set()
        for pod in left:
            if until - time.monotonic() < ASK_NEEDS:
                break
            if pod.metadata.deletion_timestamp is not None:
                told[pod.title] = LEAVING
                continue
            try:
                told[pod.title] = self._ask(pod, api, until)
            except Throttled as busy:
                pause = max(pause, busy.retry_after)
                if not busy.budget:
                    # The server has too much to do, so the others may wait as well; or a webhook says it of this pod.
                    told[pod.title] = Told("failed", str(busy))
                    slow.add(pod.metadata.uid)
                    break
                told[pod.title] = Told("budget")
                pause = max(pause, BUDGET_AGAIN)
            except Conflict:
                told[pod.title] = GONE  # the one we mean is; another has its name
            except ActionDeferred as later:
                told[pod.title] = Told("failed", str(later))
                pause = max(pause, later.retry_after)
                slow.add(pod.metadata.uid)
            except ActionRefused as no:
                told[pod.title] = Told("refused", str(no))
        self._slow = frozenset(slow)
        waiting = [pod.title for pod in left if told.get(pod.title) != GONE]
        if not waiting:
            return Outcome(result="done", message="no pod is left on the node that was to leave")
        return self._unfinished(action, waiting, told, utc, pause)

    def _unfinished(
        self, action: Action, waiting: list[str], told: dict[str, Told], utc: float, pause: float
    ) -> Outcome:
        left: dict[str, list[str]] = {}
        for name in waiting:
            left.setdefault(told[name].word if name in told else "unasked", []).append(name)
        why: dict[str, str] = {said.word: said.why for said in reversed(told.values())}
        words = {
            "leaving": "have been told and have their grace period",
            "budget": "are held by a PodDisruptionBudget",
            "failed": "could not be asked",
            "refused": "were refused",
        }
        parts = [f"{len(waiting)} pods are left"]
        for word, text in words.items():
            if names := left.get(word):
                first = f"; of the first: {why[word][:WHY_SHOWN]}" if why[word] else ""
                parts.append(f"{len(names)} {text} ({_some(names)}{first})")
        since = elapsed(action, utc)
        message = "; ".join(parts)[:SAID_MOST]
        if set(left) == {"refused"}:
            return Outcome(result="refused", message=f"{message}; a person decides")
        if since >= self._settings.evict_deadline:
            message = f"after {since / 60:.0f} min pods are still here: {_some(waiting)} ({message}); a person decides"
            return Outcome(result="refused", message=message)
        return Outcome(result="deferred", message=message, retry_after=pause)

    def _ask(self, pod: Pod, api: Api, until: float) -> Told:
        """What the server says to the eviction of this very pod.

        Raises  Throttled, Conflict, ActionDeferred, ActionRefused
        """
        meta = pod.metadata
        path = path_of("api", "v1", "namespaces", meta.namespace, "pods", meta.name, "eviction")
        for version in (self._version, *(v for v in VERSIONS if v != self._version)):
            wish = {
                "apiVersion": version,
                "kind": "Eviction",
                "metadata": {"name": meta.name, "namespace": meta.namespace},
                "deleteOptions": {"preconditions": {"uid": meta.uid}},
            }
            try:
                api.ask("POST", path, until, msgspec.json.encode(wish))
            except NotThere:
                return GONE
            except NotTaken as unknown:
                refused = unknown
                continue
            self._version = version
            return LEAVING
        raise refused

    def _pods(self, api: Api, until: float) -> Iterator[Pod]:
        more = ""
        while True:
            query = {"fieldSelector": f"spec.nodeName={self._node}", "limit": str(PAGE)}
            page = api.get("/api/v1/pods", _Pods, until, query={**query, **({"continue": more} if more else {})})
            yield from page.items or ()
            more = page.metadata.next
            if not more:
                return


def stays_because(pod: Pod) -> str | None:
    """Why the pod is left where it is; None where it is to leave."""
    meta = pod.metadata
    if pod.status.phase in ("Succeeded", "Failed"):
        return "it has ended"
    if MIRROR in (meta.annotations or {}):
        return "it is a mirror pod"
    if any(owner.kind == "DaemonSet" and owner.controller for owner in meta.owner_references or ()):
        return "it is of a DaemonSet"
    if meta.namespace == "kube-system":
        return "it is of the cluster itself"
    if any(_tolerates_us(toleration) for toleration in pod.spec.tolerations or ()):
        return "it tolerates our taint"
    return None


def elapsed(action: Action, utc: float) -> float:
    """Seconds since the wish was decided; 0 where that cannot be told. Time does not run backwards."""
    return max(0.0, utc - action.at.utc) if action.at.utc is not None else 0.0


def _tolerates_us(toleration: Toleration) -> bool:
    if toleration.effect not in ("", "NoSchedule"):
        return False
    if toleration.key == "":
        return toleration.operator == "Exists"
    return toleration.key == UNFIT


def _some(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(ascii(name)[1:-1] for name in names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
