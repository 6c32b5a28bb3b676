"""What several nodes saw, put together: which rank of which node holds up a job that spans them.

A node judges its own ranks. Of a job on many nodes most of them see the same: ranks that wait, all alike. Only together
do they show which one the others wait for. In this order, the first that is so:

    nobody is over its limit, and no node says hung      what a node found otherwise stands; else nothing is wrong
    a rank that the others wait for is in a phase of its own (checkpoint, compile), within its limit     waiting
    a rank is gone, stopped, hangs in the kernel, or is the only one that does nothing at all            it is the one
    the flight recorders say who has not called what the others wait in (jobs/flight.py)                 it is the one
    ranks of which nobody has told are missing, and all others wait alike                 it is among those
    a few ranks are behind in steps, or their GPUs are idle while the others' spin, or they fell silent first
    nothing tells the ranks apart                                                         the network, most likely

Sights are of different moments: each rank's last progress is set on one axis by `at`; clocks of nodes may differ, so
that less than SKEW seconds between two nodes say nothing. A sight more than STALE seconds older than the newest is of
the past: it is told, and not judged by. Of two sights of one node the newer counts. The order they come in does not.
"""

from collections.abc import Iterable, Sequence, Set

import msgspec

from gpuguard.jobs.flight import Comparison, compare
from gpuguard.jobs.sights import JobSight, NodeSight, RankSight
from gpuguard.model.flight import FlightSummary
from gpuguard.model.jobs import Verdict, keeper_of
from gpuguard.model.numbers import spans

