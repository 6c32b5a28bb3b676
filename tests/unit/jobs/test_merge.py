"""What several nodes saw, put together: stories of jobs that span nodes."""

import random
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.jobs.merge import Merged, MergedJob, merge
from gpuguard.jobs.sights import JobSight, NodeSight, RankSight
from tests.support.flights import flight

AT = 1_700_000_000.0


def rank(number: int, **more: object) -> RankSight:
    """A rank that waits for the others: over its limit, its GPU spinning."""
    known: dict[str, object] = {
        "step": 120, "phase": "step", "silent": 90.0, "limit": 30.0, "pattern": "spinning", "state": "R",
        "gpu": f"gpu:{number % 8}",
    }  # fmt: skip
    return msgspec.convert({"number": number, **known, **more}, RankSight)


def dumped(number: int, enqueued: int, *, age: float = 20.0, ranks: str = "0-15", **more: object) -> RankSight:
    """A rank with a dump: it has called so many collectives, of which nine are done."""
    waits = flight(enqueued, 9, ranks=ranks)
    return msgspec.structs.replace(rank(number, **more), flight=waits, flight_age=age)


def node(
    name: str, ranks: Iterable[RankSight], *, at: float = AT, job: str = "slurm/8123", **more: object
) -> NodeSight:  # fmt: skip
    """One node with its ranks of a job of 16."""
    known: dict[str, object] = {"job": job, "world": 16, "ranks": tuple(ranks), **more}
    return NodeSight(node=name, at=at, jobs=(JobSight(**known),))  # type: ignore[arg-type]


def eight(first: int, **others: RankSight) -> list[RankSight]:
    """Eight ranks from this number on, all waiting but for those given as r3=rank(...)."""
    return [others.get(f"r{number}", rank(number)) for number in range(first, first + 8)]


def one(merged: Merged) -> MergedJob:
    (job,) = merged.jobs
    return job


def test_the_rank_behind_is_found_on_the_other_node() -> None:
    job = one(merge([node("a", eight(0)), node("b", eight(8, r11=rank(11, step=119, pattern="idle")))]))
    assert (job.verdict, job.rank, job.node, job.gpu) == ("hung", 11, "b", "gpu:3")
    assert job.confidence == 0.9
    assert job.why == "rank 11 on b: behind the others in steps"
    assert "16 of 16 ranks are over their limits" in job.speaks_for
    assert "the GPUs of rank 11 are idle" in job.speaks_for
    assert (job.world, job.seen, job.missing, job.step, job.nodes) == (16, 16, "", 119, ("a", "b"))


@pytest.mark.parametrize(
    ("state", "verdict"), [({"gone": True}, "hung"), ({"state": "T"}, "paused"), ({"state": "D"}, "hung")]
)
def test_a_rank_that_cannot_go_on_comes_before_what_its_steps_say(state: dict[str, object], verdict: str) -> None:
    broken = rank(9, **state)
    job = one(merge([node("a", eight(0, r2=rank(2, step=119))), node("b", eight(8, r9=broken))]))
    assert (job.verdict, job.rank, job.node) == (verdict, 9, "b")
    assert job.confidence >= 0.85


def test_a_hang_in_storage_that_its_node_knows_of() -> None:
    job = one(merge([
        node("a", eight(0), verdict="hung", confidence=0.7),
        node("b", eight(8, r9=rank(9, state="D")), verdict="storage_stalled", confidence=0.8),
    ]))  # fmt: skip
    assert (job.verdict, job.rank) == ("storage_stalled", 9)


def test_the_only_rank_that_does_nothing() -> None:
    ranks = [rank(number, still=0.5) for number in range(8)]
    ranks[5] = rank(5, still=80.0)
    job = one(merge([node("a", ranks)]))
    assert (job.rank, "does nothing at all" in job.why) == (5, True)
    # Where most do nothing, that is how they wait.
    job = one(merge([node("a", [rank(number, still=80.0) for number in range(8)])]))
    assert job.rank is None


def test_the_flight_recorders_come_before_steps() -> None:
    ranks = [dumped(n, 9 if n == 12 else 10) for n in range(16)]
    ranks[1] = dumped(1, 10, step=119)  # it tells its steps late
    job = one(merge([node("a", ranks[:8]), node("b", ranks[8:])]))
    assert (job.verdict, job.rank, job.node) == ("hung", 12, "b")
    assert "rank 12 has not called" in job.why


@pytest.mark.parametrize(("age", "silent"), [(5000.0, 90.0), (300.0, 900.0)])
def test_a_dump_from_before_the_hang_or_of_another_minute_is_not_compared(age: float, silent: float) -> None:
    ranks = [dumped(n, 10, ranks="0-7", silent=silent) for n in range(8)]
    ranks[3] = dumped(3, 9, ranks="0-7", age=age, silent=silent)
    job = one(merge([node("a", ranks, world=8)]))
    assert (job.verdict, job.rank) == ("hung", None)
    ranks[3] = dumped(3, 9, ranks="0-7", silent=silent)
    assert one(merge([node("a", ranks, world=8)])).rank == 3


