"""Windows of days, and jobs drawn until they fill a cluster."""

from collections.abc import Sequence

import pytest

from gpuguard.errors import UsageError
from gpuguard.scheduler.request import Dependency, Job
from gpuguard.scheduler.settings import DAY
from gpuguard.simulator.trace import Trace, TraceJob
from gpuguard.simulator.windows import inflated, window


def _job(name: str, submit: int, duration: int | None = 60, **fields: object) -> TraceJob:
    return TraceJob(job=Job(id=name, **fields), submit_s=submit, duration_s=duration)  # type: ignore[arg-type]


TRACE = Trace(
    jobs=(
        _job("late", 2 * DAY), _job("b", DAY), _job("a", DAY, 9 * DAY), _job("never", DAY, None),
        _job("end", 3 * DAY), _job("early", DAY - 1),
    )
)  # fmt: skip


def test_a_window_is_half_open_in_order_and_tells_what_it_left_out() -> None:
    found = window(TRACE, from_day=1, to_day=3, max_days=7)
    assert [traced.job.id for traced in found.jobs] == ["a", "b", "late"]
    assert (found.start, found.end) == (DAY, 3 * DAY)
    assert (found.outside, found.never_started, found.capped) == (2, 1, 1)
    assert found.jobs[0].duration_s == 7 * DAY


def test_without_days_the_window_is_from_the_first_to_the_last_submit() -> None:
    found = window(TRACE)
    assert (found.start, found.end, len(found.jobs)) == (DAY - 1, 3 * DAY, 5)


def test_parents_that_were_left_out_are_taken_as_done() -> None:
    after = tuple(
        Dependency(relation=relation, name=name)
        for relation, name in (("afterok", "early"), ("afterany", "a"), ("condition", "early"))
    )
    trace = Trace(jobs=(*TRACE.jobs, _job("child", DAY, after=after)))
    child = next(traced for traced in window(trace, from_day=1).jobs if traced.job.id == "child")
    assert child.job.after == after[1:]


@pytest.mark.parametrize(
    ("days", "said"),
    [
        ({"from_day": 3, "to_day": 3}, "no window"), ({"max_days": 0}, "above 0"), ({"max_days": -1}, "above 0"),
        ({"from_day": 50}, "days 1.0 to 3.0"),
    ],
)  # fmt: skip
def test_days_without_jobs_are_refused(days: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        window(TRACE, **days)


def _backwards(count: int) -> Sequence[int]:
    return range(count)[::-1]


def test_jobs_are_drawn_until_the_share_is_asked_for() -> None:
    jobs = [_job("a", 0, gpus=4), _job("b", 0, None, gpus=2), _job("c", 0, gpus=1, gpu_milli=500)]
    # 10 GPUs, 45 %: c 0.5, b 2, a 4 reaches it; 30 % is not passed by c and b (2.5), and is by a.
    assert [job.id for job in inflated(jobs, gpus=10, share=0.45, order=_backwards)] == ["c", "b", "a"]
    assert [job.id for job in inflated(jobs, gpus=10, share=0.25, order=_backwards)] == ["c", "b"]


def test_a_second_round_has_ids_of_its_own() -> None:
    jobs = [_job("a", 0, gpus=4, after=(Dependency(relation="afterok", name="b"),)), _job("b~2", 0, gpus=1)]
    found = inflated(jobs, gpus=10, share=1.3, order=_backwards)
    assert [job.id for job in found] == ["b~2", "a", "b~2~~2", "a~~2", "b~2~~3", "a~~3"]
    assert all(not job.after for job in found)


def test_130_percent_is_not_overshot_for_rounding() -> None:
    assert len(inflated([_job("a", 0, gpus=1)], gpus=6212, share=1.3, order=_backwards)) == 8076


@pytest.mark.parametrize(
    ("gpus", "share"), [(10, 0.0), (10, -1.0), (10, float("nan")), (10, float("inf")), (0, 1.3), (10, 1e9)]
)
def test_a_share_that_cannot_be_reached_is_refused(gpus: int, share: float) -> None:
    with pytest.raises(UsageError, match="give a share"):
        inflated([_job("a", 0)], gpus=gpus, share=share, order=_backwards)
    with pytest.raises(UsageError, match="no job of the trace asks for a GPU"):
        inflated([_job("a", 0, gpus=0)], gpus=1, share=1, order=_backwards)


def test_a_job_of_just_the_longest_is_not_cut() -> None:
    jobs = (
        TraceJob(job=Job(id="a"), submit_s=0, duration_s=DAY),
        TraceJob(job=Job(id="b"), submit_s=0, duration_s=DAY + 1),
    )
    found = window(Trace(jobs=jobs), max_days=1)
    assert (found.capped, [one.duration_s for one in found.jobs]) == (1, [DAY, DAY])