STALE = 600.0  # seconds; a node that was not asked in ten minutes tells nothing of a hang of one
SKEW = 5.0  # seconds that clocks of nodes may differ; with NTP it is milliseconds, without it this is a day's drift
DUMPS_APART = 120.0  # seconds between two dumps that still show the same hang; all ranks dump within a minute
STILL = 30.0  # seconds in which a process did nothing, after which that means something
ORDINARY = ("", "step")  # phases in which every rank is to get on with the others
# Keepers that name each node's part of one job differently; those parts are joined by their ranks.
NAMED_BY_NODE = ("kubernetes", "docker", "systemd")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, the node that saw it, and when."""

    rank: RankSight
    node: str
    at: float

    @property
    def number(self) -> int:
        return self.rank.number

    @property
    def since(self) -> float | None:
        """When it last got on, in seconds since 1970."""
        return None if self.rank.silent is None else self.at - self.rank.silent

    @property
    def overdue(self) -> bool:
        share = self.rank.share
        return share is not None and share > 1.0

    @property
    def alive(self) -> bool:
        return not (self.rank.gone or self.rank.done)


class MergedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job over all nodes. `seen` is how many ranks were told of, `missing` the numbers of the others, as spans;
    `rank`, `gpu` and `node` who holds up the job, where one rank does; `lagging` all ranks that do. `ranks` are those
    that were told of, worst first, without their dumps; `gpus` what the GPUs it holds are called, on one node alone.
    Where it is not `known`, nobody told anything of its progress."""

    job: str
    name: str = ""
    user: str = ""
    parts: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    world: int | None = None
    seen: int = 0
    missing: str = ""
    gpus: tuple[str, ...] = ()
    activity: float | None = None
    step: int | None = None
    known: bool = False
    verdict: Verdict | None = None
    confidence: float = 0.0
    rank: int | None = None
    lagging: str = ""
    gpu: str = ""
    node: str = ""
    why: str = ""
    speaks_for: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    ranks: tuple[Seen, ...] = ()


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs of all nodes that were heard. `stale` are sentences about words that are too old, `unheard` nodes that
    were to be heard and were not; `problems` what is wrong with files that could not be read. Without `attributed` it
    is not known whose all GPUs are."""

    at: float | None = None
    nodes: tuple[str, ...] = ()
    jobs: tuple[MergedJob, ...] = ()
    attributed: bool = True
    stale: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class _Said(msgspec.Struct, kw_only=True):
    """What is concluded so far."""

    verdict: Verdict | None = None
    confidence: float = 0.0
    ranks: tuple[int, ...] = ()
    why: str = ""
    node: str = ""


def merge(
    sights: Iterable[NodeSight], *, expected: Iterable[str] = (), problems: Iterable[str] = ()
) -> Merged:  # fmt: skip
    """What the sights say together. `expected` are nodes that should have been heard."""
    newest = _newest(sights)
    at = max((sight.at for sight in newest), default=None)
    fresh = [sight for sight in newest if at is not None and at - sight.at <= STALE]
    old = [sight for sight in newest if sight not in fresh]
    heard = {sight.node for sight in fresh}
    stale = tuple(
        f"the word of {sight.node} is {(at or 0.0) - sight.at:.0f} s older than the newest: ask again, or set its clock"
        for sight in old
    )
    unheard = tuple(sorted({*expected, *(sight.node for sight in old)} - heard))
    return Merged(
        at=at, nodes=tuple(sorted(heard)), stale=stale, unheard=unheard, problems=tuple(problems),
        attributed=all(sight.attributed for sight in fresh),
        jobs=tuple(_merged(parts, unheard) for parts in _gathered(fresh)),
    )  # fmt: skip


def alone(sight: NodeSight) -> Merged:
    """What one node says by itself: its judgements as they stand, as it knows more of its ranks than a sight holds."""
    return Merged(
        at=sight.at, nodes=(sight.node,), attributed=sight.attributed,
        jobs=tuple(_of_one(sight, job) for job in sight.jobs),
    )  # fmt: skip


def _of_one(sight: NodeSight, job: JobSight) -> MergedJob:
    ranks = [Seen(rank=rank, node=sight.node, at=sight.at) for rank in job.ranks]
    named = () if job.verdict is None or job.rank is None else (job.rank,)
    return MergedJob(
        job=job.job, name=job.name, user=job.user, nodes=(sight.node,), world=job.world, seen=len(ranks),
        gpus=job.gpus, activity=job.activity, step=_step(ranks), known=_is_known([(sight, job)]), verdict=job.verdict,
        confidence=job.confidence, rank=job.rank, lagging=spans(named), gpu=job.gpu, node=sight.node if named else "",
        why=job.why, speaks_for=job.speaks_for, against=job.against, ranks=_worst_first(ranks, named),
    )  # fmt: skip


def _newest(sights: Iterable[NodeSight]) -> list[NodeSight]:
    """One sight a node. Of two of the same moment any one will do, as long as it is always the same."""
    by_node: dict[str, NodeSight] = {}
    for sight in sights:
        other = by_node.get(sight.node)
        if other is None or _order(sight) > _order(other):
            by_node[sight.node] = sight
    return [by_node[node] for node in sorted(by_node)]


def _order(sight: NodeSight) -> tuple[float, bytes]:
    return sight.at, msgspec.json.encode(sight)


_Part = tuple[NodeSight, JobSight]


def _gathered(sights: Sequence[NodeSight]) -> list[list[_Part]]:
    """The parts of each job over the nodes, jobs by name."""
    by_name: dict[str, list[_Part]] = {}
    for sight in sights:
        for job in sight.jobs:
            by_name.setdefault(job.job, []).append((sight, job))
    by_world: dict[tuple[str, int], list[str]] = {}
    for name, parts in by_name.items():
        world = _world(parts)
        ranks = sum(len(job.ranks) for _, job in parts)
        if keeper_of(name) in NAMED_BY_NODE and world is not None and 0 < ranks < world:
            by_world.setdefault((keeper_of(name), world), []).append(name)
    for (_, world), names in by_world.items():
        numbers = [rank.number for name in names for _, job in by_name[name] for rank in job.ranks]
        # Two jobs of the same size would both have a rank 0: then nobody can tell which part is whose.
        if len(names) > 1 and len(set(numbers)) == len(numbers) <= world:
            first = min(names, key=lambda name: min(rank.number for _, job in by_name[name] for rank in job.ranks))
            together = [part for name in sorted(names) for part in by_name.pop(name)]
            by_name[first] = together
    return [by_name[name] for name in sorted(by_name)]


def _world(parts: Sequence[_Part]) -> int | None:
    return max((job.world for _, job in parts if job.world is not None), default=None)


def _merged(parts: Sequence[_Part], unheard: Sequence[str]) -> MergedJob:
    ranks: dict[int, Seen] = {}
    for sight, job in parts:
        for rank in job.ranks:
            one = Seen(rank=rank, node=sight.node, at=sight.at)
            other = ranks.get(rank.number)
            if other is None or _recent(one) > _recent(other):
                ranks[rank.number] = one
    seen = [ranks[number] for number in sorted(ranks)]
    world = _world(parts)
    missing = tuple(sorted(set(range(min(world, 2**17))) - ranks.keys())) if world is not None else ()
    said = _judged(seen, parts, missing, unheard)
    culprit = ranks.get(said.ranks[0]) if said.ranks else None
    names = sorted({job.job for _, job in parts})
    speaks_for, against = _signals(seen, said, missing, unheard)
    return MergedJob(
        job=min(parts, key=lambda part: min((r.number for r in part[1].ranks), default=2**31))[1].job,
        name=next((job.name for _, job in parts if job.name), ""),
        user=next((job.user for _, job in parts if job.user), ""),
        gpus=parts[0][1].gpus if len(parts) == 1 else (), activity=_mean(job.activity for _, job in parts),
        known=_is_known(parts), ranks=_worst_first(_against_all(seen), said.ranks),
        parts=tuple(names) if len(names) > 1 else (), nodes=tuple(sorted({sight.node for sight, _ in parts})),
        world=world, seen=len(seen), missing=spans(missing),
        step=_step(seen),
        verdict=said.verdict, confidence=said.confidence, rank=said.ranks[0] if said.ranks else None,
        lagging=spans(said.ranks), gpu=culprit.rank.gpu if culprit else "",
        node=culprit.node if culprit else said.node, why=said.why, speaks_for=speaks_for, against=against,
    )  # fmt: skip


def _step(seen: Iterable[Seen]) -> int | None:
    """The step of the rank that is farthest behind."""
    return min((one.rank.step for one in seen if one.rank.step is not None), default=None)


def _is_known(parts: Iterable[_Part]) -> bool:
    return any(
        job.verdict is not None or job.silent is not None or any(rank.silent is not None for rank in job.ranks)
        for _, job in parts
    )


def _mean(activities: Iterable[float | None]) -> float | None:
    """How busy the GPUs of all nodes are; None where one does not know."""
    told = list(activities)
    known = [activity for activity in told if activity is not None]
    return sum(known) / len(known) if known and len(known) == len(told) else None


def _against_all(seen: Sequence[Seen]) -> list[Seen]:
    """The same ranks without their dumps, and each behind the farthest of all nodes, not of its own."""
    most = max((one.rank.step for one in seen if one.rank.step is not None), default=0)
    return [
        msgspec.structs.replace(one, rank=msgspec.structs.replace(
            one.rank, flight=None, behind=None if one.rank.step is None else most - one.rank.step,
        )) for one in seen
    ]  # fmt: skip


def _worst_first(seen: Iterable[Seen], named: Sequence[int]) -> tuple[Seen, ...]:
    """Those that hold up the job, those that are gone, and then by how much of their limits they have used."""
    place = {number: at for at, number in enumerate(named)}

    def order(one: Seen) -> tuple[int, bool, float, int, int]:
        rank, share = one.rank, one.rank.share
        return (
            place.get(rank.number, len(place)), not rank.gone, -(share if share is not None else -1.0),
            -(rank.behind or 0), rank.number,
        )  # fmt: skip

    return tuple(sorted(seen, key=order))


def _recent(one: Seen) -> tuple[bool, float, float, str]:
    """The rank's newest word, where a job was started anew on another node."""
    return one.alive, one.since or 0.0, one.at, one.node


