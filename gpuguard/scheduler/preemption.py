"""Which running jobs make room for one that waits: suggested here, enacted by the cycle alone.

Theory. A job yields only to a lower rank number than its own, never to an equal: with everybody at the top nobody is
preempted. It also has to resume, to have run for a while, and to have been left alone for a while since it last
yielded. Of those that may, the smallest set goes, by weighted GPUs; then the less important; then what loses least
since its last checkpoint; then what yielded least often; then what started last. These five are the digits of one
price, so the cheapest set is the least sum, and no job can be left out of it.

Counts come first (`cover`, no callback), then `fits` is asked about the few cheapest places, which knows what counts
do not (wishes, affinity, whole nodes). It is asked at most TRIES x (POOL + 8) times, 432, whatever the cluster: per
place once for the counted set, once with all that may go (at most POOL more), 6 times to halve these, POOL to trim.

Units   weights and GPUs in thousandths of a GPU; seconds
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, Literal, TypeVar

import msgspec

from gpuguard.scheduler.cover import Ground, Part, Survey, Victim
from gpuguard.scheduler.plan import Share
from gpuguard.scheduler.request import WHOLE, Tier
from gpuguard.scheduler.settings import HOUR, MINUTE, Preemption

TRIES: Final = 6
"""Places, cheapest first, about which `fits` is asked."""
POOL: Final = 64
"""Jobs beyond the counted ones that are tried on one place, and the most that are tried to be let off."""

Placement = TypeVar("Placement")
Fits = Callable[[tuple[str, ...], tuple[str, ...]], Placement | None]
"""(ids that go, nodes) -> where the waiting job runs then, on these nodes; jobs already on their way out count as gone.
More ids never make it fit less."""

Word = Literal[
    "already going", "higher rank", "equal rank", "no checkpoint", "not preemptible", "ran too short",
    "preempted lately",
]  # fmt: skip
Refusal = Literal["nobody may go", "not enough", "does not fit", "budget"]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A running job, as preemption sees it.

    Shape   rank: lower is more important. yields: its owner or tier lets it be preempted. saved: last complete
            checkpoint, or start. weight: its GPUs by type weight. preempted: when it last yielded. going: it has been
            told to end. shares: at most one by node
    """

    id: str
    rank: int
    tier: Tier = "batch"
    checkpoints: bool = True
    yields: bool = True
    started: int
    saved: int
    weight: int
    preempted: int | None = None
    times: int = 0
    going: bool = False
    shares: tuple[Share, ...]

    @property
    def gpus(self) -> int:
        """Real thousandths of GPUs that it holds."""
        return sum(share.mask.bit_count() * share.milli for share in self.shares)


class Spared(msgspec.Struct, frozen=True):
    """Why a job is left alone: `word` is counted, `str` is read."""

    word: Word
    seconds: int = 0

    def __str__(self) -> str:
        match self.word:
            case "ran too short":
                return f"ran only {self.seconds // MINUTE} min"
            case "preempted lately":
                return f"preempted {self.seconds // MINUTE} min ago"
            case word:
                return word


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What waits, and where it may go.

    Shape   parts: as the job is cut over nodes. rooms: sets of nodes that hold all of it (racks, pods, all), in order
            of preference among equals; for a job of one node any room does
    """

    rank: int
    parts: tuple[Part, ...]
    rooms: Sequence[Sequence[Ground]]


class Choice(msgspec.Struct, Generic[Placement], frozen=True, kw_only=True):
    """Who goes. `gpus`: what the budget is charged. No victims: what is already leaving suffices."""

    victims: tuple[str, ...]
    nodes: tuple[str, ...]
    placement: Placement
    gpus: int
    why: str


class Denied(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody goes: why, and how many were left alone for which reason."""

    word: Refusal
    spared: Mapping[str, int]

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {word}" for word, count in self.spared.items())
        return f"{self.word} ({counts})" if counts else self.word


class Budget(msgspec.Struct, frozen=True):
    """GPUs preempted within the last hour, as (when, thousandths), oldest first."""

    spent: tuple[tuple[int, int], ...] = ()

    def left(self, now: int, rules: Preemption) -> int:
        used = sum(gpus for at, gpus in self.spent if at > now - HOUR)
        return max(0, rules.gpus_per_hour * WHOLE - used)

    def charged(self, now: int, gpus: int) -> "Budget":
        if not gpus:
            return self
        return Budget((*((at, was) for at, was in self.spent if at > now - HOUR), (now, gpus)))


def may_be_victim(candidate: Candidate, preemptor_rank: int, now: int, rules: Preemption) -> Spared | None:
    """Why this job stays, None when it may go."""
    if candidate.going:
        return Spared("already going")
    if candidate.rank <= preemptor_rank:
        return Spared("equal rank" if candidate.rank == preemptor_rank else "higher rank")
    if not candidate.checkpoints:
        return Spared("no checkpoint")
    if not candidate.yields:
        return Spared("not preemptible")
    if (ran := now - candidate.started) < rules.least_run:
        return Spared("ran too short", max(0, ran))
    if candidate.preempted is not None and (since := now - candidate.preempted) < rules.cooldown:
        return Spared("preempted lately", max(0, since))
    return None


def prices(candidates: Sequence[Candidate], now: int) -> dict[str, int]:
    """What each costs: weight, importance, lost work, times it yielded, age; folded so that sums compare like rows."""
    lowest = max((candidate.rank for candidate in candidates), default=0)
    rows = [
        (
            candidate.weight,
            candidate.weight * (lowest - candidate.rank),
            candidate.weight * max(0, now - candidate.saved),
            candidate.times + 1,
            max(0, now - candidate.started),
        )
        for candidate in candidates
    ]
    # No sum over any set can carry into the next digit.
    bases = [sum(column) + 1 for column in zip(*rows, strict=True)]
    folded = {}
    for candidate, row in zip(candidates, rows, strict=True):
        price = 0
        for base, digit in zip(bases, row, strict=True):
            price = price * base + digit
        folded[candidate.id] = price
    return folded


