"""Concludes what runs on this node and whether it gets on: rows of jobs, ranks, GPUs and processes, from all others.

Theory. What is measured comes in pieces, each at its own pace: ranks tell of progress every second, GPUs are looked at
every five, processes every five or ten, schedulers twice a minute. Each piece is folded into memory as it comes.
Every few seconds a view of each job is put together from what is remembered, judged, and told as rows, which checks
then judge as they do any other row. Of what is not known nothing is told.

A job is here while a rank of it tells of progress, while one of its processes holds a GPU, or while its scheduler has
it on GPUs of this node. It is over when its scheduler says so, when all its ranks are done or gone, or when nothing was
seen of it for a while; then that is told for some minutes, so that what stood on it can be taken back, and it is
forgotten. When it starts anew everything that was learned is dropped.

After a restart of the agent a rank is remembered as it was, and its silence goes on, only where its process can be seen
to live: what happened meanwhile nobody knows. No process outlives its boot, and the numbers of processes come again, so
after a reboot nothing is remembered.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import msgspec

from gpuguard.jobs import activity, patrol, ranks, roll, tasks, verdict
from gpuguard.jobs.activity import Activity
from gpuguard.jobs.dumps import compared, is_of_now
from gpuguard.jobs.holdings import Holdings
from gpuguard.jobs.limits import OTHER, Limit, Phases, parse_phases
from gpuguard.jobs.ranks import RankState
from gpuguard.jobs.seen import Rows, Seen, pid_of, ranks_of
from gpuguard.jobs.tasks import TaskState
from gpuguard.jobs.views import GpuView, JobView, RankView, TaskView
from gpuguard.model.ids import NODE, BootId, JobId, SubjectId, job, rank
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.jobs import CONCLUDED, keeper_of
from gpuguard.model.readings import Row, SubjectKind, Values
from gpuguard.model.units import Seconds
from gpuguard.ports import RowsOf, Rules

KINDS: tuple[SubjectKind, ...] = ("node", "gpu", "process", "task", "rank", "job")
SWEPT = frozenset({"rank_progress_seconds", "task_state", "utilization_ratio", "process_count", "job_alive"})
# What comes so seldom that it is concluded from at once.
SELDOM = SWEPT - {"rank_progress_seconds", "utilization_ratio"}
UNSURE = 0.5  # the confidence of a verdict that is new, at most
PHASES_KEPT = 32  # of one job whose limits are learned by their names; all others together are one
WORKED = 0.05  # mean activity above which a GPU counts as used at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How often is concluded, and when a job is over. Units: seconds."""

    every: Seconds = Seconds(5.0)  # a view of each job is put together this often: with 64 ranks it takes some 3 ms
    unseen: Seconds = Seconds(120.0)  # a job of which nothing was seen for so long is over; sources look twice a minute
    # A verdict is unsure until it was the same for so long: processes of ranks are looked at every five seconds,
    # ranks every one, and when a job gets on again some tell it before others.
    hold: Seconds = Seconds(8.0)
    # Silent for long, and it worked all the while: then a lull is no end. It is unsure for this share of the silence.
    lull: float = 0.1
    longest_lull: Seconds = Seconds(300.0)  # and for no longer than this
    linger: Seconds = Seconds(300.0)  # for so long it is told that it is over
    unheard: Seconds = Seconds(60.0)  # a rank of which nobody tells, and whose process nobody sees, is forgotten
    most: int = 256  # jobs that are remembered; of more those without a keeper go first, then the newest
    # More names of programs or units that may be on a GPU without a job, besides NVIDIA's own and the screen's.
    services: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if min(self.every, self.unseen, self.linger, self.unheard) <= 0 or self.most < 1:
            raise ValueError("every, unseen, linger, unheard and most must be above 0")
        if min(self.hold, self.lull, self.longest_lull) < 0:
            raise ValueError("hold, lull and longest_lull must not be negative")


class JobMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One job: when it was seen first and last, after which start, of how many ranks, what its phases take, and its
    ranks by number. `ended` is when it was found to be over; `verdict` what was concluded last, and since when;
    `excused` when something last spoke against a hang of one that is silent."""

    seen: Instant
    last: Instant
    restart: int = 0
    world: int | None = None
    limits: dict[str, Limit] = {}
    ranks: dict[int, RankState] = {}
    heard: dict[int, Instant] = {}
    ended: Instant | None = None
    verdict: str = ""
    verdict_since: Instant | None = None
    excused: Instant | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is remembered: jobs by name, GPUs by subject, processes by pid, and who held what memory.

    `concluded` is when rows were told last; `sees_all` the boot in which a process that the driver lists was seen here.
    """

    jobs: dict[str, JobMemory] = {}
    gpus: dict[str, Activity] = {}
    tasks: dict[int, TaskState] = {}
    holdings: Holdings = Holdings()
    concluded: Instant | None = None
    sees_all: BootId | None = None


class Jobs:
    """The deriver of jobs."""

    name = "jobs"
    reads = tuple(sorted(SWEPT))
    yields = tuple(quantity.name for quantity in CONCLUDED)
    valid_for = 180.0
    memory: type = Memory

    def __init__(
        self, settings: Settings, judging: verdict.Settings, watching: activity.Settings, following: tasks.Settings,
        phases: Phases,
    ) -> None:  # fmt: skip
        self._settings, self._phases = settings, phases
        self._judging, self._watching, self._following = judging, watching, following

    def start(self) -> Memory:
        return Memory()

    def derive(
        self, memory: Memory, rows: RowsOf, at: Instant, brought: Mapping[SubjectId, Values]
    ) -> tuple[Memory, Mapping[SubjectId, Values]]:
        columns = frozenset[str]().union(*brought.values())
        if memory.concluded is not None and memory.concluded.boot != at.boot:
            memory = self.start()
        age = None if memory.concluded is None else seconds_between(memory.concluded, at)
        soon = age is not None and 0 <= age < self._settings.every and columns.isdisjoint(SELDOM)
        if soon and not self._is_new(memory, brought):
            return self._followed(memory, rows, at, brought, columns), {}
        everything = rows(*KINDS)
        seen = Seen(everything)
        if "task_state" in columns:
            memory = msgspec.structs.replace(memory, tasks=self._tasks(memory.tasks, seen))
        if "process_count" in columns:
            memory = msgspec.structs.replace(memory, holdings=memory.holdings.seen(everything, at))
        gpus = self._looked_at(_of_its_jobs(memory.gpus, seen), seen.gpus, brought, at)
        jobs = self._jobs(memory.jobs, seen, ranks_of(_newly(everything, brought, "rank_progress_seconds")), at)
        sees_all = at.boot if seen.sees_all() else memory.sees_all
        memory = msgspec.structs.replace(memory, gpus=gpus, jobs=jobs, concluded=at, sees_all=sees_all)
        return self._held(memory, self._conclude(memory, seen, at), at)

    def _is_new(self, memory: Memory, brought: Mapping[SubjectId, Values]) -> bool:
        """Whether ranks tell of a job that nobody knew: of its first steps limits are learned already."""
        if len(memory.jobs) >= self._settings.most:
            return False
        beating = {name for name, values in brought.items() if values.get("rank_gone") == 0}
        return any(name.partition(":")[2].rpartition("/")[0] not in memory.jobs for name in beating)

    def _followed(
        self, memory: Memory, rows: RowsOf, at: Instant, brought: Mapping[SubjectId, Values], columns: Set[str]
    ) -> Memory:
        """What ranks and GPUs do, between two views of everything; whose they are does not change so fast."""
        if "rank_progress_seconds" in columns:
            told = ranks_of(_newly(rows("rank"), brought, "rank_progress_seconds"))
            jobs = {
                name: self._told(held, told[name], at) if name in told else held for name, held in memory.jobs.items()
            }
            memory = msgspec.structs.replace(memory, jobs=jobs)
        if "utilization_ratio" in columns:
            memory = msgspec.structs.replace(memory, gpus=self._looked_at(memory.gpus, rows("gpu"), brought, at))
        return memory

    # --- folding -----------------------------------------------------------------------------------------------------

    def _looked_at(
        self, known: Mapping[str, Activity], gpus: Rows, brought: Mapping[SubjectId, Values], at: Instant
    ) -> dict[str, Activity]:
        """The GPUs that are here, with the look that this sweep is."""
        looks = _newly(gpus, brought, "utilization_ratio")
        left: dict[str, Activity] = {name: known[name] for name in gpus if name in known}
        return left | {name: known.get(name, Activity()).seen(row, at, self._watching) for name, row in looks.items()}

    def _tasks(self, known: Mapping[int, TaskState], seen: Seen) -> dict[int, TaskState]:
        """What each process does; those of which nobody tells any more are forgotten."""
        return {
            pid: known.get(pid, TaskState()).seen(row, row.at, self._following) for pid, row in seen.tasks.items()
        }  # fmt: skip

    def _task(self, pid: int, memory: Memory, seen: Seen, at: Instant) -> TaskView:
        return replace(memory.tasks[pid].view(at, self._following), gpu=seen.gpu_of(pid))

    def _jobs(
        self, known: Mapping[str, JobMemory], seen: Seen, told: Mapping[str, Mapping[int, Row]], at: Instant
    ) -> dict[str, JobMemory]:
        jobs = dict(known)
        for name in seen.live_jobs():
            held = jobs.get(name)
            jobs[name] = (
                JobMemory(seen=at, last=at) if held is None else msgspec.structs.replace(held, last=at)
            )  # fmt: skip
        for name, of_job in told.items():
            if name in jobs:
                jobs[name] = self._told(jobs[name], of_job, at)
        aged = {name: self._aged(name, held, seen, at) for name, held in jobs.items()}
        jobs = {
            name: held for name, held in aged.items()
            if held.ended is None or (seconds_between(held.ended, at) or 0.0) <= self._settings.linger
        }  # fmt: skip
        if len(jobs) > self._settings.most:
            jobs = dict(sorted(jobs.items(), key=_by_worth)[: self._settings.most])
        return jobs

    def _told(self, held: JobMemory, of_job: Mapping[int, Row], at: Instant) -> JobMemory:
        """The job with what its ranks tell of their progress; one that starts anew has no past."""
        # Who ended before the others were started anew may have been one of more: it says nothing of how many are now.
        living = [row for row in of_job.values() if row.number("rank_gone") != 1]
        start = max((count for row in living if (count := row.bits("rank_restart")) is not None), default=held.restart)
        world = max((row.bits("rank_world") or 0 for row in living), default=0) or held.world
        if start > held.restart or (held.world is not None and world != held.world):
            held = JobMemory(seen=held.seen, last=at, restart=start)
        known, heard, reset = dict(held.ranks), dict(held.heard), False
        gaps: dict[str, list[tuple[float, int]]] = {}
        for number, row in of_job.items():
            if _is_past(row, held.restart):
                continue
            state = known.get(number)
            if state is None or not ranks.same(state, row):
                if row.number("rank_gone") == 1:
                    continue  # it ended before anybody knew of it
                known[number] = ranks.first_seen(number, row)
                reset = reset or state is not None
            else:
                told, found = ranks.told(state, row, heard.get(number))
                known[number] = ranks.dated(state, told, heard.get(number), at)
                for gap in found:
                    gaps.setdefault(gap.phase or verdict.STEP, []).append((gap.seconds, gap.times))
            heard[number] = at
        learned = {} if reset else self._learned(held.limits, gaps)
        return msgspec.structs.replace(held, world=world, restart=start, ranks=known, limits=learned, heard=heard)

    def _learned(self, limits: dict[str, Limit], gaps: Mapping[str, list[tuple[float, int]]]) -> dict[str, Limit]:
        """The limits with what was seen, less what was a stall."""
        learned = dict(limits)
        for phase, of_phase in gaps.items():
            name = self._learned_as(phase, learned)
            limit = learned.get(name, Limit())
            most = limit.seconds(self._phases.of(phase), self._phases.samples)
            learned[name] = limit.learned_all(gap for gap in of_phase if gap[0] < most)
        return learned

    def _learned_as(self, phase: str, limits: Mapping[str, Limit]) -> str:
        """The phase whose limit counts. A job may call its phases as it likes, and each by another name."""
        own = phase in limits or phase in self._phases.rows or len(limits) < PHASES_KEPT
        return phase if own else OTHER

    def _aged(self, name: str, held: JobMemory, seen: Seen, at: Instant) -> JobMemory:
        """The job less ranks that nobody tells of, and over where it is."""
        lost = [
            number for number, state in held.ranks.items()
            if number not in seen.ranks.get(name, {}) and not seen.lives(state.pid)
            and (seconds_between(held.heard.get(number, held.seen), at) or 0.0) > self._settings.unheard
        ]  # fmt: skip
        if lost:
            left = {number: state for number, state in held.ranks.items() if number not in lost}
            heard = {number: since for number, since in held.heard.items() if number not in lost}
            held = msgspec.structs.replace(held, ranks=left, heard=heard)
        alive = seen.alive(name)
        finished = bool(held.ranks) and all(state.done or state.gone for state in held.ranks.values())
        unseen = (seconds_between(held.last, at) or 0.0) > self._settings.unseen
        over = alive is False or (alive is not True and ((finished and not seen.holds_gpus(name)) or unseen))
        if over == (held.ended is not None):
            return held
        return msgspec.structs.replace(held, ended=at if over else None)

    def _held(
        self, memory: Memory, found: dict[SubjectId, Values], at: Instant
    ) -> tuple[Memory, Mapping[SubjectId, Values]]:
        """What was concluded, and as unsure where the same was not concluded for a while."""
        jobs = dict(memory.jobs)
        for name, held in memory.jobs.items():
            row = found.get(job(JobId(name)), {})
            word, confidence = row.get("job_verdict"), row.get("job_confidence")
            if not isinstance(word, str) or not isinstance(confidence, float):
                continue
            since = held.verdict_since if word == held.verdict and held.verdict_since is not None else at
            excused = at if not word and row.get("job_signals_against") else held.excused
            if since is at or excused is not held.excused:
                jobs[name] = msgspec.structs.replace(held, verdict=word, verdict_since=since, excused=excused)
            if word and (seconds_between(since, at) or 0.0) < self._unsure_for(held, row, at):
                row["job_confidence"] = min(confidence, UNSURE)
        return msgspec.structs.replace(memory, jobs=jobs), found

    def _unsure_for(self, held: JobMemory, row: Values, at: Instant) -> float:
        """For how long a new verdict is unsure, in seconds: for longer on a job that worked for most of its silence, as
        what it does without a word may have lulls."""
        silence = row.get("job_progress_seconds")
        ago = None if held.excused is None else seconds_between(held.excused, at)
        if not isinstance(silence, int | float) or ago is None or ago >= silence:
            return self._settings.hold
        return max(self._settings.hold, min(self._settings.longest_lull, self._settings.lull * silence))

    # --- concluding --------------------------------------------------------------------------------------------------

    def _conclude(self, memory: Memory, seen: Seen, at: Instant) -> dict[SubjectId, Values]:
        found: dict[SubjectId, Values] = {}
        here = known = 0
        for name, held in memory.jobs.items():
            if held.ended is not None:
                # How it ended is judged from what its ranks said last.
                found[job(JobId(name))] = {"job_ended": 1, **_said(name, seen)}
                continue
            view = self._view(name, held, memory, seen, at)
            here += 1
            known += bool(view.ranks)
            found[job(JobId(name))] = self._job(name, held, view, memory, seen, at)
            for one in view.ranks:
                found[rank(JobId(name), one.number)] = {
                    "rank_limit_seconds": one.limit, "rank_behind_steps": one.behind,
                    **({"rank_gpu": one.gpu} if one.gpu is not None else {}),
                    **({"rank_still_seconds": one.task.still} if one.task is not None else {}),
                }  # fmt: skip
        found.update(self._on_gpus(seen, memory, at))
        node: Values = {"jobs_here": here}
        if here:
            node["progress_known_ratio"] = known / here
        found[NODE] = node
        return found

    def _view(self, name: str, held: JobMemory, memory: Memory, seen: Seen, at: Instant) -> JobView:
        front = max((state.step for state in held.ranks.values() if state.step is not None), default=0)
        told = seen.ranks.get(name, {})
        # Of one that nobody tells of now, and whose process nobody sees, it is not known whether it is there at all: it
        # may have ended well while the agent was started anew. Its silence says nothing.
        of_job = tuple(
            self._rank(state, held, front, memory, seen, name, at)
            for number, state in sorted(held.ranks.items()) if number in told or seen.lives(state.pid)
        )  # fmt: skip
        pids = {*seen.pids_of(name), *(one.pid for one in of_job if one.pid is not None)}
        nodes = seen.number(name, "job_nodes")
        gpus = tuple(self._gpu(one, memory, at) for one in seen.gpus_of(name))
        # Ranks that tell of nothing may be here all the same: its scheduler knows, or it has a GPU here for each.
        here = max(len(held.ranks), len(gpus))
        elsewhere = nodes > 1 if nodes is not None else bool(held.ranks) and (held.world or 0) > here
        world = held.world if held.world is not None or nodes != 1 else len(gpus)
        silent = {state.number: state.silent(at) for state in held.ranks.values()}
        return JobView(
            job=JobId(name), flight=compared(seen.ranks.get(name, {}), silent, held.world),
            seen=max(0.0, seconds_between(held.seen, at) or 0.0), world=world, elsewhere=elsewhere,
            ranks=of_job, gpus=gpus, suspended=seen.is_suspended(name),
            tasks=tuple(self._task(pid, memory, seen, at) for pid in sorted(pids) if pid in memory.tasks),
        )  # fmt: skip

    def _rank(
        self, state: RankState, held: JobMemory, front: int, memory: Memory, seen: Seen, name: str, at: Instant
    ) -> RankView:
        phase = state.phase or verdict.STEP
        limit = held.limits.get(self._learned_as(phase, held.limits), Limit())
        row = seen.ranks.get(name, {}).get(state.number)
        silent = state.silent(at)
        enqueued = row.number("flight_enqueued") if row is not None and is_of_now(row, silent) else None
        pid = state.pid if state.pid is not None else seen.pid_of_rank(name, state.number)
        on = seen.gpu_of(pid)
        task = self._task(pid, memory, seen, at) if pid is not None and pid in memory.tasks else None
        slower = state.pace / state.usual if state.pace is not None and state.usual else None
        return RankView(
            number=state.number, pid=pid, step=state.step, phase=state.phase, silent=silent,
            limit=limit.seconds(self._phases.of(phase), self._phases.samples),
            learned=limit.total >= self._phases.samples,
            behind=max(0, front - state.step) if state.step is not None else 0, slower=slower, done=state.done,
            gone=state.gone or (task is not None and (task.gone or task.state in ("Z", "X"))), started=state.started,
            gpu=on, task=task,
            ended=None if state.ended is None else seconds_between(state.ended, at),
            collective=None if enqueued is None else int(enqueued),
        )  # fmt: skip

    def _gpu(self, name: SubjectId, memory: Memory, at: Instant) -> GpuView:
        known = memory.gpus.get(name)
        return GpuView(gpu=name) if known is None else known.view(name, at, self._watching)

    def _pattern(self, name: SubjectId, memory: Memory, at: Instant) -> Values:
        view = self._gpu(name, memory, at)
        return {"gpu_pattern": view.pattern, "gpu_pattern_words": view.words} if view.pattern != "unknown" else {}

    def _job(self, name: str, held: JobMemory, view: JobView, memory: Memory, seen: Seen, at: Instant) -> Values:
        values: Values = {"job_ended": 0, "job_seen_seconds": view.seen}
        if view.world is not None:
            values["job_world"] = view.world
        if view.ranks:
            values |= _said(name, seen)
            values |= _progress(view.ranks)
            flat = [(state.flat, state.number) for state in held.ranks.values() if state.flat is not None]
            if flat:
                values["job_loss_flat_steps"], number = min(flat)
                of_rank = seen.ranks.get(name, {}).get(number)
                if of_rank is not None and (loss := of_rank.number("rank_loss")) is not None:
                    values["job_loss"] = loss
        values |= self._usage(name, view, memory, seen)
        judged = verdict.judge(view, self._judging)
        values |= {
            "job_verdict": judged.verdict or "", "job_confidence": judged.confidence, "job_why": judged.why,
            "job_signals_for": "; ".join(judged.speaks_for), "job_signals_against": "; ".join(judged.against),
        }  # fmt: skip
        if judged.rank is not None:
            values["job_culprit_rank"] = judged.rank
        if judged.gpu is not None:
            values["job_culprit_gpu"] = judged.gpu
        return values

    def _usage(self, name: str, view: JobView, memory: Memory, seen: Seen) -> Values:
        values: Values = {"job_gpus": ",".join(one.gpu for one in view.gpus), "job_gpus_held": len(view.gpus)}
        known = [
            mean for one in view.gpus
            if (seen_of := memory.gpus.get(one.gpu)) is not None and (mean := seen_of.activity) is not None
        ]  # fmt: skip
        if known and len(known) == len(view.gpus):
            values["job_gpu_activity_ratio"] = sum(known) / len(known)
            values["job_gpus_working"] = sum(mean > WORKED for mean in known)
        held = seen.held_by(name)
        if held is not None:
            values["job_gpu_memory_bytes"] = held
        peaks = [
            (one.peak, one.memory) for gpu_view in view.gpus
            if (one := memory.gpus.get(gpu_view.gpu)) is not None and one.peak is not None and one.memory
        ]  # fmt: skip
        if peaks and len(peaks) == len(view.gpus):
            values["job_gpu_memory_peak_bytes"] = max(peak for peak, _ in peaks)
            values["job_gpu_memory_peak_ratio"] = min(1.0, max(peak / whole for peak, whole in peaks))
        return values

    def _on_gpus(self, seen: Seen, memory: Memory, at: Instant) -> dict[SubjectId, Values]:
        found: dict[SubjectId, Values] = {}
        alive, given, sees_all = seen.alive_jobs(), seen.given(), memory.sees_all == at.boot
        for name, row in seen.gpus.items():
            found[name] = patrol.gpu_columns(
                row.values, seen.on(name), alive, given, scheduler_known=seen.schedules, sees_all=sees_all,
                services=self._settings.services,
            ) | self._pattern(name, memory, at)  # fmt: skip
        for name in seen.processes:
            owner = seen.owners.get(pid_of(name))
            found[name] = {"process_job": owner} if owner is not None else {}
        for name, columns in memory.holdings.values(at):
            found[name] = {**found.get(name, {}), **columns}
        return found