def _judged(seen: Sequence[Seen], parts: Sequence[_Part], missing: Sequence[int], unheard: Sequence[str]) -> _Said:
    alive = [one for one in seen if one.alive]
    if not alive:
        return _Said(why="all of its ranks have ended" if seen else "no node told of any rank of it")
    gone = [one for one in seen if one.rank.gone and not one.rank.done]
    if not any(one.overdue for one in alive) and all(job.verdict != "hung" for _, job in parts):
        return _calm(parts, gone)
    fault = _broken(seen, alive, parts)
    comparison = compare(_dumps(seen), of_all=(*(one.number for one in seen), *missing))
    busy = [one for one in alive if one.rank.phase not in ORDINARY and not one.overdue and one.rank.silent is not None]
    excused = {one.number for one in busy}
    if fault is None and busy and excused >= set(comparison.culprits):
        return _waiting(busy)
    return fault or _by_flight(comparison, excused) or _by_absence(alive, missing, unheard) or _by_place(alive)


def _calm(parts: Sequence[_Part], gone: Sequence[Seen]) -> _Said:
    """Nobody is over its limit: what a node found of its own ranks stands, the surest word of all."""
    found = [job for _, job in parts if job.verdict is not None]
    if found:
        best = min(found, key=lambda job: (-job.confidence, job.rank is None, job.rank or 0, job.why))
        ranks = () if best.rank is None else (best.rank,)
        return _Said(verdict=best.verdict, confidence=best.confidence, ranks=ranks, why=best.why)
    if gone:
        return _Said(why=f"{_named(gone)} ended without a word; the others are within their limits yet")
    return _Said(why="no rank is over its limit")


