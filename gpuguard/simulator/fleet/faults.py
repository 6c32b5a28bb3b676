"""When which node breaks: a background, faults that lead to further ones, and days with one cause for many nodes.

Theory. A fault falls on a node by chance, with six tenths of the rate, and each fault leads to 0.4 more on the same
node, after a time that is exponential with a mean of ten days. Half of the faults that follow another one soon have its
cause, and then it is the same GPU. The background begins sixty days early, so that day 0 is a day like any other. On
top of that, one day in 35 hits a few of a hundred nodes with one cause: half of them within ten minutes, the others
over the day. No fault waits for another one to be repaired: which node breaks when is the same under every policy.

Source   4 faults per 1,000 node-days; 0.6 of them background, 0.4 led to after 10 days; one common day per 35 d hitting
         2 to 5 % of the nodes; down for 20 h at the median and 133 h on the mean, log-normal: fitted to InfiniteHBD
         (400 nodes, 349 days, 584 faults), where this process gives 595 faults
Units    seconds since the first day began
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from gpuguard.simulator.chance import Stream, stream
from gpuguard.simulator.fleet.causes import ALIKE, BY_NAME, SIGHT, STORM, Cause, Sight, Signature, drawn, shown

HOUR, DAY = 3600.0, 86400.0
# Before the first day, so that it has its share of repeats: after six means hardly one is missing.
BEFORE = 60 * DAY


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """Shape   rate: per 1,000 node-days, without common days and storms. background, again: shares of it. alike: of
    repeats that have the cause of the fault that led to them, so that half of all that follow each other within 30 days
    do. common_days: between two days with one cause, 0: none. common_low, common_high: shares of the nodes. storms: per
    1,000 node-days

    Units   soon, common_days in days; median, mean in seconds
    """

    rate: float = 4.0
    background: float = 0.6
    again: float = 0.4
    soon: float = 10.0
    alike: float = 0.6
    common_days: float = 35.0
    common_low: float = 0.02
    common_high: float = 0.05
    storms: float = 1.0
    median: float = 20 * HOUR
    mean: float = 133 * HOUR

    @property
    def sigma(self) -> float:
        """Of the log-normal with this median and mean."""
        return math.sqrt(2.0 * math.log(self.mean / self.median))

    @property
    def same(self) -> float:
        """How many repeats are given the cause of the one before, so that `alike` of them have it: chance adds some."""
        return (self.alike - ALIKE) / (1.0 - ALIKE)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of one node. `down` is how long its repair takes, from when it broke. `after` is the fault that led to
    it; `common` marks those of a day with one cause. Faults before the first day have a negative `at`."""

    id: int
    node: int
    at: float
    cause: str
    signature: Signature
    gpu: int
    down: float
    after: int | None = None
    common: bool = False

    @property
    def sight(self) -> Sight:
        """What an agent on the node can know of it."""
        return SIGHT[self.signature]


def faults(seed: int, nodes: int, gpus: int, end: float, recipe: Recipe) -> tuple[Fault, ...]:
    """Every fault from BEFORE the first day to `end`, in order."""
    found = [fault for node in range(nodes) for fault in _of_node(seed, node, gpus, end, recipe)]
    found += _common(seed, nodes, gpus, end, recipe)
    found.sort(key=lambda fault: (fault.at, fault.node))
    # Ids follow time; who led to whom is told by the ids that the process itself gave.
    names = {(fault.node, fault.id): number for number, fault in enumerate(found)}
    return tuple(
        msgspec.structs.replace(fault, id=number, after=None if fault.after is None else names[fault.node, fault.after])
        for number, fault in enumerate(found)
    )


