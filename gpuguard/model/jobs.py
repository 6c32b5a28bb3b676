"""Jobs: who keeps them, and what can be known of them, their ranks and their processes.

A job is named by its keeper, which started it and knows whether it lives, and the keeper's id for it. A rank is one of
its processes that take part in the training; a task is any process that is of interest, by its pid.
"""

import re
from typing import Literal

import msgspec

from gpuguard.errors import NotUnderstood
from gpuguard.model.ids import JobId
from gpuguard.model.readings import Quantity

# Who started it. `systemd` are units that are no job of another keeper; `claimed` is what processes outside of any
# keeper call themselves, which nobody vouches for: its id begins with the number of their user.
Keeper = Literal["slurm", "kubernetes", "gpuguard", "systemd", "docker", "claimed"]
# Keepers whose jobs a GPU may rightly belong to; the others start whatever somebody typed.
SCHEDULERS: tuple[Keeper, ...] = ("slurm", "kubernetes", "gpuguard")
Verdict = Literal["hung", "straggler", "data_starved", "storage_stalled", "paused", "slow_start", "waiting"]

ID_LIMIT = 96
_STRANGE = re.compile(r"[^A-Za-z0-9._@-]")


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose process it is. `job` is None where no keeper started it: a shell, a service of the system.

    `part` is what of the job it belongs to: Slurm's step, Kubernetes' container; `user` is the uid of whom it runs as.
    `vouched` is false where only the process' own environment names the job, which anybody may write.
    """

    job: JobId | None
    part: str = ""
    user: int | None = None
    vouched: bool = True


def job_id(keeper: Keeper, name: str) -> JobId:
    """The one spelling of a job's name; what could not stand in a subject's name or a label is replaced.

    Raises  NotUnderstood for an empty name
    """
    if not name:
        raise NotUnderstood(f"a job of {keeper} without a name", name)
    return JobId(f"{keeper}/{_STRANGE.sub('_', name[:ID_LIMIT])}")


def keeper_of(job: str) -> str:
    """Who keeps it."""
    return job.partition("/")[0]


def names_of(job: str) -> tuple[str, ...]:
    """What people call the job: its id, the keeper's part of it, and the bare word that a job of no keeper chose."""
    keeper, _, name = job.partition("/")
    word = name.partition("-")[2] if keeper == "claimed" else ""
    return tuple(filter(None, (job, name, word)))


def _text(name: str, of: Literal["rank", "job", "task", "gpu", "process"], help: str) -> Quantity:
    return Quantity(name=name, of=of, unit="text", kind="text", help=help, metric=None)


def _flag(
    name: str, of: Literal["rank", "job", "task", "gpu", "node"], help: str, *, metric: str | None = None
) -> Quantity:
    return Quantity(name=name, of=of, unit="flag", low=0, high=1, help=help, metric=metric)


def _count(
    name: str, of: Literal["rank", "job", "task", "gpu", "node"], help: str, *, metric: str | None = None,
    low: float | None = 0,
) -> Quantity:  # fmt: skip
    return Quantity(name=name, of=of, unit="count", low=low, high=float(2**63), help=help, metric=metric)


def _seconds(
    name: str, of: Literal["rank", "job", "task", "process", "node"], help: str, *, metric: str | None = None
) -> Quantity:
    return Quantity(name=name, of=of, unit="seconds", low=0.0, help=help, metric=metric)


def _counter(name: str, of: Literal["task", "node"], unit: Literal["count", "seconds", "bytes"], help: str,
             *, metric: str | None = None) -> Quantity:  # fmt: skip
    return Quantity(name=name, of=of, unit=unit, kind="counter", low=0, high=float(2**63), help=help, metric=metric)


