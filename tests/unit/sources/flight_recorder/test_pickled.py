"""A pickle is read as values and nothing else: what would look up or call anything is refused by name."""

import contextlib
import io
import os
import pickle
import pickletools
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import NotUnderstood
from gpuguard.sources.flight_recorder.pickled import MARKS, STACK, read_pickle

FIXTURES = Path(__file__).resolve().parents[4] / "fixtures" / "sources" / "flight_recorder"

_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=30,
)


@given(_plain, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_come_back_as_python_reads_them(value: object, protocol: int) -> None:
    assert read_pickle(io.BytesIO(pickle.dumps(value, protocol))) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing but NotUnderstood ever comes of them."""
    for text in (data, b"\x80\x02" + data):
        with contextlib.suppress(NotUnderstood):
            read_pickle(io.BytesIO(text))


@given(st.integers(0, 1908), st.integers(0, 255))
def test_a_real_dump_with_a_byte_changed_is_read_or_refused(place: int, byte: int) -> None:
    data = bytearray((FIXTURES / "rank_0").read_bytes())
    data[place] = byte
    with contextlib.suppress(NotUnderstood):
        read_pickle(io.BytesIO(bytes(data)))


@pytest.mark.parametrize("rank", ["rank_0", "rank_1", "rank_2"])
def test_what_libtorch_wrote_is_read_as_python_would(rank: str) -> None:
    data = (FIXTURES / rank).read_bytes()
    # It is known to hold no instruction that calls anything, so that Python may read it for this comparison.
    calls = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ"}
    assert not {op.name for op, _, _ in pickletools.genops(data)} & calls
    assert read_pickle(io.BytesIO(data)) == pickle.loads(data)


class _Runs:
    """What an attacker pickles: reading it the usual way runs a command."""

    def __init__(self, call: object, *arguments: object) -> None:
        self._call, self._arguments = call, arguments

    def __reduce__(self) -> tuple[object, ...]:
        return self._call, self._arguments


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("call", [os.system, subprocess.call, eval])
def test_a_pickle_that_runs_a_command_is_refused_and_runs_nothing(call: object, protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    words = f"open({str(mark)!r}, 'w')" if call is eval else f"touch {mark}"
    with pytest.raises(NotUnderstood, match=r"instruction (STACK_)?GLOBAL|instruction (SHORT_)?BINUNICODE"):
        read_pickle(io.BytesIO(pickle.dumps({"version": "2.10", "entries": [_Runs(call, words)]}, protocol)))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"cos\nsystem\n.", "GLOBAL"), (b"(S'x'\nios\nsystem\n.", "STRING"), (b"(ios\nsystem\n.", "INST"),
        (b"\x82\x01.", "EXT1"), (b"\x83\x01\x00.", "EXT2"), (b"P1\n.", "PERSID"), (b"NQ.", "BINPERSID"),
        (b"NNR.", "REDUCE"), (b"NNb.", "BUILD"), (b"NN\x81.", "NEWOBJ"), (b"NNN\x92.", "NEWOBJ_EX"),
        (b"(o.", "OBJ"), (b"NN\x93.", "STACK_GLOBAL"), (b"\x8f.", "EMPTY_SET"), (b"C\x01x.", "SHORT_BINBYTES"),
        (b"\x97.", "NEXT_BUFFER"), (b"N0.", "POP"), (b"N2.", "DUP"), (b"\x8b\x00\x00\x00\x00.", "LONG4"),
        (b"\xff.", "of byte 0xff"),
    ],
)  # fmt: skip
def test_every_other_instruction_is_refused_by_its_name(body: bytes, name: str) -> None:
    with pytest.raises(NotUnderstood, match=f"instruction {name}, "):
        read_pickle(io.BytesIO(b"\x80\x04" + body))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "ends in the middle"), (b"X\xff\xff\x00\x00abc", "ends in the middle"), (b"h\x01.", "refers to value 1"),
        (b"t.", "a mark is used"), (b"a.", "taken where there is none"), (b"NNe.", "a mark is used"),
        (b"N(Ne.", "what is no list"), (b"N(NNu.", "what is no dict"), (b"}(Nu.", "are no pairs"),
        (b"}]Ns.", "a list as a key"), (b"}))\x86Ns.", "a tuple as a key"), (b"NN.", "STOP comes before"),
        (b"(N.", "STOP comes before"), (b"(\x85.", "taken where there is none"), (b"q\x01.", "taken where"),
        (b"\x8d" + struct.pack("<Q", 2**40) + b".", "a text of"), (b"(" * (MARKS + 1), "nested deeper"),
    ],
)  # fmt: skip
def test_what_is_no_whole_pickle_is_refused_with_the_reason(body: bytes, words: str) -> None:
    with pytest.raises(NotUnderstood, match=words):
        read_pickle(io.BytesIO(b"\x80\x02" + body))


@pytest.mark.parametrize("data", [b"", b"(lp0\n.", b"\x80", b"\x80\x01N.", b"\x80\x09N.", b"PK\x03\x04"])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(NotUnderstood):
        read_pickle(io.BytesIO(data))


def test_references_cost_one_value_however_many_they_are() -> None:
    """Thirty doublings, each a list of twice the list before: written out it would be a thousand million values."""
    body = b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (n, n, n + 1) for n in range(30))
    lists = read_pickle(io.BytesIO(b"\x80\x02(" + body + b"t."))
    assert isinstance(lists, tuple)
    assert len(lists) == 31
    assert lists[-1][0] is lists[-1][1] is lists[-2]


def test_a_list_that_holds_itself_is_read() -> None:
    found = read_pickle(io.BytesIO(b"\x80\x02]q\x00h\x00a."))
    assert isinstance(found, list)
    assert found[0] is found


def test_values_that_pile_up_are_bounded() -> None:
    with pytest.raises(NotUnderstood, match="values wait"):
        read_pickle(io.BytesIO(b"\x80\x02" + b"N" * (STACK + 1)))


def test_a_text_longer_than_what_is_read_at_once_is_whole() -> None:
    value = {"a": "x" * 700_000, "b": ["y" * 300_000] * 3}
    assert read_pickle(io.BytesIO(pickle.dumps(value, 4))) == value


def test_a_filled_dict_can_be_folded_away() -> None:
    data = pickle.dumps({"calls": [{"n": 1, "x": 0}, {"n": 2, "x": 0}], "other": {"m": 3}}, 2)
    taken: list[object] = []

    def fold(found: dict[object, object]) -> object:
        if "n" not in found:
            return found
        taken.append(found["n"])
        return None

    assert read_pickle(io.BytesIO(data), fold) == {"calls": [None, None], "other": {"m": 3}}
    assert taken == [1, 2]
