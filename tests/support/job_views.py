"""Jobs as the verdict sees them, by hand."""

from dataclasses import replace
from typing import Any

from gpuguard.jobs.verdict import Settings, judge
from gpuguard.jobs.views import GpuView, JobView, Judgement, Pattern, RankView, TaskView
from gpuguard.model.ids import JobId, SubjectId

SETTINGS = Settings()


def gpu(number: int) -> SubjectId:
    return SubjectId(f"gpu:0000:{number:02x}:00.0")


def task(number: int, **more: Any) -> TaskView:
    return TaskView(pid=1000 + number, name="python3", **{"state": "S", "cpu": 0.0, "children_cpu": 0.0, **more})


def spins(number: int, **more: Any) -> TaskView:
    """A process that asks the GPU again and again whether it is done."""
    return task(number, **{"state": "R", "cpu": 1.0, **more})


def still(number: int, **more: Any) -> TaskView:
    return task(number, **{"still": 60.0, **more})


def rank(number: int, **more: Any) -> RankView:
    told: dict[str, Any] = {
        "step": 500, "phase": "step", "silent": 0.5, "limit": 30.0, "learned": True, "gpu": gpu(number),
        "task": spins(number), **more,
    }  # fmt: skip
    return RankView(number=number, pid=1000 + number, **told)


def view(number: int, pattern: Pattern, **more: Any) -> GpuView:
    return GpuView(gpu=gpu(number), **{"pattern": pattern, "pattern_seconds": 60.0, "worked": True, **more})


def job(ranks: list[RankView], patterns: str = "", **more: Any) -> JobView:
    """A job of these ranks; patterns are s(pinning), w(orking), i(dle), t(ooth), ?."""
    words: dict[str, Pattern] = {"s": "spinning", "w": "working", "i": "idle", "t": "sawtooth", "?": "unknown"}
    gpus = tuple(view(number, words[letter]) for number, letter in enumerate(patterns))
    tasks = tuple(one.task for one in ranks if one.task is not None)
    return JobView(job=JobId("slurm/7"), **{"world": len(ranks), "ranks": tuple(ranks), "gpus": gpus, "tasks": tasks,
                                             **more})  # fmt: skip


def silent(seconds: float = 40.0, count: int = 4, **more: Any) -> list[RankView]:
    return [rank(number, silent=seconds, **more) for number in range(count)]


def with_one(ranks: list[RankView], number: int, **more: Any) -> list[RankView]:
    return [replace(one, **more) if one.number == number else one for one in ranks]


def judged(one: JobView) -> Judgement:
    return judge(one, SETTINGS)


def silent_gpus(patterns: str, tasks: list[TaskView], seconds: float = 80.0, **more: Any) -> JobView:
    one = job([], patterns, tasks=tuple(tasks), **{"world": len(patterns), **more})
    return replace(one, gpus=tuple(replace(g, pattern_seconds=seconds) for g in one.gpus))
