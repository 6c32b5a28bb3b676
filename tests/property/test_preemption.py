"""Preemption on small random clusters, against every subset: smallest, downward, patient, the same each time."""

from itertools import combinations, permutations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuguard.scheduler.cover import Ground, Part, enough
from gpuguard.scheduler.plan import Share
from gpuguard.scheduler.preemption import POOL, TRIES, Candidate, Choice, Denied, Need, choose, may_be_victim, prices
from gpuguard.scheduler.settings import HOUR, Preemption

NOW = 20 * HOUR
RULES = Preemption()
EXAMPLES = 60
GPUS = 4


@st.composite
def clusters(draw: st.DrawFn, nodes: int, spans: bool = False) -> tuple[list[Ground], list[Candidate]]:
    """Nodes of four GPUs, of which some are sick, shared, free, or held by jobs that may not all go."""
    grounds, held = [], []
    for number in range(nodes):
        name = f"n{number}"
        usable = draw(st.sampled_from([0b1111, 0b1111, 0b1011]))
        free, loads, shares = 0, [0] * GPUS, []
        gpu = 0
        while gpu < GPUS:
            kind = draw(st.sampled_from(["one", "two", "shared", "free", "stranger"]))
            cpus = draw(st.sampled_from([0, 1000, 2000]))
            if kind == "two" and gpu + 1 < GPUS:
                shares.append(Share(name, 0b11 << gpu, 1000, cpus, 0))
                gpu += 1
            elif kind == "shared":
                milli = draw(st.sampled_from([300, 500]))
                shares.append(Share(name, 1 << gpu, milli, cpus, 0))
                shares.append(Share(name, 1 << gpu, 400, 0, 0))
                loads[gpu] = 600 - milli
            elif kind == "free":
                free |= 1 << gpu
                loads[gpu] = 1000
            elif kind != "stranger":
                shares.append(Share(name, 1 << gpu, 1000, cpus, 0))
            gpu += 1
        partly = any(0 < load < 1000 for load in loads) or any(share.milli < 1000 for share in shares)
        grounds.append(
            Ground(
                node=name, usable=usable, free=free, loads=tuple(loads) if partly else (), cpus=draw(st.integers(0, 2))
            )
        )
        held.append(shares)
    rows: list[tuple[Share, ...]] = [(share,) for shares in held for share in shares]
    if spans:
        # The first jobs of neighbouring nodes are one.
        for left, right in zip(range(0, nodes, 2), range(1, nodes, 2), strict=False):
            if draw(st.booleans()) and held[left] and held[right]:
                rows = [row for row in rows if row[0] not in (held[left][0], held[right][0])]
                rows.append((held[left][0], held[right][0]))
    candidates = [
        Candidate(
            id=f"j{number:02}",
            rank=draw(st.sampled_from([3, 4, 5, 5, 6])),
            checkpoints=draw(st.sampled_from([True, True, True, False])),
            started=draw(st.sampled_from([0, HOUR, NOW - HOUR, NOW - RULES.least_run, NOW - 60])),
            saved=draw(st.integers(NOW - HOUR, NOW)),
            weight=sum(share.mask.bit_count() * share.milli for share in row),
            preempted=draw(st.sampled_from([None, None, None, NOW - RULES.cooldown, NOW - 60])),
            shares=row,
        )
        for number, row in enumerate(rows)
    ]
    return grounds, candidates


def parts() -> st.SearchStrategy[Part]:
    return st.builds(
        Part,
        gpus=st.integers(1, GPUS),
        milli=st.sampled_from([1000, 1000, 500]),
        cpus=st.sampled_from([0, 0, 3000]),
        nodes=st.just(1),
    )


class Fits:
    """Honest about counts on the given nodes; may want further jobs gone besides."""

    def __init__(self, part: Part, grounds: list[Ground], candidates: list[Candidate], besides: frozenset[str]) -> None:
        self.part, self.besides, self.calls = part, besides, 0
        self.grounds = {ground.node: ground for ground in grounds}
        self.shares = {one.id: one.shares for one in candidates}

    def __call__(self, ids: tuple[str, ...], nodes: tuple[str, ...]) -> str | None:
        self.calls += 1
        for node in nodes:
            here = [share for one in ids for share in self.shares[one] if share.node == node]
            if not enough(self.part, self.grounds[node], here):
                return None
        wanted = {
            name for name in self.besides if name in self.shares and any(s.node in nodes for s in self.shares[name])
        }
        return f"{nodes} without {sorted(ids)}" if wanted <= set(ids) else None


def able(candidates: list[Candidate]) -> list[Candidate]:
    return [one for one in candidates if may_be_victim(one, 4, NOW, RULES) is None]


def least(need: Need, candidates: list[Candidate], fits: Fits) -> int | None:
    """The price of the cheapest set there is, by looking at each."""
    (part,) = need.parts
    price_of = prices(able(candidates), NOW)
    names = sorted(price_of)
    subsets = [ids for size in range(len(names) + 1) for ids in combinations(names, size)]
    found = [
        sum(price_of[name] for name in ids)
        for nodes in combinations(sorted(fits.grounds), part.nodes)
        for ids in subsets
        if fits(ids, nodes) is not None
    ]
    return min(found, default=None)


