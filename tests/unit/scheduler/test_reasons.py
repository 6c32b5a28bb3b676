"""Why jobs wait: each rule in a case of its own, made by the real cycle."""

from collections.abc import Iterable, Mapping

from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import AnyEvent, ConditionMet, DrainAsked, NodeJoined, Submitted
from gpuguard.scheduler.reasons import Reason, Reasons, lasting, reason
from gpuguard.scheduler.request import Dependency, Job, Wish
from gpuguard.scheduler.settings import HOUR, Pool, Queue, Settings
from gpuguard.scheduler.state import State


def nodes(count: int, **more: object) -> list[AnyEvent]:
    return [NodeJoined(at=0, node=f"n{number}", gpus=8, **more) for number in range(count)]  # type: ignore[arg-type] # a node's own fields


def job(id: str, gpus: int = 8, walltime: int = HOUR, **more: object) -> Job:
    return Job(id=id, gpus=gpus, walltime=walltime, **more)  # type: ignore[arg-type] # a job's own fields


def site(*events: AnyEvent, settings: Settings | None = None, jobs: Iterable[Job] = ()) -> State:
    """A cluster that was told these, and the jobs one after the other, a second apart."""
    state = State(settings)
    cycle(state, events, 0)
    for at, one in enumerate(jobs, 1):
        cycle(state, [Submitted(at=at, job=one)], at)
    return state


def on(one: str, *names: str) -> tuple[Dependency, ...]:
    return tuple(Dependency(relation=one, name=name) for name in names)  # type: ignore[arg-type] # a relation's name


def test_parents_are_named_with_what_they_do() -> None:
    state = site(*nodes(1), jobs=[job("a"), job("b"), job("c", after=on("afterok", "a", "b"))])
    found = reason(state, "c")
    assert (found.rule, found.jobs) == ("parents", ("a", "b"))
    assert "job a has completed (runs, for 59 min at most), and waits until job b has completed (queues)" in found.why
    assert found.until is None, "nobody knows when b starts"
    alone = site(*nodes(1), jobs=[job("a"), job("c", after=on("afterok", "a"))])
    found = reason(alone, "c")
    assert found.until == 1 + HOUR
    cycle(alone, nodes(1), 61)  # a pass over all: places are planned for those whose parents run
    found = reason(alone, "c")
    assert (
        found.why
        == "it waits until job a has completed (runs, for 59 min at most); its place is planned from 59 min on"
    )


def test_a_condition_and_a_singleton_are_named() -> None:
    state = site(
        *nodes(2), jobs=[job("a", name="x"), job("b", name="x", after=on("singleton", "x")),
                         job("c", after=on("condition", "model"))],
    )  # fmt: skip
    assert reason(state, "b").rule == "singleton"
    found = reason(state, "c")
    assert (found.rule, found.why) == ("condition", "it waits until model is told")
    cycle(state, [ConditionMet(at=4, name="model")], 4)
    assert reason(state, "c").rule == "running"


def test_a_reserved_job_knows_its_start_and_whom_it_waits_for() -> None:
    state = site(*nodes(2), jobs=[job("a"), job("b", walltime=2 * HOUR), job("c", gpus=16)])
    found = reason(state, "c")
    assert (found.rule, found.until, found.jobs) == ("reserved", 2 + 2 * HOUR, ("b",))
    assert found.why == "its start is planned in 1 h 59 min at the latest, on n0, n1, once job b has left"


def test_room_says_what_it_wants_and_what_is_free() -> None:
    bare = Settings(reservations=0)
    state = site(*nodes(3), settings=bare, jobs=[job("a"), job("b", 4), job("c", 16), job("d", 16)])
    found = reason(state, "d")
    assert found.rule == "room"
    assert (
        found.why
        == "it wants 2 nodes with 8 free GPUs each: 1 of the 3 that could give it have that now; 1 job before it"
    )
    assert found.facts == {"nodes": 2, "gpus": 8, "free_nodes": 1, "up": 3, "ahead": 1}


def test_cores_missing_beside_free_gpus_are_told() -> None:
    bare = Settings(reservations=0)
    state = site(
        *nodes(1, cpus=16.0), settings=bare, jobs=[job("a", 1, cpus=14.0), job("b", 4)],
    )  # fmt: skip
    found = reason(state, "b")
    assert found.rule == "beside"
    assert "these are free on 1 node, but the 8 cores beside them on 0" in found.why


def test_whose_reservation_it_would_move_is_told() -> None:
    state = site(*nodes(2), jobs=[job("a"), job("b", 16, walltime=10 * HOUR), job("c", 4, walltime=100 * HOUR)])
    found = reason(state, "c")
    assert found.rule in {"window", "reserved"}
    state = site(
        *nodes(2), settings=Settings(reservations=1),
        jobs=[job("a"), job("b", 16, walltime=10 * HOUR), job("c", 4, walltime=100 * HOUR)],
    )  # fmt: skip
    found = reason(state, "c")
    assert (found.rule, found.jobs) == ("window", ("b",))
    assert (
        "there is room on n1, but it may run 4 d 4 h and would move the start of job b, planned in 59 min" in found.why
    )


