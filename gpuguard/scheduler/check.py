"""The state, recounted from scratch: every difference between what it keeps and what follows from who runs and waits.

A state is a fold, and most of it is kept only so that a pass is fast: free masks, releases, sums, lines of the queue.
Here all of that is built anew from the nodes that joined, the jobs that run, wait and are queued, and the holds. No
difference is ever right; whoever finds one stops, and reports it with the event log.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

import numpy as np

from gpuguard.errors import InvariantBroken
from gpuguard.scheduler.backfill import Bookings
from gpuguard.scheduler.cluster import NEVER, RESOURCES, Cluster, Place, Tenant, bits
from gpuguard.scheduler.nodes import bad_gpus, usable
from gpuguard.scheduler.queue import OVERDUE, line_of
from gpuguard.scheduler.request import WHOLE
from gpuguard.scheduler.state import State

ARRAYS = (
    "count", "milli", "partial", "vacant", "sharing", "spare", "usable", "busy", "sole", "holds", "last", "empty",
    "penalty",
)  # fmt: skip
MASKS = ("good", "held", "used", "free")
Name = TypeVar("Name")
CLOSE = 1e-6
"""Watts: sums of the same numbers in another order."""


def check(state: State) -> tuple[str, ...]:
    """Every difference, in words; nothing: the state is what it says. Between two passes, not within one.

    Shape   costs as much as building the cluster anew, so it is asked now and then
    """
    return (
        *_jobs(state), *_lines(state), *_nodes(state), *_tenants(state), *_cards(state), *_amounts(state),
        *_arrays(state), *_accounts(state), *_sums(state), *_ends(state), *_holds(state), *_plan(state),
    )  # fmt: skip


def _jobs(state: State) -> Iterator[str]:
    """Each job that is not over is in one place and has a record."""
    places: dict[str, Collection[str]] = {
        "queue": state.queue.entries,
        "waiting": state.waiting,
        "running": state.running,
    }
    seen: dict[str, str] = {}
    for name, jobs in places.items():
        for job in jobs:
            if job in seen:
                yield f"job {job} is in {seen[job]} and in {name}"
            seen[job] = name
            if job not in state.records:
                yield f"job {job} is in {name} and has no record"
            if job in state.outcomes:
                yield f"job {job} is in {name} and has an outcome"
    for job in state.records:
        if job not in seen:
            yield f"job {job} has a record and is nowhere"
    for job, entry in [*state.queue.entries.items(), *state.waiting.items()]:
        if entry.job.id != job:
            yield f"job {entry.job.id} waits as {job}"
    for job in state.queue.entries:
        if (missing := state.dependencies.blocked(job)) != ():
            yield f"job {job} is queued and {missing[0]}"
    for job in state.waiting:
        if not state.dependencies.held(job):
            yield f"job {job} waits for nothing and is not queued"


def _lines(state: State) -> Iterator[str]:
    """The lines of the queue hold its entries, each once, in order."""
    queue = state.queue
    found: dict[str, int] = {}
    for place, line in queue.lines().items():
        if not line:
            yield "an empty line is kept in the queue"
        if [key for key, _ in line] != sorted(key for key, _ in line):
            yield "a line of the queue is out of order"
        for key, entry in line:
            found[entry.job.id] = found.get(entry.job.id, 0) + 1
            if key != entry.key or line_of(entry) != place:
                yield f"job {entry.job.id} stands in a line that is not its own"
    yield from _differ("lines of the queue", found, dict.fromkeys(queue.entries, 1))
    gpus = sum(entry.gpus for entry in queue.entries.values())
    if queue.gpus != gpus:
        yield f"the queue counts {queue.gpus} GPUs, and its jobs ask {gpus}"
    oldest = sorted((entry.submitted, job) for job, entry in queue.entries.items() if entry.key[0] != OVERDUE)
    if queue.oldest() != oldest:
        yield "the queue's list of the oldest is not that of its entries"


def _nodes(state: State) -> Iterator[str]:
    if sorted(state.joined) != sorted(state.cluster.names):
        yield "the cluster's nodes are not those that joined"
    if sorted(state.joined) != sorted(state.lives):
        yield "the lives are not those of the nodes that joined"


def _tenants(state: State) -> Iterator[str]:
    """Who holds what on a node is what those who run say of it."""
    cluster = state.cluster
    wanted: list[dict[str, Tenant]] = [{} for _ in cluster.nodes]
    for job, run in state.running.items():
        if run.job.id != job:
            yield f"job {run.job.id} runs as {job}"
        if len({place.node for place in run.places}) != len(run.places):
            yield f"job {job} holds two places on one node"
        for place in run.places:
            wanted[place.node][job] = Tenant(job, place, run.end)
        yield from _gang(state, job)
    for node, tenants in enumerate(cluster.tenants):
        yield from _differ(f"tenants of {cluster.names[node]}", tenants, wanted[node])


def _gang(state: State, job: str) -> Iterator[str]:
    """All of the job runs, or of a smaller form of it that it accepts."""
    run = state.running[job]
    forms = [run.entry.shape, *(shape for _, shape in run.entry.smaller)]
    given = sorted((place.mask.bit_count(), place.milli if place.mask else 0) for place in run.places)
    asked = [
        sorted(
            (chunk.ask.planned, WHOLE if chunk.ask.gpus else chunk.ask.milli)
            for chunk in shape.terms.chunks
            for _ in range(chunk.nodes)
        )
        for shape in forms
    ]  # fmt: skip
    if given not in asked:
        yield f"job {job} runs on a part of what it asked"


def _cards(state: State) -> Iterator[str]:
    """No GPU is in two whole jobs, nor in one beside shares; no training shares; memory of a card suffices."""
    cluster = state.cluster
    for node, tenants in enumerate(cluster.tenants):
        name, whole = cluster.names[node], 0
        milli: dict[int, int] = {}
        memory: dict[int, int] = {}
        for job, tenant in tenants.items():
            place = tenant.place
            if place.mask & ~cluster.full[node]:
                yield f"job {job} holds GPUs that {name} does not have"
            if place.milli >= WHOLE:
                if place.mask & whole:
                    yield f"job {job} holds GPUs of {name} that another job holds too"
                whole |= place.mask
                continue
            if place.mask and job in state.running and state.running[job].job.tier == "training":
                yield f"job {job} is training and shares a GPU of {name}"
            for card in bits(place.mask):
                milli[card] = milli.get(card, 0) + place.milli
                memory[card] = memory.get(card, 0) + place.card_memory
        for card, held in milli.items():
            if held > WHOLE or whole >> card & 1:
                yield f"GPU {card} of {name} is held {held}/1000 in shares{' and whole' if whole >> card & 1 else ''}"
            if memory[card] > cluster.cards[node]:
                yield f"GPU {card} of {name} has {cluster.cards[node]} MiB, and {memory[card]} are given"
        alone = [job for job in tenants if job in state.running and state.running[job].job.exclusive]
        if alone and len(tenants) > 1:
            yield f"job {alone[0]} is to be alone on {name}, and {len(tenants) - 1} others are there"


def _amounts(state: State) -> Iterator[str]:
    cluster = state.cluster
    for node, tenants in enumerate(cluster.tenants):
        for row, resource in enumerate(RESOURCES):
            given = sum(tenant.place.amounts[row] for tenant in tenants.values())
            if given > int(cluster.total[row, node]) and (node, row) not in cluster.short:
                yield f"{cluster.names[node]} has {int(cluster.total[row, node])} of {resource}, and {given} are given"


def _anew(state: State) -> Cluster:
    """The cluster as it follows from who runs, what is held and how the nodes are."""
    fresh = Cluster(state.joined.values())
    for run in state.running.values():
        for place in run.places:
            fresh.take(run.job.id, place, run.end)
    for held in state.holes.values():
        for place in held.places:
            fresh.hold(place, held.end)
    for life in state.lives.values():
        if life.node in fresh.index:
            fresh.judge(fresh.index[life.node], usable(life), bad_gpus(life))
    return fresh


def _arrays(state: State) -> Iterator[str]:
    """The cluster's arrays are those of a cluster that is built anew."""
    kept = state.cluster
    try:
        fresh = _anew(state)
    except InvariantBroken as broken:
        yield f"the cluster cannot be built anew: {broken}"
        return
    if kept.names != fresh.names:
        return
    for mask in MASKS:
        for node, (one, other) in enumerate(zip(getattr(kept, mask), getattr(fresh, mask), strict=True)):
            if one != other:
                yield f"{mask} of {kept.names[node]} is {one:#x}, and should be {other:#x}"
    for array in ARRAYS:
        yield from _unequal(kept, array, getattr(kept, array), getattr(fresh, array))
    for node in range(len(kept.names)):
        yield from _differ(f"releases of {kept.names[node]}", _releases(kept, node), _releases(fresh, node))
        cards = {card: free for card, free in kept.card_free.get(node, {}).items() if free != kept.cards[node]}
        wanted = {card: free for card, free in fresh.card_free.get(node, {}).items() if free != kept.cards[node]}
        yield from _differ(f"card memory of {kept.names[node]}", cards, wanted)


