"""A shop without a scheduler, on one or two cards, by hand."""

import pytest

from gpuguard.scheduler.events import NodeJoined
from gpuguard.simulator.goodput import goodput
from gpuguard.simulator.models.manual import Manual, Outcome, Settings
from gpuguard.simulator.trace import TraceJob
from tests.support.worlds import nodes, traced

BLIND = {"look": 0.0, "memory": 0.4, "sigma": 0.0, "orphan": 0.0}


def run(jobs: list[TraceJob], where: list[NodeJoined] | None = None, seed: int = 1, **settings: float) -> Outcome:
    site = Settings(**{**BLIND, **settings})  # type: ignore[arg-type] # some are whole numbers
    return Manual(site, seed).run(where or nodes(1, gpus=1), jobs)


def test_two_on_a_card_run_at_35_percent_each() -> None:
    found = run([traced("a", 1, 700), traced("b", 1, 700, at=350)])
    first, second = found.course.jobs
    # a does 350 s alone and 350 s more in 1,000; b has done 350 by then and does the rest alone.
    assert [(piece.start, piece.end, piece.shares[0].milli) for piece in first.segments] == [
        (0, 350, 1000), (350, 1350, 500),
    ]  # fmt: skip
    assert [(piece.start, piece.end) for piece in second.segments] == [(350, 1350), (1350, 1700)]
    assert (first.end, second.end, first.outcome) == (1350, 1700, "completed")
    split = goodput(found.course)
    assert split.used == pytest.approx(1400)
    assert split.lost["sharing"] == pytest.approx(300)
    assert split.used_share == 1.0


def test_two_that_do_not_fit_crash_and_try_again() -> None:
    found = run([traced("a", 1, 700), traced("b", 1, 700, at=100)], memory=0.6, robs=0.0, pause=0.0, retries=2)
    # b crashes at 220, 341 and 462 and then gives up; a loses 65 % of three times 120 s.
    assert found.out_of_memory == (("b", 220), ("b", 341), ("b", 462))
    assert found.given_up == ("b",)
    first, second = found.course.jobs
    assert (first.end, second.outcome) == (700 + 3 * 78, "failed")
    split = goodput(found.course)
    assert split.used == pytest.approx(700)
    assert split.lost["failure"] == pytest.approx(3 * 120 * 0.35)


def test_the_other_may_be_the_one_that_crashes() -> None:
    found = run([traced("a", 1, 700), traced("b", 1, 300, at=100)], memory=0.6, robs=1.0, retries=0)
    assert found.out_of_memory == (("a", 220),)
    assert [job.outcome for job in found.course.jobs] == ["failed", "completed"]


def test_who_looks_takes_a_free_card_or_looks_again() -> None:
    jobs = [traced("a", 1, 1000), traced("b", 1, 1000, at=10), traced("c", 1, 100, at=20)]
    found = run(jobs, nodes(1, gpus=2), look=1.0, recheck=600)
    assert [(job.first_start, job.end) for job in found.course.jobs] == [(0, 1000), (10, 1010), (1220, 1320)]
    assert max(sample.queued for sample in found.course.samples) == 1


def test_who_has_looked_often_enough_shares() -> None:
    found = run([traced("a", 1, 10_000), traced("b", 1, 70, at=0)], look=1.0, recheck=600, tries=2)
    assert found.course.jobs[1].first_start == 1200
    assert found.course.jobs[1].end == 1400


def test_memory_that_is_held_after_the_end() -> None:
    found = run([traced("a", 1, 100), traced("b", 1, 100, at=200)], orphan=1.0, cleaned=1000, pause=500.0, retries=9)
    assert found.orphans[0] == ("r0n0", 0, 100)
    assert found.out_of_memory[0] == ("b", 250)
    start = found.course.jobs[1].segments[-1].start
    assert start >= 1100  # not before the card was clean


def test_a_job_over_two_cards_goes_at_the_pace_of_the_slower() -> None:
    found = run([traced("two", 2, 700), traced("one", 1, 10_000)], nodes(1, gpus=2))
    two = found.course.jobs[0]
    assert two.end == 2000
    (piece,) = two.segments
    assert [(share.mask, share.milli) for share in piece.shares] == [(1, 500), (2, 1000)]
    # 1.5 GPUs held for 2,000 s, 2 x 700 worked.
    assert goodput(found.course, 0, 2000).lost["sharing"] == pytest.approx(1600 + 0.5 * 2000 * 0.3)


def test_the_same_seed_is_the_same_shop() -> None:
    jobs = [traced(f"j{at}", 1 + at % 8, 500 + at, at=at * 40) for at in range(24)]
    one, other = (run(jobs, nodes(2), look=0.5, sigma=0.6) for _ in range(2))
    assert one == other != run(jobs, nodes(2), seed=2, look=0.5, sigma=0.6)
    assert all(job.outcome in {"completed", "failed"} for job in one.course.jobs)


def test_work_for_cpus_and_what_no_cluster_has_is_not_run() -> None:
    found = run([traced("cpu", 0, 100, tier="batch"), traced("vast", 9, 100)])
    assert [job.outcome for job in found.course.jobs] == ["refused", "refused"]
