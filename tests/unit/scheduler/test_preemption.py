"""Who goes for whom: rules, order, budget, and what the callback may change."""

from typing import Any

import msgspec
import pytest

from gpuguard.scheduler.cover import Ground, Part, enough
from gpuguard.scheduler.plan import Share
from gpuguard.scheduler.preemption import (
    POOL,
    TRIES,
    Budget,
    Candidate,
    Choice,
    Denied,
    Need,
    choose,
    may_be_victim,
)
from gpuguard.scheduler.settings import Preemption

RULES = Preemption()
NOW = 100_000
MUCH = 10**9


def runs(
    name: str, node: str, mask: int, *, rank: int = 5, started: int = 0, saved: int = NOW, **more: Any
) -> Candidate:
    gpus = mask.bit_count()
    base = Candidate(
        id=name, rank=rank, started=started, saved=saved, weight=gpus * 1000, shares=(Share(node, mask, 1000, 0, 0),)
    )
    return msgspec.structs.replace(base, **more)


def asks(*grounds: Ground, gpus: int = 4, nodes: int = 1, rank: int = 1) -> Need:
    return Need(rank=rank, parts=(Part(nodes=nodes, gpus=gpus),), rooms=[grounds])


def node(name: str = "n0", free: int = 0, usable: int = 0xF) -> Ground:
    return Ground(node=name, usable=usable, free=free)


def anything(ids: tuple[str, ...], nodes: tuple[str, ...]) -> str | None:
    return "there"


def victims_of(answer: Choice[str] | Denied) -> list[str]:
    assert isinstance(answer, Choice), str(answer)
    return list(answer.victims)


class Honest:
    """Fits by counts, and counts how often it is asked."""

    def __init__(self, need: Need, candidates: list[Candidate]) -> None:
        self.grounds = {ground.node: ground for room in need.rooms for ground in room}
        self.shares = {one.id: one.shares for one in candidates}
        (self.part,) = need.parts
        self.calls = 0

    def __call__(self, ids: tuple[str, ...], nodes: tuple[str, ...]) -> str | None:
        self.calls += 1
        fit = all(
            enough(self.part, self.grounds[name], [row for one in ids for row in self.shares[one] if row.node == name])
            for name in nodes
        )
        return "+".join(nodes) if fit else None


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, None),
        ({"rank": 1}, "equal rank"),
        ({"rank": 0}, "higher rank"),
        ({"checkpoints": False}, "no checkpoint"),
        ({"yields": False}, "not preemptible"),
        ({"going": True}, "already going"),
        ({"started": NOW - 299}, "ran only 4 min"),
        ({"started": NOW - RULES.least_run}, None),
        ({"started": NOW - RULES.least_run + 1}, "ran only 29 min"),
        ({"preempted": NOW - 1200}, "preempted 20 min ago"),
        ({"preempted": NOW - RULES.cooldown}, None),
        # A clock that was set back proves nothing.
        ({"started": NOW + 50}, "ran only 0 min"),
        ({"preempted": NOW + 50}, "preempted 0 min ago"),
    ],
)
def test_who_is_left_alone_and_why(more: dict[str, Any], text: str | None) -> None:
    spared = may_be_victim(runs("a", "n0", 1, **more), 1, NOW, RULES)
    assert (None if spared is None else str(spared)) == text


def test_with_everybody_at_the_top_nobody_is_preempted() -> None:
    jobs = [runs(f"j{n:02}", f"n{n // 4}", 1 << n % 4, rank=0) for n in range(40)]
    answer = choose(asks(*(node(f"n{n}") for n in range(10)), rank=0), jobs, anything, NOW, RULES, MUCH)
    assert isinstance(answer, Denied)
    assert (answer.word, answer.spared) == ("nobody may go", {"equal rank": 40})
    assert str(answer) == "nobody may go (40 equal rank)"


