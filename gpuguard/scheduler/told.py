"""What was told, folded into the state: one method for each kind of event. Simultaneous events are put in one order.

What ends comes before what is submitted, nodes before jobs, so that one instant has one meaning whatever order it was
told in. An event about a job or node that nobody knows (any more) changes nothing: it was told twice, or too late.
"""

from collections.abc import Iterable
from typing import assert_never

from gpuguard.scheduler.cluster import Place
from gpuguard.scheduler.dependencies import Change
from gpuguard.scheduler.events import (
    AnyEvent,
    Cancelled,
    Checkpointed,
    Cleaned,
    ConditionMet,
    Diagnosed,
    DrainAsked,
    DrainLifted,
    Ended,
    ExtensionAsked,
    HeartbeatBack,
    HeartbeatLost,
    Hung,
    NodeJoined,
    NodeLeft,
    NodeLost,
    OrphanFound,
    Prepared,
    Progressed,
    Submitted,
)
from gpuguard.scheduler.nodes import Ends, NodeEvent, born, fold
from gpuguard.scheduler.outcomes import classify_end
from gpuguard.scheduler.plan import Alert, AnyDecision, Extend, Finish, Kill, Refuse, Release, Requeue
from gpuguard.scheduler.queue import UNBOUNDED, Entry
from gpuguard.scheduler.settings import MINUTE
from gpuguard.scheduler.state import Running, State

_FOR_GOOD = {"cancel": "cancelled", "walltime": "timeout", "session": "timeout"}
"""Why a job was told to end and does not come back, whatever else happens until it is gone."""

FRESH = 10 * MINUTE
"""A checkpoint older than this does not prove that an extension would not be lost. Source: saves every 5 to 10 min."""


