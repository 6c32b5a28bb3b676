"""After any pass every waiting job has a cause that is true, a row that adds up, and its GPU time is counted once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import AnyEvent, Checkpointed, Ended, NodeJoined, Progressed, Submitted
from gpuguard.scheduler.forecast import forecast
from gpuguard.scheduler.plan import Preempt, Start
from gpuguard.scheduler.reasons import Reasons
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import HOUR, MINUTE, Pool, Preemption, Settings
from gpuguard.scheduler.standing import PARTS, position
from gpuguard.scheduler.state import State

CAUSES = {"reserved", "room", "beside", "window", "network", "power", "held", "drained"}

jobs: st.SearchStrategy[dict[str, object]] = st.builds(
    dict,
    gpus=st.sampled_from([1, 2, 4, 8, 12, 16, 24]),
    walltime=st.sampled_from([HOUR // 2, HOUR, 5 * HOUR, 30 * HOUR]),
    level=st.sampled_from(["high", "normal", "low"]),
    tier=st.sampled_from(["training", "batch"]),
    user=st.sampled_from(["u", "v"]),
    checkpoints=st.booleans(),
    late=st.integers(0, 3 * HOUR),
    part=st.sampled_from([0.1, 0.5, 1.0]),
)


@settings(max_examples=25, deadline=None)
@given(
    asked=st.lists(jobs, min_size=1, max_size=25),
    reservations=st.sampled_from([0, 1, 5]),
    watts=st.sampled_from([None, 1500.0]),
    wait=st.sampled_from([0, HOUR]),
)
def test_every_waiting_job_is_explained(
    asked: list[dict[str, object]], reservations: int, watts: float | None, wait: int
) -> None:
    site = Settings(
        reservations=reservations,
        preemption=Preemption(least_run=MINUTE),
        pools={"training": Pool(watts=watts, wait=wait), "interactive": Pool()},
    )
    state = State(site)
    agenda: dict[int, list[AnyEvent]] = {
        0: [
            NodeJoined(at=0, node=f"n{number}", gpus=8, cpus=64.0, rack=f"r{number // 2}", watts=700.0)
            for number in range(4)
        ]
    }
    parts: dict[str, float] = {}
    for number, one in enumerate(asked):
        facts = {name: value for name, value in one.items() if name not in {"late", "part"}}
        job = Job(id=f"j{number}", **facts)  # type: ignore[arg-type] # drawn by name
        at, part = one["late"], one["part"]
        assert isinstance(at, int)
        assert isinstance(part, float)
        parts[job.id] = part
        agenda.setdefault(at, []).append(Submitted(at=at, job=job))
    held = 0
    before: dict[str, int] = {}
    last = 0
    for _ in range(150):
        if not agenda:
            break
        now = min(agenda)
        held += state.allocated * (now - last)
        last = now
        events = [
            event for event in agenda.pop(now) if not isinstance(event, Ended) or before.get(event.job) == event.code
        ]
        events = [Ended(at=now, job=event.job) if isinstance(event, Ended) else event for event in events]
        _, plan = cycle(state, events, now)
        for decision in plan.decisions:
            if isinstance(decision, Start):
                job = state.running[decision.job].job
                before[job.id] = before.get(job.id, 0) + 1
                ran = max(2, round((job.walltime or 0) * parts[job.id]))
                agenda.setdefault(now + 1, []).append(Progressed(at=now + 1, job=job.id))
                agenda.setdefault(now + ran // 2, []).append(Checkpointed(at=now + ran // 2, job=job.id))
                agenda.setdefault(now + ran, []).append(Ended(at=now + ran, job=job.id, code=before[job.id]))
            elif isinstance(decision, Preempt):
                agenda.setdefault(now + 10, []).append(Ended(at=now + 10, job=decision.job, code=before[decision.job]))
        told = {one.job: one for one in Reasons(state).all()}
        assert set(told) == set(state.queue.entries) | set(state.waiting)
        assert all(one.rule in CAUSES for one in told.values()), [
            one for one in told.values() if one.rule not in CAUSES
        ]
        foretold = forecast(state)
        assert set(foretold) == set(told)
        for entry in state.queue.in_order():
            found = position(state, entry.job.id, shown=0)
            assert found is not None
            row = found.row
            assert abs(row.submitted + HOUR * sum(getattr(row, name) for name in PARTS) - row.counts_from) < 60
    counted = [*state.ended, *state.records.values()]
    assert (
        sum(one.used + one.idle + one.lost_failure + one.lost_preemption for one in counted)
        + sum((last - run.started) * run.gpus for run in state.running.values())
        == held
    )