def choose(
    need: Need,
    candidates: Sequence[Candidate],
    fits: Fits[Placement],
    now: int,
    rules: Preemption,
    budget_left: int,
) -> Choice[Placement] | Denied:
    """The smallest set of jobs whose end lets the waiting one start, on one node or in one room.

    Shape   candidates: every job that runs on the rooms' nodes; in any order
    """
    spared: dict[str, int] = {}
    able: list[Candidate] = []
    for candidate in candidates:
        stays = may_be_victim(candidate, need.rank, now, rules)
        if stays is None:
            able.append(candidate)
        else:
            spared[stays.word] = spared.get(stays.word, 0) + 1
    spared = dict(sorted(spared.items()))
    of = {candidate.id: candidate for candidate in able}
    price_of = prices(able, now)
    counted = _counted(need, able, price_of)
    if not counted:
        return Denied(word="not enough" if able else "nobody may go", spared=spared)

    best: tuple[int, int, tuple[str, ...], tuple[str, ...], Placement] | None = None
    over = tried = 0
    for price, number, ids, nodes in counted:
        if best is not None and price >= best[0]:
            break
        if sum(of[name].gpus for name in ids) > budget_left:
            over += 1
            continue
        if tried == TRIES:
            break
        tried += 1
        found = _settled(ids, nodes, able, price_of, fits, now)
        if found is None:
            continue
        names, placement = found
        if sum(of[name].gpus for name in names) > budget_left:
            over += 1
            continue
        total = sum(price_of[name] for name in names)
        if best is None or total < best[0]:
            best = (total, number, names, nodes, placement)
    if best is None:
        return Denied(word="budget" if over else "does not fit", spared=spared)
    _, _, names, nodes, placement = best
    gpus = sum(of[name].gpus for name in names)
    lost = sum(of[name].weight * max(0, now - of[name].saved) for name in names) // WHOLE
    why = f"{len(names)} jobs on {gpus / WHOLE:g} GPUs, {lost} GPU-seconds since their checkpoints"
    return Choice(victims=names, nodes=nodes, placement=placement, gpus=gpus, why=why)


def _counted(
    need: Need, able: Sequence[Candidate], price_of: Mapping[str, int]
) -> list[tuple[int, int, tuple[str, ...], tuple[str, ...]]]:
    """Places by price and place, each with who goes and the nodes, as far as counts can tell."""
    victims = [Victim(id=one.id, price=price_of[one.id], shares=one.shares) for one in able]
    survey = Survey(victims)
    size = sum(part.nodes for part in need.parts)
    if size == 1:
        (part,) = need.parts
        grounds = list({ground.node: ground for room in need.rooms for ground in room}.values())
        # More than are tried: some may be over the budget.
        return [
            (price, number, tuple(victim.id for victim in cut.victims), (grounds[number].node,))
            for price, number, cut in survey.per_node(part, grounds, 4 * TRIES)
        ]
    surveys = [survey]
    if any(len(one.shares) > 1 for one in able):
        # A job over several nodes looks too dear from each of them: ask again with its price spread over them.
        surveys.append(
            Survey(
                [
                    Victim(id=one.id, price=-(-one.price // min(size, len(one.shares) or 1)), shares=one.shares)
                    for one in victims
                ]
            )
        )
    places = []
    for number, room in enumerate(need.rooms):
        if len(room) < size:
            continue
        covers = [cover for one in surveys if (cover := one.gang(need.parts, room)) is not None]
        rows = [
            (sum(price_of[victim.id] for victim in cover.victims), number, *_names(cover.victims, cover.nodes))
            for cover in covers
        ]
        if rows:
            places.append(min(rows))
    return sorted(places)


def _names(victims: Sequence[Victim], nodes: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(victim.id for victim in victims), nodes


def _settled(
    ids: tuple[str, ...],
    nodes: tuple[str, ...],
    able: Sequence[Candidate],
    price_of: Mapping[str, int],
    fits: Fits[Placement],
    now: int,
) -> tuple[tuple[str, ...], Placement] | None:
    """The counted set, or more where `fits` wants more, and of these only who is needed.

    Shape   of a set of more than POOL only the dearest are tried; that the rest are needed, the counts have shown
    """
    placement = fits(ids, nodes)
    if placement is None:
        here = frozenset(nodes)
        others = sorted(
            (one for one in able if one.id not in ids and any(share.node in here for share in one.shares)),
            # The least important first, then what loses least, then the youngest.
            key=lambda one: (-one.rank, one.weight * max(0, now - one.saved), -one.started, one.id),
        )[:POOL]
        names = tuple(one.id for one in others)
        if not names or (placement := fits(ids + names, nodes)) is None:
            return None
        low, high = 1, len(names)
        while low < high:
            middle = (low + high) // 2
            fewer = fits(ids + names[:middle], nodes)
            if fewer is None:
                low = middle + 1
            else:
                high, placement = middle, fewer
        ids += names[:low]
    kept = list(ids)
    for name in sorted(ids, key=lambda name: (-price_of[name], name))[:POOL]:
        rest = tuple(other for other in kept if other != name)
        without = fits(rest, nodes)
        if without is not None:
            kept, placement = list(rest), without
    return tuple(sorted(kept, key=lambda name: (price_of[name], name))), placement
