"""What must hold of use and of the order drawn from it, whatever happened."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuguard.scheduler.fairshare import FairShare
from gpuguard.scheduler.fairtree import FairTree, account_path
from gpuguard.scheduler.settings import Settings
from gpuguard.scheduler.tariff import CARD
from gpuguard.scheduler.usage import Holder, Ledger

EXAMPLES = 60
HALF = 604800
SPAN = 40 * 86400

HOLDERS = tuple(
    Holder(account, user)
    for account, user in (
        ("a", "x"), ("a", "y"), ("a/b", "x"), ("a/b", "z"), ("a/c", "w"), ("d", "x"), ("d/e/f", "v"), ("d/e/f", "u"),
    )
)  # fmt: skip
SHARES = {"a": 2.0, "a/b": 3.0, ":x": 2.0, "d/e/f:u": 0.0}


class Run(NamedTuple):
    """What one job used."""

    holder: Holder
    rate: int
    begin: int
    end: int


@st.composite
def runs(draw: st.DrawFn) -> Run:
    begin = draw(st.integers(0, SPAN))
    length = draw(st.integers(0, SPAN))
    return Run(draw(st.sampled_from(HOLDERS)), draw(st.integers(0, 64)) * CARD // 4, begin, begin + length)


def told(
    jobs: Sequence[Run], scale: int = 1, order: Callable[[tuple[int, int, int]], object] | None = None
) -> FairShare:
    """Fair share after these jobs, told as they happened; `order` ranks what happens at one instant."""
    share = FairShare.of(Settings(shares=SHARES), epoch=1_764_000_000)
    for holder in HOLDERS:
        share.enrol(holder)
    facts = [(job.begin, 0, index) for index, job in enumerate(jobs)]
    facts += [(job.end, 1, index) for index, job in enumerate(jobs)]
    facts.sort(key=lambda fact: (fact[0], fact[1], order(fact) if order else fact[2]))  # type: ignore[arg-type, return-value]
    for at, ends, index in facts:
        job = jobs[index]
        (share.stop if ends else share.start)(job.holder, job.rate * scale, at)
    return share


@settings(max_examples=EXAMPLES, deadline=None)
@given(runs(), st.integers(0, SPAN), st.integers(0, SPAN))
def test_two_steps_of_decay_are_one(job: Run, first: int, second: int) -> None:
    ledger = Ledger(HALF)
    ledger.start(job.holder, job.rate, job.begin)
    stepped = ledger.copy()
    middle, last = job.begin + first, job.begin + first + second
    stepped.start(job.holder, 0, middle)  # nothing happens, but the row is brought up to this instant
    assert stepped.used(job.holder, last) == pytest.approx(ledger.used(job.holder, last), rel=1e-12)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(runs(), max_size=8))
def test_use_is_the_sum_of_what_each_job_left(jobs: list[Run]) -> None:
    share = told(jobs)
    now = max((job.end for job in jobs), default=0) + 5000
    for holder in HOLDERS:
        left = math.fsum(
            job.rate / CARD * HALF / math.log(2)
            * (0.5 ** ((now - job.end) / HALF) - 0.5 ** ((now - job.begin) / HALF))
            for job in jobs if job.holder == holder
        )  # fmt: skip
        assert share.ledger.used(holder, now) == pytest.approx(left, rel=1e-9, abs=1e-5)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(runs(), max_size=6), st.lists(st.sampled_from((0, 3600, 7200)), min_size=12, max_size=12))
def test_the_order_at_one_instant_does_not_matter(jobs: list[Run], instants: list[int]) -> None:
    together = [
        job._replace(begin=min(pair), end=max(pair))
        for job, pair in zip(jobs, zip(instants[::2], instants[1::2], strict=True), strict=False)
    ]
    forth, back = told(together), told(together, order=lambda fact: -fact[2])
    assert forth == back
    assert forth.factors(9000) == back.factors(9000)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(runs(), max_size=8), st.randoms(use_true_random=False))
def test_what_is_told_late_changes_nothing(jobs: list[Run], dice: "object") -> None:
    shuffled = list(jobs)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    late = FairShare.of(Settings(shares=SHARES), epoch=1_764_000_000)
    for job in shuffled:
        late.ledger.charge(*job)
    timely = told(jobs)
    now = 3 * SPAN
    assert late.monthly(now) == timely.monthly(now)
    for holder in HOLDERS:
        assert late.ledger.used(holder, now) == pytest.approx(timely.ledger.used(holder, now), rel=1e-9, abs=1e-6)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(runs(), max_size=8), st.integers(0, 2 * SPAN))
def test_months_add_up_to_what_was_charged(jobs: list[Run], now: int) -> None:
    charged = sum(job.rate * (min(job.end, now) - min(job.begin, now)) for job in jobs)
    heard = [job._replace(end=min(job.end, now)) for job in jobs if job.begin <= now]
    assert sum(use.card_seconds for use in told(heard).monthly(now)) == charged


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(runs(), max_size=8), st.sampled_from((2, 64, 4096)))
def test_scaling_all_use_changes_nothing(jobs: list[Run], scale: int) -> None:
    assert told(jobs, scale).factors(2 * SPAN) == told(jobs).factors(2 * SPAN)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=8, max_size=8), st.sampled_from((3, 7, 1000)))
def test_scaling_holds_for_other_numbers_too(used: list[int], scale: int) -> None:
    tree = FairTree(HOLDERS, SHARES)
    assert tree.standing(np.array(used) * float(scale)).factors == tree.standing(np.array(used) * 1.0).factors


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(runs(), max_size=8))
def test_the_same_events_give_the_same_state(jobs: list[Run]) -> None:
    first, second = told(jobs), told(jobs)
    assert first == second
    second.factors(10)  # to read is not to write
    second.monthly(10**8)
    assert first == second
    assert first.factors(2 * SPAN) == second.copy().factors(2 * SPAN)


def walked(used: dict[Holder, int]) -> dict[Holder, float]:
    """The factors by walking the tree as it is described, in whole numbers and slowly."""
    rank, left = len(used), len(used)
    factors: dict[Holder, float] = {}

    def sum_of(path: tuple[str, ...]) -> int:
        return sum(amount for holder, amount in used.items() if account_path(holder.account)[: len(path)] == path)

    def children(path: tuple[str, ...]) -> list[tuple[float, bool, object]]:
        below = {account_path(holder.account)[: len(path) + 1] for holder in used}
        accounts = sorted(part for part in below if len(part) == len(path) + 1 and part[: len(path)] == path)
        users = [holder for holder in used if account_path(holder.account) == path]
        share: dict[object, float] = {part: SHARES.get("/".join(part), 1.0) for part in accounts}
        for user in users:
            share[user] = SHARES.get(f"{user.account}:{user.user}", SHARES.get(f":{user.user}", 1.0))
        use: dict[object, int] = {part: sum_of(part) for part in accounts} | {user: used[user] for user in users}
        found = []
        for node, part in share.items():
            burden = math.inf
            if part > 0:
                burden = (use[node] * sum(share.values())) / (sum(use.values()) * part) if use[node] else 0.0
            found.append((burden, node not in used, node))
        return found

    def walk(siblings: list[tuple[float, bool, object]], tied_above: bool) -> None:
        nonlocal rank, left
        siblings.sort(key=lambda sibling: sibling[:2])
        previous: float | None = None
        while siblings:
            burden, is_account, node = siblings.pop(0)
            tied = tied_above if previous is None else math.isclose(burden, previous, rel_tol=1e-9)
            previous = burden
            if is_account:
                merged = children(node)  # type: ignore[arg-type]
                while siblings and math.isclose(siblings[0][0], burden, rel_tol=1e-9):
                    merged += children(siblings.pop(0)[2])  # type: ignore[arg-type]
                walk(merged, tied)
            else:
                if not tied:
                    rank = left
                factors[node] = rank / len(used)  # type: ignore[index]
                left -= 1

    walk(children(()), False)
    return factors


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(HOLDERS), st.integers(0, 4), min_size=1))
def test_the_sort_is_the_walk(used: dict[Holder, int]) -> None:
    standing = FairTree(tuple(used), SHARES).standing(np.array(list(used.values()), dtype=np.float64))
    assert standing.factors == walked(used)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.dictionaries(st.sampled_from(HOLDERS), st.integers(0, 50), min_size=2))
def test_the_order_of_siblings_is_the_order_of_their_users(used: dict[Holder, int]) -> None:
    standing = FairTree(tuple(used), SHARES).standing(np.array(list(used.values()), dtype=np.float64))
    for one in used:
        for other in used:
            fork = standing.fork(one, other)
            if fork is not None:
                better = standing.fairness(fork[0]) > standing.fairness(fork[1])
                assert (standing.factors[one] > standing.factors[other]) == better