def _waiting(busy: Sequence[Seen]) -> _Said:
    phase = busy[0].rank.phase
    there = [one for one in busy if one.rank.phase == phase]
    longest = max(one.rank.silent or 0.0 for one in there)
    return _Said(
        verdict="waiting", confidence=0.8, ranks=tuple(one.number for one in there),
        why=f"the others wait for {_named(there)}, in {phase} for {longest:.0f} s, within the limit of "
            f"{there[0].rank.limit or 0.0:.0f} s",
    )  # fmt: skip


def _broken(seen: Sequence[Seen], alive: Sequence[Seen], parts: Sequence[_Part]) -> _Said | None:
    """A rank whose process cannot go on."""
    gone = [one for one in seen if one.rank.gone and not one.rank.done]
    if gone:
        return _said("hung", 0.95, gone, "ended without a word, and the others wait")
    stopped = [one for one in alive if one.rank.state in ("T", "t")]
    if stopped:
        return _said("paused", 0.9, stopped, "stopped by a signal or a debugger; SIGCONT lets it go on")
    hanging = [one for one in alive if one.rank.state == "D" and one.overdue]
    if hanging:
        stalled = any(job.verdict == "storage_stalled" for _, job in parts)
        words = "hangs in the kernel, in storage" if stalled else "hangs in the kernel"
        return _said("storage_stalled" if stalled else "hung", 0.85, hanging, words)
    still = [one for one in alive if (one.rank.still or 0.0) >= STILL]
    stirring = [one for one in alive if one.rank.still is not None and one.rank.still < STILL]
    if still and len(still) < len(stirring):
        return _said("hung", 0.75, still, "does nothing at all, while the others' processes are busy waiting")
    return None


def _dumps(seen: Sequence[Seen]) -> dict[int, FlightSummary]:
    """The dumps that were taken while the rank hung, and about the same time as the newest of all."""
    taken = {
        one.number: (one.at - one.rank.flight_age, one.rank.flight) for one in seen
        if one.rank.flight is not None and one.rank.flight_age is not None
        and (one.rank.silent is None or one.rank.flight_age <= one.rank.silent + SKEW)
    }  # fmt: skip
    newest = max((at for at, _ in taken.values()), default=0.0)
    return {number: flight for number, (at, flight) in taken.items() if newest - at <= DUMPS_APART}


def _by_flight(found: Comparison, excused: Set[int]) -> _Said | None:
    """`excused` are ranks that have not called because they do something of their own, and may."""
    if found.kind == "quiet" or (found.kind == "missing" and not found.culprits):
        return None  # without the dumps of those that are waited for, the rest may know more
    ranks = tuple(rank for rank in found.culprits if rank not in excused)
    return _Said(verdict="hung", confidence=found.confidence, ranks=ranks, why=found.why)


def _by_absence(alive: Sequence[Seen], missing: Sequence[int], unheard: Sequence[str]) -> _Said | None:
    """All that are known wait alike, and some are not known."""
    steps = {one.rank.step for one in alive}
    if not missing or len(steps) > 1 or len({one.rank.pattern for one in alive} - {""}) > 1:
        return None
    host = f"no word from host {', '.join(unheard)}: " if unheard else ""
    return _Said(
        verdict="hung",
        confidence=0.6,
        node=unheard[0] if len(unheard) == 1 else "",
        why=f"{host}nobody told of {_ranks(missing)}, and all others wait alike: it is most likely one of those",
    )