def test_a_job_that_waits_for_one_rack_says_how_long() -> None:
    pools = {"training": Pool(wait=1200), "interactive": Pool()}
    racks = [NodeJoined(at=0, node=f"n{number}", gpus=8, rack=f"r{number // 2}") for number in range(4)]
    fill = [job("a"), job("b", 16, wish=Wish(within="any")), job("c", 16)]
    state = site(*racks, settings=Settings(pools=pools, reservations=0, key="fifo"), jobs=fill[:1])
    cycle(state, [DrainAsked(at=2, id="d", node="n2", severity="confirmed", seen=2)], 2)
    cycle(state, [Submitted(at=3, job=fill[2])], 3)
    found = reason(state, "c")
    assert (found.rule, found.until) == ("network", 603)
    assert (
        found.why == "2 nodes have room, but not in one rack: it waits for that 10 min more, then takes what there is"
    )
    assert reason(state, "c").until == 603, "to ask is not to begin to wait"


def test_a_queue_and_a_pool_that_are_full_are_told() -> None:
    queues = {"training": Queue(gpus=8)}
    state = site(*nodes(2), settings=Settings(queues=queues), jobs=[job("a", 6), job("b", 4)])
    found = reason(state, "b")
    assert (found.rule, found.facts) == ("queue_limit", {"held": 6, "limit": 8})
    pools = {"training": Pool(watts=1000.0), "interactive": Pool()}
    state = site(*nodes(2, watts=800.0), settings=Settings(pools=pools), jobs=[job("a"), job("b")])
    found = reason(state, "b")
    assert (found.rule, found.facts) == ("power", {"watts": 800, "budget": 1000})


def test_strict_order_names_who_is_first() -> None:
    strict = Settings(key="fifo", backfill=False, reservations=0)
    state = site(*nodes(2), settings=strict, jobs=[job("a"), job("b", 16), job("c", 4)])
    assert (reason(state, "c").rule, reason(state, "c").jobs) == ("strict", ("b",))
    assert reason(state, "b").rule == "room"


def test_nodes_that_are_not_up_are_named() -> None:
    state = site(*nodes(2), DrainAsked(at=0, id="d", node="n1", severity="confirmed", seen=0), jobs=[job("a", 16)])
    found = reason(state, "a")
    assert (found.rule, found.facts) == ("drained", {"nodes": 2, "up": 1, "exist": 2, "ahead": 0})
    assert "1 of the 2 that exist take work (n1 is in maintenance)" in found.why


def test_room_that_is_held_and_preemption_that_is_denied_are_told() -> None:
    victim = job("v", checkpoints=True, preemptible=True, level="low")
    state = site(*nodes(1), jobs=[victim, job("a", level="normal")])
    found = reason(state, "a")
    assert [note.rule for note in found.also] == ["preemption"]
    assert "ran too short" in found.also[0].why
    state = site(*nodes(1), jobs=[victim])
    cycle(state, [Submitted(at=HOUR // 2 + 1, job=job("a"))], HOUR // 2 + 1)
    found = reason(state, "a")
    assert (found.rule, found.jobs) == ("held", ("v",))
    assert found.until == state.holes["a"].hole.until


def test_a_high_job_beyond_the_share_counts_as_normal() -> None:
    state = site(*nodes(1), jobs=[job("a"), job("b", level="high")])
    notes = {note.rule: note.why for note in reason(state, "b").also}
    assert "would hold more than 20% of the GPUs in use (0 of 8 now)" in notes["level"]


def test_who_does_not_wait_is_told_so() -> None:
    state = site(*nodes(1), jobs=[job("a")])
    assert reason(state, "a").rule == "running"
    assert reason(state, "zz").rule == "unknown"


def test_all_waiting_jobs_have_a_reason_and_asking_changes_nothing() -> None:
    jobs = [job(f"j{number}", 8 * (1 + number % 3), walltime=HOUR * (1 + number % 5)) for number in range(40)]
    state = site(*nodes(3), jobs=[*jobs, job("w", after=on("condition", "x"))])
    keys = [entry.key for entry in state.queue.in_order()]
    found: Mapping[str, Reason] = {one.job: one for one in Reasons(state).all()}
    assert set(found) == {"w", *state.queue.entries}
    assert found["w"].rule == "condition"
    assert all(one.rule in {"reserved", "room", "window", "condition"} for one in found.values())
    assert [one.facts["ahead"] for one in found.values() if "ahead" in one.facts] == sorted(
        one.facts["ahead"] for one in found.values() if "ahead" in one.facts
    )
    assert keys == [entry.key for entry in state.queue.in_order()]
    assert all(entry.could_since is None for entry in state.queue.in_order())


def test_durations_are_in_two_units() -> None:
    assert [lasting(seconds) for seconds in (-5, 59, 60, 3600, 3660, 90000, 86400 * 3)] == [
        "0 s", "59 s", "1 min", "1 h", "1 h 1 min", "1 d 1 h", "3 d",
    ]  # fmt: skip
