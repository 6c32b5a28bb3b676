"""Where a job stands in the queue, who is ahead of it, and why: the parts of its virtual time, in hours, as a row.

The parts are those that `queue` adds up: a row's submit time and its parts are the job's key again.
"""

from collections.abc import Iterator
from heapq import nlargest
from math import log2

import msgspec

from gpuguard.scheduler.queue import OVERDUE, SHORT, Entry, Key, as_normal, earlier
from gpuguard.scheduler.ranks import high_allowed
from gpuguard.scheduler.settings import HOUR
from gpuguard.scheduler.state import State

PARTS = ("size", "walltime", "bound", "share", "tier", "qos", "queue")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the queue.

    Shape   place: 1 is first. size: of its GPUs, and of several nodes. band: overdue, or its level, and whether its
            tier goes first; nobody of a later band goes before one of an earlier. bound: what was taken back of size
            and walltime, since no job is moved further
    Units   seconds; size to queue in hours: below 0 is earlier. counts_from: the instant from which it counts as
            waiting
    """

    job: str
    user: str
    place: int
    band: str
    submitted: int
    gpus: int
    size: float
    walltime: float
    bound: float
    share: float
    tier: float
    qos: float
    queue: float
    counts_from: float


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Shape: ahead: jobs before it, with `gpus` in all. nearest: the rows of some of them, the last before it first."""

    row: Row
    ahead: int
    gpus: int
    nearest: tuple[Row, ...]
    why: str


def position(state: State, job: str, shown: int = 5) -> Position | None:
    """The job's place among those for whom only room is missing; None for one that is not among them."""
    entry = state.queue.entries.get(job)
    if entry is None:
        return None
    mine = counted(state, entry)
    before = [(key, other) for other in state.queue.entries.values() if (key := counted(state, other)) < mine]
    last = nlargest(max(1, shown), before, key=_first)
    nearest = tuple(_row(state, other, len(before) - number) for number, (_, other) in enumerate(last[:shown]))
    row = _row(state, entry, len(before) + 1)
    gpus = sum(other.gpus for _, other in before)
    if not before:
        why = "nobody is before it"
    else:
        jobs = "1 job with {} GPUs is" if len(before) == 1 else f"{len(before)} jobs with {{}} GPUs are"
        why = f"{jobs.format(gpus)} before it; " + compare(state, job, last[0][1].job.id)
    return Position(row=row, ahead=len(before), gpus=gpus, nearest=nearest, why=why)


def compare(state: State, job: str, other: str) -> str:
    """Why one of two queued jobs goes before the other, in words."""
    mine, theirs = state.queue.entries.get(job), state.queue.entries.get(other)
    for name, entry in ((job, mine), (other, theirs)):
        if entry is None:
            return f"job {name} does not queue for room, so it has no place to compare"
    assert mine is not None
    assert theirs is not None
    if mine is theirs:
        return f"job {job} is itself"
    first, second = (theirs, mine) if counted(state, theirs) < counted(state, mine) else (mine, theirs)
    one, two = _row(state, first, 0), _row(state, second, 0)
    head = f"job {first.job.id} is before job {second.job.id}"
    if counted(state, first)[0] != counted(state, second)[0]:
        return f"{head}: it is {one.band}, and job {second.job.id} is {two.band}"
    if one.counts_from == two.counts_from:
        return f"{head}: they count from the same instant, and it was submitted first or its id comes first"
    reasons = list(_differences(one, two))
    said = f"{head}: it counts as waiting {(two.counts_from - one.counts_from) / HOUR:.1f} h longer"
    if reasons:
        said += f" ({', '.join(reasons)})"
    if round(one.share, 1) != round(two.share, 1) and state.standing is not None:
        said += ". " + state.share.explain(state.standing, second.holder, first.holder)
    return said


def _differences(one: Row, two: Row) -> Iterator[str]:
    """What the first has over the second, part by part."""
    age = (two.submitted - one.submitted) / HOUR
    if round(age, 1):
        yield f"submitted {abs(age):.1f} h {'earlier' if age > 0 else 'later'}"
    for name in PARTS:
        mine, theirs = getattr(one, name), getattr(two, name)
        if round(mine - theirs, 1):
            yield f"{name} {mine:+.1f} h against {theirs:+.1f} h"


def _row(state: State, entry: Entry, place: int) -> Row:
    settings, job = state.settings, entry.job
    order, band = settings.order, entry.key[0]
    size = walltime = bound = share = tier = qos = queue = 0.0
    if settings.key != "fifo" and band != OVERDUE:
        size = 0.0 - earlier(order, entry)
        walltime = order.length * log2(1.0 + entry.length / SHORT)
        bound = max(-order.most, min(order.most, size + walltime)) - (size + walltime)
        tier = settings.tiers[job.tier].delay
        qos = 0.0 - order.qos.get(job.qos, 0.0)
        queue = 0.0 - settings.queues[job.queue].weight if job.queue in settings.queues else 0.0
        # Of fair share, what the key was made with: it is computed anew only now and then.
        rest = (entry.key[1] - entry.submitted) / HOUR
        share = rest - (size + walltime + bound + tier + qos + queue)
    return Row(
        job=job.id, user=job.user, place=place, band=_band(state, entry), submitted=entry.submitted, gpus=entry.gpus,
        size=round(size, 3), walltime=round(walltime, 3), bound=round(bound, 3), share=abs(round(share, 3)),
        tier=tier, qos=qos, queue=queue, counts_from=entry.key[1],
    )  # fmt: skip


def _band(state: State, entry: Entry) -> str:
    if state.settings.key == "fifo":
        return "in the order of submission"
    if entry.key[0] == OVERDUE:
        return "overdue: it has waited beyond the site's patience"
    first = ", of a tier that goes first" if state.settings.tiers[entry.job.tier].first else ""
    as_normal = " and counts as normal" if counted(state, entry) != entry.key else ""
    return f"of level {entry.job.level}{as_normal}{first}"


def counted(state: State, entry: Entry) -> Key:
    """The job's key as the pass uses it now: of a high job beyond the share of such, that of a normal one."""
    key, job = entry.key, entry.job
    settings = state.settings
    if job.level != "high" or key[0] == OVERDUE or settings.key == "fifo":
        return key
    if high_allowed(state.high, state.allocated, entry.gpus * job.gpu_milli, settings.high_share):
        return key
    return as_normal(key, settings)


def _first(pair: tuple[Key, Entry]) -> Key:
    return pair[0]
