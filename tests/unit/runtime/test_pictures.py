"""Pictures of a run: the form that was asked for, the same bytes each time, and no crash on a bare run."""

import builtins
import sys
from typing import Any

import pytest

from gpuguard.errors import Absent, UsageError
from gpuguard.runtime.pictures import KINDS, Kind, form_of, picture
from gpuguard.simulator.course import Course, JobRecord
from tests.support.courses import share, small


def test_the_form_follows_the_name() -> None:
    assert (form_of("a/b.PNG"), form_of("b.svg")) == ("png", "svg")
    for name in ("run.pdf", "run", ".png"):
        with pytest.raises(UsageError, match=r"is \.png or \.svg"):
            form_of(name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_run_gives_the_same_bytes(kind: Kind) -> None:
    svg = picture(small(), kind, "svg")
    assert b"<svg" in svg
    assert b"<dc:date>" not in svg
    assert picture(small(), kind, "svg") == svg


def test_a_run_in_which_nothing_happened_and_a_name_that_is_no_formula() -> None:
    png = picture(Course(policy="$x^", nodes=(("n", 8),), start=0, end=0), "course", "png")
    assert png.startswith(b"\x89PNG\r\n")
    assert b"Software" not in png


def test_many_gpus_are_drawn_by_node() -> None:
    course = Course(policy="gpuguard", nodes=tuple((f"n{at}", 8) for at in range(300)), start=0, end=100)
    job = JobRecord(id="a", gpus=8, submit=0)
    job.ran(0, 100, share("n7", 0xFF))
    course.jobs.append(job)
    assert picture(course, "gpus", "png")


def test_without_matplotlib_the_next_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "matplotlib":
            raise ImportError("no module named matplotlib")
        return real(name, *args, **kwargs)

    for loaded in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Absent, match=r"pip install 'gpuguard\[pictures\]'"):
        picture(small(), "course", "png")