def build(
    settings: Settings, judging: verdict.Settings, watching: activity.Settings, following: tasks.Settings, rules: Rules
) -> Jobs:  # fmt: skip
    """The deriver, with the phases of `rules/jobs/phases.toml`.

    Raises  ConfigInvalid when that table is wrong
    """
    return Jobs(settings, judging, watching, following, parse_phases(rules.texts("jobs")["phases"]))


def _newly(rows: Rows, brought: Mapping[SubjectId, Values], column: str) -> dict[SubjectId, Row]:
    """The rows to which this sweep brought the column. What another one brought is known already, and is older than
    its row says: ages in it would seem to stand still."""
    return {name: row for name, row in rows.items() if column in brought.get(name, ())}


def _of_its_jobs(known: Mapping[str, Activity], seen: Seen) -> dict[str, Activity]:
    """What each GPU has been doing for the jobs that have it now; as it was where nobody knows whose it is."""
    now: dict[str, Activity] = {
        name: known.get(name, Activity()).of(",".join(seen.jobs_on(name)))
        for name in seen.gpus if seen.knows_who_is_on(name)
    }  # fmt: skip
    return {**known, **now}


def _by_worth(named: tuple[str, JobMemory]) -> tuple[bool, bool, float]:
    """Which of too many jobs are remembered: what a keeper knows before what anybody may call itself, of which one user
    alone could make as many as there is room for; what runs before what is over; the oldest first."""
    name, held = named
    return keeper_of(JobId(name)) == "claimed", held.ended is not None, held.seen.mono


def _said(name: str, seen: Seen) -> Values:
    """What its ranks say of themselves."""
    return roll.roll_call({number: row.values for number, row in seen.ranks.get(name, {}).items()})


def _is_past(row: Row, restart: int) -> bool:
    """Whether the rank is of an earlier start of its job; one that does not count them is of this one."""
    count = row.bits("rank_restart")
    return count is not None and count < restart


def _progress(of_job: Sequence[RankView]) -> Values:
    """What is told of the job's progress: that of the rank which is nearest to its limit, or farthest beyond it."""
    left = [one for one in of_job if not (one.done or one.gone)] or list(of_job)
    judged = max(left, key=lambda one: (one.silent or 0.0) / max(one.limit, 1.0))
    steps = [one.step for one in of_job if one.step is not None]
    return {
        "job_ranks": len(of_job), "job_phase": judged.phase or verdict.STEP,
        **({"job_step": min(steps)} if steps else {}), "job_judged_rank": judged.number,
        "job_progress_seconds": judged.silent,
        "job_progress_limit_seconds": judged.limit,
    }  # fmt: skip
