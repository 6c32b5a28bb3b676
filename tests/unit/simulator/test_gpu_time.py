"""The image of what each GPU ran, point by point."""

import numpy as np
import pytest

from gpuguard.errors import Absent
from gpuguard.simulator.course import Course, JobRecord
from gpuguard.simulator.gpu_time import FREE, OUT, gpu_time, node_time
from tests.support.courses import share, small


def test_each_gpu_is_a_row_and_each_moment_a_column() -> None:
    drawn = gpu_time(small(), "size", columns=16)  # of 10 s
    assert drawn.points.shape == (10, 16)
    wide = 2 + drawn.classes.index("2 to 8")
    part = 2 + drawn.classes.index("a part of one")
    assert drawn.points[0].tolist() == drawn.points[7].tolist() == [FREE] + [wide] * 15
    assert drawn.points[8].tolist() == [OUT] * 5 + [FREE] * 11
    assert drawn.points[9].tolist() == [FREE] + [part] * 10 + [FREE] * 5


def test_colours_by_tier_and_by_end() -> None:
    by_tier = gpu_time(small(), "tier", columns=16)
    assert by_tier.classes[by_tier.points[0, 3] - 2] == "training"
    assert by_tier.classes[by_tier.points[9, 3] - 2] == "batch"
    by_end = gpu_time(small(), "end", columns=16)
    assert [by_end.classes[value - 2] for value in by_end.points[0, [1, 5, 6, 15]]] == (
        ["preempted"] * 2 + ["ended by itself"] * 2
    )


def test_gpus_of_a_mask_with_gaps() -> None:
    course = Course(policy="a", nodes=(("m", 1), ("n", 4)), start=0, end=10)
    job = JobRecord(id="a", gpus=2, submit=0)
    job.ran(0, 10, (*share("n", 0b1001), *share("gone", 1)))
    course.jobs.append(job)
    assert (gpu_time(course, columns=1).points[:, 0] > OUT).tolist() == [False, True, False, False, True]


def test_short_jobs_do_not_fill_an_idle_cluster() -> None:
    """Jobs a tenth of a point long cover about a tenth of the points."""
    course = Course(policy="a", nodes=(("n", 1),), start=0, end=100_000)
    for at in range(0, 100_000, 10):
        job = JobRecord(id=str(at), gpus=1, submit=at)
        job.ran(at, at + 1, share("n", 1))
        course.jobs.append(job)
    seen = (gpu_time(course, columns=999).points > OUT).mean()
    assert 0.05 < seen < 0.15


def test_many_nodes_share_rows_and_an_outage_is_no_idling() -> None:
    course = small()
    by_node = node_time(course, columns=16)
    assert (by_node.shares.shape, by_node.per_row) == ((2, 16), 1)
    np.testing.assert_allclose(by_node.shares[0], [0] + [1] * 15)
    np.testing.assert_allclose(by_node.shares[1], [0] + [0.5] * 4 + [0.25] * 6 + [0] * 5)
    together = node_time(course, columns=16, most_rows=1)
    assert (together.shares.shape, together.per_row) == ((1, 16), 2)
    np.testing.assert_allclose(together.shares[0, 6], 0.85)


def test_a_node_that_is_out_is_neither_busy_nor_idle() -> None:
    course = small()
    course.outages.append(course.outages[0].__class__(0, 50, "n1", 0xFF))
    assert np.isnan(node_time(course, columns=16).shares[0, :5]).all()


def test_a_cluster_without_gpus_has_no_picture() -> None:
    course = Course(policy="a", nodes=(("n", 0),), start=0, end=10)
    for draw in (gpu_time, node_time):
        with pytest.raises(Absent, match="no GPUs"):
            draw(course)
