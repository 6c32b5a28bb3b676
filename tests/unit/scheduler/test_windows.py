"""What one job adds to a stretch of time."""

from gpuguard.scheduler.record import Record
from gpuguard.scheduler.windows import Window


def ended(how: str) -> Record:
    record = Record(job="a", user="ann", account="all", queue="training", tier="training", gpus=1000, submitted=0)
    record.begins(10, 1000, "node")
    record.is_prepared(15)
    record.progresses(25)
    record.ran(30, how, None)
    record.outcome = "completed"
    return record


def test_only_those_who_made_room_count_as_preempted() -> None:
    window = Window()
    window.fold(ended("completed"))
    window.fold(ended("preempted"))
    assert (window.ran, window.preempted, window.preempted_share) == (2, 1, 0.5)


def test_warming_up_begins_when_the_program_does() -> None:
    window = Window()
    window.fold(ended("completed"))
    assert (window.preparing.total, window.warming.total) == (5, 10)
