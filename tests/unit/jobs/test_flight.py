"""Who holds up a collective, from what the flight recorders of several ranks say together."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.jobs.flight import compare
from gpuguard.model.flight import FlightSummary, count, held_up, waits_in, whole_group
from gpuguard.model.numbers import numbers_in, spans
from tests.support.flights import BEGAN, both, flight

Group = dict[str, Any]  # what tests hand on to `flight`


def test_the_rank_that_did_not_call_is_the_one() -> None:
    found = compare({0: flight(10, 9), 1: flight(10, 9), 2: flight(9), 3: flight(10, 9)})
    assert (found.kind, found.culprits, found.waiting, found.number) == ("missing", (2,), (0, 1, 3), 10)
    assert found.confidence >= 0.95
    assert found.why == (
        "ranks 0-1,3 wait in all_reduce number 10 of group 0 (default_pg) (called at train.py:118 in step), which "
        "rank 2 has not called"
    )


def test_several_that_did_not_call() -> None:
    found = compare({0: flight(10, 9), 1: flight(9), 2: flight(7), 3: flight(10, 9)})
    assert found.culprits == (1, 2)
    assert "ranks 1-2 have not called" in found.why


def test_nothing_waits() -> None:
    assert compare({rank: flight(9) for rank in range(4)}).kind == "quiet"
    assert compare({}).kind == "quiet"
    assert compare({0: FlightSummary()}).kind == "quiet"


def test_all_have_called_and_it_runs_everywhere() -> None:
    found = compare({rank: flight(10, 9) for rank in range(4)})
    assert (found.kind, found.culprits, found.waiting) == ("network", (), (0, 1, 2, 3))
    assert "no rank is missing" in found.why


def test_where_nobody_records_starts_it_is_the_network_as_well() -> None:
    """Starts are recorded with TORCH_NCCL_ENABLE_TIMING alone."""
    assert compare({rank: flight(10, 9, state="scheduled") for rank in range(4)}).kind == "network"


def test_a_gpu_that_is_busy_with_something_before() -> None:
    found = compare({0: flight(10, 9), 1: flight(10, 9), 2: flight(10, 9, state="scheduled"), 3: flight(10, 9)})
    assert (found.kind, found.culprits) == ("behind", (2,))
    assert "busy with something before it" in found.why


@pytest.mark.parametrize("odd", [{"op": "broadcast"}, {"shape": "4x9"}])
def test_a_rank_that_called_something_else(odd: Group) -> None:
    found = compare({0: flight(10, 9), 1: flight(10, 9), 2: flight(10, 9, **odd), 3: flight(10, 9)})
    assert (found.kind, found.culprits) == ("mismatch", (2,))
    assert "rank 2 called" in found.why


def test_two_against_two_names_nobody() -> None:
    found = compare({rank: flight(10, 9, op="broadcast" if rank < 2 else "all_reduce") for rank in range(4)})
    assert (found.kind, found.culprits) == ("mismatch", ())
    assert found.confidence < 0.95


def test_sizes_that_may_differ_are_no_mismatch() -> None:
    found = compare({rank: flight(10, 9, op="all_to_all", shape=f"{rank}x8") for rank in range(4)})
    assert found.kind == "network"


def test_a_wait_in_one_group_for_a_rank_that_waits_in_another() -> None:
    """Ranks 0 and 1 are a pair, 2 and 3 are one; 0 and 2 share their data. Rank 3 is stuck in its own code: 2 waits
    for it, and so 0 waits for 2, and 1 for 0."""
    left: Group = {"group": "tp", "about": "tensor_parallel", "ranks": "0-1"}
    right: Group = {"group": "tp", "about": "tensor_parallel", "ranks": "2-3"}
    data: Group = {"group": "dp", "about": "data_parallel", "ranks": "0,2"}
    found = compare({
        0: both(flight(20, **left), flight(5, 4, **data)), 1: flight(21, 20, since=BEGAN + 5, **left),
        2: both(flight(20, 19, since=BEGAN - 9, **right), flight(4, **data)), 3: flight(19, **right),
    })  # fmt: skip
    assert (found.kind, found.culprits, found.waiting) == ("missing", (3,), (0, 1, 2))
    assert "tensor_parallel" in found.why


def test_groups_called_in_different_orders() -> None:
    first: Group = {"group": "a", "about": "", "ranks": "0-1"}
    second: Group = {"group": "b", "about": "", "ranks": "0-1"}
    found = compare({
        0: both(flight(5, 4, **first), flight(7, **second)), 1: both(flight(4, **first), flight(8, 7, **second)),
    })  # fmt: skip
    assert (found.kind, found.culprits) == ("crossed", ())
    assert "different orders" in found.why


def test_a_pipeline_waits_for_its_first_stage() -> None:
    found = compare({
        0: flight(4), 1: flight(4, op="recv 1<-0", p2p=True), 2: flight(4, op="recv 2<-1", p2p=True),
        3: flight(4, op="recv 3<-2", p2p=True),
    })  # fmt: skip
    assert (found.kind, found.culprits, found.waiting) == ("missing", (0,), (1, 2, 3))


def test_a_send_and_its_recv_that_both_wait_are_the_line_between_them() -> None:
    found = compare({0: flight(4, op="send 0->1", p2p=True), 1: flight(4, op="recv 1<-0", p2p=True)})
    assert (found.kind, found.culprits) == ("network", ())


def test_a_call_between_two_that_cannot_be_placed_says_nothing() -> None:
    assert compare({0: flight(4, op="send 0->9", p2p=True)}).kind == "network"
    assert compare({0: flight(4, op="coalesced", p2p=True)}).kind == "network"
    assert compare({0: flight(4, op=f"send 0->{'9' * 5000}", p2p=True)}).kind == "network"


def test_ranks_without_a_dump_may_be_the_ones() -> None:
    found = compare({0: flight(10, 9), 1: flight(10, 9), 3: flight(10, 9)})
    assert (found.kind, found.culprits, found.unseen) == ("missing", (), (2,))
    assert found.confidence < 0.6
    found = compare({0: flight(10, 9), 1: flight(9), 3: flight(10, 9)})
    assert (found.culprits, found.unseen) == ((1,), (2,))
    assert 0.6 < found.confidence < 0.95


def test_where_the_dump_does_not_tell_the_ranks_the_default_group_is_the_whole_job() -> None:
    found = compare({0: flight(5, 4, ranks=""), 1: flight(5, 4, ranks=""), 2: FlightSummary()})
    assert found.culprits == (2,)
    found = compare({0: flight(5, 4, ranks=""), 1: flight(5, 4, ranks="")}, of_all=(0, 1, 2))
    assert found.unseen == (2,)
    assert compare({0: flight(5, 4, ranks="", about="x"), 1: flight(5, 4, ranks="", about="x")}).kind == "network"


@given(st.sets(st.integers(0, 300)))
def test_spans_and_back(numbers: set[int]) -> None:
    assert numbers_in(spans(numbers)) == tuple(sorted(numbers))
    assert count(spans(numbers)) == len(numbers)


@pytest.mark.parametrize("text", ["x", "1-", "-1", "5-999999999", "1,,2", "1-2-3"])
def test_no_spans(text: str) -> None:
    assert numbers_in(text) == ()


def test_words_of_a_summary() -> None:
    assert waits_in(FlightSummary()) == ""
    assert whole_group(FlightSummary()) is None
    late = both(flight(3, 2, group="a", about="x", since=BEGAN), flight(9, 8, since=BEGAN - 5))
    assert waits_in(late) == "all_reduce number 9 of group default_pg"
    wait = held_up(late)
    assert wait is not None
    assert wait[0].name == "0"


_ranks = st.dictionaries(
    st.integers(0, 7),
    st.builds(
        lambda n, done, op, group: flight(max(n, done), min(n, done), op=op, group=group, about="", ranks="0-7"),
        st.integers(0, 5), st.integers(0, 5), st.sampled_from(["all_reduce", "broadcast"]), st.sampled_from(["0", "1"]),
    ),
)  # fmt: skip


@given(_ranks)
def test_nobody_is_accused_who_waits_or_told_nothing(summaries: dict[int, FlightSummary]) -> None:
    found = compare(summaries)
    assert set(found.culprits) <= summaries.keys()
    assert not set(found.unseen) & summaries.keys()
    if found.kind == "missing":
        assert not set(found.culprits) & set(found.waiting)
    assert 0.0 <= found.confidence <= 1.0
    assert compare(dict(reversed(summaries.items()))) == found
