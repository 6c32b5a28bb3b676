"""Which rank or process of a job the others wait for.

Theory. It is the one that hangs, that has not called the collective in which the others are, whose GPU idles while
theirs spin, that sits still while they poll, that is steps behind, that waits in the kernel for something else than all
others. Where all look the same none is named: a wrong name costs more than none. Where one rank alone tells of
progress, which many programs have the first one do, it may be any process of the job.

Units   still: seconds without a processor, a switch or a byte, from which on a process does nothing
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuguard.jobs.views import GpuView, JobView, RankView, TaskView
from gpuguard.jobs.wording import counted
from gpuguard.model.ids import SubjectId


def is_still(task: TaskView | None, still: float) -> bool:
    """Whether it does nothing at all."""
    return task is not None and not task.gone and task.still >= still


def culprit_of(
    job: JobView, left: Sequence[RankView], late: Sequence[RankView], still: float
) -> tuple[RankView | None, tuple[str, ...]]:
    """Whom the others wait for, and why we think so; None where nobody stands out."""
    if len(left) == 1 and (others := untold(job, left)):
        return _of_few(job, left[0], others, still)
    if len(left) == 1:
        return left[0], ()
    if len(late) < len(left):
        moving = [rank for rank in left if rank.silent is None or rank.silent < min(still, rank.limit)]
        if len(moving) + len(late) == len(left) and len(late) == 1:
            return late[0], (f"the other {counted(len(moving), 'rank')} went on",)
    if job.flight is not None and len(job.flight.culprits) == 1:
        told = next((rank for rank in left if rank.number == job.flight.culprits[0]), None)
        if told is not None:
            return told, (job.flight.why,)
    patterns = {gpu.gpu: gpu.pattern for gpu in job.gpus}
    ahead = max((rank.collective for rank in left if rank.collective is not None), default=None)

    def behind_collective(rank: RankView) -> str | None:
        if rank.collective is None or ahead is None or rank.collective >= ahead:
            return None
        return f"rank {rank.number} is at collective {rank.collective}, others at {ahead}"

    def hangs(rank: RankView) -> str | None:
        if rank.task is None or rank.task.state != "D" or rank.task.state_seconds < still:
            return None
        return f"rank {rank.number} hangs in the kernel ({rank.task.waits_in or 'state D'})"

    def idles(rank: RankView) -> str | None:
        pattern = patterns.get(rank.gpu) if rank.gpu is not None else None
        others = [patterns.get(other.gpu) for other in left if other is not rank and other.gpu is not None]
        if pattern != "idle" or not others or any(other != "spinning" for other in others):
            return None
        return f"its GPU idles while those of {counted(len(others), 'other rank')} wait for it"

    def sits_still(rank: RankView) -> str | None:
        others = [other.task for other in left if other is not rank]
        if not is_still(rank.task, still) or any(task is None or is_still(task, still) for task in others):
            return None
        return f"rank {rank.number} sits still: no processor time, no switch, no byte"

    def loops(rank: RankView) -> str | None:
        return loops_alone(rank.gpu, [other.gpu for other in left if other is not rank], job.gpus)

    def behind(rank: RankView) -> str | None:
        steps = "1 step" if rank.behind == 1 else f"{rank.behind} steps"
        return f"rank {rank.number} is {steps} behind" if rank.behind > 0 else None

    def waits_apart(rank: RankView) -> str | None:
        places = {other.task.waits_in for other in left if other is not rank and other.task is not None}
        mine = rank.task.waits_in if rank.task is not None else ""
        if len(left) < 3 or not all(is_still(other.task, still) for other in left):
            return None
        if len(places) != 1 or "" in places or mine == "" or mine in places:
            return None
        return f"rank {rank.number} waits in {mine}, all others in {places.pop()}"

    tests: tuple[Callable[[RankView], str | None], ...] = (
        behind_collective, hangs, idles, sits_still, loops, behind, waits_apart,
    )  # fmt: skip
    for test in tests:
        suspects = [(rank, words) for rank in left if (words := test(rank)) is not None]
        if len(suspects) == 1 or (test is behind and 0 < len(suspects) < len(left)):
            suspect = max(suspects, key=lambda one: (one[0].behind, one[0].silent or 0.0))[0]
            reasons = tuple(words for other in tests if (words := other(suspect)) is not None)
            return suspect, reasons
    return None, ()


def untold(job: JobView, left: Sequence[RankView]) -> list[TaskView]:
    """Processes of the job here, on GPUs of their own, that tell of no progress: they may be whom it waits for."""
    known = {rank.pid for rank in job.ranks}
    own = {rank.gpu for rank in left}
    return [
        task for task in job.tasks
        if task.pid not in known and not task.gone and task.gpu is not None and task.gpu not in own
    ]  # fmt: skip


def _of_few(
    job: JobView, rank: RankView, others: Sequence[TaskView], still: float
) -> tuple[RankView | None, tuple[str, ...]]:
    """The culprit where one rank tells of progress and others, which tell of none, are here as well."""
    suspect, reason = suspect_of(job, still)
    if suspect is None:
        return None, ()
    if suspect.pid == rank.pid:
        return rank, (reason,)
    if suspect.rank is None or suspect not in others:
        return None, (reason,)
    return replace(rank, number=suspect.rank, pid=suspect.pid, gpu=suspect.gpu, task=suspect), (reason,)


def loops_alone(gpu: SubjectId | None, others: Sequence[SubjectId | None], gpus: Sequence[GpuView]) -> str | None:
    """That a kernel holds all SMs of this GPU while those of the others wait with a few."""
    shown = {one.gpu: one.sm for one in gpus if one.pattern == "spinning"}
    held = shown.get(gpu) if gpu is not None else None
    rest = [shown.get(other) for other in others if other is not None]
    if held is None or held < 0.9 or not rest or any(sm is None or sm > 0.6 for sm in rest):
        return None
    return f"a kernel holds {100 * held:.0f} % of its GPU and never ends, while the others wait in a collective"


def suspect_of(job: JobView, still: float) -> tuple[TaskView | None, str]:
    """The process that the others wait for, by what the kernel and the GPUs show; None where nobody stands out."""
    patterns = {gpu.gpu: gpu.pattern for gpu in job.gpus}
    ranked = [task for task in job.tasks if task.rank is not None] or list(job.tasks)

    def idles(task: TaskView) -> bool:
        others = [patterns.get(o.gpu) for o in ranked if o is not task and o.gpu is not None]
        return (
            task.gpu is not None
            and patterns.get(task.gpu) == "idle"
            and bool(others)
            and all(p == "spinning" for p in others)
        )

    def loops(task: TaskView) -> bool:
        return loops_alone(task.gpu, [o.gpu for o in ranked if o is not task], job.gpus) is not None

    tests: tuple[tuple[Callable[[TaskView], bool], str], ...] = (
        (lambda task: task.gone, "is gone"),
        (lambda task: task.state == "D" and task.state_seconds >= still, "hangs in the kernel"),
        (lambda task: is_still(task, still), "sits still"),
        (idles, "leaves its GPU idle"),
        (loops, "has a kernel on its GPU that never ends"),
    )
    for test, words in tests:
        found = [task for task in ranked if test(task)]
        if len(found) == 1:
            return found[0], f"process {found[0].pid} {words}"
    return None, ""
