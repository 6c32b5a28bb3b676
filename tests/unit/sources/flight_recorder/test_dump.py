"""Dumps of the flight recorder: what each group has done, and what it waits for."""

import io
import json
from pathlib import Path

import pytest

from gpuguard.errors import NotUnderstood
from gpuguard.model.flight import FlightSummary, GroupFlight, Waiting, held_up, waits_in, whole_group
from gpuguard.sources.flight_recorder.dump import GROUPS, read_dump
from tests.support.flights import BEGAN, call, dump, pickled

FIXTURES = Path(__file__).resolve().parents[4] / "fixtures" / "sources" / "flight_recorder"


def _read(value: object, protocol: int = 2) -> FlightSummary:
    return read_dump(io.BytesIO(pickled(value, protocol)))


def _only(summary: FlightSummary) -> GroupFlight:
    (group,) = summary.groups
    return group


@pytest.mark.parametrize("suffix", ["", ".json"])
def test_the_real_dumps_show_who_waits_and_who_did_not_call(suffix: str) -> None:
    ranks = [read_dump(io.BytesIO((FIXTURES / f"rank_{rank}{suffix}").read_bytes())) for rank in range(3)]
    for rank in ranks[:2]:
        assert [(group.about, group.enqueued, group.completed) for group in rank.groups] == [
            ("default_pg", 5, 4), ("tensor_parallel", 1, 1),
        ]  # fmt: skip
        wait = held_up(rank)
        assert wait is not None
        assert (wait[1].call, wait[1].number, wait[1].shape) == ("all_reduce", 5, "4x8 -> 4x8 Float")
        assert wait[1].where == ("" if suffix else "train.py:20 in main")  # JSON has no lines
    last = _only(ranks[2])
    assert (last.enqueued, last.completed, last.waiting) == (4, 4, None)
    assert waits_in(ranks[2]) == ""


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_dump_of_nccl(protocol: int) -> None:
    summary = _read(dump([call(7), call(8), call(9, "started"), call(10, "scheduled")]), protocol)
    assert (summary.version, summary.entries, summary.strange) == ("2.10", 4, 0)
    assert _only(summary) == GroupFlight(
        name="0", about="default_pg", ranks="0-3", enqueued=10, completed=8,
        waiting=Waiting(
            number=9, call="all_reduce", state="started", shape="4x8 -> 4x8 Float", where="train.py:118 in step",
            since=BEGAN + 9,
        ),
    )  # fmt: skip
    assert waits_in(summary) == "all_reduce number 9 of group default_pg"


def test_json_says_the_same() -> None:
    value = dump([call(7), call(8, "started")])
    assert read_dump(io.BytesIO(json.dumps(value).encode())) == _read(value)


def test_a_call_that_was_given_up_is_not_done() -> None:
    """With NCCL a call that timed out is retired, and the device never ended it."""
    assert _only(_read(dump([call(7), call(8, "started", retired=True)]))).waiting is not None
    # gloo has no device: there retired is done.
    assert _only(_read(dump([call(8, "scheduled", op="gloo:all_reduce", retired=True)]))).completed == 8


def test_what_is_left_of_a_ring_says_what_came_before() -> None:
    """The oldest call that is held waits: all before it are done, as they were pushed out."""
    group = _only(_read(dump([call(41, "started"), call(42, "scheduled")])))
    assert (group.completed, group.enqueued) == (40, 42)


def test_groups_are_told_apart_and_the_longest_wait_is_named() -> None:
    pair = ("5", "tensor_parallel")
    summary = _read(dump([call(1), call(3, "started", group=pair, at=BEGAN - 60), call(2, "started")]))
    assert [(group.name, group.waiting is not None) for group in summary.groups] == [("0", True), ("5", True)]
    assert waits_in(summary) == "all_reduce number 3 of group tensor_parallel"
    whole = whole_group(summary)
    assert whole is not None
    assert whole.about == "default_pg"


def test_calls_between_two_ranks() -> None:
    group = _only(_read(dump([call(4), call(1, "started", op="nccl:recv 1<-0", p2p=True)])))
    assert group.waiting is not None
    assert (group.waiting.call, group.waiting.p2p, group.waiting.number) == ("recv 1<-0", True, 1)
    assert (group.enqueued, group.completed) == (4, 4)