def _unequal(cluster: Cluster, name: str, kept: object, fresh: object) -> Iterator[str]:
    one, other = np.asarray(kept), np.asarray(fresh)
    if one.shape != other.shape:
        yield f"{name} has the shape {one.shape}, and should have {other.shape}"
        return
    axis = 1 if name == "spare" else 0
    other_axes = tuple(number for number in range(one.ndim) if number != axis)
    for node in np.nonzero((one != other).any(axis=other_axes) if other_axes else one != other)[0].tolist():
        yield f"{name} of {cluster.names[node]} is not what its tenants, holds and life make it"


def _releases(cluster: Cluster, node: int) -> dict[int, tuple[int, ...]]:
    """What is free after each end."""
    ends = cluster.ends[node].tolist()
    rows = [0, *(row + 1 for row in range(len(RESOURCES)) if cluster.constrains[row])]
    found = {0: tuple(int(cluster.frees[row, node, 0]) for row in rows)}
    for column, end in enumerate(ends[1:], 1):
        found[end] = tuple(int(cluster.frees[row, node, column]) for row in rows)
    found[NEVER] = tuple(int(cluster.frees[row, node, -1]) for row in rows)
    return found


def _accounts(state: State) -> Iterator[str]:
    """Free, used, held and out are all GPUs there are."""
    parts = state.cluster.gpus_by_state()
    if sum(parts.values()) != state.cluster.gpus or min(parts.values()) < 0:
        yield f"the GPUs by state are {dict(parts)}, and there are {state.cluster.gpus}"