def _by_place(alive: Sequence[Seen]) -> _Said:
    """The rank that is not where the others are."""
    for few, words, sure in (
        (_lowest(alive), "behind the others in steps", 0.8), (_idle(alive), "idle while the others' GPUs spin", 0.75),
        (_first_silent(alive), "the first that fell silent", 0.6),
    ):  # fmt: skip
        if few:
            spinning = [one for one in few if one.rank.pattern == "spinning"]
            others = [one for one in alive if one not in few and one.rank.pattern == "spinning"]
            better = 0.1 if others and not spinning else -0.1 if spinning and not others else 0.0
            return _said("hung", round(sure + better, 2), few, words)
    return _Said(
        verdict="hung", confidence=0.6,
        why=f"all {len(alive)} ranks that are known wait alike and none stands out: look at the network first, its "
            "cards and links",
    )  # fmt: skip


def _lowest(alive: Sequence[Seen]) -> list[Seen]:
    steps = [one.rank.step for one in alive if one.rank.step is not None]
    few = [one for one in alive if steps and one.rank.step == min(steps)]
    return few if _is_few(few, alive) and min(steps) < max(steps) else []


def _idle(alive: Sequence[Seen]) -> list[Seen]:
    few = [one for one in alive if one.rank.pattern == "idle"]
    return few if _is_few(few, alive) and any(one.rank.pattern == "spinning" for one in alive) else []


def _first_silent(alive: Sequence[Seen]) -> list[Seen]:
    dated = sorted((one.since, one.number, one) for one in alive if one.since is not None)
    if len(dated) < 2:
        return []
    return [dated[0][2]] if dated[1][0] - dated[0][0] > SKEW else []


def _is_few(few: Sequence[Seen], alive: Sequence[Seen]) -> bool:
    """Whether they are the odd ones: what half of the ranks do is no exception."""
    return 0 < len(few) <= len(alive) // 2


def _signals(
    seen: Sequence[Seen], said: _Said, missing: Sequence[int], unheard: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if said.verdict is None:
        return (), ()
    alive = [one for one in seen if one.alive]
    overdue = [one for one in alive if one.overdue]
    speaks_for, against = [], []
    if overdue:
        speaks_for.append(f"{len(overdue)} of {len(alive)} ranks are over their limits")
    for pattern in ("spinning", "idle", "working"):
        there = [one for one in alive if one.rank.pattern == pattern]
        if there and pattern != "working":
            speaks_for.append(f"the GPUs of {_ranks(one.number for one in there)} are {pattern}")
        elif there:
            against.append(f"the GPUs of {_ranks(one.number for one in there)} work")
    within = [one for one in alive if one.rank.silent is not None and one.rank.limit and not one.overdue]
    if within and said.verdict == "hung":
        against.append(f"{_ranks(one.number for one in within)} are within their limits")
    if missing:
        against.append(f"nothing is known of {_ranks(missing)}")
    against += [f"no word from host {host}" for host in unheard]
    return tuple(speaks_for), tuple(against)


def _said(verdict: Verdict, confidence: float, ranks: Sequence[Seen], words: str) -> _Said:
    order = sorted(ranks, key=lambda one: (one.since is None, one.since or 0.0, one.number))
    first = order[0]
    numbers = (first.number, *(one.number for one in sorted(order[1:], key=lambda one: one.number)))
    return _Said(verdict=verdict, confidence=confidence, ranks=numbers, why=f"{_named(ranks)}: {words}")


def _named(ranks: Sequence[Seen]) -> str:
    nodes = sorted({one.node for one in ranks})
    where = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    return f"{_ranks(one.number for one in ranks)} on {where}"


def _ranks(numbers: Iterable[int]) -> str:
    told = sorted(numbers)
    words = spans(told)
    return f"{'rank' if len(told) == 1 else 'ranks'} {words if len(words) <= 60 else words[:60] + '...'}"
