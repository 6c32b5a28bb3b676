"""Starts over time with exact walltimes: the head's start (4), those who rank lower (5), the plan (16), everybody (15).

A small world: jobs known from the beginning or arriving, each runs for its walltime to the second.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuguard.scheduler.check import check
from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import AnyEvent, Ended, NodeJoined, Submitted
from gpuguard.scheduler.plan import Plan, Start
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import Order, Pool, Preemption, Queue, Settings
from gpuguard.scheduler.state import State

EXAMPLES = 40
QUEUES = {"training": Queue()}


def rules(reservations: int, key: str = "fifo", **more: object) -> Settings:
    return Settings(
        queues=QUEUES, reservations=reservations, key=key, topology=False, preemption=Preemption(enabled=False), **more  # type: ignore[arg-type]
    )  # fmt: skip


@st.composite
def jobs(draw: st.DrawFn, least: int = 3, most: int = 14, arriving: bool = True) -> list[tuple[int, Job]]:
    """Jobs with the instants of their submit."""
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0, 0, 0, 50, 130] if arriving else [0]),
                st.sampled_from([1, 2, 4, 4, 6, 8, 12]),
                st.sampled_from([60, 75, 100, 170, 240]),
                st.sampled_from([None, None, 2.0, 6.0]),
            ),
            min_size=least,
            max_size=most,
        )
    )
    rows.sort(key=lambda row: row[0])
    return [
        (at, Job(id=f"j{number:02}", gpus=gpus, walltime=walltime, memory=memory, per="node"))
        for number, (at, gpus, walltime, memory) in enumerate(rows)
    ]


def play(rows: list[tuple[int, Job]], site: Settings, *, early: int = 0) -> tuple[dict[str, int], list[Plan]]:
    """When each job started, and every plan; `early`: seconds by which all end before their walltimes."""
    state = State(site)
    nodes: list[AnyEvent] = [
        NodeJoined(at=0, node=f"n{number}", gpus=4 + 4 * (number % 2), memory=8.0, rack=f"r{number // 2}")
        for number in range(3)
    ]
    heap: list[tuple[int, str, AnyEvent]] = [(at, job.id, Submitted(at=at, job=job)) for at, job in rows]
    lengths = {job.id: job.walltime or 0 for _, job in rows}
    started: dict[str, int] = {}
    plans: list[Plan] = []
    now, wake = 0, None
    events = nodes
    for _ in range(300):
        due = [row for row in heap if row[0] <= now]
        heap = [row for row in heap if row[0] > now]
        events += [event for _, _, event in due]
        state, plan = cycle(state, events, now)
        assert (found := check(state)) == (), found
        plans.append(plan)
        for one in plan.decisions:
            if isinstance(one, Start):
                started[one.job] = now
                end = now + lengths[one.job] - early
                heap.append((end, one.job, Ended(at=end, job=one.job)))
        wake = plan.wake
        coming = [row[0] for row in heap]
        if not heap and not len(state.queue):
            break
        now = min([*coming, *([] if wake is None or not len(state.queue) else [wake])])
        events = []
    assert not len(state.queue), f"15: {sorted(state.queue.entries)} never ran"
    return started, plans


@settings(max_examples=EXAMPLES, deadline=None)
@given(jobs(), st.sampled_from([1, 3]))
def test_4_the_head_starts_when_it_was_first_planned_or_before(rows: list[tuple[int, Job]], reservations: int) -> None:
    """4, 16: a start that was planned for the head comes true or comes earlier, whoever starts or comes meanwhile."""
    started, plans = play(rows, rules(reservations))
    first: dict[str, int] = {}
    for plan in plans:
        for one in plan.reservations[:1]:
            assert one.start <= first.get(one.job, one.start), f"{one.job}: planned later than before"
            first[one.job] = one.start
    for job, start in first.items():
        assert started[job] <= start


@settings(max_examples=EXAMPLES, deadline=None)
@given(jobs(), st.sampled_from(["fifo", "weighted"]), st.booleans())
def test_15_all_run_whatever_the_order(rows: list[tuple[int, Job]], key: str, backfill: bool) -> None:
    """15: finite arrivals, every feasible job starts."""
    started, _ = play(rows, rules(2, key, backfill=backfill, order=Order(patience=500)))
    # 12 GPUs on nodes of 8 lie on two nodes; all of them fit.
    assert len(started) == len(rows)


@settings(max_examples=EXAMPLES, deadline=None)
@given(jobs(most=8, arriving=False))
def test_5_who_ranks_lower_delays_nobody(rows: list[tuple[int, Job]]) -> None:
    """5: with a reservation for everybody and exact walltimes, the last one in order changes no other's start."""
    # A scorer that looks at nothing but the nodes: one that counts what was submitted places others by it.
    site = rules(100, pools={"training": Pool(terms=("tight",))})
    without, _ = play(rows[:-1], site)
    beside, _ = play(rows, site)
    for job, start in without.items():
        assert beside[job] <= start, f"{job} starts at {beside[job]}, and at {start} without {rows[-1][1].id}"


@settings(max_examples=EXAMPLES, deadline=None)
@given(jobs(), st.integers(0, 59))
def test_16_a_job_never_starts_after_what_was_planned_for_it_first_in_line(
    rows: list[tuple[int, Job]], early: int
) -> None:
    """16: ends before the walltime make starts earlier than planned, never later."""
    started, plans = play(rows, rules(1, pools={"training": Pool(placement="spread")}), early=early)
    for plan in plans:
        for one in plan.reservations:
            assert started[one.job] <= one.start
