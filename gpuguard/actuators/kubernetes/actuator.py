"""Drains and releases one node, its own, through the API server.

Each wish is: read, judge by the table in custody, write under the version that was read, compare the answer with what
was asked. Where somebody was faster (409) all of it is done again, judgement included, a few times within the deadline.
One call is in flight at a time. What stands as wished is not written again.
"""

import random
import time
from collections.abc import Mapping
from typing import Final, assert_never

import msgspec

from gpuguard.actuators.kubernetes import Settings, own_name, writes
from gpuguard.actuators.kubernetes.devices import Devices
from gpuguard.actuators.kubernetes.eviction import Eviction
from gpuguard.actuators.kubernetes.fleet import read_fleet
from gpuguard.actuators.kubernetes.lease import LeaseLedger
from gpuguard.actuators.kubernetes.node import CONDITION, DRAIN, REBOOT, TARGET, Node, parse_node
from gpuguard.custody.ownership import about_the_drain, judge, unwritten
from gpuguard.custody.token import parse_reason
from gpuguard.errors import ActionDeferred, ActionRefused, ConfigInvalid
from gpuguard.model.actions import DRY_TARGET, Action, DrainVerb, Outcome
from gpuguard.ports import FleetReport, NodeReport
from gpuguard.web.access import found
from gpuguard.web.kubernetes import AlreadyThere, Api, Conflict, Forbidden, NotThere, path_of, read

# Somebody else's write between our read and ours: a kubelet's, a controller's. Two in a row are rare, eight a storm.
TRIES: Final = 8
# A right may come, or come back: a server that was just started has none for us yet. Units: seconds
RIGHTS_AGAIN: Final = 20.0
# Between two tries, at first and at most; each is drawn from half of it to all of it, so that writers fall out of step.
PAUSE: Final = 0.02
PAUSE_MOST: Final = 0.3
# With less than this a write is not begun: it might be done without our learning of it.
WRITE_NEEDS: Final = 0.2

_NOT_OURS: Final = {
    "requeue": "a pod is started anew by its own controller when it ends",
    "reclaim": "the kubelet ends what is left of its containers",
    "test": "no test runs through Kubernetes' API",
    "reset": "no GPU is reset through Kubernetes' API",
}


