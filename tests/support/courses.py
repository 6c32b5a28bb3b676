"""A run small enough to be counted by hand: 10 GPUs, a submit window of 100 s, four jobs."""

from gpuguard.scheduler.plan import Share
from gpuguard.simulator.course import Course, JobRecord, Outage, Sample


def share(node: str, mask: int, milli: int = 1000) -> tuple[Share, ...]:
    return (Share(node, mask, milli, 0, 0),)


def small() -> Course:
    """In [0, 100): wide holds 8 GPUs for 50 s, then 8 for 40 s; half holds 0.5 for 90 s. cpu holds none."""
    course = Course(policy="gpuguard", nodes=(("n1", 8), ("n2", 2)), start=0, end=100)
    wide = JobRecord(id="wide", gpus=8, submit=0)
    wide.ran(10, 60, share("n1", 0xFF), "preempted")
    wide.ran(60, 160, share("n1", 0xFF))
    half = JobRecord(id="half", gpus=1, milli=500, submit=0, tier="batch")
    half.ran(10, 110, share("n2", 0b10, 500))
    cpu = JobRecord(id="cpu", gpus=0, submit=5, tier="batch")
    cpu.ran(5, 20, ())
    never = JobRecord(id="never", gpus=64, submit=50)
    course.jobs.extend((wide, half, cpu, never))
    course.samples.extend((
        Sample(0, 3, 1, 0.0, 10, (1, 0, 0, 0, 0)), Sample(25, 1, 1, 8.5, 1), Sample(75, 0, 2, 8.5, 1, (0, 0, 0, 0, 0)),
    ))  # fmt: skip
    course.outages.append(Outage(0, 50, "n2", 0b01))
    return course
