"""Messages: what they may say, and what is refused of them alone."""

import re

import msgspec
import pytest

from gpuguard.progress import wire
from gpuguard.sources.heartbeats.message import Message, Refused, believe, shown, understand
from tests.support.beats import message


def reason(data: bytes) -> str:
    with pytest.raises(Refused) as refused:
        understand(data)
    return refused.value.reason


def test_the_reader_and_the_format_have_the_same_keys() -> None:
    """The table in the format's description names every key, first in its line or in backticks."""
    lines = re.findall(r"^ {4}(\w+(?:, \w+)*) (.*(?:\n {6,}.*)*)", wire.__doc__ or "", re.MULTILINE)
    told = {key for keys, rest in lines for key in (*keys.split(", "), *re.findall(r"`(\w+)`", rest))}
    assert told == {field.name for field in msgspec.structs.fields(Message)}


def test_the_shortest_and_the_fullest() -> None:
    assert understand(b'{"v":1,"rank":3}') == Message(v=1, rank=3)
    full = understand(
        message(1, n=5, loss="nan", done=True, step=-4, saved=2**62, at=5, later="unknown keys are let be")
    )
    assert (full.loss, full.done, full.step, full.saved, full.at) == ("nan", True, -4, 2**62, 5.0)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (message(pad="x" * 600), "oversized"),
        (b"", "not_understood"), (b"[]", "not_understood"), (b"{", "not_understood"), (b"\xff\xfe", "not_understood"),
        (b'{"v":1}', "not_understood"), (b'{"rank":1}', "not_understood"),
        (message(-1), "not_understood"), (message(2**40), "not_understood"),
        (message(step=2**70), "not_understood"), (message(step="7"), "not_understood"),
        (message(at=-1.0), "not_understood"), (b'{"v":1,"rank":0,"at":1e999}', "not_understood"),
        (b'{"v":1,"rank":0,"at":NaN}', "not_understood"), (message(loss="low"), "not_understood"),
        (b'{"v":1,"rank":0,"job":"\xed\xa0\x80"}', "not_understood"),
        (b'{"v":1,"rank":0,"job":"\\ud800"}', "not_understood"),
        (b"[" * 500, "not_understood"),
        (b'{"v":2,"rank":0}', "version"), (b'{"v":2,"rank":"the first"}', "version"), (b'{"v":0,"rank":1}', "version"),
    ],
)  # fmt: skip
def test_what_is_refused(data: bytes, why: str) -> None:
    assert reason(data) == why


@pytest.mark.parametrize(
    ("times", "why"),
    [
        ((101.5, None, None), "future"),
        ((None, 101.5, None), "future"),
        ((None, None, 101.5), "future"),
        ((9.0, None, None), "before_start"),
    ],
)
def test_times_that_can_not_be(times: tuple[float | None, float | None, float | None], why: str) -> None:
    with pytest.raises(Refused) as refused:
        believe(*times, now=100.0, started=20.0)
    assert refused.value.reason == why


def test_times_that_can_be() -> None:
    """A checkpoint may be older than the process, and processors may differ a little."""
    believe(100.9, 19.5, 1.0, now=100.0, started=20.0)
    believe(None, None, None, now=100.0, started=20.0)


def test_texts_are_shown_without_what_could_break_a_terminal() -> None:
    assert shown("a\x1b[2J\nb\u202e") == "a?[2J?b?"
    assert shown("évaluation") == "évaluation"