class Kubernetes:
    """This machine's Node, its pods, and the fleet around it."""

    name = TARGET

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self.node = own_name(settings, environ)
        self._settings, self._environ = settings, environ
        self._path = path_of("api", "v1", "nodes", self.node)
        self._reached: Api | None = None
        self._eviction = Eviction(self.node, settings)
        self._devices = Devices(self.node, settings.device_taints)
        self._rehearsed = Devices(self.node, "off" if settings.device_taints == "off" else "inform")

    def perform(self, action: Action) -> Outcome:
        """The wish is fulfilled, or the outcome says who acts next. Safe to send twice."""
        try:
            return self._perform(action, time.monotonic() + self._settings.deadline)
        except ActionDeferred as later:
            return Outcome(result="deferred", message=str(later), retry_after=later.retry_after)
        except Forbidden as no:
            return Outcome(result="deferred", message=_said(no), retry_after=RIGHTS_AGAIN)
        except (ActionRefused, ConfigInvalid) as no:
            return Outcome(result="refused", message=_said(no))

    def read_state(self) -> NodeReport:
        """What Kubernetes says of this node now; `error` tells why nothing could be learned."""
        try:
            return parse_node(self._read(time.monotonic() + self._settings.deadline)[0])
        except ActionDeferred as later:
            return NodeReport(target=self.name, node=self.node, error=str(later))
        except (ActionRefused, ConfigInvalid) as no:
            return NodeReport(target=self.name, node=self.node, error=_said(no), refused=not isinstance(no, Forbidden))

    def read_fleet(self) -> FleetReport:
        """How many nodes have GPUs, and which of all nodes stand drained with a token of gpuguard's."""
        try:
            return read_fleet(self.api(), self._settings.gpu_nodes, time.monotonic() + self._settings.deadline)
        except (ActionDeferred, ActionRefused, ConfigInvalid) as error:
            return FleetReport(
                target=self.name, error=str(error), refused=not isinstance(error, ActionDeferred | Forbidden)
            )

    def ledger(self) -> LeaseLedger:
        """The fleet's book, in a Lease.

        Raises  ConfigInvalid while the API server cannot be reached at all
        """
        return LeaseLedger(self.api(), self._settings.namespace)

    def api(self) -> Api:
        """The API server as the settings, the pod or $KUBECONFIG name it.

        Raises  ConfigInvalid; it is looked for again each time, as a service account may come later
        """
        if self._reached is None:
            access = found(self._settings.kubeconfig, self._environ, context=self._settings.context)
            self._reached = Api(access)
        return self._reached

    def close(self) -> None:
        """The connection is given up."""
        if self._reached is not None:
            self._reached.close()

    def _perform(self, action: Action, until: float) -> Outcome:
        if action.verb != "release" and parse_reason(action.reason) != action.token:
            raise ActionRefused(
                f"the reason {action.reason[:80]!r} does not carry the token {action.token}; nothing was written; "
                "this is a bug, please report it"
            )
        if why := _NOT_OURS.get(action.verb):
            raise ActionRefused(f"Kubernetes performs no {action.verb}: {why}")
        pause = PAUSE
        for _ in range(TRIES):
            node, utc = self._read(until)
            try:
                return self._devices_told(action, self._once(action, node, utc, until), until)
            except Conflict:
                if time.monotonic() + pause + WRITE_NEEDS > until:
                    break
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, PAUSE_MOST)
        raise ActionDeferred(f"others keep writing to {self.node} at the same moment; nothing was written", 2.0)

    def _once(self, action: Action, node: Node, utc: float, until: float) -> Outcome:
        """What came of the wish over the node as it was read.

        Raises  Conflict when it was changed since: nothing was written
        """
        if not about_the_drain(action.verb):
            return self._remedy(action, node, utc, until)
        verb, seen = action.verb, parse_node(node)
        judgement = judge(seen, verb, action.token)
        match judgement.call:
            case "done":
                stood = unwritten(judgement, seen)
                if verb == "release":
                    return self._tidied(action, node, stood, utc, until)
                return self._told(action, verb, node, stood, utc, until)
            case "never":
                gone = unwritten(judgement, seen)
                if verb in ("release", "update_reason"):
                    return self._tidied(action, node, gone, utc, until)
                return gone
            case "wait":
                return unwritten(judgement, seen)
            case "write":
                return self._write(action, verb, node, utc, until)
            case unknown:
                assert_never(unknown)

    def _write(self, action: Action, verb: DrainVerb, node: Node, utc: float, until: float) -> Outcome:
        before = parse_node(node)
        match verb:
            case "drain":
                asked = writes.drain_of(node, action.reason, utc)
            case "update_reason" | "adopt":
                if before.reason == action.reason:
                    stood = Outcome(result="done", message="the reason stands as wished", node_state=before.state)
                    return self._told(action, verb, node, stood, utc, until)
                asked = writes.reason_of(node, action.reason)
            case "release":
                asked = writes.release_of(node, cordon=True)
            case unknown:
                assert_never(unknown)
        after = self._patched(asked, until)
        now = parse_node(after)
        saw = f"was {before.state}, is {now.state}"
        if lacks := writes.missing(after, asked):
            message = f"the API server took the write, yet not {lacks}: {saw}; does an admission webhook change nodes?"
            return Outcome(result="deferred", message=message, retry_after=10.0, node_state=before.state)
        message = f"our drain is lifted: {saw}" if verb == "release" else f"{saw}, reason {now.reason!r}"
        done = Outcome(result="done", message=message, node_state=before.state)
        return self._told(action, verb, after, done, utc, until)

    def _tidied(self, action: Action, node: Node, outcome: Outcome, utc: float, until: float) -> Outcome:
        """Somebody uncordoned the node: what is left of this drain of ours is gone, or the server will not have it so.

        A cordon that stands is left alone, as are the marks of another token and what a person wrote into ours. The
        taint would keep pods away from a node that was given back to them.
        """
        condition = node.condition(CONDITION)
        left = parse_reason(node.annotations.get(DRAIN, ""))
        unnamed = node.marked and DRAIN not in node.annotations and not node.spec.unschedulable
        if left == action.token or (action.verb == "release" and unnamed):
            asked = writes.release_of(node, cordon=False)
            node = self._patched(asked, until)
            if lacks := writes.missing(node, asked):
                message = f"the API server took the write, yet not {lacks}; {outcome.message}"
                return msgspec.structs.replace(outcome, result="deferred", message=message, retry_after=10.0)
            outcome = _noted(outcome, "what was left of our drain is gone")
        elif condition is None or condition.status != "True" or parse_reason(condition.message) != action.token:
            return outcome
        return self._told(action, "release", node, outcome, utc, until)

    def _remedy(self, action: Action, node: Node, utc: float, until: float) -> Outcome:
        """What is done to the node while our drain stands on it, and only then."""
        seen = parse_node(node)
        if action.drain is None:
            raise ActionRefused(f"it is not told under which drain to {action.verb}; this is a bug, please report it")
        if seen.ours != action.drain:
            reason = f" with reason {seen.reason[:80]!a}" if seen.reason else ""
            message = f"our drain {action.drain} does not stand; {self.node} is {seen.state}{reason}; nothing was done"
            return Outcome(result="foreign", message=message, node_state=seen.state)
        if action.verb == "evict":
            outcome = self._eviction.carry_on(action, seen, utc, self.api(), until)
            return msgspec.structs.replace(outcome, node_state=seen.state)
        return self._asked_for_reboot(action, node, utc, until)

    def _asked_for_reboot(self, action: Action, node: Node, utc: float, until: float) -> Outcome:
        state = parse_node(node).state
        stands = node.annotations.get(REBOOT, "")
        request = stands if stands.startswith(f"{action.token} ") else f"{action.token} {writes.stamp(utc)}"
        if request != stands:
            asked = writes.reboot_of(node, request)
            if writes.missing(self._patched(asked, until), asked):
                message = f"the API server took the write, yet {REBOOT} does not stand"
                return Outcome(result="deferred", message=message, retry_after=10.0, node_state=state)
        message = f"a reboot is asked for: {REBOOT}={request}; whatever reboots nodes here is to see it"
        return self._with_event(
            action, Outcome(result="done", message=message, node_state=state), action.reason, utc, until
        )

    def _told(self, action: Action, verb: DrainVerb, node: Node, outcome: Outcome, utc: float, until: float) -> Outcome:
        """Condition and Event say what stands on the node; `outcome` is what came of the write itself.

        A server that is away for a moment leaves the rest owed: the next sending finds the drain and writes what lacks.
        """
        unfit, reason, message = writes.condition_words(verb, node.annotations.get(DRAIN, action.reason))
        change = writes.condition_of(node, unfit=unfit, reason=reason, message=message, utc=utc)
        if change is not None:
            try:
                after = self.api().patch(f"{self._path}/status", change, Node, until, by="strategic")
                if writes.condition_of(after, unfit=unfit, reason=reason, message=message, utc=utc) is not None:
                    return _noted(outcome, "the API server took the condition and did not keep it")
            except ActionDeferred as later:
                return _owed(outcome, "the condition", later)
            except ActionRefused as no:
                outcome = _noted(outcome, f"without the condition: {no}")
        text = message if unfit else f"gpuguard released its drain {action.token}"
        return self._with_event(action, outcome, text, utc, until)

    def _with_event(self, action: Action, outcome: Outcome, text: str, utc: float, until: float) -> Outcome:
        folder = path_of("api", "v1", "namespaces", writes.EVENTS, "events")
        event = writes.event_of(self.node, action.token, action.verb, text, utc)
        try:
            try:
                self.api().post(folder, event, dict, until)
            except AlreadyThere:
                if action.verb == "update_reason":
                    name = writes.event_name(self.node, action.token, action.verb)
                    self.api().patch(f"{folder}/{name}", writes.again(text, utc), dict, until)
        except ActionDeferred as later:
            return _owed(outcome, "the Event", later)
        except ActionRefused as no:
            return _noted(outcome, f"without an Event: {no}")
        return outcome

    def rehearse(self, action: Action) -> Outcome:
        """Nothing is written to the node; where the site wants it, DRA's devices are told with effect None."""
        told = f"observe-only: nothing was written to {self.node}"
        if not about_the_drain(action.verb):
            return Outcome(result="done", message=told, node_state=DRY_TARGET)
        try:
            note = self._rehearsed.follow(action, action.verb, self.api(), time.monotonic() + self._settings.deadline)
        except (ActionDeferred, ActionRefused, ConfigInvalid) as no:
            note = f"without the devices' taint: {no}"
        return Outcome(result="done", message=f"{told}; {note}" if note else told, node_state=DRY_TARGET)

    def _devices_told(self, action: Action, outcome: Outcome, until: float) -> Outcome:
        """Where the site wants it, DRA's devices say what the drain says; what came of the drain itself stays."""
        if not about_the_drain(action.verb) or not (outcome.result == "done" or action.verb == "release"):
            return outcome
        try:
            note = self._devices.follow(action, action.verb, self.api(), until)
        except ActionDeferred as later:
            return _owed(outcome, "the devices' taint", later)
        except ActionRefused as no:
            note = f"without the devices' taint: {no}"
        return _noted(outcome, note) if note else outcome

    def _read(self, until: float) -> tuple[Node, float]:
        """The Node, and what time it is by the API server.

        Raises  ActionDeferred, ActionRefused, ConfigInvalid
        """
        answer = self.api().ask("GET", self._path, until)
        node = read(answer, Node)
        if node.metadata.name != self.node or not node.metadata.resource_version:
            raise ActionDeferred(f"the API server's answer is not the Node {self.node}", 10.0)
        return node, answer.utc if answer.utc is not None else time.time()

    def _patched(self, asked: writes.Json, until: float) -> Node:
        """The Node after the write.

        Raises  Conflict when somebody was faster, ActionDeferred when it is not known to be done, ActionRefused
        """
        if until - time.monotonic() < WRITE_NEEDS:
            raise ActionDeferred("too little time was left to write; nothing was written", 1.0)
        return self.api().patch(self._path, asked, Node, until)


def _said(no: ActionRefused | ConfigInvalid) -> str:
    """The refusal, with the next step where it is this one's to know."""
    if isinstance(no, NotThere):
        return f"{no}; set `node` in [actuators.kubernetes] to this machine's name in `kubectl get nodes`"
    return str(no)


def _owed(outcome: Outcome, what: str, later: ActionDeferred) -> Outcome:
    """What stands stands, and the rest is asked for again."""
    return msgspec.structs.replace(
        outcome,
        result="deferred",
        message=f"{outcome.message}; {what} is still to be written: {later}",
        retry_after=later.retry_after,
    )


def _noted(outcome: Outcome, note: str) -> Outcome:
    return msgspec.structs.replace(outcome, message=f"{outcome.message}; {note}")
