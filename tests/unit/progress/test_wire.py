"""The form of a message and of a page: what was written is read, and nothing else is."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.progress import wire

FULL: dict[str, object] = {
    "v": 1, "n": 12, "rank": 3, "world": 8, "restart": 1, "job": "slurm/8123", "host": "n07", "pid": 4711, "step": 900,
    "phase": "checkpoint", "since": 12.5, "at": 13.25, "saved": 800, "saved_at": 10.0, "blocked": 2.5,
    "holds": "model optimizer", "loss": 0.25, "done": True, "preempt": 2, "devices": "0,1",
    "flight": "/tmp/trace_", "via": "library",
}  # fmt: skip
PAGE = wire.Page(
    n=5, at=10.5, step=-3, phase="evaluation", since=9.0, loss=0.5, saved=70, saved_at=8.0, done=True, preempt=1
)


def test_a_full_message_is_read_as_it_was_written() -> None:
    assert wire.decode(wire.encode(FULL)) == FULL


def test_what_is_not_known_is_left_out_and_what_need_not_be_may_be_missing() -> None:
    assert json.loads(wire.encode({"v": 1, "rank": 0, "step": None})) == {"v": 1, "rank": 0}
    assert wire.decode(b'{"v":1,"rank":0}') == {"v": 1, "rank": 0}


def test_keys_of_a_later_version_are_passed_over() -> None:
    assert wire.decode(b'{"v":1,"rank":0,"mood":[1,2]}') == {"v": 1, "rank": 0}


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_the_word_nan(loss: float) -> None:
    data = wire.encode({"v": 1, "rank": 0, "loss": loss})
    assert json.loads(data)["loss"] == "nan"
    read = wire.decode(data)["loss"]
    assert isinstance(read, float)
    assert math.isnan(read)


def test_what_does_not_fit_is_left_out_whole_least_important_first() -> None:
    long = {**FULL, "devices": "MIG-" + "a" * 300, "flight": "/scratch/" + "b" * 150}
    data = wire.encode(long)
    assert len(data) <= wire.MESSAGE_LIMIT
    read = wire.decode(data)
    assert "flight" not in read
    assert read["job"] == "slurm/8123"
    assert read.get("devices") in (None, long["devices"])


def test_a_message_without_room_for_what_must_be_there_is_none() -> None:
    with pytest.raises(ValueError, match="bytes"):
        wire.encode({"v": 1, "rank": 0, "phase": "p" * 600})


def test_bytes_of_an_environment_that_are_no_text_do_not_stop_a_message() -> None:
    data = wire.encode({"v": 1, "rank": 0, "devices": b"\xff0".decode("utf-8", "surrogateescape")})
    assert wire.decode(data)["devices"] == "?0"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[1]", b"7", b"\xff\xfe", b'{"v":1}', b'{"rank":0}', b'{"v":2,"rank":0}', b'{"v":true,"rank":0}',
        b'{"v":1,"rank":"0"}', b'{"v":1,"rank":-1}', b'{"v":1,"rank":0.5}', b'{"v":1,"rank":true}',
        b'{"v":1,"rank":0,"step":9223372036854775808}', b'{"v":1,"rank":0,"at":NaN}', b'{"v":1,"rank":0,"at":1e999}',
        b'{"v":1,"rank":0,"at":-1}', b'{"v":1,"rank":0,"loss":Infinity}', b'{"v":1,"rank":0,"loss":"bad"}',
        b'{"v":1,"rank":0,"done":1}', b'{"v":1,"rank":0,"phase":4}', b'{"v":1,"rank":0,"job":null}',
        b'{"v":1,"rank":0}' + b" " * 512, b"[" * 512, '{"v":1,"rank":0}'.encode("utf-16"),
    ],
)  # fmt: skip
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        wire.decode(data)


_JSON = st.recursive(
    st.none() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*FULL, "x"]), inner, max_size=6),
)


@given(st.binary(max_size=600) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_no_datagram_does_more_than_be_refused(data: bytes) -> None:
    try:
        read = wire.decode(data)
    except ValueError:
        return
    assert read["v"] == 1
    assert isinstance(read["rank"], int)


@given(
    st.fixed_dictionaries({"job": st.text(max_size=96), "host": st.text(max_size=64), "phase": st.text(max_size=24)})
)
def test_any_names_make_a_message_that_is_read(names: dict[str, Any]) -> None:
    names["phase"] = "".join(c for c in names["phase"] if c.isprintable())
    data = wire.encode({**FULL, **names})
    assert len(data) <= wire.MESSAGE_LIMIT
    assert wire.decode(data)["step"] == 900


def test_a_page_is_read_as_it_was_written() -> None:
    assert wire.unpack_page(wire.pack_page(PAGE)) == PAGE
    none = PAGE._replace(step=None, loss=None, saved=None, done=False)
    assert wire.unpack_page(wire.pack_page(none).ljust(wire.PAGE_SIZE, b"\0")) == none


def test_a_page_nobody_wrote_to_or_that_is_too_short_is_none() -> None:
    for data in (b"\0" * wire.PAGE_SIZE, b"", wire.pack_page(PAGE)[:-1]):
        with pytest.raises(ValueError, match="page"):
            wire.unpack_page(data)


@pytest.mark.parametrize(
    ("name", "kept"), [("checkpoint", "checkpoint"), ("x" * 30, "x" * 24), ("ü" * 20, "ü" * 12), ("aü" * 9, "aü" * 8)]
)
def test_a_long_name_of_a_phase_is_cut_between_characters(name: str, kept: str) -> None:
    assert wire.unpack_page(wire.pack_page(PAGE._replace(phase=name))).phase == kept
