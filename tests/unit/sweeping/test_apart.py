"""Reads with a deadline: one that hangs costs neither the others nor a thread each time."""

import threading
from functools import partial

from gpuguard.errors import ReadFailed
from gpuguard.sweeping.apart import Apart


def test_all_that_answer_are_there() -> None:
    apart: Apart[int] = Apart("test", 10.0)
    assert apart.read({str(number): partial(int, number) for number in range(5)}) == {str(n): n for n in range(5)}
    assert apart.read({}) == {}
    assert not apart.hanging


def test_what_cannot_be_read_is_missing() -> None:
    def broken() -> int:
        raise ReadFailed("no")

    def gone() -> int:
        raise OSError("gone")

    apart: Apart[int] = Apart("test", 10.0)
    assert apart.read({"broken": broken, "gone": gone, "well": lambda: 1}) == {"well": 1}
    assert not apart.hanging


def test_one_that_hangs_costs_no_other_and_is_not_asked_again_until_it_came_back() -> None:
    release, back, asked = threading.Event(), threading.Event(), []

    def hangs() -> int:
        asked.append(1)
        release.wait(30)
        back.set()
        return 1

    apart: Apart[int] = Apart("test", 0.05)
    jobs = {"a": lambda: 0, "hangs": hangs, "b": lambda: 2, "c": lambda: 3}
    for _ in range(3):
        assert apart.read(jobs) == {"a": 0, "b": 2, "c": 3}
        assert apart.hanging == {"hangs"}
    assert len(asked) == 1
    pending = apart._pending["hangs"]
    release.set()
    pending.join(10)
    assert not apart.hanging
    assert apart.read(jobs) == {"a": 0, "hangs": 1, "b": 2, "c": 3}


def test_one_that_is_slow_is_waited_for() -> None:
    """A device that wakes takes a while: the others are read meanwhile, and it is still heard."""
    others = threading.Event()

    def slow() -> int:
        assert others.wait(10)
        return 1

    def other() -> int:
        others.set()
        return 2

    apart: Apart[int] = Apart("test", 4.0)
    assert apart.read({"slow": slow, "other": other}) == {"slow": 1, "other": 2}
