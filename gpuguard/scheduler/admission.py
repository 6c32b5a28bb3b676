"""What is refused at submit, and why: all mistakes of a job at once, each with a rule, a sentence and a next step.

What counts is what exists. A node that is busy, drained or in repair still exists, so a job that fits it waits; one
that fits nothing the site owns would wait for ever, and is refused while its owner still looks.

Decided here: a parent must be known when its child is submitted, or be submitted at the same instant; nodes must divide
the GPUs; a job of 0 GPUs is work for CPUs and fine; a singleton is one by its own name.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Final

import msgspec

from gpuguard.scheduler.capacity import Capacity, Kind
from gpuguard.scheduler.precedence import parents_first
from gpuguard.scheduler.request import WHOLE, Job
from gpuguard.scheduler.settings import DAY, Settings

TEXT_LIMIT: Final = 200
MOST_GPUS: Final = 2**17
"""More than any cluster known has: a number above it is a slip of the hand."""

MOST_AMOUNT: Final = 2.0**40
"""MiB, MiB/s or cores: an exbibyte of memory."""

LONGEST: Final = 3650 * DAY


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """`rule`: a word that docs explain; `why`: a sentence with facts; `step`: what its owner does next."""

    rule: str
    why: str
    step: str


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one instant: those taken, each behind its parents; those refused, in the order in which they came."""

    taken: tuple[Job, ...]
    refused: tuple[tuple[Job, tuple[Refusal, ...]], ...]


def refusals(job: Job, settings: Settings, machines: Sequence[Kind], known: Container[str]) -> tuple[Refusal, ...]:
    """All that is wrong with one job; nothing: it may be queued. For many jobs, keep an `Admission`."""
    return Admission(settings, machines).refusals(job, known)


class Admission:
    """The rules of a site and what it owns; made anew when either changes."""

    def __init__(self, settings: Settings, machines: Sequence[Kind]) -> None:
        self.settings = settings
        self.capacity = Capacity(settings, machines)

    def refusals(self, job: Job, known: Container[str], beside: Container[str] = ()) -> tuple[Refusal, ...]:
        """All that is wrong with the job.

        Shape   known: ids of the jobs that are queued, run or have ended. beside: of those submitted with it
        """
        found = [
            *_names(job, known), *_numbers(job), *self._places(job), *self._permissions(job),
            *_dependencies(job, known, beside),
        ]  # fmt: skip
        # What asks nonsense is not weighed against nodes.
        if not found and self.capacity.fitting(job) is None:
            why, step = self.capacity.shortage(job)
            found.append(Refusal(rule="never_satisfiable", why=why, step=step))
        return tuple(found)

    def admit(self, jobs: Sequence[Job], known: Container[str]) -> Admitted:
        """Jobs of one instant, which may name each other: those taken can be queued in their order."""
        beside: dict[str, Job] = {}
        found: dict[int, tuple[Refusal, ...]] = {}
        for number, job in enumerate(jobs):
            if job.id in beside:
                found[number] = (_duplicate(job.id),)
            else:
                beside[job.id] = job
        inside = {name: _inside(job, beside, known) for name, job in beside.items() if job.after}
        order, stuck = parents_first(beside, lambda name: inside.get(name, ()))
        refused: dict[str, tuple[Refusal, ...]] = {}
        for name in [*order, *stuck]:
            job = beside[name]
            mistakes = list(self.refusals(job, known, beside))
            if name in stuck and all(mistake.rule != "self" for mistake in mistakes):
                mistakes.append(_cycle(stuck[name]))
            else:
                mistakes.extend(_orphan(parent) for parent in inside.get(name, ()) if parent in refused)
            if mistakes:
                refused[name] = tuple(mistakes)
        for number, job in enumerate(jobs):
            if number not in found and job.id in refused:
                found[number] = refused[job.id]
        return Admitted(
            taken=tuple(beside[name] for name in order if name not in refused),
            refused=tuple((jobs[number], found[number]) for number in sorted(found)),
        )

    def _places(self, job: Job) -> Iterable[Refusal]:
        """The queue, the tier, the level and the pool exist."""
        site = self.settings
        if job.queue not in site.queues:
            yield _unknown("queue", job.queue, site.queues)
        if job.level not in site.levels:
            yield _unknown("level", job.level, site.levels)
        if job.tier not in site.tiers:
            yield _unknown("tier", job.tier, site.tiers)
            if job.pool is not None and job.pool not in site.pools:
                yield _unknown("pool", job.pool, site.pools)
        elif (pool := job.pool or site.tiers[job.tier].pool) not in site.pools:
            yield _unknown("pool", pool, site.pools)

    def _permissions(self, job: Job) -> Iterable[Refusal]:
        """What the queue and the tier allow, and what needs checkpoints."""
        queue, tier = self.settings.queues.get(job.queue), self.settings.tiers.get(job.tier)
        if queue is not None:
            if queue.limit is not None and job.walltime is not None and job.walltime > queue.limit:
                yield Refusal(
                    rule="over_limit", why=f"It asks {job.walltime} s; queue {job.queue} allows {queue.limit} s.",
                    step=f"Ask at most {queue.limit} s, or use a queue that allows more.",
                )  # fmt: skip
            if queue.gpus is not None and job.gpus > queue.gpus:
                yield Refusal(
                    rule="over_limit", why=f"It asks {job.gpus} GPUs; queue {job.queue} allows {queue.gpus}.",
                    step=f"Ask at most {queue.gpus} GPUs, or use a queue that allows more.",
                )  # fmt: skip
        if tier is not None:
            if tier.walltime_required and job.walltime is None:
                yield Refusal(
                    rule="no_walltime", why=f"Tier {job.tier} needs a walltime, and it says none.",
                    step="Say the longest time that it may run.",
                )  # fmt: skip
            if not tier.shares and job.gpu_milli < WHOLE:
                yield Refusal(
                    rule="whole_gpus", why=f"Tier {job.tier} takes whole GPUs; it asks {job.gpu_milli}/1000 of one.",
                    step="Ask a whole GPU, or use a tier that shares.",
                )  # fmt: skip
            if not tier.gpus and job.gpus > 0:
                yield Refusal(
                    rule="no_gpus", why=f"Tier {job.tier} has no GPUs; it asks {job.gpus}.",
                    step="Ask 0 GPUs, or use another tier.",
                )  # fmt: skip
        if job.preemptible and not job.checkpoints:
            yield Refusal(
                rule="no_checkpoints", why="It may be preempted, but saves nothing: its work would be lost.",
                step="Say that it checkpoints, or that it is not preemptible.",
            )  # fmt: skip
        if job.extends and not job.checkpoints:
            yield Refusal(
                rule="no_checkpoints", why="It wants to be extended, which checkpoints prove, but saves nothing.",
                step="Say that it checkpoints, or ask the whole walltime at once.",
            )  # fmt: skip


