"""Figures of a run, against a count by hand."""

from gpuguard.simulator.course import Course, JobRecord, Sample
from gpuguard.simulator.summary import summary, waits
from tests.support.courses import share, small

NOTHING = {"mean": None, "median": None, "p95": None, "max": None}


def test_the_small_run() -> None:
    assert summary(small(), cycles_ms=[1.0, 2.0, 3.0], wall_s=0.12345, peak_rss_mib=99.96) == {
        "jobs": 4,
        "finished": 3,
        "wait_s": {"mean": 6.7, "median": 10.0, "p95": 10.0, "max": 10},  # 10, 10, 0
        "wait_s_by_gpus": {
            "1-8": {"mean": 10.0, "median": 10.0, "p95": 10.0, "max": 10},
            "9+": NOTHING,
            "64+": NOTHING,
        },
        "utilisation": 0.765,  # (8 x 50 + 8 x 40 + 0.5 x 90) / (10 x 100)
        "makespan_s": 160,
        # Counted at 0, where it was 1, for 75 s, and at 75, where it was 0, for 25.
        "fragmentation": {"slots": {"8": 0.75, "16": 0.0, "32": 0.0, "64": 0.0, "128": 0.0}},
        "preempted_share": 0.333333,
        "queued_share": 0.4375,  # 3 of 4 for 25 s, 1 of 2 for 50 s, none for 25 s
        "cycles": {"count": 3, "p50_ms": 2.0, "p99_ms": 2.98, "max_ms": 3.0},
        "wall_s": 0.123,
        "peak_rss_mib": 100.0,
    }


def test_waits_by_hand() -> None:
    jobs = [
        JobRecord(id=str(at), gpus=1, submit=100, first_start=100 + wait) for at, wait in enumerate((0, 10, 20, 70))
    ]
    # 95 % of the way through three gaps is 2.85: 0.85 of the way from 20 to 70.
    assert waits(jobs) == {"mean": 25.0, "median": 15.0, "p95": 62.5, "max": 70}


def test_wide_jobs_are_in_two_groups() -> None:
    course = Course(policy="a", nodes=(("n", 64),), start=0, end=10)
    for gpus, wait in ((8, 1), (9, 2), (63, 4), (64, 9)):
        job = JobRecord(id=str(gpus), gpus=gpus, submit=0)
        job.ran(wait, wait + 1, ())
        course.jobs.append(job)
    groups = summary(course, cycles_ms=[], wall_s=0, peak_rss_mib=0)["wait_s_by_gpus"]
    assert {name: (group["mean"], group["max"]) for name, group in groups.items()} == {
        "1-8": (1.0, 1), "9+": (5.0, 9), "64+": (9.0, 9),
    }  # fmt: skip


def test_nothing_was_run() -> None:
    found = summary(Course(policy="a", nodes=(), start=0, end=0), cycles_ms=[], wall_s=0.0, peak_rss_mib=0.0)
    assert found["wait_s"] == NOTHING
    assert found["cycles"] == {"count": 0, "p50_ms": None, "p99_ms": None, "max_ms": None}
    for name in ("utilisation", "makespan_s", "preempted_share", "queued_share"):
        assert found[name] is None


def test_all_jobs_at_once_are_measured_over_the_whole_run() -> None:
    course = Course(policy="a", nodes=(("n", 2),), start=50, end=50)
    job = JobRecord(id="a", gpus=1, submit=50)
    job.ran(50, 150, share("n", 1))
    course.jobs.append(job)
    course.samples.append(Sample(50, 0, 1, 1.0, 1))
    found = summary(course, cycles_ms=[1.0], wall_s=0, peak_rss_mib=0)
    assert (found["utilisation"], found["makespan_s"], found["queued_share"]) == (0.5, 100, 0.0)