# What a rank says of itself, by the library, a datagram, or a file that somebody watches.
RANK = (
    _text("rank_job", "rank", "Job it belongs to."),
    _count("rank_number", "rank", "Its number in the job."),
    _count("rank_world", "rank", "How many ranks the job has, over all nodes."),
    _count("rank_restart", "rank", "How often the job was started anew before, by its launcher or its keeper."),
    _count("rank_pid", "rank", "Its process, as the agent sees it."),
    _count("rank_uid", "rank", "Whose process it is."),
    _text("rank_host", "rank", "The node it says it runs on."),
    _text("rank_via", "rank", "How its progress is known: library, datagram, file, log, pattern, checkpoints."),
    _count("rank_step", "rank", "Its newest step.", low=None),
    _text("rank_phase", "rank", "What it does: start, step, checkpoint, evaluation, compile, or a word of its own."),
    _seconds("rank_phase_seconds", "rank", "For how long it has done that."),
    _seconds("rank_progress_seconds", "rank", "Since it last showed progress: a step, a phase, a word of life."),
    _count("rank_saved_step", "rank", "Step of its last complete checkpoint.", low=None),
    _seconds("rank_saved_seconds", "rank", "Since that checkpoint was complete."),
    _seconds("rank_save_blocked_seconds", "rank", "How long the newest save held up the loop."),
    _text("rank_save_holds", "rank", "What that checkpoint holds, of: model optimizer loader seeds."),
    Quantity(name="rank_loss", of="rank", unit="ratio", metric=None, help="The loss it told last."),
    _count("rank_loss_flat_steps", "rank", "Over how many steps its loss was the same again, or no number again."),
    _flag("rank_loss_nan", "rank", "1 where the loss it told last is no number."),
    _flag("rank_done", "rank", "1 once it said that its work is complete."),
    Quantity(
        name="rank_preempt", of="rank", unit="code", low=0, high=3, metric=None,
        help="Whether it would save when told to end: 0 unknown, 1 it says so, 2 it was told, 3 it did.",
    ),
    _text("rank_devices", "rank", "Its CUDA_VISIBLE_DEVICES; absent where it has none."),
    _text("rank_flight", "rank", "Where its NCCL flight recorder writes: path less the number."),
    _flag("rank_gone", "rank", "1 once its process has ended."),
)  # fmt: skip

# What its NCCL flight recorder wrote down, read from its newest dump.
FLIGHT = (
    _count("flight_completed", "rank", "Number of the newest collective of the whole job that it completed.", low=-1),
    _count("flight_enqueued", "rank", "Number of the newest collective of the whole job that it called.", low=-1),
    _text("flight_waits_in", "rank", "The oldest collective that is not completed, and its group."),
    _text("flight_waits_state", "rank", "How far that is: scheduled, started."),
    _seconds("flight_age_seconds", "rank", "How old the dump is."),
    _text("flight_groups", "rank", "All its process groups, as JSON of model/flight.py FlightSummary."),
    _text("flight_problem", "rank", "Why its newest dump could not be read; '' where it was."),
    _counter("flight_dumps_failed_total", "node", "count", "Dumps of flight recorders that were refused.", metric=""),
)

# A process that is on a GPU, or is a rank.
TASK = (
    _text("task_name", "task", "Its name."),
    _text("task_state", "task", "The kernel's letter: R, S, D, T, t, Z, X."),
    _text("task_job", "task", "Job it belongs to; empty where no keeper started it."),
    _text("task_part", "task", "Step or container of the job."),
    _flag("task_job_claimed", "task", "1 where only its own environment names the job, 0 where the kernel does."),
    _count("task_uid", "task", "Whose it is."),
    _count("task_parent", "task", "The process that started it."),
    _seconds("task_started_seconds", "task", "When it was started, since boot."),
    _counter("task_cpu_seconds_total", "task", "seconds", "Time on processors, of all its threads."),
    _counter("task_switches_total", "task", "count", "How often its first thread went to sleep by itself."),
    _counter("task_read_bytes_total", "task", "bytes", "Bytes that it read, from anywhere."),
    _counter("task_written_bytes_total", "task", "bytes", "Bytes that it wrote, to anywhere."),
    _text("task_waits_in", "task", "Function of the kernel that it sleeps in."),
    _count("task_children", "task", "Processes that it started and that live: data loaders."),
    _counter("task_children_cpu_seconds_total", "task", "seconds", "Time on processors of those children."),
    _counter("task_io_stall_seconds_total", "task", "seconds", "Time in which all of its cgroup waited for storage."),
    _text("task_devices", "task", "CUDA_VISIBLE_DEVICES it was started with, where that may be read."),
    _text("task_rank", "task", "Its rank by its environment, where that may be read."),
    _flag("task_gone", "task", "1 where there is no such process any more, though something still names it."),
)

