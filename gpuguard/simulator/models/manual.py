"""No scheduler: people pick cards by feel, share them, run out of memory, and try again.

This is no part of a run but another world: it takes the place of the policy, and writes the same course. Whoever comes
looks for cards that seem free, or does not look and takes the first of some node. Who finds none looks again some
times, and then takes cards that others use. Two on a card run at 35 % of their speed each; if their memory does not fit
either the newcomer crashes or the other does, and its owner tries again. Some ends leave memory held on the cards,
which nobody may use until somebody cleans up.

Assumes  everything but the 35 %: who looks, how often, how much memory jobs take where the trace does not tell, how
         long they wait. More than two on a card share the 70 % evenly; a job over many cards runs at its slowest card's
         pace; whoever crashes begins anew
Source   the second text: 35 % each, memory just fitting; a second run on the same cards, out of memory, crash, retry,
         then others are robbed; a release process stuck after the job's end
"""

from collections.abc import Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from math import ceil
from typing import Protocol

import msgspec

from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.plan import Share
from gpuguard.scheduler.request import WHOLE
from gpuguard.scheduler.settings import HOUR
from gpuguard.simulator.chance import Dice, seed_of, stream
from gpuguard.simulator.course import Course, End, JobRecord, Loss, Sample, Segment
from gpuguard.simulator.options import Count, Length, Pace, Part, Seconds, read
from gpuguard.simulator.trace import TraceJob

