"""Whatever a field holds, a line comes out of it: one line, and no control character on a terminal."""

import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.instants import Instant
from gpuguard.runtime.clock import ManualClock
from gpuguard.runtime.log import Form, plain, set_up_log


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def logged(form: Form = "json", **fields: object) -> str:
    stream = io.StringIO()
    set_up_log(ManualClock(utc=1_700_000_000.5), stream=stream, form=form)
    structlog.get_logger().warning("source.blind", **fields)
    return stream.getvalue()


def test_json_is_one_object_a_line() -> None:
    line = logged(source="kmsg", lost=3, gpu=Path("/dev/nvidia0"), reason="first\nsecond")
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "at": "2023-11-14T22:13:20.500+00:00",
        "level": "warning",
        "event": "source.blind",
        "source": "kmsg",
        "lost": 3,
        "gpu": "/dev/nvidia0",
        "reason": "first\nsecond",
    }
    assert list(json.loads(line))[:3] == ["at", "level", "event"]


def test_a_field_does_not_stand_in_for_time_or_level() -> None:
    found = json.loads(logged(at="then", level="fine"))
    assert (found["level"], found["at_"], found["level_"]) == ("warning", "then", "fine")
    assert found["at"].startswith("2023-")


def test_words_are_for_people() -> None:
    line = logged("terminal", source="kmsg", reason="no such device", none=None, many=[1, "a"])
    assert line == (
        "22:13:20 \x1b[33mwarning\x1b[0m source.blind             source=kmsg reason='no such device' none=null "
        'many=[1,"a"]\n'
    )


def test_a_terminal_gets_no_control_characters_from_a_field() -> None:
    line = logged("terminal", comm="\x1b]0;owned\x07\x9b2J\r\nfake", **{"k\x1b": 1})
    assert "comm=\\x1b]0;owned\\x07\\x9b2J\\r\\nfake k\\x1b=1" in line
    assert line.count("\n") == 1
    assert line.count("\x1b") == 2  # the colour of the level, on and off


def test_auto_is_json_where_there_is_no_terminal() -> None:
    assert json.loads(logged("auto", a=1))["a"] == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_auto_is_words_on_a_terminal() -> None:
    stream = Terminal()
    set_up_log(ManualClock(), stream=stream)
    structlog.get_logger().info("agent.started")
    assert stream.getvalue() == "22:13:20 info    agent.started\n"


def test_what_is_below_the_level_is_not_written() -> None:
    stream = io.StringIO()
    set_up_log(ManualClock(), stream=stream, level="warning")
    log = structlog.get_logger()
    log.info("agent.started")
    log.error("action.refused")
    assert json.loads(stream.getvalue())["event"] == "action.refused"


@pytest.mark.parametrize("form", ["json", "terminal"])
def test_an_error_comes_with_its_traceback(form: Form) -> None:
    stream = io.StringIO()
    set_up_log(ManualClock(), stream=stream, form=form)
    try:
        raise ValueError("bad \x1b value")
    except ValueError as error:
        structlog.get_logger().error("check.crashed", error=error, exc_info=True)
        structlog.get_logger().exception("check.crashed")
    first, *rest = stream.getvalue().splitlines()
    if form == "json":
        for row in (first, *rest):
            found = json.loads(row)
            assert found["level"] == "error"
            assert found["traceback"].endswith("ValueError: bad \x1b value\n")
        assert json.loads(first)["error"] == "ValueError: bad \x1b value"
    else:
        assert "error='ValueError: bad \\x1b value'" in first
        assert "    ValueError: bad \\x1b value" in rest


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@dataclass
class Point:
    x: object


def test_nothing_odd_makes_it_raise() -> None:
    endless: list[object] = []
    endless.append(endless)
    at = Instant(boot=ManualClock().now().boot, mono=1.0)
    line = logged(
        hostile=Hostile(),
        error=HostileError(),
        endless=endless,
        surrogate="\udc80",
        junk=b"\xff\x00ok",
        huge=10**5000,
        far=-(2**63) - 1,
        infinite=float("inf"),
        nan=float("nan"),
        keys={1: "a", ("b",): 2, Hostile(): 3},
        unset=msgspec.UNSET,
        at_=at,
        point=Point(Hostile()),
        kind=Hostile,
        long="x" * 10_000_000,
        wide=list(range(1000)),
    )
    found = json.loads(line)
    assert found["hostile"] == "<Hostile>"
    assert found["error"].endswith("<exception str() failed>")
    assert found["endless"] == [[[[["..."]]]]]
    assert found["surrogate"] == "\\udc80"
    assert found["junk"] == "\\xff\x00ok"
    assert found["huge"].startswith("0x")
    assert (found["infinite"], found["nan"]) == ("inf", "nan")
    assert found["keys"] == {"1": "a", "...": 3}
    assert found["at_"]["mono"] == 1.0
    assert found["point"] == {"x": "<Hostile>"}
    assert len(line) < 20_000
    assert len(found["wide"]) == 50


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner),
    max_leaves=8,
)


@given(value=ODD)
def test_every_value_becomes_json(value: object) -> None:
    shown = plain(value)
    json.loads(msgspec.json.encode(shown))
    assert plain(shown) == shown


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_stream_that_went_away_is_counted() -> None:
    for stream in (Gone(), io.StringIO()):
        sink = set_up_log(ManualClock(), stream=stream)
        if not isinstance(stream, Gone):
            stream.close()
        structlog.get_logger().info("agent.started")
        assert sink.lost == 1


def test_the_journal_is_told_the_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        found = os.fstat(stream.fileno())
        for given_, prefix in ((f"{found.st_dev}:{found.st_ino}", "<4>{"), (f"{found.st_dev}:1", "{")):
            monkeypatch.setenv("JOURNAL_STREAM", given_)
            stream.truncate(0)
            stream.seek(0)
            set_up_log(ManualClock(), stream=stream)
            structlog.get_logger().warning("source.blind")
            stream.seek(0)
            assert stream.read().startswith(prefix)