def _of_node(seed: int, node: int, gpus: int, end: float, recipe: Recipe) -> list[Fault]:
    dice = stream(seed, "faults", node)
    found: list[Fault] = []
    for began in _arrivals(dice, recipe.rate * recipe.background, -BEFORE, end):
        first = len(found)
        found.append(_fault(dice, first, node, began, drawn(dice.random()), dice.whole(0, gpus - 1), recipe))
        # Those that it leads to, those that these lead to, and so on.
        for parent in _grown(found, first):
            for _ in range(dice.poisson(recipe.again)):
                at = parent.at + dice.exponential(recipe.soon * DAY)
                same = dice.random() < recipe.same
                cause = _named(parent.cause) if same else drawn(dice.random())
                place = parent.gpu if same else dice.whole(0, gpus - 1)
                if at < end:
                    found.append(_fault(dice, len(found), node, at, cause, place, recipe, after=parent.id))
    for began in _arrivals(dice, recipe.storms, -BEFORE, end):
        found.append(_fault(dice, len(found), node, began, STORM, dice.whole(0, gpus - 1), recipe))
    return found


def _grown(found: Sequence[Fault], first: int) -> Iterator[Fault]:
    """Each from the first on, also those that are added meanwhile."""
    at = first
    while at < len(found):
        yield found[at]
        at += 1


def _named(cause: str) -> Cause:
    return BY_NAME.get(cause, STORM)


def _fault(
    dice: Stream, number: int, node: int, at: float, cause: Cause, gpu: int, recipe: Recipe, *,
    after: int | None = None, common: bool = False,
) -> Fault:  # fmt: skip
    return Fault(
        id=number, node=node, at=at, cause=cause.name, signature=shown(cause, dice.random()), gpu=gpu,
        down=dice.lognormal(recipe.median, recipe.sigma), after=after, common=common,
    )  # fmt: skip


def _arrivals(dice: Stream, rate: float, begin: float, end: float) -> Iterator[float]:
    """Instants that fall by chance. Units: rate per 1,000 days."""
    at = begin
    while rate > 0:
        at += dice.exponential(1000.0 * DAY / rate)
        if at >= end:
            return
        yield at


def _common(seed: int, nodes: int, gpus: int, end: float, recipe: Recipe) -> list[Fault]:
    """Those of the days with one cause, which come at even distances from a day that chance chose."""
    found: list[Fault] = []
    if recipe.common_days <= 0:
        return found
    dice = stream(seed, "common days")
    day = dice.between(0.0, recipe.common_days) * DAY
    while day < end:
        cause = drawn(dice.random())
        share = dice.between(recipe.common_low, recipe.common_high)
        order = sorted((dice.random(), node) for node in range(nodes))
        for _, node in order[: max(1, round(share * nodes))]:
            at = day + (dice.between(0.0, 600.0) if dice.random() < 0.5 else dice.between(0.0, DAY))
            if at < end:
                # Numbers of its own: no process of one node counts so far.
                number = 1_000_000 + len(found)
                found.append(_fault(dice, number, node, at, cause, dice.whole(0, gpus - 1), recipe, common=True))
        day += recipe.common_days * DAY
    return found


class Clustering(msgspec.Struct, frozen=True, kw_only=True):
    """How faults gather: the figures that the recipe was fitted to. Shares of faults, and of nodes."""

    faults: int
    per_thousand_node_days: float
    nodes_hit: int
    worst_node: int
    top_tenth_share: float
    again_within_7_days: float
    again_within_30_days: float
    repeats_alike: float


def clustering(found: Sequence[Fault], nodes: int, days: float) -> Clustering:
    """The figures of the faults from the first day on; storms are no part of the recipe's process."""
    per_node: list[list[Fault]] = [[] for _ in range(nodes)]
    for fault in found:
        if fault.at >= 0 and fault.cause != STORM.name:
            per_node[fault.node].append(fault)
    counts = sorted(map(len, per_node), reverse=True)
    pairs = [(a, b) for row in per_node for a, b in pairwise(row)]
    soon = [(a, b) for a, b in pairs if b.at - a.at <= 30 * DAY]
    total = max(1, sum(counts))
    return Clustering(
        faults=sum(counts), per_thousand_node_days=1000.0 * sum(counts) / (nodes * days),
        nodes_hit=sum(1 for count in counts if count), worst_node=counts[0],
        top_tenth_share=sum(counts[: nodes // 10]) / total,
        again_within_7_days=sum(1 for a, b in pairs if b.at - a.at <= 7 * DAY) / total,
        again_within_30_days=len(soon) / total,
        repeats_alike=sum(1 for a, b in soon if a.cause == b.cause) / max(1, len(soon)),
    )  # fmt: skip
