"""A run over time, against a count by hand."""

import numpy as np

from gpuguard.simulator.course import Course, JobRecord
from gpuguard.simulator.series import series, waits
from tests.support.courses import small


def test_means_of_each_span() -> None:
    found = series(small(), spans=8)  # of 20 s, to 160
    assert found.edges.tolist() == [0, 20, 40, 60, 80, 100, 120, 140, 160]
    # 8.5 of 10 from 10 on; half ends at 110.
    np.testing.assert_allclose(found.busy, [0.425, 0.85, 0.85, 0.85, 0.85, 0.825, 0.8, 0.8])
    np.testing.assert_allclose(found.queued, [3, 1.5, 1, 0.75, 0, 0, 0, 0])
    np.testing.assert_allclose(found.slots[0], [1, 1, 1, 0.75, 0, 0, 0, 0])


def test_the_mean_of_all_spans_is_the_mean_of_the_run() -> None:
    found = series(small(), spans=37)
    held = 8 * 150 + 0.5 * 100
    np.testing.assert_allclose((found.busy * np.diff(found.edges)).sum() * 10, held)


def test_without_samples_nothing_is_claimed() -> None:
    found = series(Course(policy="a", nodes=(("n", 1),), start=0, end=10), spans=2)
    assert found.busy.tolist() == [0.0, 0.0]
    assert np.isnan(found.queued).all()
    assert np.isnan(found.slots).all()


def test_waits_by_when_the_job_was_submitted() -> None:
    course = Course(policy="a", nodes=(("n", 16),), start=0, end=100)
    for submit, wait, gpus in ((0, 10, 1), (49, 30, 8), (100, 7, 2), (60, 500, 16), (60, 1, 0)):
        course.jobs.append(JobRecord(id=f"{submit}-{gpus}", gpus=gpus, submit=submit, first_start=submit + wait))
    course.jobs.append(JobRecord(id="never", gpus=1, submit=60))
    found = waits(course, spans=4)
    np.testing.assert_allclose(found.median, [10, 30, np.nan, 7])
    np.testing.assert_allclose(found.p95, [10, 30, np.nan, 7])
    assert (found.wide_at.tolist(), found.wide.tolist()) == ([60.0], [500.0])
