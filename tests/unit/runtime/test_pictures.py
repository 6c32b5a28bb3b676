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


def test_few_nodes_are_named_beside_their_rows_and_many_are_not() -> None:
    def drawn(names: list[str]) -> bytes:
        return picture(
            Course(policy="gpuguard", nodes=tuple((name, 8) for name in names), start=0, end=100), "gpus", "svg"
        )

    few = drawn(["blue-1", "$x^", "a-name-that-goes-on-and-on"])
    assert b"<!-- blue-1 -->" in few
    assert b"<!-- a-name-that-goe~ -->" in few
    assert b"blue-1" not in drawn(["blue-1", "n\u00e4chste"]), "a font may lack letters"
    assert b"blue-1" not in drawn([f"blue-{at}" for at in range(25)])


def test_one_is_no_plural() -> None:
    one = picture(
        Course(policy="p", nodes=(("n", 1),), start=0, end=9, jobs=[JobRecord(id="a", gpus=1, submit=0)]),
        "course",
        "svg",
    )
    assert b"p, 1 job on 1 GPU " in one


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
