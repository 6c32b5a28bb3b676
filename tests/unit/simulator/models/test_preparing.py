"""Data first: with the order known, and without."""

import pytest

from gpuguard.simulator.goodput import goodput
from gpuguard.simulator.models.preparing import Preparing, Settings
from tests.support.worlds import nodes, ran, record, traced

WITH = Settings(share=1.0, least=3600, most=3600)
WITHOUT = Settings(share=1.0, least=3600, most=3600, dag=False, on="gpu")


def test_with_the_order_known_gpus_are_held_only_for_training() -> None:
    engine = ran([traced("train", 8, 1000)], [Preparing(WITH, 1)])
    data, job = record(engine, "prepare-train"), record(engine, "train")
    assert (data.gpus, data.first_start, data.end) == (0, 0, 3600)
    assert (job.first_start, job.end, job.segments[0].slow) == (3600, 4600, ())


def test_without_it_they_are_held_and_idle() -> None:
    model = Preparing(WITHOUT, 1)
    engine = ran([traced("train", 8, 1000)], [model])
    data, job = record(engine, "prepare-train"), record(engine, "train")
    assert (data.gpus, data.use, data.end) == (1, 0.1, 3600)
    assert (job.first_start, job.end, job.segments[0].slow) == (0, 4600, (("data", 3600.0),))
    split = goodput(engine.course)
    assert split.lost["data"] == pytest.approx(8 * 3600)
    assert split.used == pytest.approx(8 * 1000 + 360)


def test_nobody_stands_whose_data_are_there() -> None:
    # The node is full for 5,000 s; the data need a GPU of the other one.
    model = Preparing(WITHOUT, 1)
    blocker = traced("blocker", 14, 5000, tier="batch")
    engine = ran([blocker, traced("train", 8, 1000, at=10)], [model])
    assert record(engine, "train").segments[0].slow == ()


def test_cleaning_on_gpus_comes_first_where_it_is_ranked_so() -> None:
    cleaning = Settings(share=0.0, on="gpu", cleaning=60.0, gpus=8, first=True)
    jobs = [traced("first", 1, 60), traced("train", 8, 600, at=600), traced("last", 1, 60, at=7200)]
    busy = ran(jobs, [Preparing(cleaning, 3)], nodes(1))
    cleans = [job for job in busy.course.jobs if job.id.startswith("clean-")]
    assert 80 <= len(cleans) <= 160
    assert all(180 <= job.segments[0].end - job.segments[0].start <= 300 for job in cleans)
    moved = ran(jobs, [Preparing(Settings(share=0.0, cleaning=60.0), 3)], nodes(1))
    assert record(moved, "train").first_start == 600
    assert (record(busy, "train").first_start or 0) > 600
