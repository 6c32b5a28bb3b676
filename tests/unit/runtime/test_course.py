"""The course of what is measured: a minute in memory, then with the store."""

import math
from collections.abc import Sequence

from gpuguard.errors import StoreFailed
from gpuguard.model.ids import SubjectId
from gpuguard.model.samples import Stretch
from gpuguard.runtime.course import WAITING, Course
from tests.support.core import UTC, sweep

GPU = "gpu:0000:1b:00.0"
# Monotonic seconds at which a minute of UTC begins in these tests.
FIRST = 60.0 - UTC % 60.0


class Shelf:
    """What `Course` needs of a store."""

    def __init__(self) -> None:
        self.kept: list[Stretch] = []
        self.full = False

    def keep_samples(self, stretches: Sequence[Stretch]) -> None:
        if self.full:
            raise StoreFailed("no space left")
        self.kept.extend(stretches)


def course(shelf: Shelf) -> Course:
    return Course(shelf, ("power_watts", "sm_active_ratio"), lambda subject: f"GPU-of-{subject}")  # type: ignore[arg-type]  # the one method it calls


def test_a_minute_is_written_when_the_next_begins() -> None:
    shelf = Shelf()
    kept = course(shelf)
    for second in (0.0, 5.0, 10.0):
        kept.take(sweep({GPU: {"power_watts": 300 + second, "gpu_name": "H100"}}, FIRST + second))
    assert shelf.kept == []
    kept.take(sweep({GPU: {"power_watts": 1.0}}, FIRST + 60.0))
    (minute,) = shelf.kept
    assert (minute.gpu, minute.grain, minute.start) == (f"GPU-of-{GPU}", "full", UTC + FIRST)
    assert minute.offsets == (0.0, 5.0, 10.0)
    assert minute.columns == {"power_watts": (300.0, 305.0, 310.0)}


def test_what_was_not_known_is_no_number() -> None:
    shelf = Shelf()
    kept = course(shelf)
    kept.take(sweep({GPU: {"power_watts": None, "sm_active_ratio": 0.5}}, FIRST))
    kept.take(sweep({GPU: {"power_watts": 70}}, FIRST + 1))
    kept.end_minute()
    columns = shelf.kept[0].columns
    assert math.isnan(columns["power_watts"][0])
    assert columns["power_watts"][1] == 70.0
    assert columns["sm_active_ratio"][0] == 0.5


def test_only_gpus_have_a_course() -> None:
    shelf = Shelf()
    kept = course(shelf)
    kept.take(sweep({SubjectId("node"): {"power_watts": 1}, "mig:0000:1b:00.0/1": {"power_watts": 1}}, FIRST))
    kept.end_minute()
    assert shelf.kept == []


def test_a_disk_that_refuses_costs_the_oldest_minutes_alone() -> None:
    shelf = Shelf()
    kept = course(shelf)
    shelf.full = True
    for minute in range(WAITING + 5):
        kept.take(sweep({GPU: {"power_watts": minute}}, FIRST + 60.0 * minute))
    kept.end_minute()
    assert kept.lost == 5
    assert "no space left" in kept.failure
    shelf.full = False
    kept.take(sweep({GPU: {"power_watts": 1}}, FIRST + 60.0 * 1000))
    kept.end_minute()
    assert len(shelf.kept) == WAITING + 1
    assert shelf.kept[0].columns["power_watts"] == (5.0,)
    assert kept.failure == ""


def test_it_is_told_whenever_the_store_refuses_and_when_it_takes_again() -> None:
    shelf, told = Shelf(), []
    kept = Course(shelf, ("power_watts",), str, told.append)  # type: ignore[arg-type]  # the one method it calls
    for number in range(6):
        shelf.full = number in (1, 2, 3)
        kept.take(sweep({GPU: {"power_watts": 1.0}}, FIRST + 60.0 * number))
    assert told == ["no space left", "no space left", "no space left", ""]
