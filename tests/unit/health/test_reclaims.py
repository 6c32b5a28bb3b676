"""Which leftover processes are to be ended, and when: each by its number and start, once it was seen long enough."""

from gpuguard.health import policy
from gpuguard.health.decide import decide
from gpuguard.health.state import Health, difference, restore
from gpuguard.model.actions import Action
from gpuguard.model.events import AnyEvent
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Values
from tests.support.core import BOOT, booted, instant, sweep, tick
from tests.support.faults import outcome
from tests.support.job_checks import Orphans

GPU = SubjectId("gpu:0000:4e:00.0")
ON = policy.Settings(mode="drain", reclaim_orphans=True)


class Node:
    """A core with that one check."""

    def __init__(self, settings: policy.Settings = ON, health: Health | None = None) -> None:
        self.settings, self.health = settings, health or Health(now=instant(0.0))
        self.owed: dict[str, Action] = {}
        self.keys: list[str] = []
        self.mono = 0.0

    def tell(self, event: AnyEvent) -> None:
        self.mono = event.at.mono
        self.health, decision = decide(self.health, event, (Orphans(),), self.settings)
        for o in decision.owed:
            if o.cancelled:
                del self.owed[o.action.key]
            else:
                assert o.action.key not in self.keys
                self.keys.append(o.action.key)
                self.owed[o.action.key] = o.action

    def look(self, mono: float, orphans: str | None) -> None:
        row: Values = {"gpu_orphan_bytes": 0 if orphans == "" else 2**30, "gpu_orphans": orphans}
        self.tell(sweep({GPU: row}, mono, source="jobs"))
        self.tell(tick(mono + 0.1))

    def go_on(self, until: float, orphans: str | None) -> None:
        while self.mono < until:
            self.look(self.mono + 20.0, orphans)

    def pids(self) -> list[tuple[int | None, float | None]]:
        return [(action.pid, action.started) for action in self.owed.values()]

    def answer(self, result: str) -> None:
        for key in list(self.owed):
            if result != "deferred":
                del self.owed[key]
            self.tell(outcome(key, result, self.mono + 0.01))


def test_it_is_off_unless_a_site_turns_it_on() -> None:
    node = Node(policy.Settings(mode="drain"))
    node.go_on(7200.0, "4711/12.34")
    assert (node.keys, node.health.errands) == ([], {})


def test_each_is_ended_once_it_was_seen_long_enough() -> None:
    node = Node()
    node.go_on(400.0, "4711/12.34")
    node.go_on(640.0, "4711/12.34,4712/99.5")
    assert node.pids() == [(4711, 12.34)]
    action = node.owed[node.keys[0]]
    assert (action.verb, action.subject) == ("reclaim", GPU)
    assert action.reason == f"gpuguard:{action.token} 4e:00.0 leftover pid4711"
    node.go_on(1040.0, "4711/12.34,4712/99.5")
    assert node.pids() == [(4711, 12.34), (4712, 99.5)]
    assert len({action.token for action in node.owed.values()}) == 2


def test_two_that_are_due_at_once_have_tokens_of_their_own() -> None:
    node = Node()
    node.go_on(640.0, ",".join(f"{pid}/1.0" for pid in range(100, 140)))
    assert len(node.owed) == 32
    assert len({action.token for action in node.owed.values()}) == 32


def test_a_number_that_was_given_to_another_process_waits_anew() -> None:
    node = Node()
    node.go_on(500.0, "4711/12.34")
    node.go_on(900.0, "4711/498.0")
    assert node.owed == {}
    node.go_on(1140.0, "4711/498.0")
    assert node.pids() == [(4711, 498.0)]


def test_one_that_went_by_itself_is_let_go() -> None:
    node = Node()
    node.go_on(640.0, "4711/12.34")
    node.look(660.0, "")
    assert (node.owed, node.health.errands) == ({}, {})


def test_a_list_that_is_unknown_takes_nothing_back_and_owes_nothing_new() -> None:
    node = Node()
    node.go_on(640.0, "4711/12.34")
    node.go_on(2000.0, None)
    assert node.pids() == [(4711, 12.34)]
    node = Node()
    node.go_on(2000.0, None)
    assert node.owed == {}


def test_what_names_no_process_is_passed_over() -> None:
    node = Node()
    node.go_on(2000.0, "x/1,4711,4711/,-1/2,1/2/3,99999999999/1,4711/1e5, 12/3")
    assert node.owed == {}


def test_it_is_tried_finitely_often_and_a_no_is_a_no() -> None:
    node = Node()
    while node.mono < 20_000.0:
        node.look(node.mono + 20.0, "4711/12.34")
        node.answer("foreign")
    assert len(node.keys) == 3
    node = Node()
    while node.mono < 20_000.0:
        node.look(node.mono + 20.0, "4711/12.34")
        node.answer("refused")
    assert len(node.keys) == 1
    node.tell(booted(20_001.0, previous=BOOT))
    node.go_on(20_100.0, "4711/12.34")
    assert len(node.keys) == 2


def test_observing_only_talks() -> None:
    node = Node(policy.Settings(mode="observe", reclaim_orphans=True))
    node.go_on(640.0, "4711/12.34")
    assert [key.endswith(":dry") for key in node.owed] == [True]


def test_a_crash_neither_loses_nor_doubles_it() -> None:
    node = Node()
    node.go_on(640.0, "4711/12.34")
    written, _ = difference(Health(now=instant(0.0)), node.health)
    again = Node(health=restore(written, (Orphans(),), instant(0.0)))
    again.tell(booted(641.0, previous=BOOT))
    again.go_on(3000.0, "4711/12.34")
    assert again.keys == []