class Told:
    """One instant's events, on their way into the state."""

    def __init__(self, state: State, decisions: list[AnyDecision], clock: int) -> None:
        self._state = state
        self._clock = clock
        self._decisions = decisions
        self.fresh: list[Entry] = []

    def fold(self, events: Iterable[AnyEvent]) -> None:
        state = self._state
        joined: list[NodeJoined] = []
        submitted: list[Submitted] = []
        for event in in_order(events):
            if isinstance(event, NodeJoined):
                joined.append(event)
                continue
            if joined:
                self._join(joined)
                joined = []
            match event:
                case NodeLeft():
                    self._leave(event)
                case (
                    DrainAsked() | DrainLifted() | Diagnosed() | HeartbeatLost() | HeartbeatBack() | NodeLost()
                    | OrphanFound() | Cleaned()
                ):  # fmt: skip
                    self._node(event)
                case Prepared():
                    if event.job in state.running:
                        state.records[event.job].is_prepared(event.at)
                case Progressed():
                    if event.job in state.running:
                        state.records[event.job].progresses(event.at)
                case Checkpointed():
                    run = state.running.get(event.job)
                    if run is not None and event.complete and event.at >= run.started:
                        run.checkpointed = max(event.at, run.checkpointed or 0)
                case ExtensionAsked():
                    self._extend(event)
                case Ended():
                    self._ended(event)
                case Hung():
                    self._hung(event)
                case Cancelled():
                    self._cancel(event)
                case ConditionMet():
                    self._changed(state.dependencies.told(event.name, event.met))
                case Submitted():
                    submitted.append(event)
                case _:
                    assert_never(event)
        if joined:
            self._join(joined)
        if submitted:
            self._submit(submitted)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _join(self, joined: list[NodeJoined]) -> None:
        state = self._state
        for event in joined:
            before = state.joined.get(event.node)
            if before is not None and before.gpus != event.gpus:
                # Another machine under the same name: what ran on the old one is gone.
                self._remove(event.node, f"{event.node} came back with {event.gpus} GPUs")
            state.joined[event.node] = event
        state.rebuild()
        for event in joined:
            life = state.lives.get(event.node)
            if life is None or life.gpus != event.gpus:
                state.live(born(event))
            else:
                found = fold(life, event, state.settings.care)
                self._decisions.extend(found.decisions)
                state.live(found.life)

    def _leave(self, event: NodeLeft) -> None:
        state = self._state
        if event.node not in state.joined:
            return
        self._remove(event.node, f"{event.node} was taken out of the cluster")
        del state.joined[event.node]
        state.lives.pop(event.node, None)
        state.rebuild()

    def _remove(self, node: str, why: str) -> None:
        """Nobody has a place on the node any more, nor is one kept there."""
        for run in self._on(node, None):
            if len(run.places) > 1:
                self._decisions.append(Kill(rule="node_left", job=run.job.id, why=why, cause=node))
            self._over(run, "lost", "node_left", why)
        for job in [job for job, held in self._state.holes.items() if self._meets(held.places, node)]:
            self.release(job, why)

    def _meets(self, places: Iterable[Place], node: str) -> bool:
        number = self._state.cluster.index.get(node)
        return any(place.node == number for place in places)

    def _node(self, event: NodeEvent) -> None:
        state = self._state
        life = state.lives.get(event.node)
        if life is None:
            return
        found = fold(life, event, state.settings.care)
        self._decisions.extend(found.decisions)
        state.live(found.life)
        if found.ends is not None:
            if isinstance(event, NodeLost) or (isinstance(event, Diagnosed) and found.ends.mask is None):
                self._lose(event.node, found.ends.rule, found.ends.why, found.ends.until)
            else:
                self._end(found.ends)

    def _on(self, node: str, mask: int | None, until: int | None = None) -> list[Running]:
        """The jobs on these GPUs of the node, or on any of it."""
        state = self._state
        number = state.cluster.index.get(node)
        if number is None:
            return []
        tenants = state.cluster.tenants[number]
        return [
            state.running[job]
            for job in sorted(tenants)
            if (mask is None or tenants[job].place.mask & mask)
            and (until is None or state.running[job].started <= until)
        ]

    def _lose(self, node: str, rule: str, why: str, until: int | None = None) -> None:
        """What ran there is gone. A job that is also elsewhere is ended there first: its GPUs are not free before."""
        for run in self._on(node, None, until):
            run.lost[node] = None
            if all(self._state.cluster.names[place.node] in run.lost for place in run.places):
                self._over(run, "lost", rule, why)
            else:
                self.kill(run, "lost", rule, why, node)

    def _end(self, ends: Ends) -> None:
        for run in self._on(ends.node, ends.mask, ends.until):
            self.kill(run, "drain", ends.rule, ends.why, ends.cause)

    # -- running jobs -------------------------------------------------------------------------------------------------

    def _run(self, job: str, at: int, number: int | None = None) -> Running | None:
        """The run that an event of this instant is about; None: there is none, or it was told too late, of one before.

        Where the caller's clock was set back, instants before the start say nothing.
        """
        run = self._state.running.get(job)
        if run is not None and number is not None:
            return run if number == run.entry.runs else None
        return None if run is not None and at < run.started <= self._clock else run

    def kill(self, run: Running, word: str, rule: str, why: str, cause: str = "") -> None:
        """The job is told to end, once, and its places count as taken until it is seen to be gone."""
        state = self._state
        if run.signalled is not None:
            return
        grace = state.settings.preemption.grace
        run.signalled, run.why = state.now, word
        state.promise(run, state.now + grace)
        self._decisions.append(Kill(rule=rule, job=run.job.id, grace=grace, why=why, cause=cause))

    def _hung(self, event: Hung) -> None:
        run = self._run(event.job, event.at, event.run)
        if run is not None:
            culprit = f"; {event.culprit} holds it up" if event.culprit else ""
            self.kill(run, "hung", "hung", f"it makes no progress{culprit}")

    def _extend(self, event: ExtensionAsked) -> None:
        state = self._state
        run = self._run(event.job, event.at)
        if run is None or run.signalled is not None or event.seconds <= 0:
            return
        end = run.end + event.seconds
        no = self._not_longer(run, end, event.at)
        if no:
            self._decisions.append(Alert(rule="not_extended", about=event.job, why=no, cause=event.job))
            return
        state.promise(run, end)
        self._decisions.append(Extend(rule="extended", job=event.job, until=end, why="it has a fresh checkpoint"))

    def _not_longer(self, run: Running, end: int, at: int) -> str:
        state, job = self._state, run.job
        if run.entry.length >= UNBOUNDED:
            return "it has no walltime to extend"
        if not (job.extends and job.checkpoints):
            return "it did not say at submit that its checkpoints let it run on (extends)"
        if run.checkpointed is None or at - run.checkpointed > FRESH:
            return f"it has no complete checkpoint of the last {FRESH // MINUTE} min"
        queue = state.settings.queues[job.queue]
        if queue.limit is not None and end - run.started > queue.limit + queue.extension:
            return f"queue {job.queue} lets a job run {queue.limit + queue.extension} s"
        session = state.settings.tiers[job.tier].session
        if session is not None and end - run.started > session:
            return f"a session of tier {job.tier} lasts {session} s"
        # By names: what was planned stands although the cluster has changed since.
        names = {state.cluster.names[place.node] for place in run.places}
        for planned in state.planned:
            if run.end <= planned.start < end and not names.isdisjoint(planned.nodes):
                return f"its GPUs are reserved for job {planned.job} by then"
        return ""

    def _ended(self, event: Ended) -> None:
        run = self._run(event.job, event.at, event.run)
        if run is None:
            return
        job = run.job
        preempted = run.signalled if run.why == "preempt" else None
        how: str = classify_end(event.code, event.signal, event.proof, preempted, job.proof, event.at)
        rule = {"completed": "exit", "failed": "nonzero_exit", "suspicious": "no_proof", "preempted": "preempted"}[how]
        why = f"signal {event.signal}" if event.signal else f"exit {event.code}"
        if run.why in _FOR_GOOD and how != "completed":
            how, rule = _FOR_GOOD[run.why], run.why
        elif run.why == "hung" and how != "completed":
            how, rule = "hung", "hung"
        elif run.why in {"drain", "lost"} and how != "completed":
            how, rule = "lost", run.why
        self._over(run, how, rule, why)

    def _over(self, run: Running, how: str, rule: str, why: str) -> None:
        """The job has left its places: it is done, or it goes back to the queue with its id, age and charge."""
        state, job, entry = self._state, run.job, run.entry
        if how == "lost" and run.why in _FOR_GOOD:
            how, rule = _FOR_GOOD[run.why], run.why
        state.stop(job.id, how)
        for held in state.holes.values():
            held.hole = held.hole.without(job.id)
        saved = run.checkpointed is not None
        if how == "preempted":
            state.last_yield[job.id] = (state.now, state.last_yield.get(job.id, (0, 0))[1] + 1)
        again = how == "preempted" or (
            (how in {"lost", "hung"} or (how in {"failed", "suspicious"} and job.checkpoints))
            and entry.restarts < job.requeues
        )
        if not again:
            outcome = {"hung": "failed", "lost": "node_lost"}.get(how, how)
            self._decisions.append(Finish(rule=rule, job=job.id, outcome=outcome, why=why))
            state.finish(job.id, outcome)
            self._changed(state.dependencies.ended(job.id, outcome == "completed"))
            return
        entry.runs += 1
        entry.restarts += how != "preempted"
        entry.resume = entry.resume or saved
        entry.could_since = None
        self._decisions.append(Requeue(rule=rule, job=job.id, resume=entry.resume, why=why))
        change = state.dependencies.requeued(job.id)
        if job.id in change.held:
            state.wait(entry)
        else:
            state.enqueue(entry)
            self.fresh.append(entry)
        self._changed(
            Change(
                eligible=tuple(one for one in change.eligible if one != job.id),
                held=tuple(one for one in change.held if one != job.id),
                never=change.never,
            )
        )

    # -- jobs that wait -----------------------------------------------------------------------------------------------

    def _submit(self, submitted: list[Submitted]) -> None:
        state = self._state
        instant: dict[str, int] = {}
        jobs = []
        for event in submitted:
            if state.job(event.job.id) == event.job:
                continue  # told twice
            instant.setdefault(event.job.id, event.at)
            jobs.append(event.job)
        admitted = state.admission.admit(jobs, state)
        for job, mistakes in admitted.refused:
            self._decisions.append(
                Refuse(rule=mistakes[0].rule, job=job.id, why=" ".join(f"{one.why} {one.step}" for one in mistakes))
            )
        for job in admitted.taken:
            entry = state.submit(job, instant[job.id])
            standing = state.dependencies.add(job, self._outcome)
            if standing == "never":
                self._never(job.id, "a parent", entry)
            elif standing == "waits":
                state.waiting[job.id] = entry
            else:
                state.enqueue(entry)
                self.fresh.append(entry)

    def _outcome(self, job: str) -> bool | None:
        return self._state.outcomes.get(job)

    def _never(self, job: str, parent: str, entry: Entry | None = None) -> None:
        state = self._state
        if entry is None:
            state.waiting.pop(job, None)
        self._decisions.append(
            Finish(rule="never", job=job, outcome="cancelled", why=f"{parent} did not complete", cause=parent)
        )
        state.finish(job, "cancelled")

    def _cancel(self, event: Cancelled) -> None:
        state = self._state
        run = state.running.get(event.job)
        by = f"by {event.by}" if event.by else ""
        if run is not None:
            if run.signalled is not None:
                # It leaves already, for whatever reason; it shall not come back.
                run.why = "cancel"
            self.kill(run, "cancel", "cancelled", by)
            return
        if event.job in state.queue:
            state.queue.remove(event.job)
            state.stale = True
        elif state.waiting.pop(event.job, None) is None:
            return
        if event.job in state.holes:
            self.release(event.job, "it was cancelled")
        self._decisions.append(Finish(rule="cancelled", job=event.job, outcome="cancelled", why=by))
        state.finish(event.job, "cancelled")
        self._changed(state.dependencies.ended(event.job, False))

    def release(self, job: str, why: str) -> None:
        """What was held for the job is anybody's again."""
        state = self._state
        for place in state.holes.pop(job).places:
            state.cluster.unhold(place)
        state.stale = True
        self._decisions.append(Release(rule="hold_over", job=job, why=why))

    def _changed(self, change: Change) -> None:
        """Dependencies came true, or will not any more."""
        state = self._state
        for job in change.held:
            if job in state.queue:
                state.wait(state.queue.remove(job))
                state.stale = True
        for job in change.eligible:
            entry = state.waiting.pop(job, None)
            if entry is not None:
                # Age does not grow while a job waits for others.
                entry.submitted += max(0, state.now - entry.waits_since)
                state.enqueue(entry)
                self.fresh.append(entry)
        for job, parent in change.never:
            self._never(job, f"job {parent}")