def allowed(job: Job, settings: Settings) -> int | None:
    """Seconds that the job may run at most, by its walltime, its queue and its tier; None: no limit."""
    limits = (job.walltime, settings.queues[job.queue].limit, settings.tiers[job.tier].session)
    return min((limit for limit in limits if limit is not None), default=None)


def _names(job: Job, known: Container[str]) -> Iterable[Refusal]:
    """Its id is new, and what it is called can be printed."""
    if job.id in known:
        yield _duplicate(job.id)
    for field, text, must in (
        ("id", job.id, True), ("user", job.user, True), ("account", job.account, True), ("name", job.name, False),
        ("queue", job.queue, True), ("qos", job.qos, True), ("pool", job.pool or "", False),
    ):  # fmt: skip
        if len(text) > TEXT_LIMIT or not text.isprintable() or (must and not text):
            yield _text(field, text)
    for text in job.gpu_types:
        if len(text) > TEXT_LIMIT or not text.isprintable() or not text:
            yield _text("gpu_types", text)


def _numbers(job: Job) -> Iterable[Refusal]:
    """No number is absurd by itself or beside another."""
    if not 0 <= job.gpus <= MOST_GPUS:
        yield _number("gpus", job.gpus, f"0 to {MOST_GPUS}")
    elif job.nodes is not None:
        if not 1 <= job.nodes <= MOST_GPUS:
            yield _number("nodes", job.nodes, f"1 to {MOST_GPUS}")
        elif job.gpus % job.nodes:
            yield _unequal(job.gpus, job.nodes)
    if job.gpu_milli != WHOLE:
        if not 1 <= job.gpu_milli <= WHOLE:
            yield _number("gpu_milli", job.gpu_milli, f"1 to {WHOLE}")
        if job.gpus != 1:
            yield Refusal(
                rule="share", why=f"It asks a share of {job.gpus} GPUs; a share is a part of one.",
                step="Say `gpus` 1, or take whole GPUs.",
            )  # fmt: skip
    if not job.gpus and (job.gpu_types or job.gpu_memory is not None or job.per == "gpu"):
        yield Refusal(
            rule="no_gpus", why="It asks 0 GPUs, and yet says what GPUs they should be or what each should have.",
            step="Say how many GPUs, or leave out `gpu_types`, `gpu_memory` and `per` gpu.",
        )  # fmt: skip
    if job.least_gpus is not None and not 1 <= job.least_gpus <= job.gpus:
        yield _number("least_gpus", job.least_gpus, f"1 to its {job.gpus} GPUs")
    if job.walltime is not None and not 1 <= job.walltime <= LONGEST:
        yield _number("walltime", job.walltime, f"1 to {LONGEST} s")
    if job.wish.wait is not None and not 0 <= job.wish.wait <= LONGEST:
        yield _number("wish.wait", job.wish.wait, f"0 to {LONGEST} s")
    if not 0 <= job.requeues <= MOST_GPUS:
        yield _number("requeues", job.requeues, f"0 to {MOST_GPUS}")
    # Written so that what is no number is not between the two either.
    if job.gpu_memory is not None and not 0 <= job.gpu_memory <= MOST_AMOUNT:
        yield _number("gpu_memory", job.gpu_memory, f"0 to {MOST_AMOUNT:.0f} MiB")
    if job.cpus is not None and not 0 <= job.cpus <= MOST_AMOUNT:
        yield _number("cpus", job.cpus, f"0 to {MOST_AMOUNT:.0f} cores")
    if job.memory is not None and not 0 <= job.memory <= MOST_AMOUNT:
        yield _number("memory", job.memory, f"0 to {MOST_AMOUNT:.0f} MiB")
    if job.memory_bandwidth is not None and not 0 <= job.memory_bandwidth <= MOST_AMOUNT:
        yield _number("memory_bandwidth", job.memory_bandwidth, f"0 to {MOST_AMOUNT:.0f} MiB/s")
    if job.network_bandwidth is not None and not 0 <= job.network_bandwidth <= MOST_AMOUNT:
        yield _number("network_bandwidth", job.network_bandwidth, f"0 to {MOST_AMOUNT:.0f} MiB/s")