def test_the_smallest_set_goes() -> None:
    jobs = [runs("pair", "n0", 0b0011), runs("one", "n0", 0b0100), runs("other", "n0", 0b1000)]
    assert victims_of(choose(asks(node(), gpus=1), jobs, anything, NOW, RULES, MUCH)) == []
    need = asks(node(), gpus=1)
    assert victims_of(choose(need, jobs, Honest(need, jobs), NOW, RULES, MUCH)) == ["one"]
    need = asks(node(), gpus=3)
    assert victims_of(choose(need, jobs, Honest(need, jobs), NOW, RULES, MUCH)) == ["one", "pair"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # Fewer weighted GPUs: an A10 before an A100.
        ({"weight": 1000, "rank": 2, "saved": 0}, {"weight": 4000, "rank": 9}),
        # The less important, though it loses more.
        ({"rank": 9, "saved": 0}, {"rank": 5}),
        # Least lost since the last checkpoint, though it is the older.
        ({"saved": NOW - 10, "started": 0}, {"saved": NOW - 11, "started": 50_000}),
        # Seldom preempted.
        ({"times": 1, "started": 0}, {"times": 2, "started": 50_000}),
        # Youngest.
        ({"started": 50_000}, {"started": 49_999}),
        # Nothing tells them apart but the id.
        ({}, {}),
    ],
)
def test_the_order_among_equals(first: dict[str, Any], second: dict[str, Any]) -> None:
    jobs = [runs("a", "n0", 0b01, **first), runs("b", "n0", 0b10, **second)]
    need = asks(node(usable=0b11), gpus=1)
    assert victims_of(choose(need, jobs, Honest(need, jobs), NOW, RULES, MUCH)) == ["a"]
    if first != second:
        jobs = [runs("a", "n0", 0b01, **second), runs("b", "n0", 0b10, **first)]
        assert victims_of(choose(need, jobs, Honest(need, jobs), NOW, RULES, MUCH)) == ["b"]


def test_the_node_with_fewest_gpus_lost_wins_then_least_work_then_place() -> None:
    jobs = [runs("four", "n0", 0b1111), runs("two", "n1", 0b0011, saved=NOW - 5), runs("deux", "n2", 0b0011)]
    grounds = [node("n0"), node("n1", free=0b1100), node("n2", free=0b1100), node("n3")]
    need = asks(*grounds)
    answer = choose(need, jobs, Honest(need, jobs), NOW, RULES, MUCH)
    assert victims_of(answer) == ["deux"]
    assert isinstance(answer, Choice)
    assert (answer.nodes, answer.placement, answer.gpus) == (("n2",), "n2", 2000)
    assert answer.why == "1 jobs on 2 GPUs, 0 GPU-seconds since their checkpoints"


def test_who_is_already_going_is_not_asked_and_counts_as_gone() -> None:
    jobs = [runs("leaves", "n0", 0b0011, going=True), runs("stays", "n0", 0b1100)]
    # The room that `leaves` gives up is in `free` by what is promised to nobody.
    answer = choose(asks(node(free=0b0011), gpus=2), jobs, anything, NOW, RULES, MUCH)
    assert victims_of(answer) == []
    need = asks(node(free=0b0001), gpus=3)
    assert victims_of(choose(need, jobs, Honest(need, jobs), NOW, RULES, MUCH)) == ["stays"]
    need = asks(node(free=0b0001), gpus=4)
    answer = choose(need, jobs, Honest(need, jobs), NOW, RULES, MUCH)
    assert isinstance(answer, Denied)
    assert (answer.word, answer.spared) == ("not enough", {"already going": 1})


def test_the_budget_is_not_overdrawn() -> None:
    # By weight the A10 pair is cheaper, by count it is over the budget: the single A100 goes.
    jobs = [runs("a10", "n0", 0b11, weight=2000), runs("a100", "n1", 0b1, weight=4000)]
    need = asks(node(usable=0b11), node("n1", free=0b10, usable=0b11), gpus=2)
    assert victims_of(choose(need, jobs, Honest(need, jobs), NOW, RULES, 2000)) == ["a10"]
    assert victims_of(choose(need, jobs, Honest(need, jobs), NOW, RULES, 1999)) == ["a100"]
    answer = choose(need, jobs, Honest(need, jobs), NOW, RULES, 999)
    assert isinstance(answer, Denied)
    assert answer.word == "budget"


def test_what_was_spent_an_hour_ago_is_there_again() -> None:
    rules = Preemption(gpus_per_hour=10)
    budget = Budget()
    assert budget.left(0, rules) == 10_000
    spent = budget.charged(0, 8000).charged(1800, 1000)
    assert budget == Budget()
    assert [spent.left(at, rules) for at in (1800, 3599, 3600, 5400)] == [1000, 1000, 9000, 10_000]
    assert spent.charged(3600, 500).spent == ((1800, 1000), (3600, 500))
    assert spent.charged(9000, 0) == spent
    assert Budget().charged(0, 99_000).left(1, rules) == 0


