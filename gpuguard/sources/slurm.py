"""What Slurm says of the jobs on this node: those that run, and those that ended a moment ago.

Reads     <SlurmdSpoolDir>/<node>_<job>.<step>, the sockets of this node's slurmstepd: which jobs have a step here, with
          no question to anybody; `scontrol -o -d show job ID` for what there is to know of one
Emits     a Sweep with a row for each job, and one for the node that says whether all of them are known
Source    Slurm 22.05.8 as observed: the folder has mode 755, the sockets are listed by stepd_available
          (src/common/stepd_api.c); a controller forgets a job MinJobAge (300 s) after its end

A list from the controller costs it all jobs of the cluster each time, whatever filter is given. So jobs are found
here, and the controller is asked of each one alone: when it is new, when it left, and every few minutes in between.
Nodes ask at different moments, told apart by their names. A controller that is slow or away is asked less and less,
and until it answers nothing is said of what only it can know: never that there are no jobs.

A controller with PrivateData=jobs says of other people's jobs that they do not exist. There that answer means an end
only for a job that was seen before.
"""

import hashlib
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpuguard.child.program import Unanswered
from gpuguard.child.slurm import JOB_NUMBER, NODE_NAME, Job, Jobs, Site, found, own_node
from gpuguard.errors import Absent, NotUnderstood, ReadFailed
from gpuguard.model.events import Sweep
from gpuguard.model.ids import NODE, job
from gpuguard.model.instants import Instant
from gpuguard.model.jobs import NODE as OF_NODE
from gpuguard.model.jobs import REPORTED, job_id
from gpuguard.model.readings import Quantity, Values
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sweeping.rounds import Rounds, Rows

NAME = "slurm"
KNOWN = "scheduler_jobs_known"
QUANTITIES: tuple[Quantity, ...] = (*REPORTED, *(quantity for quantity in OF_NODE if quantity.name == KNOWN))

# Jobs that others name and that have no step here: leftovers of what ended. More at once are no honest node's.
NAMED_MOST = 64
# A node of 256 cores with a job on each.
JOBS_MOST = 512
WAIT_MOST = 600.0  # between two questions to a controller that does not answer
TEXT_MOST = 80
OURS = "slurm/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this node's Slurm is asked; empty texts mean: find out. Units: seconds."""

    scontrol: str = ""  # the program, where it is in none of the usual folders; squeue lies beside it
    slurm_conf: str = ""  # SLURM_CONF for it, where slurm.conf is not where Slurm looks by itself
    node: str = ""  # the NodeName in slurm.conf; without it SLURMD_NODENAME, then the short host name
    spool: str = ""  # slurmd's SlurmdSpoolDir; without it the controller is asked for it once
    every: Seconds = Seconds(30.0)  # the folder is looked at this often, and new jobs are asked for
    refresh: Seconds = Seconds(300.0)  # a job that runs is asked for again this often
    kept: Seconds = Seconds(900.0)  # a job that ended is told of for this long
    deadline: Seconds = Seconds(3.0)  # for all questions of one round together: one takes some 10 ms

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin, or that name nothing."""
        if min(self.every, self.refresh, self.kept, self.deadline) <= 0:
            raise ValueError("every, refresh, kept and deadline must be above 0")
        for name in ("scontrol", "slurm_conf", "spool"):
            path = getattr(self, name)
            if path and not path.startswith("/"):
                raise ValueError(f"{name}: must be an absolute path")
        if self.node and not NODE_NAME.fullmatch(self.node):
            raise ValueError("node: must be one NodeName")


class _Noted(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one job: the newest answer, when it came, and from when its oldest step here is.

    `job` is None where Slurm never told of it; `over` says that it knows no such job now, and `seen` that this means an
    end: it told of it before, or hides none. `doubt` says that the
    newest answer could not be understood. Units: asked and step in seconds of two clocks
    """

    job: Job | None
    asked: float
    step: float | None
    seen: bool = False
    over: bool = False
    doubt: bool = False

    def alive(self, node: str) -> bool | None:
        """Whether it runs here, as far as Slurm's newest answer tells."""
        if self.doubt:
            return None
        if self.over:
            return False if self.seen else None
        return self.job.alive_on(node) if self.job is not None else None