def in_order(events: Iterable[AnyEvent]) -> list[AnyEvent]:
    """The events in the one order in which they are folded, however they came."""
    ordered = sorted(events, key=order_of)
    place = 0
    while place < len(ordered):
        after = place + 1
        while after < len(ordered) and order_of(ordered[after]) == order_of(ordered[place]):
            after += 1
        # What is printed is the whole event: only equal ones are equal there. It is dear, so the few that need it.
        if after > place + 1:
            ordered[place:after] = sorted(ordered[place:after], key=repr)
        place = after
    return ordered


def order_of(event: AnyEvent) -> tuple[int, int, str, str]:
    """Where an event stands among those of one pass: by its kind, then when, whom and what exactly."""
    match event:
        case Checkpointed():
            # First of all: what a job saved counts for it when its node is lost in the same pass.
            return (0, event.at, event.job, repr(event))
        case NodeJoined() | NodeLeft():
            return (1, event.at, event.node, "")
        case NodeLost() | Diagnosed() | HeartbeatLost() | HeartbeatBack() | OrphanFound() | Cleaned():
            return (2, event.at, event.node, repr(event))
        case DrainAsked() | DrainLifted():
            return (2, event.at, event.node, repr(event))
        case Prepared() | Progressed():
            return (3, event.at, event.job, repr(event))
        case ExtensionAsked():
            return (4, event.at, event.job, repr(event))
        case Ended() | Hung():
            return (5, event.at, event.job, "")
        case Cancelled():
            return (6, event.at, event.job, event.by)
        case ConditionMet():
            return (7, event.at, event.name, "")
        case Submitted():
            return (8, event.at, event.job.id, "")
        case _:
            assert_never(event)