def test_all_wait_alike_and_nobody_stands_out() -> None:
    job = one(merge([node("a", eight(0)), node("b", eight(8))]))
    assert (job.verdict, job.rank) == ("hung", None)
    assert "network" in job.why


def test_all_have_called_the_collective_and_it_does_not_end() -> None:
    ranks = [dumped(n, 10) for n in range(16)]
    job = one(merge([node("a", ranks[:8]), node("b", ranks[8:])]))
    assert (job.verdict, job.rank, job.confidence) == ("hung", None, 0.8)
    assert "no rank is missing; look at links" in job.why


def test_a_checkpoint_within_its_limit_is_no_hang() -> None:
    saves = rank(0, phase="checkpoint", silent=200.0, limit=1200.0, pattern="idle")
    job = one(merge([node("a", eight(0, r0=saves)), node("b", eight(8))]))
    assert (job.verdict, job.rank, job.node) == ("waiting", 0, "a")
    assert job.why == "the others wait for rank 0 on a, in checkpoint for 200 s, within the limit of 1200 s"


def test_a_checkpoint_within_its_limit_that_the_flight_recorders_show_as_missing() -> None:
    ranks = [dumped(n, 10) for n in range(16)]
    ranks[0] = dumped(0, 9, phase="checkpoint", silent=200.0, limit=1200.0)
    assert one(merge([node("a", ranks[:8]), node("b", ranks[8:])])).verdict == "waiting"
    # Somebody else has not called either, and is in no phase of its own.
    ranks[5] = dumped(5, 9)
    job = one(merge([node("a", ranks[:8]), node("b", ranks[8:])]))
    assert (job.verdict, job.rank, job.lagging) == ("hung", 5, "5")


def test_a_checkpoint_beyond_its_limit_is_a_hang() -> None:
    saves = rank(0, phase="checkpoint", silent=2000.0, limit=1200.0, pattern="idle")
    job = one(merge([node("a", eight(0, r0=saves)), node("b", eight(8))]))
    assert (job.verdict, job.rank) == ("hung", 0)


def test_a_checkpoint_does_not_hide_a_rank_that_is_gone() -> None:
    saves = rank(0, phase="checkpoint", silent=200.0, limit=1200.0)
    job = one(merge([node("a", eight(0, r0=saves)), node("b", eight(8, r9=rank(9, gone=True)))]))
    assert (job.verdict, job.rank) == ("hung", 9)


def test_nobody_is_over_its_limit() -> None:
    job = one(merge([node("a", [rank(0, silent=3.0)]), node("b", [rank(1, silent=4.0)])]))
    assert (job.verdict, job.why, job.speaks_for, job.against) == (None, "no rank is over its limit", (), ())


def test_what_a_node_found_otherwise_stands() -> None:
    job = one(merge([
        node("a", [rank(0, silent=3.0)], verdict="straggler", confidence=0.8, rank=0, why="rank 0 is slow"),
        node("b", [rank(1, silent=3.0)], verdict="data_starved", confidence=0.7, rank=1, why="loaders"),
    ]))  # fmt: skip
    assert (job.verdict, job.rank, job.node, job.confidence, job.why) == ("straggler", 0, "a", 0.8, "rank 0 is slow")


def test_the_end_of_a_job_is_no_hang() -> None:
    assert one(merge([node("a", [rank(0, done=True), rank(1, gone=True)])])).verdict is None
    some_ended = one(merge([node("a", [rank(0, gone=True), rank(1, silent=2.0)])]))
    assert (some_ended.verdict, "ended without a word" in some_ended.why) == (None, True)
    assert one(merge([node("a", [])])).verdict is None


def test_ranks_that_are_done_are_not_waited_for() -> None:
    job = one(merge([node("a", [rank(0, done=True, silent=900.0), rank(1), rank(2), rank(3, step=119)], world=4)]))
    assert job.rank == 3


def test_a_node_of_which_nothing_is_known_is_named() -> None:
    merged = merge([node("a", eight(0))], expected=("a", "b"))
    job = one(merged)
    assert merged.unheard == ("b",)
    assert (job.verdict, job.rank, job.node, job.missing) == ("hung", None, "b", "8-15")
    assert job.why.startswith("no word from host b: nobody told of ranks 8-15")
    assert "no word from host b" in job.against


def test_ranks_that_nobody_told_of_without_a_name_for_their_node() -> None:
    job = one(merge([node("a", eight(0))]))
    assert (job.node, job.missing) == ("", "8-15")
    assert job.why.startswith("nobody told of ranks 8-15")


def test_a_rank_that_is_behind_is_named_though_others_are_not_known() -> None:
    job = one(merge([node("a", eight(0, r2=rank(2, step=100)))]))
    assert job.rank == 2
    assert "nothing is known of ranks 8-15" in job.against


