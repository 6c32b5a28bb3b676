"""Whatever a trace's file holds, it is read whole or refused by name; and what is drawn from it adds up."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuguard.errors import ConfigInvalid
from gpuguard.scheduler.request import Job
from gpuguard.simulator.course import Course, JobRecord
from gpuguard.simulator.series import series
from gpuguard.simulator.summary import utilisation
from gpuguard.simulator.trace import TraceJob
from gpuguard.simulator.traces.shared_columns import jobs, nodes
from gpuguard.simulator.windows import inflated

COLUMNS = ("job_id", "submit_s", "duration_s", "gpus", "gpu_milli", "cpus", "status", "tier", "after")
CELL = st.one_of(
    st.sampled_from(
        ["", "0", "1", "500", "1000", "-1", "nan", "1e400", "pass", "batch", "a", "afterok:a", '"', "\x00", "٣"]
    ),
    st.text(max_size=5),
    st.integers(-5, 10**20).map(str),
)


def _read(read: Callable[[list[str], str], Any], lines: list[str]) -> Any:
    """What was read, or the mistakes."""
    try:
        return read(lines, "t.csv")
    except ConfigInvalid as refusal:
        return refusal.mistakes


@settings(max_examples=60)
@given(st.lists(st.lists(CELL, min_size=8, max_size=10), max_size=6))
def test_a_file_is_read_whole_or_refused(rows: list[list[str]]) -> None:
    lines = [",".join(COLUMNS) + "\n", *(",".join(row) + "\n" for row in rows)]
    trace = _read(jobs, lines)
    if isinstance(trace, tuple):
        assert trace
        assert all(mistake.startswith("t.csv") and mistake.isprintable() for mistake in trace)
        return
    assert len({traced.job.id for traced in trace.jobs}) == len(trace.jobs) > 0
    for traced in trace.jobs:
        assert traced.submit_s >= 0
        assert traced.job.gpus <= 1 or not traced.job.shares


@settings(max_examples=30)
@given(st.text(max_size=200))
def test_any_text_is_refused_or_read(text: str) -> None:
    for read in (jobs, nodes):
        assert _read(read, text.splitlines(keepends=True))


STRETCH = st.tuples(st.integers(0, 500), st.integers(0, 200), st.integers(0, 8), st.sampled_from([250, 1000]))


@settings(max_examples=40)
@given(st.lists(STRETCH, max_size=12), st.integers(1, 40))
def test_the_curve_and_the_figure_agree(stretches: list[tuple[int, int, int, int]], spans: int) -> None:
    course = Course(policy="a", nodes=(("n", 64),), start=0, end=700)
    for at, (start, length, gpus, milli) in enumerate(stretches):
        job = JobRecord(id=str(at), gpus=gpus, milli=milli, submit=start)
        job.ran(start, start + length, ())
        course.jobs.append(job)
    drawn = series(course, spans)
    told = utilisation(course, 0, int(drawn.edges[-1]))
    assert told is not None
    np.testing.assert_allclose((drawn.busy * np.diff(drawn.edges)).sum() / drawn.edges[-1], told, atol=1e-12)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 1000)), min_size=1, max_size=8), st.integers(1, 30), st.data()
)
def test_inflated_jobs_ask_for_the_share_and_stop(
    asks: list[tuple[int, int]], percent: int, data: st.DataObject
) -> None:
    asks = [*asks, (1, 1000)]
    trace = [
        TraceJob(job=Job(id=f"j{at}", gpus=gpus, gpu_milli=milli), submit_s=0, duration_s=1)
        for at, (gpus, milli) in enumerate(asks)
    ]
    found = inflated(trace, gpus=100, share=percent / 10, order=lambda count: data.draw(st.permutations(range(count))))
    asked = [job.gpus * job.gpu_milli for job in found]
    assert sum(asked) >= percent * 10_000 > sum(asked[:-1])
    assert len({job.id for job in found}) == len(found)