# What a scheduler says of a job that runs, or ran, on this node.
REPORTED = (
    _text("job_name", "job", "The name its owner gave it."),
    _text("job_user", "job", "Its owner."),
    _text("job_state", "job", "Its state in the scheduler's word."),
    _flag("job_alive", "job", "1 while the scheduler has it run on this node, 0 once it ended."),
    _count("job_gpus_asked", "job", "GPUs of this node that were given to it."),
    _text("job_gpus_given", "job", "Their numbers, as 0-1,4."),
    _count("job_nodes", "job", "Nodes it runs on."),
    _count("job_restarts", "job", "How often the scheduler started it anew."),
    _flag("job_requeueable", "job", "1 where the scheduler may start it anew."),
    _count("job_exit_code", "job", "How it ended; 0 well."),
    _count("job_exit_signal", "job", "The signal that ended it; 0 none."),
    _seconds("job_run_seconds", "job", "For how long it has run."),
    _seconds("job_time_limit_seconds", "job", "How long it may run."),
    _count("job_out_of_memory", "job", "1 where the scheduler says that it ended for want of memory."),
)

# What follows from all of the above together: see gpuguard/jobs/. Of jobs no more are exported than metrics/_rows.py
# lets through; what is mostly 0 for every GPU is exported by metrics/jobs.py, where it is not.
CONCLUDED = (
    _count("job_ranks", "job", "Ranks of it on this node of which progress is known.", metric=""),
    _count("job_ranks_gone", "job", "Ranks of it on this node whose processes ended without a word."),
    _text("job_gone_ranks", "job", "Their numbers, with spaces."),
    _count("job_ranks_telling", "job", "Ranks of it here that use the library, and so can say that they are done."),
    _count("job_ranks_done", "job", "Those of them that said that their work is complete."),
    _count("job_ranks_obeyed", "job", "Those that saved when told to end, and those done."),
    _count("job_world", "job", "Ranks it has over all nodes."),
    _count("job_step", "job", "The newest step of the rank that is farthest behind.", metric="", low=None),
    _text("job_phase", "job", "What the rank that is judged does."),
    _count("job_judged_rank", "job", "The rank that is longest without progress, against its limit."),
    _seconds("job_progress_seconds", "job", "Since that rank last showed progress."),
    _seconds("job_progress_limit_seconds", "job", "After how long that counts as a hang."),
    _text("job_verdict", "job", "hung, straggler, data_starved, storage_stalled, paused, slow_start, waiting; or ''."),
    Quantity(
        name="job_confidence", of="job", unit="ratio", low=0.0, high=1.0, metric=None, help="How sure that is.",
    ),
    _count("job_culprit_rank", "job", "The rank that holds up the others."),
    _text("job_culprit_gpu", "job", "Its GPU, as gpu:<pci>."),
    _text("job_why", "job", "The verdict in one sentence."),
    _text("job_signals_for", "job", "What speaks for the verdict, with semicolons."),
    _text("job_signals_against", "job", "What speaks against it, with semicolons."),
    _text("job_gpus", "job", "GPUs it has processes on, as gpu:<pci> with commas."),
    _count("job_gpus_held", "job", "GPUs it has processes on.", metric=""),
    _count("job_gpus_working", "job", "Those of its GPUs that did anything within the window.", metric=""),
    Quantity(
        name="job_gpu_activity_ratio", of="job", unit="ratio", low=0.0, high=1.05, metric="",
        help="Mean activity of its GPUs within the window.",
    ),
    Quantity(
        name="job_gpu_memory_bytes", of="job", unit="bytes", low=0, high=float(2**48), metric="",
        help="Memory of GPUs that its processes hold.",
    ),
    Quantity(
        name="job_gpu_memory_peak_ratio", of="job", unit="ratio", low=0.0, high=1.05, metric=None,
        help="The most memory it held on one GPU, of what that GPU has.",
    ),
    Quantity(
        name="job_gpu_memory_peak_bytes", of="job", unit="bytes", low=0, high=float(2**44), metric=None,
        help="That, in bytes.",
    ),
    _seconds("job_seen_seconds", "job", "For how long it has been seen on this node."),
    _count("job_loss_flat_steps", "job", "For how many steps its loss has not moved at all."),
    Quantity(name="job_loss", of="job", unit="ratio", metric=None, help="The loss that has not moved for so long."),
    _count("job_loss_nan", "job", "Ranks of it on this node whose loss is no number."),
    _count("job_saved_step", "job", "Step of its newest complete checkpoint.", low=None),
    _seconds("job_saved_seconds", "job", "Since that checkpoint was complete.", metric=""),
    _seconds("job_save_blocked_seconds", "job", "How long the newest saves held up a loop, at most."),
    _text("job_save_holds", "job", "What that checkpoint holds, where told, of: model optimizer loader seeds."),
    _flag("job_ended", "job", "1 once it is over: what stood on it stands no longer."),
    _text("rank_gpu", "rank", "The GPU that its process is on."),
    _seconds("rank_still_seconds", "rank", "For how long its process neither ran, nor slept anew, nor moved a byte."),
    _seconds("rank_limit_seconds", "rank", "After how long without progress it counts as hung, in its phase."),
    _count("rank_behind_steps", "rank", "Steps it is behind the rank of its job on this node that is farthest."),
    _text("gpu_pattern", "gpu", "What it does for its job: working, spinning, idle, sawtooth, unknown."),
    _text("gpu_pattern_words", "gpu", "What that was measured by."),
    _text("gpu_job", "gpu", "The job that holds the GPU; '' where nobody does; two with a comma."),
    _count("gpu_jobs", "gpu", "Jobs that have processes on it."),
    _flag("gpu_mps", "gpu", "1 while processes share it through MPS."),
    Quantity(
        name="gpu_orphan_bytes", of="gpu", unit="bytes", low=0, high=float(2**44), metric=None,
        help="Memory held by processes that are dead, or whose job is over.",
    ),
    _text("gpu_orphans", "gpu", "Those processes, as pid/start in seconds since boot, with commas."),
    _text("gpu_strangers", "gpu", "Processes on it that no job owns, or that another job's GPU is given to."),
    _count("gpu_unowned_processes", "gpu", "How many those are."),
    _text("process_job", "process", "Job that the process belongs to."),
    _seconds("process_held_seconds", "process", "For how long it held memory of the GPU."),
    _seconds("process_released_seconds", "process", "Since it gave that back."),
    Quantity(
        name="process_peak_bytes", of="process", unit="bytes", low=0, high=float(2**44), metric=None,
        help="The most memory of the GPU that it held.",
    ),
    _count("jobs_here", "node", "Jobs that have ranks or processes on this node's GPUs.", metric=""),
    Quantity(
        name="progress_known_ratio", of="node", unit="ratio", low=0.0, high=1.0, metric="",
        help="Share of the jobs here of whose progress anything is known.",
    ),
)  # fmt: skip

NODE = (
    _counter("io_stall_seconds_total", "node", "seconds", "Time in which everything waited for storage.", metric=""),
    Quantity(
        name="heartbeats_refused_total", of="node", unit="count", kind="counter", low=0, high=float(2**63),
        keyed=True, each="reason", help="Messages from ranks, or files with them, that were not taken, by reason.",
    ),
    _flag("scheduler_jobs_known", "node", "1 while the scheduler tells which jobs run here."),
)  # fmt: skip

JOB_QUANTITIES: tuple[Quantity, ...] = (*RANK, *FLIGHT, *TASK, *REPORTED, *CONCLUDED, *NODE)
