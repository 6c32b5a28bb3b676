"""This node's drain in Slurm, and its jobs, through `scontrol`.

Slurm lets nobody but root and SlurmUser drain, has no compare-and-set, and lets every administrator write over a
reason. So each action is: read, judge by the table in custody, write, read again. Between the first two lie some
10 ms in which somebody else could write; the second read tells, and the outcome says so.

Reads   `scontrol -o show node NAME` (6 to 10 ms; `sinfo --json` costs the whole cluster and ignores -n)
Source  Slurm 22.05.8 as observed
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

from gpuguard.actuators.slurm import fleet, reboot
from gpuguard.actuators.slurm.jobs import complaint, hindered, number_of, over
from gpuguard.actuators.slurm.node import TARGET, StateRefused, complaint_of, parse_node
from gpuguard.actuators.slurm.scontrol import Scontrol
from gpuguard.child.program import Unanswered
from gpuguard.child.slurm import NODE_NAME, Job, Jobs, own_node
from gpuguard.custody.ownership import Judgement, about_the_drain, judge, lifted, shown, unwritten
from gpuguard.custody.remedies import standing
from gpuguard.custody.token import parse_reason
from gpuguard.errors import Absent, ActionDeferred, ActionRefused, ConfigInvalid, NotUnderstood
from gpuguard.model.actions import Action, DrainVerb, Outcome
from gpuguard.model.units import Seconds
from gpuguard.ports import FleetReport, NodeReport

# A write that is killed half-way leaves us not knowing; with less time than this it is not begun.
WRITE_NEEDS = Seconds(0.5)
# A silent node is looked at again after 0.05 s, then after twice as long each time up to this.
LOOK_AT_MOST = Seconds(0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this node's Slurm is reached; empty texts mean: find out.

    `node` is the NodeName in slurm.conf; without it SLURMD_NODENAME, then the short host name. `settle` is how long
    a node that just fell silent (each does for a moment after a resume) is looked at again before a wish is put off.
    """

    scontrol: str = ""  # the program, where it is in none of the usual folders
    slurm_conf: str = ""  # SLURM_CONF for scontrol, where slurm.conf is not where Slurm looks by itself
    node: str = ""
    deadline: Seconds = Seconds(5.0)  # for a wish with all its questions to slurmctld
    settle: Seconds = Seconds(2.0)  # 0.7 to 1.1 s on Slurm 22.05.8
    # Whether a node of ours that is drained and idle may be rebooted through slurmctld. `reboot_node` in [policy] wants
    # it: both are needed.
    reboot: bool = False
    fleet_deadline: Seconds = Seconds(2.0)  # for the one question about all nodes that comes before a drain

    def __post_init__(self) -> None:
        for name in ("scontrol", "slurm_conf"):
            path = getattr(self, name)
            if path and not path.startswith("/"):
                raise ValueError(f"{name}: must be an absolute path")
        if self.scontrol and not os.access(self.scontrol, os.X_OK):
            raise ValueError("scontrol: is not a program that can be run")
        if self.node and not NODE_NAME.fullmatch(self.node):
            raise ValueError("node: must be one NodeName")
        if not 0.2 <= self.deadline <= 30.0:
            raise ValueError("deadline: must lie between 0.2 and 30 seconds")
        if not 0.0 <= self.settle < self.deadline:
            raise ValueError("settle: must be at least 0 and less than the deadline")
        if not 0.2 <= self.fleet_deadline <= 30.0:
            raise ValueError("fleet_deadline: must lie between 0.2 and 30 seconds")


