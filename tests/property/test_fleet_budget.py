"""A fleet whose nodes ask, write late, crash, give back and are lifted by people: what must hold of it at any time.

The world keeps its own account in true time. The book is only ever changed as `runtime/guard` does it; its clock may be
set back, the scheduler's report may be as old as the last step, and any step may be the last of its process.
"""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gpuguard.custody.budget import (
    LATE,
    UNSEEN_AFTER,
    Ask,
    Book,
    Limits,
    allowed,
    give_back,
    noted,
    read_book,
    weigh,
    withdraw,
    write_book,
)
from gpuguard.ports import FleetDrain, FleetReport

LIMITS = Limits()
CODES = ("xid79", "xid48", "gpu_lost", "xid119", "nvlink", "xid95", "xid64")
VERSIONS = ("0.5.0", "0.6.0")


@dataclass
class World:
    """The scheduler's truth, the book, and what really began when."""

    size: int
    now: float = 1_800_000_000.0
    behind: float = 0.0
    book: Book = field(default_factory=Book)
    standing: dict[str, FleetDrain] = field(default_factory=dict)
    granted: dict[str, float] = field(default_factory=dict)
    begun: list[tuple[float, str]] = field(default_factory=list)
    writes: dict[str, int] = field(default_factory=dict)

    def report(self) -> FleetReport:
        return FleetReport(target="slurm", nodes=self.size, drains=tuple(self.standing.values()))

    def key(self, node: str) -> str:
        return f"{node}/drain:{node}:{self.writes.get(node, 0)}"

    def ask(self, node: str, code: str, version: str, by: str = "gpuguard") -> None:
        asked = Ask(node=node, key=self.key(node), token=node, code=code, by=by, version=version)
        book, answer = weigh(self.book, asked, self.report(), LIMITS, self.now - self.behind)
        self.book = read_book(write_book(book))
        assert weigh(self.book, asked, self.report(), LIMITS, self.now - self.behind)[1].granted == answer.granted
        if by != "gpuguard":
            assert answer.granted
            if node not in self.standing:
                self.standing[node] = FleetDrain(node=node, token=node, since_utc=self.now)
        elif answer.granted and node not in self.standing:
            self.granted[node] = self.now

    def write(self, node: str) -> None:
        """The drain is written, unless it was granted too long ago: the target's deadline is shorter."""
        at = self.granted.pop(node, None)
        if at is not None and self.now - at <= LATE and node not in self.standing:
            self.standing[node] = FleetDrain(node=node, token=node, since_utc=self.now)
            self.begun.append((self.now, node))

    def lift(self, node: str, *, told: bool) -> None:
        """A release, by gpuguard or by somebody who tells nobody: it always goes through."""
        if self.standing.pop(node, None) is not None:
            self.writes[node] = self.writes.get(node, 0) + 1
            if told:
                self.book = give_back(self.book, node, node, self.now - self.behind)

    def check(self) -> None:
        most = min(LIMITS.most, allowed(LIMITS.share, self.size))
        for end, _ in self.begun:
            window = {node for at, node in self.begun if end - LIMITS.window < at <= end}
            assert len(window) <= most, window


nodes = st.integers(0, 39).map(lambda number: f"n{number}")
steps = st.one_of(
    st.tuples(st.just("ask"), nodes, st.sampled_from(CODES), st.sampled_from(VERSIONS)),
    st.tuples(st.just("drain"), nodes, st.sampled_from(CODES), st.sampled_from(VERSIONS)),
    st.tuples(st.just("write"), nodes),
    st.tuples(st.just("crash"), nodes),
    st.tuples(st.just("withdraw"), nodes),
    st.tuples(st.just("release"), nodes, st.booleans()),
    st.tuples(st.just("person"), nodes),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 5.0, 29.0, 61.0, 301.0, 601.0])),
    st.tuples(st.just("back"), st.sampled_from([1.0, 100.0, 5000.0])),
)


@given(st.sampled_from([1, 8, 60, 150, 400, 1250]), st.lists(steps, max_size=60))
def test_never_more_than_the_budget_begins_whatever_happens(size: int, script: list[tuple[object, ...]]) -> None:
    world = World(size)
    for step in script:
        match step:
            case ("ask", str(node), str(code), str(version)):
                world.ask(node, code, version)
            case ("drain", str(node), str(code), str(version)):
                world.ask(node, code, version)
                world.write(node)
            case ("write", str(node)):
                world.write(node)
            case ("crash", str(node)):
                world.granted.pop(node, None)
            case ("withdraw", str(node)) if node in world.granted:
                world.granted.pop(node)
                world.book = withdraw(world.book, world.key(node))
            case ("release", str(node), bool(told)):
                world.lift(node, told=told)
            case ("person", str(node)):
                world.ask(node, "operator", "", by="mia")
            case ("wait", float(seconds)):
                world.now += seconds
            case ("back", float(seconds)):
                world.behind += seconds
        world.check()


@given(st.sampled_from([1, 8, 60, 150]), st.lists(st.tuples(nodes, st.booleans()), max_size=80))
def test_no_more_than_the_ceiling_stands_drained_by_gpuguard_alone(size: int, script: list[tuple[str, bool]]) -> None:
    world = World(size)
    for place, (node, release) in enumerate(script):
        if release:
            world.lift(node, told=place % 2 == 0)
        else:
            world.ask(node, f"code{place}", "")
            world.write(node)
        world.now += UNSEEN_AFTER * 3
        assert len(world.standing) <= allowed(LIMITS.overall, size)


@given(st.permutations(range(12)), st.lists(st.floats(0.0, 60.0), min_size=12, max_size=12))
def test_three_of_one_cause_are_drained_and_not_one_more(order: list[int], when: list[float]) -> None:
    """Whatever order they come in within a minute, and however long they go on at a pace that holds it."""
    world = World(1250)
    for number, second in zip(order, sorted(when), strict=True):
        world.now = 1_800_000_000.0 + second
        world.ask(f"n{number}", "xid79", "")
        world.write(f"n{number}")
    assert len(world.standing) <= LIMITS.cause_nodes
    for number in range(12, 36):
        world.now += 599.0
        world.ask(f"n{number}", "xid79", "")
        world.write(f"n{number}")
    assert len(world.standing) <= LIMITS.cause_nodes


@given(st.lists(st.tuples(nodes, st.floats(0.0, 3600.0)), min_size=1, max_size=30))
def test_a_new_version_takes_one_at_a_time(script: list[tuple[str, float]]) -> None:
    world = World(1250, book=noted(noted(Book(), "0.5.0", 0.0), "0.6.0", 1_800_000_000.0))
    for place, (node, second) in enumerate(sorted(script, key=lambda each: each[1])):
        world.now = 1_800_000_000.0 + second
        world.ask(node, f"code{place}", "0.6.0")
        world.write(node)
    for end, _ in world.begun:
        assert len({node for at, node in world.begun if end - LIMITS.window < at <= end}) == 1