def test_a_stale_sight_is_told_and_not_judged_by() -> None:
    old = node("b", eight(8, r9=rank(9, gone=True)), at=AT - 700.0)
    merged = merge([node("a", eight(0)), old])
    assert merged.stale == ("the word of b is 700 s older than the newest: ask again, or set its clock",)
    assert merged.nodes == ("a",)
    assert (one(merged).rank, one(merged).node) == (None, "b")


def test_of_two_sights_of_a_node_the_newer_counts() -> None:
    before = node("b", eight(8, r9=rank(9, gone=True)), at=AT - 60.0)
    now = node("b", eight(8, r10=rank(10, step=119)))
    for sights in ([before, now, node("a", eight(0))], [now, node("a", eight(0)), before]):
        assert one(merge(sights)).rank == 10


def test_sights_of_different_moments_are_set_on_one_axis() -> None:
    """Node b was asked a minute later: its ranks are silent longer by that, and none of them was the first."""
    left = [rank(n, silent=110.0 if n == 4 else 90.0) for n in range(8)]
    right = [rank(n, silent=150.0) for n in range(8, 16)]
    job = one(merge([node("a", left), node("b", right, at=AT + 60.0)]))
    assert (job.rank, job.why) == (4, "rank 4 on a: the first that fell silent")


def test_a_few_seconds_between_clocks_accuse_nobody() -> None:
    job = one(merge([node("a", eight(0)), node("b", [rank(n, silent=93.0) for n in range(8, 16)])]))
    assert job.rank is None


def test_an_idle_gpu_among_those_that_spin() -> None:
    job = one(merge([node("a", eight(0)), node("b", eight(8, r15=rank(15, pattern="idle")))]))
    assert (job.rank, job.confidence) == (15, 0.85)


def test_more_than_half_of_the_ranks_is_no_exception() -> None:
    job = one(merge([node("a", eight(0)), node("b", [rank(n, step=119) for n in range(8, 16)])]))
    assert job.lagging == "8-15", "half of them may be behind together, as a node is"
    more = one(merge([node("a", [rank(0)], world=3), node("b", [rank(1, step=119), rank(2, step=119)], world=3)]))
    assert more.rank is None


def test_pods_of_one_job_are_joined_by_their_ranks() -> None:
    merged = merge([
        node("a", eight(0), job="kubernetes/pod-0"), node("c", eight(0), job="slurm/1"),
        node("b", eight(8, r11=rank(11, step=119)), job="kubernetes/pod-1"),
    ])  # fmt: skip
    assert [job.job for job in merged.jobs] == ["kubernetes/pod-0", "slurm/1"]
    assert merged.jobs[0].parts == ("kubernetes/pod-0", "kubernetes/pod-1")
    assert (merged.jobs[0].rank, merged.jobs[0].missing) == (11, "")


def test_pods_that_may_be_of_two_jobs_are_left_apart() -> None:
    merged = merge([node("a", eight(0), job="kubernetes/x"), node("b", eight(0), job="kubernetes/y")])
    assert [job.job for job in merged.jobs] == ["kubernetes/x", "kubernetes/y"]


def test_a_rank_that_moved_to_another_node_is_where_it_lives() -> None:
    job = one(merge([node("a", [rank(0, gone=True), rank(1)], world=2), node("b", [rank(0, step=119)], world=2)]))
    assert (job.rank, job.node) == (0, "b")


def test_nothing_at_all_and_a_world_that_cannot_be() -> None:
    assert merge([]) == Merged()
    assert merge([], problems=("x: broken",), expected=("a",)) == Merged(problems=("x: broken",), unheard=("a",))
    assert one(merge([node("a", eight(0), world=2**62)])).seen == 8


_rank = st.builds(
    rank, st.integers(0, 15), step=st.sampled_from([119, 120, None]), silent=st.sampled_from([None, 1.0, 80.0, 130.0]),
    limit=st.sampled_from([None, 30.0, 100.0]), phase=st.sampled_from(["step", "checkpoint", ""]),
    state=st.sampled_from(["R", "S", "D", "T"]), gone=st.booleans(), done=st.sampled_from([False, False, True]),
    pattern=st.sampled_from(["spinning", "idle", "working", ""]), still=st.sampled_from([None, 0.0, 60.0]),
)  # fmt: skip
_sight = st.builds(
    node, st.sampled_from("abc"), st.lists(_rank, max_size=5), at=st.sampled_from([AT, AT - 5.0, AT - 900.0]),
    job=st.sampled_from(["slurm/1", "kubernetes/x", "kubernetes/y"]), world=st.sampled_from([None, 4, 16]),
    verdict=st.sampled_from([None, "hung", "straggler"]), confidence=st.sampled_from([0.0, 0.7]),
)  # fmt: skip


@given(st.lists(_sight, max_size=6), st.integers())
def test_the_order_of_sights_does_not_matter(sights: list[NodeSight], seed: int) -> None:
    found = merge(sights)
    shuffled = list(sights)
    random.Random(seed).shuffle(shuffled)
    assert merge(shuffled) == found
    assert merge([*sights, *sights]) == found
    for job in found.jobs:
        assert 0.0 <= job.confidence <= 1.0
        assert job.verdict is not None or job.rank is None
