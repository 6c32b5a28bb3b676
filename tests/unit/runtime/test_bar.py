"""How far long work is: drawn for whoever watches, and for nobody else unless asked."""

import io

import pytest

from gpuguard.runtime import bar
from gpuguard.runtime.bar import BAR, WIDTH, Bar, line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_tells_the_share_and_how_long_it_goes_on() -> None:
    assert line("easy-pack", 250, 1000, "jobs", 10.0) == (
        f"easy-pack [{'#' * 6}{'.' * 18}]  25 %  250 of 1,000 jobs, 30 s left"
    )


def test_nothing_is_foretold_before_there_is_something_to_go_by() -> None:
    assert line("x", 1, 1000, "jobs", 10.0).endswith("1 of 1,000 jobs")
    assert line("x", 500, 1000, "jobs", 0.5).endswith("500 of 1,000 jobs")


def test_the_end_tells_how_long_it_took() -> None:
    assert line("x", 7, 7, "jobs", 130.0) == f"x [{'#' * BAR}] 100 %  7 of 7 jobs, 2 min"
    assert line("x", 0, 0, "jobs", 0.0).startswith(f"x [{'#' * BAR}] 100 %")


def test_a_line_never_reaches_the_last_column() -> None:
    assert len(line("a" * 70, 1_000_000, 2_000_000, "jobs", 1e6)) == WIDTH


def test_who_reads_a_log_is_not_shown_it_unasked() -> None:
    stream = io.StringIO()
    with Bar("x", "jobs", stream=stream) as shown:
        shown.show(7, 7)
        shown.say("something")
    assert stream.getvalue() == ""


def test_a_log_that_asks_has_the_end_once_in_a_line_of_its_own() -> None:
    stream = io.StringIO()
    with Bar("x", "jobs", shown=True, stream=stream) as shown:
        for done in (1, 2, 7, 7):
            shown.show(done, 7)
    assert stream.getvalue() == f"x [{'#' * BAR}] 100 %  7 of 7 jobs, 1 s\n"


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bar, "EVERY_LINE", 0.0)
    stream = io.StringIO()
    with Bar("x", "jobs", shown=True, stream=stream) as shown:
        shown.show(1, 7)
        shown.say("S1")
    assert [text.startswith("x") for text in stream.getvalue().splitlines()] == [True, True]


def test_a_terminal_has_one_line_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bar, "EVERY", 0.0)
    stream = Terminal()
    with Bar("x", "jobs", stream=stream) as shown:
        shown.show(1, 7)
        shown.say("a\x1b[2Jb")
    text = stream.getvalue()
    assert "\n" not in text
    assert text.endswith("\r\x1b[K")
    assert "\x1b[2J" not in text


def test_a_terminal_is_left_alone_between_two_pictures() -> None:
    stream = Terminal()
    with Bar("x", "jobs", stream=stream) as shown:
        for done in range(1000):
            shown.show(done, 100_000)
    assert stream.getvalue().count("\r") < 10


def test_what_goes_on_is_said_once() -> None:
    stream = io.StringIO()
    with Bar("claims", "", shown=True, stream=stream) as shown:
        for text in ("S1", "S1", "S2", "S2"):
            shown.say(text)
    assert stream.getvalue() == "claims: S1\nclaims: S2\n"