@settings(max_examples=EXAMPLES, deadline=None)
@given(clusters(2), parts())
def test_on_one_node_it_is_the_cheapest_set_there_is(cluster: tuple[list[Ground], list[Candidate]], part: Part) -> None:
    grounds, candidates = cluster
    candidates = candidates[:9]
    need = Need(rank=4, parts=(part,), rooms=[grounds])
    fits = Fits(part, grounds, candidates, frozenset())
    answer = choose(need, candidates, fits, NOW, RULES, 10**9)
    expected = least(need, candidates, fits)
    if expected is None:
        assert isinstance(answer, Denied)
    else:
        assert isinstance(answer, Choice)
        price_of = prices(able(candidates), NOW)
        assert sum(price_of[name] for name in answer.victims) == expected


@settings(max_examples=EXAMPLES, deadline=None)
@given(clusters(3), st.integers(1, GPUS))
def test_a_gang_is_the_cheapest_where_no_job_spans_nodes(
    cluster: tuple[list[Ground], list[Candidate]], gpus: int
) -> None:
    grounds, candidates = cluster
    candidates = candidates[:9]
    part = Part(nodes=2, gpus=gpus)
    need = Need(rank=4, parts=(part,), rooms=[grounds])
    fits = Fits(part, grounds, candidates, frozenset())
    answer = choose(need, candidates, fits, NOW, RULES, 10**9)
    expected = least(need, candidates, fits)
    if expected is None:
        assert isinstance(answer, Denied)
    else:
        assert isinstance(answer, Choice)
        price_of = prices(able(candidates), NOW)
        assert sum(price_of[name] for name in answer.victims) == expected


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(
    clusters(4, spans=True),
    parts(),
    st.integers(1, 3),
    st.frozensets(st.sampled_from([f"j{n:02}" for n in range(12)]), max_size=2),
    st.integers(0, 12_000),
)
def test_nobody_goes_in_vain_upward_too_soon_or_over_the_budget(
    cluster: tuple[list[Ground], list[Candidate]], part: Part, nodes: int, besides: frozenset[str], budget: int
) -> None:
    grounds, candidates = cluster
    part = Part(nodes=nodes, gpus=part.gpus, milli=part.milli, cpus=part.cpus)
    fits = Fits(part, grounds, candidates, besides)
    rooms = [grounds[:2], grounds[2:], grounds]
    answer = choose(Need(rank=4, parts=(part,), rooms=rooms), candidates, fits, NOW, RULES, budget)
    assert fits.calls <= TRIES * (POOL + 8)
    if isinstance(answer, Denied):
        return
    of = {one.id: one for one in candidates}
    for name in answer.victims:
        victim = of[name]
        assert victim.rank > 4
        assert victim.checkpoints
        assert NOW - victim.started >= RULES.least_run
        assert victim.preempted is None or NOW - victim.preempted >= RULES.cooldown
    assert answer.gpus == sum(of[name].gpus for name in answer.victims) <= budget
    assert fits(answer.victims, answer.nodes) == answer.placement
    for name in answer.victims:
        rest = tuple(other for other in answer.victims if other != name)
        assert fits(rest, answer.nodes) is None


@settings(max_examples=EXAMPLES, deadline=None)
@given(clusters(3, spans=True), parts(), st.integers(1, 2), st.randoms(use_true_random=False))
def test_the_order_in_which_jobs_are_told_changes_nothing(
    cluster: tuple[list[Ground], list[Candidate]], part: Part, nodes: int, dice: Random
) -> None:
    grounds, candidates = cluster
    part = Part(nodes=nodes, gpus=part.gpus)
    need = Need(rank=4, parts=(part,), rooms=[grounds])
    shuffled = list(candidates)
    dice.shuffle(shuffled)
    first, second = (
        choose(need, rows, Fits(part, grounds, rows, frozenset()), NOW, RULES, 10**9) for rows in (candidates, shuffled)
    )
    assert first == second


@settings(max_examples=EXAMPLES, deadline=None)
@given(clusters(2), parts())
def test_among_equals_nobody_is_preempted(cluster: tuple[list[Ground], list[Candidate]], part: Part) -> None:
    grounds, candidates = cluster
    need = Need(rank=6, parts=(part,), rooms=[grounds])
    answer = choose(need, candidates, Fits(part, grounds, candidates, frozenset()), NOW, RULES, 10**9)
    assert isinstance(answer, Denied) or answer.victims == ()


def test_a_price_is_compared_digit_by_digit() -> None:
    """Whatever is summed, no lower digit outweighs a higher one."""
    rows = [
        Candidate(id=f"{n}", rank=rank, started=started, saved=saved, weight=weight, times=times, shares=())
        for n, (rank, started, saved, weight, times) in enumerate(
            [(5, 0, NOW, 1000, 0), (6, 9, 0, 1000, 7), (6, 5, NOW - 1, 2000, 0), (5, 3, NOW - 8, 3000, 2)]
        )
    ]
    folded = prices(rows, NOW)

    def digits(group: tuple[Candidate, ...]) -> tuple[int, ...]:
        return (
            sum(one.weight for one in group),
            sum(one.weight * (6 - one.rank) for one in group),
            sum(one.weight * (NOW - one.saved) for one in group),
            sum(one.times + 1 for one in group),
            sum(NOW - one.started for one in group),
        )

    groups = [group for size in range(5) for group in combinations(rows, size)]
    for left, right in permutations(groups, 2):
        by_price = sum(folded[one.id] for one in left) < sum(folded[one.id] for one in right)
        assert by_price == (digits(left) < digits(right))