def test_a_rank_that_recorded_nothing_tells_by_its_status() -> None:
    assert _only(_read(dump([]))) == GroupFlight(name="0", about="default_pg", ranks="0-3", enqueued=9, completed=8)
    text = dump([], pg_status={"0": {"last_enqueued_collective": "9", "last_completed_collective": "-1"}})
    assert _only(_read(text)).completed == 0
    two = dump([], pg_status={"0": {}, "1": {}})
    assert _read(two).groups == ()


def test_entries_that_say_nothing_are_counted() -> None:
    broken: list[dict[str, object]] = [
        {**call(1), "process_group": "0"}, {**call(1), "profiling_name": 3}, {**call(1), "collective_seq_id": "1"},
        {**call(1), "collective_seq_id": -1}, {**call(1), "collective_seq_id": 2**70},
    ]  # fmt: skip
    summary = _read(dump([*broken, call(2)]))
    assert (summary.entries, summary.strange, _only(summary).completed) == (6, 5, 2)


def test_what_a_job_chose_is_short_and_printable() -> None:
    entry = call(
        3, "started", op="nccl:" + "\x1b[2J" * 100, group=("0\n" * 100, "\x00" * 500), sizes=[[2**70] * 50] * 50,
        frames=[{"name": "\x07" * 500, "filename": "/opt/\x1b" + "y" * 500, "line": 3}, 7],
    )  # fmt: skip
    group = _only(_read(dump([entry])))
    assert group.waiting is not None
    for text in (group.name, group.about, group.waiting.call, group.waiting.shape, group.waiting.where):
        assert len(text) <= 120
        assert text.isprintable()


@pytest.mark.parametrize(
    "frames", [None, "x", [{}], [{"filename": 3, "line": 1}], [{"filename": "a.py", "line": "1"}],
               [{"name": "x", "filename": "/opt/torch/nn.py", "line": 3}]],
)  # fmt: skip
def test_a_call_without_a_line_of_the_program(frames: object) -> None:
    group = _only(_read(dump([call(3, "started", frames=frames)])))
    assert group.waiting is not None
    assert group.waiting.where == ""


def test_many_groups_are_cut_and_those_that_wait_come_first() -> None:
    entries = [call(1, group=(str(n), "pipe")) for n in range(300)] + [call(1, "started", group=("x", "last"))]
    groups = _read(dump(entries)).groups
    assert len(groups) == GROUPS
    assert groups[0].name == "x"


def test_a_long_list_of_ranks_that_is_referred_to_again_and_again_is_understood_once() -> None:
    ranks = str(list(range(20_000)))
    config = {str(n): {"name": str(n), "desc": "", "ranks": ranks} for n in range(3000)}
    summary = _read(dump([call(1, group=("7", ""))], pg_config=config))
    assert _only(summary).ranks == "0-19999"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1], "no dump"), ({}, "no dump"), ({"version": 2, "pg_config": {}}, "no dump"), ("x", "no dump"),
        ({"version": "2.1"}, "no dump"), ({"version": "3.0", "pg_config": {}}, "version 3.0"),
    ],
)  # fmt: skip
def test_what_is_no_dump_is_refused(value: object, words: str) -> None:
    with pytest.raises(NotUnderstood, match=words):
        _read(value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"), (b"PK\x03\x04", "neither"), (b"{", "no JSON"), (b'{"version": "2.10"}', "no dump"),
        (b'{"a":' * 100_000, "no JSON"), (b'{"version":"2.1","pg_config":[],"entries":[3,null,"x"]}', ""),
    ],
)  # fmt: skip
def test_other_files(data: bytes, words: str) -> None:
    if not words:
        assert read_dump(io.BytesIO(data)).groups == ()
        return
    with pytest.raises(NotUnderstood, match=words):
        read_dump(io.BytesIO(data))


def test_a_dump_that_is_cut_off_anywhere_is_refused() -> None:
    data = (FIXTURES / "rank_0").read_bytes()
    for length in range(1, len(data) - 1, 7):
        with pytest.raises(NotUnderstood, match="ends in the middle"):
            read_dump(io.BytesIO(data[:length]))