class Slurm:
    """Drains and releases one node, its own."""

    name = TARGET

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], boot: Callable[[], str] = reboot.this_boot
    ) -> None:
        """`boot` tells which boot the machine is in."""
        self.node = _own_name(settings, environ)
        self._boot = boot
        self._settings = settings
        conf = settings.slurm_conf or environ.get("SLURM_CONF", "")
        self._scontrol = Scontrol(settings.scontrol, conf)
        self._fleet = Scontrol(settings.scontrol, conf, limit=fleet.FLEET_LIMIT, time_format=fleet.TIME_FORMAT)
        self._jobs = Jobs(settings.scontrol, conf)

    def perform(self, action: Action) -> Outcome:
        """The wish is fulfilled, or the outcome says who acts next. Safe to send twice."""
        try:
            return self._perform(action, time.monotonic() + self._settings.deadline)
        except ActionDeferred as later:
            return Outcome(result="deferred", message=str(later), retry_after=later.retry_after)
        except ActionRefused as no:
            return Outcome(result="refused", message=str(no))

    def read_state(self) -> NodeReport:
        """What Slurm says of this node now; `error` tells why nothing could be learned."""
        try:
            return self._read(time.monotonic() + self._settings.deadline)
        except (ActionDeferred, ActionRefused) as error:
            refused = isinstance(error, ActionRefused)
            return NodeReport(target=self.name, node=self.node, error=str(error), refused=refused)

    def read_fleet(self) -> FleetReport:
        """What Slurm says of all nodes now; `error` tells why nothing could be learned."""
        try:
            answer = self._fleet.run(("-o", "show", "node"), time.monotonic() + self._settings.fleet_deadline)
        except (ActionDeferred, ActionRefused) as error:
            return FleetReport(target=self.name, error=str(error), refused=isinstance(error, ActionRefused))
        return fleet.parse_fleet(answer.out, self.node) if answer.code == 0 else fleet.failed(answer)

    def runs_here(self, number: str, until: float) -> bool | None:
        """Whether Slurm has this job run on this node; None where it gives no answer that says so or the contrary.

        Root and SlurmUser are told of every job, so one that Slurm does not know runs nowhere.
        Units   until: seconds of time.monotonic()
        """
        try:
            job = self._job(number, until)
        except (ActionDeferred, ActionRefused):
            return None
        return job.alive_on(self.node) if job is not None else False

    def _perform(self, action: Action, until: float) -> Outcome:
        if action.verb != "release" and parse_reason(action.reason) != action.token:
            raise ActionRefused(
                f"the reason {action.reason[:80]!r} does not carry the token {action.token}; nothing was written; "
                "this is a bug, please report it"
            )
        if action.verb == "requeue":
            return self._requeue(action, until)
        if action.verb == "reboot":
            return self._reboot(action, until)
        if action.verb == "evict":
            raise ActionRefused(
                "Slurm evicts nothing: jobs run to their end on a drained node; set `evict_pods = false` in [policy]"
            )
        if not about_the_drain(action.verb):
            raise ActionRefused(f"Slurm performs no {action.verb}; this is a bug, please report it")
        before, judgement = self._settled(action, action.verb, until)
        if judgement.call != "write":
            return unwritten(judgement, before)
        return self._write(action, action.verb, before, until)

    def _settled(self, action: Action, verb: DrainVerb, until: float) -> tuple[NodeReport, Judgement]:
        """What Slurm says and what follows, once the node is no longer silent or `settle` has passed."""
        patience = min(time.monotonic() + self._settings.settle, until)
        pause = 0.05
        while True:
            report = self._read(until)
            judgement = judge(report, verb, action.token)
            passing = judgement.condition == "silent" and judgement.call == "wait"
            if not passing or time.monotonic() + pause >= patience:
                return report, judgement
            time.sleep(pause)
            pause = min(2 * pause, LOOK_AT_MOST)

    def _write(self, action: Action, verb: DrainVerb, before: NodeReport, until: float) -> Outcome:
        match verb:
            case "drain":
                self._update(("state=drain", f"reason={action.reason}"), until)
            case "update_reason" | "adopt":
                if before.reason == action.reason:
                    return Outcome(result="done", message="the reason stands as wished", node_state=before.state)
                self._update((f"reason={action.reason}",), until)
            case "release":
                return self._release(action, before, until)
            case unknown:
                assert_never(unknown)
        after = self._read(until)
        saw = f"was {before.state}, is {after.state}"
        if after.ours == action.token and after.reason.startswith(action.reason):
            # A working node may carry a note of somebody's; Slurm has one text only, so ours keeps it in the story.
            replaced = f", in place of {shown(before)}" if before.reason and not before.drained else ""
            message = f"{saw}, reason {after.reason!r}{replaced}"
            return Outcome(result="done", message=message, node_state=before.state)
        if after.drained and not (before.drained and after.reason == before.reason):
            message = f"somebody else wrote at the same moment: {saw}, reason {shown(after)}"
            return Outcome(result="foreign", message=message, node_state=before.state)
        message = f"Slurm took the write, yet nothing changed: {saw}"
        return Outcome(result="deferred", message=message, retry_after=5.0, node_state=before.state)

    def _release(self, action: Action, before: NodeReport, until: float) -> Outcome:
        """Our drain is lifted: by `undrain`, which clears nothing else, or by `resume` where that did not do it.

        `resume` would clear DOWN and FAIL too, so it is sent only after a fresh look at a settled node that is still
        ours.
        """
        after = before
        for word in ("undrain", "resume"):
            try:
                self._update((f"state={word}",), until)
            except StateRefused as refused:
                said = f" ({refused})"
            else:
                said = ""
            after = self._read(until)
            if judge(after, "release", action.token).call != "write":
                break
        return lifted(action.token, before, after, "Slurm", said)

    def _requeue(self, action: Action, until: float) -> Outcome:
        """The job is back in the queue, or was past it already, or the outcome says who acts next."""
        number = number_of(action)
        job = self._job(number, until)
        past = over(job, action)
        if job is None or past is not None:
            return Outcome(result="done", message=f"job {number}: {past}; nothing was done", node_state=_state(job))
        hindrance = hindered(job, self.node)
        if hindrance == "elsewhere":
            message = f"job {number} runs on {job.nodes[:80] or 'no node'}, not on {self.node}; nothing was done"
            return Outcome(result="foreign", message=message, node_state=job.state)
        if hindrance is not None:
            raise hindrance
        if until - time.monotonic() < WRITE_NEEDS:
            raise ActionDeferred("too little time was left to write; nothing was written", 1.0)
        answer = self._scontrol.run(("requeue", job.target), until)
        if answer.code != 0 and (error := complaint(answer, number)) is not None:
            raise error
        after = self._job(number, until)
        if (said := over(after, action)) is None:
            message = f"Slurm took the requeue, yet job {number} still is {_state(after)}"
            return Outcome(result="deferred", message=message, retry_after=5.0, node_state=job.state)
        message = f"job {number} was {job.state} on {job.nodes[:80]}; {said}"
        return Outcome(result="done", message=message, node_state=job.state)

    def _reboot(self, action: Action, until: float) -> Outcome:
        """The machine has booted since it was wished, or it will, or the outcome says who acts next."""
        if (boot := self._boot()) != action.at.boot:
            return Outcome(result="done", message=f"{self.node} has booted since: this is boot {boot[:8]}")
        if action.drain is None:
            raise ActionRefused("it is not told which drain must stand for a reboot; this is a bug, please report it")
        if not self._settings.reboot:
            raise ActionRefused("this site lets gpuguard reboot nothing; set `reboot = true` in [actuators.slurm]")
        before = self._read(until)
        if reboot.under_way(before):
            message = f"a reboot of {self.node} is asked for, it is {before.state}; done once it has booted"
            return Outcome(result="deferred", message=message, retry_after=reboot.LOOK_AGAIN, node_state=before.state)
        now = standing(before, action.drain)
        if now.call != "go":
            result: Literal["foreign", "deferred"] = "foreign" if now.call == "never" else "deferred"
            message = f"{now.why}; no reboot was asked for"
            return Outcome(result=result, message=message, retry_after=now.retry_after, node_state=before.state)
        if until - time.monotonic() < WRITE_NEEDS:
            raise ActionDeferred("too little time was left to write; nothing was written", 1.0)
        answer = self._scontrol.run(("reboot", self.node), until)
        if answer.code != 0:
            raise reboot.complaint(answer, self.node)
        after = self._read(until)
        message = f"asked for a reboot: was {before.state}, is {after.state}; done once it has booted"
        return Outcome(result="deferred", message=message, retry_after=reboot.LOOK_AGAIN, node_state=before.state)

    def _job(self, number: str, until: float) -> Job | None:
        """Slurm's record of the job, None when it knows none.

        Raises  ActionDeferred when no usable answer came, ActionRefused when none can come
        """
        try:
            return self._jobs.ask(number, self.node, until)
        except Unanswered as error:
            raise ActionDeferred(f"{error}; is slurmctld up?", error.next_in) from error
        except (NotUnderstood, Absent) as error:
            raise ActionRefused(str(error)) from error

    def _read(self, until: float) -> NodeReport:
        """Slurm's record of this node.

        Raises  ActionDeferred when no usable answer came, ActionRefused when Slurm knows no such node
        """
        answer = self._scontrol.run(("-o", "show", "node", self.node), until)
        if answer.code != 0:
            raise complaint_of(answer, self.node)
        report = parse_node(answer.out, self.node)
        if report.error is not None:
            raise ActionDeferred(report.error, 10.0)
        return report

    def _update(self, assignments: tuple[str, ...], until: float) -> None:
        """slurmctld has taken the write.

        Raises  ActionDeferred when it is not known to have, ActionRefused when it said no
        """
        if until - time.monotonic() < WRITE_NEEDS:
            raise ActionDeferred("too little time was left to write; nothing was written", 1.0)
        answer = self._scontrol.run(("update", f"nodename={self.node}", *assignments), until)
        if answer.code != 0:
            raise complaint_of(answer, self.node)


def build(settings: Settings) -> Slurm:
    """The actuator of this node; raises ConfigInvalid when its name cannot be one of Slurm's."""
    return Slurm(settings, os.environ)


def _own_name(settings: Settings, environ: Mapping[str, str]) -> str:
    name = own_node(settings.node, environ)
    if not NODE_NAME.fullmatch(name):
        raise ConfigInvalid((f"[actuators.slurm] node: {name!r} cannot be a NodeName; set it to this machine's",))
    return name


def _state(job: Job | None) -> str | None:
    return job.state if job is not None else None