def _sums(state: State) -> Iterator[str]:
    """The sums by level, rank, queue and pool are those of who runs."""
    high = allocated = 0
    yielding: dict[int, int] = {}
    queues: dict[str, int] = {}
    watts: dict[str, float] = {}
    for run in state.running.values():
        allocated += run.gpus
        high += run.gpus if run.level == "high" else 0
        queues[run.job.queue] = queues.get(run.job.queue, 0) + run.gpus
        if run.job.may_be_preempted:
            yielding[run.rank] = yielding.get(run.rank, 0) + 1
        pool = run.entry.shape.terms.chunks[0].ask.pool
        watts[pool] = watts.get(pool, 0.0) + state.watts_of(run.places)
    if (state.high, state.allocated) != (high, allocated):
        yield f"{state.high} of {state.allocated} are counted as high and held, and {high} of {allocated} are"
    yield from _differ("who may yield", _nonzero(state.yielding), _nonzero(yielding))
    yield from _differ("GPUs by queue", _nonzero(state.by_queue), _nonzero(queues))
    for pool in dict.fromkeys([*state.watts, *watts]):
        kept, wanted = state.watts.get(pool, 0.0), watts.get(pool, 0.0)
        if abs(kept - wanted) > CLOSE * max(1.0, wanted):
            yield f"pool {pool} is counted as drawing {kept} W, and draws {wanted}"


def _ends(state: State) -> Iterator[str]:
    """Everybody whose time can end will be looked at when it does."""
    coming = state.coming_ends()
    for job, run in state.running.items():
        if run.end < NEVER and (run.end, job) not in coming:
            yield f"job {job} ends at {run.end}, and nobody will look"


