"""Making room: who leaves for the first of those who wait and may ask for it, and what is kept for it meanwhile.

`preemption` suggests who; here its question is put together from the state, and its answer enacted.
"""

from collections.abc import Sequence

import numpy as np

from gpuguard.scheduler.cluster import Ask, Cluster, Place
from gpuguard.scheduler.cover import Ground, Part
from gpuguard.scheduler.hole import opened
from gpuguard.scheduler.plan import AnyDecision, Hold, Preempt, Share
from gpuguard.scheduler.preemption import Candidate, Choice, Need, choose
from gpuguard.scheduler.queue import Entry
from gpuguard.scheduler.ranks import may_preempt, rank
from gpuguard.scheduler.request import WHOLE, Level
from gpuguard.scheduler.settings import HOUR
from gpuguard.scheduler.state import Held, Running, State


class Room:
    """One job's question to those who run."""

    def __init__(self, state: State, entry: Entry, level: Level) -> None:
        self._state = state
        self._entry = entry
        self.rank = rank(entry.job, state.settings, level)
        self._chunks = entry.shape.terms.chunks
        self._gone: dict[str, Running] = {}

    @staticmethod
    def could(state: State, entry: Entry, level: Level) -> bool:
        """There is anybody at all who would have to yield to it."""
        if not any(state.yielding.values()) or not may_preempt(entry.job, state.settings):
            return False
        mine = rank(entry.job, state.settings, level)
        return any(count > 0 and other > mine for other, count in state.yielding.items())

    def make(self, decisions: list[AnyDecision]) -> str:
        """Those who leave are told so, and their places are kept; or why not, in words."""
        state, job = self._state, self._entry.job
        if job.shares:
            return "a part of a GPU is not worth somebody's whole job"
        self._gone = {run.job.id: run for run in state.running.values() if run.why == "preempt"}
        candidates = self._candidates()
        if not candidates:
            return "nobody may go"
        rooms = self._rooms()
        if not rooms:
            return "no nodes that it may use"
        parts = [
            Part(nodes=chunk.nodes, gpus=chunk.ask.gpus, cpus=chunk.ask.amounts[0], memory=chunk.ask.amounts[1])
            for chunk in self._chunks
        ]
        rules = state.settings.preemption
        found = choose(
            Need(rank=self.rank, parts=tuple(parts), rooms=rooms), candidates, self._fits, state.now, rules,
            state.budget.left(state.now, rules),
        )  # fmt: skip
        if not isinstance(found, Choice):
            return str(found)
        self._enact(found, decisions)
        return ""

    def again(self) -> int | None:
        """When somebody may go who may not yet, though nothing else happens until then."""
        state = self._state
        rules = state.settings.preemption
        at = [when + HOUR for when, _ in state.budget.spent]
        for run in state.running.values():
            if run.rank > self.rank and run.signalled is None and run.job.may_be_preempted:
                yielded = state.last_yield.get(run.job.id)
                at += [run.started + rules.least_run, 0 if yielded is None else yielded[0] + rules.cooldown]
        return min((when for when in at if when > state.now), default=None)

    def _candidates(self) -> list[Candidate]:
        state = self._state
        found = []
        nodes = state.cluster.nodes
        weights = {kind: round(state.share.tariff.weight(kind) * WHOLE) for kind in state.cluster.kinds}
        for run in state.running.values():
            if run.rank <= self.rank or run.signalled is not None:
                continue
            yielded = state.last_yield.get(run.job.id)
            weight = sum(
                place.mask.bit_count() * place.milli * weights[nodes[place.node].gpu_type] for place in run.places
            )
            found.append(
                Candidate(
                    id=run.job.id, rank=run.rank, tier=run.job.tier, checkpoints=run.job.checkpoints,
                    yields=run.job.may_be_preempted, started=run.started,
                    saved=run.started if run.checkpointed is None else run.checkpointed, weight=weight // WHOLE,
                    preempted=None if yielded is None else yielded[0], times=0 if yielded is None else yielded[1],
                    shares=state.shares(run.places),
                )
            )  # fmt: skip
        return found

    def _rooms(self) -> list[list[Ground]]:
        """The nodes it may use, by rack, by pod and all, nearest first."""
        state, cluster = self._state, self._state.cluster
        ask = self._chunks[0].ask
        able = cluster.able(ask)
        # What is reserved for others is not taken for this one.
        able = able & ~state.bookings.booked
        nodes = np.nonzero(able)[0].tolist()
        grounds = {node: self._ground(cluster, node) for node in nodes}
        if self._entry.shape.nodes == 1 or not cluster.has_racks:
            return [list(grounds.values())] if grounds else []
        rooms: list[list[Ground]] = []
        tables = [cluster.by_rack, cluster.by_pod]
        within = self._entry.shape.terms.within
        if self._entry.shape.terms.required:
            tables = tables[: 1 if within == "rack" else 2]
        for table in tables:
            rooms.extend(
                room
                for row in table.tolist()
                if len(room := [grounds[node] for node in row if node in grounds]) >= self._entry.shape.nodes
            )
        pool = state.settings.pools.get(ask.pool)
        if not self._entry.shape.terms.required and (pool is None or pool.spans):
            rooms.append(list(grounds.values()))
        return rooms

    def _ground(self, cluster: Cluster, node: int) -> Ground:
        """What is free there already, and what those leave who are on their way out, for nobody in particular."""
        free, (cpus, memory, *_) = self._left(cluster, node, ())
        whole = cluster.milli[node].tolist()
        shared = any(0 < milli < WHOLE for milli in whole)
        return Ground(
            node=cluster.names[node],
            usable=cluster.good[node] & ~cluster.held[node],
            free=free,
            loads=tuple(whole) if shared else (),
            cpus=cpus,
            memory=memory,
        )

    def _left(self, cluster: Cluster, node: int, going: Sequence[str]) -> tuple[int, list[int]]:
        """The GPUs, and the RESOURCES, that are free there once these are gone and those already going."""
        free, spare = cluster.free[node], [int(left) for left in cluster.spare[:, node]]
        tenants = cluster.tenants[node]
        for job in [*going, *(job for job in self._gone if job not in going)]:
            tenant = tenants.get(job)
            if tenant is None:
                continue
            if tenant.place.milli >= WHOLE:
                free |= tenant.place.mask & cluster.good[node] & ~cluster.held[node]
            spare = [left + amount for left, amount in zip(spare, tenant.place.amounts, strict=True)]
        return free, spare

    def _fits(self, ids: tuple[str, ...], nodes: tuple[str, ...]) -> tuple[Place, ...] | None:
        """Where the job goes on these nodes when these are gone too."""
        cluster = self._state.cluster
        left = [cluster.index[name] for name in nodes]
        places: list[Place] = []
        for chunk in self._chunks:
            for _ in range(chunk.nodes):
                found = next((node for node in left if self._holds(cluster, node, chunk.ask, ids)), None)
                if found is None:
                    return None
                left.remove(found)
                free, _ = self._left(cluster, found, ids)
                mask = cluster.wiring[found].pick(free, chunk.ask.gpus)
                milli = WHOLE if chunk.ask.gpus else 0
                places.append(Place(found, mask, milli, chunk.ask.amounts, alone=chunk.ask.alone))
        return tuple(places)

    def _holds(self, cluster: Cluster, node: int, ask: Ask, ids: Sequence[str]) -> bool:
        free, spare = self._left(cluster, node, ids)
        if free.bit_count() < ask.gpus:
            return False
        stay = [job for job in cluster.tenants[node] if job not in ids and job not in self._gone]
        if (stay or cluster.holds[node]) and (ask.alone or cluster.sole[node]):
            return False
        if ask.card_memory and cluster.cards[node] < ask.card_memory:
            return False
        return all(left >= amount for left, amount in zip(spare, ask.amounts, strict=True))

    def _enact(self, found: Choice[tuple[Place, ...]], decisions: list[AnyDecision]) -> None:
        state, job = self._state, self._entry.job.id
        rules = state.settings.preemption
        state.budget = state.budget.charged(state.now, found.gpus)
        leaving = list(found.victims)
        for name in found.victims:
            run = state.running[name]
            run.signalled, run.why = state.now, "preempt"
            state.promise(run, state.now + rules.grace)
        for place in found.placement:
            tenants = state.cluster.tenants[place.node]
            leaving += [name for name in self._gone if name in tenants and tenants[name].place.mask & place.mask]
        shares: tuple[Share, ...] = state.shares(found.placement)
        hole = opened(job, shares, leaving, state.now, rules)
        held = state.holes[job] = Held(hole, found.placement, self._entry.span)
        for place in found.placement:
            # What was planned from the node's releases until now is no longer true.
            state.bookings.changed(place.node)
            state.cluster.hold(place, held.end)
        decisions.extend(
            Preempt(rule="room", job=name, preemptor=job, grace=rules.grace, why=found.why, cause=job)
            for name in found.victims
        )
        decisions.append(
            Hold(rule="room", job=job, shares=shares, until=hole.until, victims=hole.leaving, why=found.why, cause=job)
        )