Card = tuple[int, int]
"""Node and GPU."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Shape   look: share of the people who look before they take. tries: how often they look again. pace: of each of
    two on a card. memory, sigma: of a card, log-normal by the median. robs: share of the crashes that hit the other.
    retries: how often somebody tries again after a crash. orphan: share of the ends that leave memory held

    Units   seconds; memory in parts of a card
    """

    look: Part = 0.5
    tries: Count = 2
    recheck: Seconds = 1800
    pace: Pace = 0.35
    memory: Length = 0.4
    sigma: Length = 0.6
    robs: Part = 0.3
    crash: Seconds = 120
    pause: Length = 600.0
    retries: Count = 5
    orphan: Part = 0.02
    cleaned: Seconds = 12 * HOUR


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Shape   out_of_memory: job and instant of each crash. orphans: node, GPU and instant. given_up: jobs"""

    course: Course
    out_of_memory: tuple[tuple[str, int], ...]
    orphans: tuple[tuple[str, int, int], ...]
    given_up: tuple[str, ...]


class Bypass(Protocol):
    """A world without the scheduler."""

    name: str

    def run(self, nodes: Sequence[NodeJoined], jobs: Sequence[TraceJob]) -> Outcome: ...


class Manual:
    name = "manual"

    def __init__(self, settings: Settings, seed: int) -> None:
        self._settings = settings
        self._seed = seed

    def run(self, nodes: Sequence[NodeJoined], jobs: Sequence[TraceJob]) -> Outcome:
        """The course of all of it, until the last job has ended or was given up."""
        return _Shop(self._settings, self._seed, nodes, jobs).run()


class _Run:
    """A job of somebody, with where it is now in it."""

    __slots__ = (
        "attempt", "cards", "crashes", "done", "generation", "looks", "memory", "pace", "pieces", "record", "shares",
        "since", "traced",
    )  # fmt: skip

    def __init__(self, traced: TraceJob, record: JobRecord, memory: float) -> None:
        self.traced = traced
        self.record = record
        self.memory = memory
        self.attempt = 0
        self.crashes = 0
        self.looks = 0
        self.generation = 0
        self.cards: list[Card] = []
        self.shares: tuple[Share, ...] = ()
        self.pieces: list[tuple[int, int, tuple[Share, ...], float]] = []
        self.done = 0.0
        self.since = 0
        self.pace = 1.0


class _Shop:
    def __init__(self, settings: Settings, seed: int, nodes: Sequence[NodeJoined], jobs: Sequence[TraceJob]) -> None:
        self._site = settings
        self._seed = seed
        self._nodes = [node for node in nodes if node.gpus]
        self._tenants: dict[Card, dict[str, None]] = {
            (at, gpu): {} for at, node in enumerate(self._nodes) for gpu in range(node.gpus)
        }
        self._orphaned: dict[Card, int] = {}
        self._heap: list[tuple[int, int, partial[None]]] = []
        self._count = 0
        self._runs: dict[str, _Run] = {}
        self._waiting = 0
        self._running: dict[str, None] = {}
        self._oom: list[tuple[str, int]] = []
        self._orphans: list[tuple[str, int, int]] = []
        self._given_up: list[str] = []
        submits = [traced.submit_s for traced in jobs]
        self._course = Course(
            policy="manual", nodes=tuple((node.node, node.gpus) for node in nodes), start=min(submits, default=0),
            end=max(submits, default=0),
        )  # fmt: skip
        for traced in jobs:
            self._submit(traced)

    def _at(self, at: int, action: "partial[None]") -> None:
        self._count += 1
        heappush(self._heap, (at, self._count, action))

    def _submit(self, traced: TraceJob) -> None:
        job = traced.job
        record = JobRecord(
            id=job.id, gpus=job.gpus, submit=traced.submit_s, milli=job.gpu_milli, tier=job.tier, segments=[]
        )
        self._course.jobs.append(record)
        own = stream(self._seed, "memory", job.id)
        memory = min(1.0, own.lognormal(self._site.memory, self._site.sigma))
        cards = [node.gpu_memory for node in self._nodes if node.gpu_memory]
        if job.gpu_memory and cards:
            memory = min(1.0, job.gpu_memory / min(cards))
        self._runs[job.id] = _Run(traced, record, memory)
        self._at(traced.submit_s, partial(self._come, job.id))

    def run(self) -> Outcome:
        while self._heap:
            now, _, action = heappop(self._heap)
            action(now=now)
            if not self._heap or self._heap[0][0] > now:
                self._sample(now)
        return Outcome(
            course=self._course, out_of_memory=tuple(self._oom), orphans=tuple(self._orphans),
            given_up=tuple(self._given_up),
        )  # fmt: skip

    # -- choosing -----------------------------------------------------------------------------------------------------

    def _come(self, id: str, now: int) -> None:
        """Somebody wants to start."""
        run = self._runs[id]
        if not run.traced.job.gpus or run.traced.job.gpus > len(self._tenants):
            # Work for CPUs is nobody's trouble here, and what no node has cannot be picked.
            self._give_up(run)
            return
        own = stream(self._seed, id, run.attempt, run.looks)
        first = own.whole(0, len(self._nodes) - 1)
        looks = stream(self._seed, "looks", id).random() < self._site.look
        found = self._free(run.traced.job.gpus, first) if looks else None
        if found is None and looks and run.looks < self._site.tries:
            run.looks += 1
            self._waiting += run.looks == 1
            self._at(now + self._site.recheck, partial(self._come, id))
            return
        self._waiting -= bool(run.looks)
        run.looks = 0
        self._take(run, found or self._blind(run.traced.job.gpus, first), now)

    def _free(self, gpus: int, first: int) -> list[Card] | None:
        """Cards that look free, whole nodes first and the rest on one more."""
        chosen: list[Card] = []
        for at in self._around(first):
            size = self._nodes[at].gpus
            need = min(gpus - len(chosen), size)
            seem = [(at, gpu) for gpu in range(size) if self._seems_free((at, gpu))]
            if len(seem) >= need:
                chosen += seem[:need]
            if len(chosen) == gpus:
                return chosen
        return None

    def _seems_free(self, card: Card) -> bool:
        return not self._tenants[card] and card not in self._orphaned

    def _blind(self, gpus: int, first: int) -> list[Card]:
        """The first cards of a node, as one types 0,1."""
        cards = [(at, gpu) for at in self._around(first) for gpu in range(self._nodes[at].gpus)]
        return cards[:gpus]

    def _around(self, first: int) -> list[int]:
        return [*range(first, len(self._nodes)), *range(first)]

    # -- running ------------------------------------------------------------------------------------------------------

    def _take(self, run: _Run, cards: list[Card], now: int) -> None:
        id = run.record.id
        run.cards, run.done, run.pieces, run.since = cards, 0.0, [], now
        run.attempt += 1
        self._running[id] = None
        full: dict[str, None] = {}
        for card in cards:
            held = sum(self._runs[other].memory for other in self._tenants[card])
            if card in self._orphaned or held + run.memory > 1.0 + 1e-9:
                full.update(dict.fromkeys(self._tenants[card]))
                full[id] = None
            self._tenants[card][id] = None
        self._change(cards, now)
        if full:
            self._crash_one(run, [other for other in full if other != id], now)

    def _crash_one(self, run: _Run, others: list[str], now: int) -> None:
        """Memory is full: the newcomer crashes, or one that was there before it."""
        own = stream(self._seed, run.record.id, "full", run.attempt)
        victim = run
        if others and own.random() < self._site.robs:
            victim = self._runs[others[own.whole(0, len(others) - 1)]]
        # What is short crashes all the same.
        after = min(self._site.crash, max(1, (victim.traced.duration_s or 0) // 2))
        self._at(now + after, partial(self._crash, victim.record.id, victim.attempt))

    def _crash(self, id: str, attempt: int, now: int) -> None:
        run = self._runs[id]
        if run.attempt != attempt or not run.cards:
            return
        self._oom.append((id, now))
        run.crashes += 1
        self._leave(run, now, "failed")
        if run.crashes > self._site.retries:
            self._give_up(run)
            return
        run.record.end = None
        pause = stream(self._seed, id, "pause", run.crashes).exponential(self._site.pause)
        self._at(now + 1 + int(pause), partial(self._come, id))

    def _give_up(self, run: _Run) -> None:
        run.record.outcome = "failed" if run.record.segments else "refused"
        self._given_up.append(run.record.id)

    def _finish(self, id: str, generation: int, now: int) -> None:
        run = self._runs[id]
        if run.generation != generation:
            return
        cards = run.cards
        self._leave(run, now, "ended")
        run.record.outcome = "completed"
        own = stream(self._seed, id, "orphan")
        if own.random() < self._site.orphan:
            for card in cards:
                self._orphaned[card] = now + self._site.cleaned
                self._orphans.append((self._nodes[card[0]].node, card[1], now))
                self._at(now + self._site.cleaned, partial(self._clean, card))

    def _clean(self, card: Card, now: int) -> None:
        if self._orphaned.get(card, now + 1) <= now:
            del self._orphaned[card]

    def _leave(self, run: _Run, now: int, how: End) -> None:
        self._settle(run, now)
        cards, run.cards = run.cards, []
        run.generation += 1
        for card in cards:
            self._tenants[card].pop(run.record.id, None)
        del self._running[run.record.id]
        for at, (start, end, shares, pace) in enumerate(run.pieces):
            slow: tuple[tuple[Loss, float], ...] = (("sharing", (end - start) * (1.0 - pace)),) if pace < 1.0 else ()
            piece: End = how if at == len(run.pieces) - 1 else "running"
            run.record.segments.append(Segment(start, end, shares, piece, 0.0 if how == "failed" else None, slow))
        if run.record.first_start is None:
            run.record.first_start = run.pieces[0][0] if run.pieces else now
        run.record.end = now
        self._change(cards, now)

    def _change(self, cards: Sequence[Card], now: int) -> None:
        """Who is on these cards runs at another pace from now on."""
        touched: dict[str, None] = {}
        for card in cards:
            touched.update(self._tenants[card])
        for id in touched:
            run = self._runs[id]
            pace = min(self._pace_on(card) for card in run.cards)
            shares = self._shares(run)
            if shares == run.shares and pace == run.pace and run.since < now:
                continue
            self._settle(run, now)
            run.pace, run.shares = pace, shares
            run.generation += 1
            left = float(run.traced.duration_s or 0) - run.done
            self._at(now + max(0, ceil(left / pace - 1e-9)), partial(self._finish, id, run.generation))

    def _settle(self, run: _Run, now: int) -> None:
        if now > run.since:
            run.pieces.append((run.since, now, run.shares, self._yield_of(run)))
            run.done += (now - run.since) * run.pace
        run.since = now

    def _pace_on(self, card: Card) -> float:
        many = len(self._tenants[card])
        return 1.0 if many <= 1 else 2.0 * self._site.pace / many

    def _yield_of(self, run: _Run) -> float:
        """Its pace on the cards it has alone, as a part of what it holds of all of them."""
        held = sum(share.mask.bit_count() * share.milli for share in run.shares) / WHOLE
        return min(1.0, run.pace * len(run.cards) / held) if held else 1.0

    def _shares(self, run: _Run) -> tuple[Share, ...]:
        masks: dict[tuple[int, int], int] = {}
        for at, gpu in run.cards:
            key = (at, WHOLE // len(self._tenants[at, gpu]))
            masks[key] = masks.get(key, 0) | 1 << gpu
        return tuple(Share(self._nodes[at].node, mask, milli, 0, 0) for (at, milli), mask in masks.items())

    def _sample(self, now: int) -> None:
        busy = sum(1 for tenants in self._tenants.values() if tenants)
        seem = sum(1 for card in self._tenants if self._seems_free(card))
        self._course.samples.append(Sample(now, self._waiting, len(self._running), float(busy), seem))


def build(settings: Mapping[str, str], dice: Dice) -> Bypass:
    """The world with a seed of its own."""
    return Manual(read(Settings, settings, "manual"), seed_of(dice))