def _dependencies(job: Job, known: Container[str], beside: Container[str]) -> Iterable[Refusal]:
    """What it waits for exists, and is not itself."""
    for dependency in job.after:
        name = dependency.name
        match dependency.relation:
            case "afterok" | "afterany":
                if name == job.id:
                    yield Refusal(
                        rule="self", why=f"It waits for itself ({dependency.relation}).",
                        step="Name the job that it should wait for.",
                    )  # fmt: skip
                elif name not in known and name not in beside:
                    yield Refusal(
                        rule="unknown_job", why=f"It waits for job {_shown(name)}, which nobody has submitted.",
                        step="Submit that job first or together with this one, or correct the id.",
                    )  # fmt: skip
            case "singleton":
                if not job.name or name not in {"", job.name}:
                    yield Refusal(
                        rule="singleton", why=f"It is a singleton by {_shown(name)}, and is named {_shown(job.name)}.",
                        step="Give the job a name, and the singleton the same or none.",
                    )  # fmt: skip
            case "condition":
                if not name or len(name) > TEXT_LIMIT or not name.isprintable():
                    yield _text("condition", name)


def _inside(job: Job, beside: Container[str], known: Container[str]) -> tuple[str, ...]:
    """Those of the same instant for whose end it waits; an id that was known before is the job that had it before."""
    return tuple(
        dict.fromkeys(
            need.name
            for need in job.after
            if need.relation in {"afterok", "afterany"} and need.name in beside and need.name not in known
        )
    )


def _shown(text: str) -> str:
    """The text as it may stand in a sentence."""
    return repr(text if len(text) <= TEXT_LIMIT else text[:40] + "...")


def _text(field: str, text: str) -> Refusal:
    wrong = "is empty" if not text else f"has {len(text)} letters" if len(text) > TEXT_LIMIT else "cannot be printed"
    return Refusal(
        rule="text", why=f"`{field}` {wrong}{': ' + _shown(text) if text else ''}.",
        step=f"Write 1 to {TEXT_LIMIT} letters that can be printed.",
    )  # fmt: skip


def _number(field: str, value: float, between: str) -> Refusal:
    return Refusal(rule="number", why=f"`{field}` is {value}; it can be {between}.", step=f"Correct `{field}`.")


def _unequal(gpus: int, nodes: int) -> Refusal:
    below = next(count for count in range(min(nodes, gpus), 0, -1) if gpus % count == 0)
    return Refusal(
        rule="unequal", why=f"{gpus} GPUs do not make equal parts on {nodes} nodes.",
        step=f"Ask {gpus // nodes * nodes + nodes} GPUs, or {below} nodes, or name no nodes.",
    )  # fmt: skip


def _unknown(what: str, name: str, there: Iterable[str]) -> Refusal:
    return Refusal(
        rule=f"unknown_{what}", why=f"There is no {what} {_shown(name)}.",
        step=f"Use one of {', '.join(sorted(there)) or 'those that the settings should define: there is none'}.",
    )  # fmt: skip


def _duplicate(name: str) -> Refusal:
    return Refusal(
        rule="duplicate", why=f"There is a job {_shown(name)} already.", step="Submit it with an id of its own."
    )


def _cycle(way: str) -> Refusal:
    return Refusal(
        rule="cycle", why=f"It waits in a circle, or for jobs that do: {way}.",
        step="Take one of these dependencies away, and submit them again.",
    )  # fmt: skip


def _orphan(parent: str) -> Refusal:
    return Refusal(
        rule="parent_refused", why=f"It waits for job {_shown(parent)}, which is refused.",
        step="Correct that job, and submit both again.",
    )  # fmt: skip