def test_when_counts_do_not_suffice_more_go_and_only_who_is_needed() -> None:
    # The waiting job wants GPUs 2 and 3, which counts cannot know.
    jobs = [runs(f"j{n}", "n0", 1 << n) for n in range(4)]
    asked: list[tuple[str, ...]] = []

    def fits(ids: tuple[str, ...], nodes: tuple[str, ...]) -> str | None:
        asked.append(ids)
        return "23" if {"j2", "j3"} <= set(ids) else None

    answer = choose(asks(node(), gpus=2), jobs, fits, NOW, RULES, MUCH)
    assert victims_of(answer) == ["j2", "j3"]
    assert asked[0] == ("j0", "j1")


def test_a_dearer_place_that_fits_beats_a_cheap_one_that_needs_more() -> None:
    jobs = [runs(f"j{n}", "n0", 1 << n) for n in range(4)] + [runs("two", "n1", 0b11)]

    def fits(ids: tuple[str, ...], nodes: tuple[str, ...]) -> str | None:
        if nodes == ("n0",):
            return "n0" if len(ids) == 4 else None
        return "n1" if "two" in ids else None

    answer = choose(asks(node(), node("n1", usable=0b11), gpus=1), jobs, fits, NOW, RULES, MUCH)
    assert victims_of(answer) == ["two"]


def test_the_callback_is_asked_a_bounded_number_of_times() -> None:
    grounds = [node(f"n{n:03}", usable=0xFF) for n in range(100)]
    jobs = [runs(f"j{n:03}", f"n{n // 8:03}", 1 << n % 8) for n in range(800)]
    calls = 0

    def never(ids: tuple[str, ...], nodes: tuple[str, ...]) -> str | None:
        nonlocal calls
        calls += 1
        return None

    answer = choose(asks(*grounds), jobs, never, NOW, RULES, MUCH)
    assert isinstance(answer, Denied)
    assert answer.word == "does not fit"
    assert calls == 2 * TRIES

    def all_of_them(ids: tuple[str, ...], nodes: tuple[str, ...]) -> str | None:
        nonlocal calls
        calls += 1
        return "all" if len(ids) == 8 else None

    calls = 0
    assert len(victims_of(choose(asks(*grounds), jobs, all_of_them, NOW, RULES, MUCH))) == 8
    assert calls <= TRIES * (POOL + 8)


def test_a_gang_takes_its_cheapest_nodes_within_one_room() -> None:
    first = [node(f"a{n}") for n in range(3)]
    second = [node(f"b{n}") for n in range(3)]
    jobs = [runs(f"a{n}", f"a{n}", 0b1111, saved=NOW - n) for n in range(3)]
    jobs += [runs("b0", "b0", 0b1111), runs("b1", "b1", 0b1111), runs("b2", "b2", 0b1111, saved=0)]
    need = Need(rank=1, parts=(Part(nodes=2, gpus=4),), rooms=[first, second])
    assert victims_of(choose(need, jobs, Honest(need, jobs), NOW, RULES, MUCH)) == ["b0", "b1"]
    need = Need(rank=1, parts=(Part(nodes=4, gpus=4),), rooms=[first, second])
    assert isinstance(choose(need, jobs, anything, NOW, RULES, MUCH), Denied)


def test_a_wide_job_is_not_too_dear_from_each_of_its_nodes() -> None:
    # 4 of 4 on two nodes: one job over both costs 8, two singles that hold more cost 10.
    wide = Candidate(
        id="wide", rank=5, started=0, saved=NOW, weight=8000,
        shares=(Share("n0", 0b1111, 1000, 0, 0), Share("n1", 0b1111, 1000, 0, 0)),
    )  # fmt: skip
    jobs = [wide, runs("s2", "n2", 0b11111), runs("s3", "n3", 0b11111)]
    grounds = [node("n0"), node("n1"), node("n2", usable=0b11111), node("n3", usable=0b11111)]
    need = Need(rank=1, parts=(Part(nodes=2, gpus=4),), rooms=[grounds])
    assert victims_of(choose(need, jobs, Honest(need, jobs), NOW, RULES, MUCH)) == ["wide"]


def test_a_cluster_without_jobs_or_rooms() -> None:
    assert isinstance(choose(asks(node()), [], anything, NOW, RULES, MUCH), Denied)
    assert isinstance(choose(asks(), [], anything, NOW, RULES, MUCH), Denied)
    assert isinstance(choose(asks(gpus=1, nodes=2), [], anything, NOW, RULES, MUCH), Denied)
