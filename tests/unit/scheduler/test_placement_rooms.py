"""Jobs over several nodes: one rack, how long they wait for it, and who gives way."""

from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import AnyEvent, Ended, NodeJoined, Submitted
from gpuguard.scheduler.plan import Plan, Start
from gpuguard.scheduler.request import Job, Wish
from gpuguard.scheduler.settings import DAY, HOUR, Pool, Settings, Turning
from gpuguard.scheduler.state import State


def site(wait: int = DAY, share: float = 0.0, **more: object) -> Settings:
    turning = Turning(share=share, expected=0.1, most=0.2)
    return Settings(pools={"training": Pool(wait=wait)}, turning=turning, **more)  # type: ignore[arg-type]


def joined(racks: int, nodes: int = 2) -> list[AnyEvent]:
    return [
        NodeJoined(at=0, node=f"n{rack:02}-{node}", gpus=8, rack=f"r{rack:02}", pod="p")
        for rack in range(racks)
        for node in range(nodes)
    ]


def started(plan: Plan) -> dict[str, tuple[list[str], str]]:
    return {
        decision.job: ([share.node for share in decision.shares], decision.network)
        for decision in plan.decisions
        if isinstance(decision, Start)
    }


def job(name: str, gpus: int = 8, walltime: int = HOUR, wish: Wish | None = None) -> Job:
    return Job(id=name, gpus=gpus, walltime=walltime, wish=wish or Wish())


class World:
    """A cluster and what was decided on it last."""

    def __init__(self, settings: Settings, *events: AnyEvent) -> None:
        self.state = State(settings)
        self.plan = Plan(at=0, decisions=())
        self.step(0, *events)

    def step(self, now: int, *events: AnyEvent) -> dict[str, tuple[list[str], str]]:
        self.state, self.plan = cycle(self.state, events, now)
        return started(self.plan)


def apart(wait: int, wish: Wish | None = None) -> World:
    """Two racks of two nodes, one node of each free, and a job that wants two; others have the rest."""
    # A job that needs the half of its rack beside its first node waits for half of what its pool says.
    world = World(site(2 * wait), *joined(2))
    for number in range(4):
        world.step(0, Submitted(at=0, job=job(f"a{number}", walltime=9 * HOUR)))
    by_rack = {_rack(world, name): name for name in world.state.running}
    assert len(by_rack) == 2
    world.step(1, *(Ended(at=1, job=name) for name in by_rack.values()))
    world.step(2, Submitted(at=2, job=job("wide", 16, HOUR, wish)))
    return world


def _rack(world: World, name: str) -> str:
    return world.state.shares(world.state.running[name].places)[0].node[:3]


def test_it_waits_for_its_rack_and_plans_there() -> None:
    world = apart(HOUR)
    assert "wide" not in world.state.running
    (reservation,) = world.plan.reservations
    assert len({node[:3] for node in reservation.nodes}) == 1
    assert world.plan.wake == 2 + HOUR


def test_it_starts_in_the_first_rack_that_is_whole() -> None:
    world = apart(HOUR)
    left = next(iter(world.state.running))
    nodes, network = world.step(9, Ended(at=9, job=left))["wide"]
    assert network == "rack"
    assert len({node[:3] for node in nodes}) == 1


def test_it_does_not_wait_longer_than_it_may() -> None:
    world = apart(HOUR)
    assert world.step(1 + HOUR) == {}
    nodes, network = world.step(2 + HOUR)["wide"]
    assert network == "pod"
    assert len({node[:3] for node in nodes}) == 2


def test_it_takes_what_there_is_where_the_pool_or_the_job_says_so() -> None:
    for wait, wish in ((0, None), (HOUR, Wish(within="rack", wait=0)), (HOUR, Wish(within="any"))):
        world = apart(wait, wish)
        assert "wide" in world.state.running


def test_while_it_waits_its_planned_start_never_moves_later() -> None:
    world = apart(DAY)
    before = world.plan.reservations[0].start
    for now in range(10, 2000, 100):
        world.step(now, Submitted(at=now, job=job(f"s{now}", 4, 20 * HOUR)))
        if "wide" in world.state.running:
            break
        mine = next(one for one in world.plan.reservations if one.job == "wide")
        assert mine.start <= before
        before = mine.start


def filled(settings: Settings) -> State:
    state = State(settings)
    state, _ = cycle(state, joined(10), 0)
    return state


def test_a_long_job_of_one_node_keeps_out_of_racks_that_are_turned_over() -> None:
    state = filled(site(share=2.0))
    jobs = [Submitted(at=1, job=job(f"l{number:02}", walltime=6 * DAY)) for number in range(20)]
    state, plan = cycle(state, jobs, 1)
    begun = started(plan)
    assert len(begun) == 16
    assert not {nodes[0][:3] for nodes, _ in begun.values()} & {"n00", "n01"}
    assert {one.start for one in plan.reservations} >= {6 * DAY + 1}


def test_short_ones_and_those_of_several_nodes_use_them() -> None:
    state = filled(site(share=2.0))
    state, plan = cycle(state, [Submitted(at=1, job=job("wide", 16, 6 * DAY))], 1)
    assert {node[:3] for node in started(plan)["wide"][0]} == {"n00"}
    jobs = [Submitted(at=2, job=job(f"s{number:02}", walltime=DAY)) for number in range(18)]
    state, plan = cycle(state, jobs, 2)
    assert len(started(plan)) == 18


def test_without_topology_nobody_keeps_out() -> None:
    state = filled(site(share=2.0, topology=False))
    jobs = [Submitted(at=1, job=job(f"l{number:02}", walltime=6 * DAY)) for number in range(20)]
    state, plan = cycle(state, jobs, 1)
    assert len(started(plan)) == 20


def test_a_job_over_several_nodes_counts_as_submitted_earlier() -> None:
    state = filled(site())
    full = [Submitted(at=1, job=job(f"x{number:02}", walltime=DAY)) for number in range(20)]
    state, _ = cycle(state, full, 1)
    state, _ = cycle(state, [Submitted(at=2, job=job("one", 8)), Submitted(at=3, job=job("two", 16))], 3)
    one, two = state.queue.entries["one"], state.queue.entries["two"]
    assert round(one.key[1] - two.key[1]) == (18 + 48) * HOUR - 1


def test_two_of_one_shape_each_wait_their_own_time() -> None:
    world = apart(HOUR)
    world.step(100, Submitted(at=100, job=job("next", 16, HOUR)))
    entry = world.state.queue.entries["next"]
    assert entry.could_since == 100
    assert "wide" in world.step(2 + HOUR)
    assert "next" not in world.state.running