class Slurm(Rounds):
    """The jobs of this node."""

    onlooks = ("task_job",)

    def __init__(self, settings: Settings, root: Path, clock: Clock, environ: Mapping[str, str]) -> None:
        """Asks nothing yet."""
        super().__init__(NAME, self.sweep, clock, every=settings.every, rest=self.rest)
        self._settings, self._root = settings, root
        self._node = own_node(settings.node, environ)
        self._jobs = Jobs(settings.scontrol, settings.slurm_conf or environ.get("SLURM_CONF", ""))
        self._site: Site | None = None
        self._noted: dict[str, _Noted] = {}
        self._named: frozenset[str] = frozenset()
        self._guard = threading.Lock()
        self._rested = False
        self._silences = 0
        self._not_before = 0.0
        self.why = ""  # why the list is not complete, for a log

    def onlook(self, sweep: Sweep) -> None:
        """Jobs that have processes on this node's GPUs, by what another source found of the processes."""
        jobs = (str(values.get("task_job") or "") for values in sweep.rows.values())
        numbers = (name.removeprefix(OURS) for name in jobs if name.startswith(OURS))
        named = frozenset(sorted(n for n in numbers if JOB_NUMBER.fullmatch(n))[:NAMED_MOST])
        with self._guard:
            self._named = named

    def rest(self) -> float:
        """Until the next round: once a part of `every` that follows from the node's name, so that a thousand nodes that
        were started together ask one after the other."""
        if self._rested:
            return float(self._settings.every)
        self._rested = True
        digest = hashlib.blake2s(self._node.encode(), digest_size=4).digest()
        return float(self._settings.every) * int.from_bytes(digest, "big") / 2**32

    def sweep(self, now: Instant) -> Rows:
        """A row for each job of this node, and one for the node.

        Raises  Absent where there is no Slurm, or another machine is looked at
        """
        if self._root.resolve() != Path("/"):
            raise Absent("Slurm knows this machine, not a recorded one")
        if not (self._settings.scontrol or found("scontrol")):
            raise Absent("no scontrol is installed; this is no node of a Slurm cluster")
        if not NODE_NAME.fullmatch(self._node):
            raise Absent(f"{self._node[:TEXT_MOST]!r} cannot be a NodeName; set `node` in [sources.slurm]")
        self.why = ""
        # Not in the first round, which every node of a cluster may begin in the same moment.
        until = time.monotonic() + self._settings.deadline if self._rested and now.mono >= self._not_before else None
        steps = self._steps(now, until)
        with self._guard:
            named = self._named
        asked = self._ask_all(steps, named, now, until)
        self._forget(steps or {}, named, now)
        rows: Rows = {
            job(job_id("slurm", number)): self._row(number, noted, steps, number in asked, now)
            for number, noted in self._noted.items()
        }
        told = steps is not None and all(
            (noted := self._noted.get(number)) is not None and noted.alive(self._node) is not None for number in steps
        )
        rows[NODE] = {KNOWN: 1 if told else None}
        return rows

    # --- which there are ----------------------------------------------------------------------------------------------

    def _steps(self, now: Instant, until: float | None) -> dict[str, float] | None:
        """The jobs that have a step here, and since when the oldest of its steps; None where that cannot be told."""
        try:
            if self._site is None and until is not None:
                self._site = self._jobs.site(self._node, until)
            folder = self._settings.spool or (self._site.spool if self._site is not None else "")
            return self._listed(folder) if folder else None
        except (Unanswered, NotUnderstood, ReadFailed) as error:
            self._was_silent(error, now)
            return None

    def _listed(self, folder: str) -> dict[str, float]:
        """What the names of the sockets say.

        Shape   <node>_<job>.<step>, of a component of a heterogeneous step with one more number
        Raises  Absent where there is no such folder; ReadFailed where it cannot be listed or holds sockets of this node
                with names of another shape
        """
        prefix = f"{self._node}_"
        steps: dict[str, float] = {}
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.name.startswith(prefix):
                        continue
                    match = re.fullmatch(r"(\d{1,10})\.\d{1,10}(?:\.\d{1,10})?", entry.name[len(prefix) :], re.ASCII)
                    if match is None:
                        raise ReadFailed(f"{folder} holds {entry.name[:TEXT_MOST]!r}, which is no step that is known")
                    try:
                        since = entry.stat(follow_symlinks=False).st_ctime
                    except FileNotFoundError:
                        continue  # the step ended since
                    steps[match[1]] = min(since, steps.get(match[1], since))
        except FileNotFoundError as error:
            self._site = None
            raise Absent(f"{folder} does not exist; no slurmd runs here") from error
        except OSError as error:
            raise ReadFailed(f"{folder} cannot be listed: {error.strerror}") from error
        return steps

    # --- what Slurm says of them --------------------------------------------------------------------------------------

    def _ask_all(
        self, steps: dict[str, float] | None, named: frozenset[str], now: Instant, until: float | None
    ) -> set[str]:
        """Every job that is due was asked for, or the controller does not answer; those that were."""
        asked: set[str] = set()
        if until is None:
            return asked
        for number in self._due(steps, named, now):
            if time.monotonic() >= until:
                self.why = "there was no time to ask for all jobs; the rest comes in the next round"
                break
            step = steps.get(number) if steps is not None else None
            known = self._noted.get(number)
            try:
                answer = self._jobs.ask(number, self._node, until)
            except Unanswered as error:
                self._was_silent(error, now)
                break
            except NotUnderstood as error:
                self.why = str(error)
                was = known or _Noted(job=None, asked=now.mono, step=step)
                self._noted[number] = msgspec.structs.replace(was, asked=now.mono, step=step, doubt=True)
                continue
            self._silences = 0
            asked.add(number)
            shown = self._site is not None and not self._site.hides_jobs
            seen = shown or answer is not None or (known is not None and known.seen)
            before = known.job if known is not None else None
            self._noted[number] = _Noted(
                job=_joined(before, answer), asked=now.mono, step=step, seen=seen, over=answer is None
            )
            if not seen:
                self.why = f"Slurm shows no job {number}; with PrivateData=jobs the agent's user must be an operator"
        return asked

    def _due(self, steps: dict[str, float] | None, named: frozenset[str], now: Instant) -> Iterable[str]:
        """The jobs to ask for, those of which least is known first."""
        here = steps if steps is not None else {}
        new = [number for number in here if number not in self._noted]
        others = [number for number in sorted(named) if number not in self._noted and number not in here]
        again = []
        for number, noted in self._noted.items():
            alive = noted.alive(self._node)
            old = now.mono - noted.asked >= self._settings.refresh
            if number in here:
                due = noted.step is None or here[number] > noted.step or old
            elif steps is not None and noted.step is not None:
                due = alive is not False  # its last step left
            else:
                due = alive is not False and (old or (noted.job is not None and noted.job.state == "COMPLETING"))
            if due:
                again.append(number)
        return [*new, *again, *others][:JOBS_MOST]

    def _was_silent(self, error: Exception, now: Instant) -> None:
        self.why = str(error)
        self._silences += 1
        self._not_before = now.mono + min(self._settings.every * 2.0 ** min(self._silences, 8), WAIT_MOST)

    def _forget(self, steps: dict[str, float], named: frozenset[str], now: Instant) -> None:
        """What ended long ago, or is over and nobody names any more."""
        kept = {
            number: noted
            for number, noted in self._noted.items()
            if number in steps or number in named or now.mono - noted.asked < self._settings.kept
        }
        self._noted = dict(sorted(kept.items(), key=lambda item: item[1].asked)[-JOBS_MOST:])

    # --- one row ------------------------------------------------------------------------------------------------------

    def _row(
        self, number: str, noted: _Noted, steps: dict[str, float] | None, fresh: bool, now: Instant
    ) -> Values:  # fmt: skip
        alive = noted.alive(self._node)
        if alive and not fresh:
            left = noted.step is not None and (steps is None or number not in steps)
            if left or (noted.step is None and now.mono - noted.asked > 2 * self._settings.refresh):
                alive = None  # its steps left, or cannot be seen, since Slurm said so
        values: Values = {"job_alive": None if alive is None else int(alive)}
        told = noted.job
        if told is None:
            values["job_state"] = None
            return values
        values |= {
            "job_name": _printable(told.name), "job_user": _printable(told.user),
            "job_state": told.state if alive is not None else None,
        }  # fmt: skip
        requeueable = None if told.requeue is None or told.batch is None else int(told.requeue and told.batch)
        running = told.state == "RUNNING" and alive
        since = now.mono - noted.asked if running else 0.0
        for column, value in (
            ("job_gpus_asked", told.gpus), ("job_gpus_given", told.given), ("job_nodes", told.node_count),
            ("job_restarts", told.restarts), ("job_requeueable", requeueable),
            ("job_run_seconds", None if told.run_seconds is None else told.run_seconds + since),
            ("job_time_limit_seconds", told.limit_seconds),
        ):  # fmt: skip
            if value is not None:
                values[column] = value
        if alive is False:
            values["job_exit_code"], values["job_exit_signal"] = told.exit_code, told.exit_signal
            values["job_out_of_memory"] = int(told.state == "OUT_OF_MEMORY")
        return values


def _joined(before: Job | None, answer: Job | None) -> Job | None:
    """The newest answer; what Slurm tells no more of a job that is over is what it told before."""
    if answer is None or before is None:
        return answer or before
    if answer.gpus or not before.gpus:
        return answer
    return msgspec.structs.replace(answer, gpus=before.gpus, given=before.given)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:TEXT_MOST]


def build(settings: Settings, root: Path, clock: Clock) -> Slurm:
    """The source for the machine under `root`."""
    return Slurm(settings, root, clock, os.environ)