def _holds(state: State) -> Iterator[str]:
    """What is held is what the holds say, for jobs that wait, until those leave who were told to."""
    kept = [0] * len(state.cluster.names)
    for job, held in state.holes.items():
        if job not in state.queue and job not in state.waiting:
            yield f"GPUs are held for job {job}, which does not wait"
        if state.shares(held.places) != held.hole.shares or held.hole.preemptor != job:
            yield f"the hold of job {job} names other places than are held"
        for place in held.places:
            if kept[place.node] & place.mask:
                yield f"GPUs of {state.cluster.names[place.node]} are held twice"
            kept[place.node] |= place.mask
        for name in held.hole.leaving:
            if name not in state.running or state.running[name].signalled is None:
                yield f"job {job} waits for job {name} to leave, which was not told to"
        if state.now > held.hole.until:
            yield f"the hold of job {job} lasts beyond its end"
    for node, mask in enumerate(kept):
        if mask != state.cluster.held[node]:
            yield f"{state.cluster.held[node]:#x} of {state.cluster.names[node]} is held, and the holds say {mask:#x}"


def _plan(state: State) -> Iterator[str]:
    """What is reserved will be free when it is reserved for, if everybody leaves by his end and nobody comes."""
    if state.stale:
        return
    cluster = state.cluster
    booked: dict[int, list[tuple[int, int, int, tuple[int, ...], bool, str]]] = {}
    anew = Bookings(cluster)
    for _, job, booking in state.reserved:
        if job in state.running:
            yield f"job {job} runs and has a reservation"
        anew.book(booking)
        for node, ask in booking.nodes:
            gpus = ask.planned
            booked.setdefault(node, []).append((booking.start, booking.end, gpus, ask.amounts, ask.alone, job))
    for name in ("start", "end", "taken", "booked", "shadow"):
        if not np.array_equal(getattr(anew, name), getattr(state.bookings, name)):
            yield f"the bookings' {name} is not that of the reservations"
    for node, rows in booked.items():
        for start, _, _, _, _, job in rows:
            at = max(start, state.now)
            there = [row for row in rows if row[0] <= at < row[1]]
            free, amounts, stay = _free_at(cluster, node, at)
            for _, _, gpus, asked, _, _ in there:
                free -= gpus
                amounts = [left - amount for left, amount in zip(amounts, asked, strict=True)]
            alone = any(row[4] for row in there) and len(there) + stay > 1
            if not cluster.usable[node] or free < 0 or min(amounts) < 0 or alone:
                left = f"{free} GPUs and {amounts} would be left, {stay} are still there"
                yield f"job {job} has a reservation on {cluster.names[node]} at {start}, and there is no room: {left}"


def _free_at(cluster: Cluster, node: int, at: int) -> tuple[int, list[int], int]:
    """GPUs wholly free then, what is free beside, and how many are still there or have not come yet."""
    stay = [tenant.place for tenant in cluster.tenants[node].values() if tenant.end > at]
    stay += [place for place, end in cluster.kept[node] if end > at]
    mask = cluster.good[node]
    for place in stay:
        mask &= ~place.mask
    held = [int(cluster.spare[row, node]) for row in range(len(RESOURCES))]
    gone: list[Place] = [tenant.place for tenant in cluster.tenants[node].values() if tenant.end <= at]
    for place in gone + [place for place, end in cluster.kept[node] if end <= at]:
        held = [left + amount for left, amount in zip(held, place.amounts, strict=True)]
    left = [value if cluster.constrains[row] else NEVER for row, value in enumerate(held)]
    return mask.bit_count(), left, len(stay)


def _differ(what: str, kept: Mapping[Name, object], wanted: Mapping[Name, object]) -> Iterator[str]:
    for key in dict.fromkeys([*kept, *wanted]):
        if kept.get(key) != wanted.get(key):
            yield f"{what}: {key} is {kept.get(key)}, and should be {wanted.get(key)}"


def _nonzero(counts: Mapping[Name, int]) -> dict[Name, int]:
    return {key: count for key, count in counts.items() if count}
