"""When a job that hangs is started anew: after how long, how often, by which key, and when not."""

import msgspec
import pytest

from gpuguard.health import policy
from gpuguard.health.decide import decide
from gpuguard.health.state import Health, difference, restore
from gpuguard.model.actions import Action
from gpuguard.model.events import AnyEvent
from gpuguard.model.health import Decision
from gpuguard.model.ids import SubjectId
from tests.support.core import BOOT, booted, instant, sweep, tick
from tests.support.faults import outcome
from tests.support.job_checks import Hung

JOB = SubjectId("job:slurm/8123")
ON = policy.Settings(mode="drain", restart_hung=True)


class Node:
    """A core with that one check; its owed actions as a loop would keep them."""

    def __init__(self, settings: policy.Settings = ON, health: Health | None = None) -> None:
        self.settings, self.health = settings, health or Health(now=instant(0.0))
        self.owed: dict[str, Action] = {}
        self.keys: list[str] = []
        self.mono = 0.0
        self.words: list[str] = []

    def tell(self, event: AnyEvent) -> Decision:
        self.mono = event.at.mono
        self.health, decision = decide(self.health, event, (Hung(),), self.settings)
        for o in decision.owed:
            if o.cancelled:
                del self.owed[o.action.key]
            else:
                assert o.action.key not in self.keys
                self.keys.append(o.action.key)
                self.owed[o.action.key] = o.action
        self.words += [f"{entry.subject}: {entry.text}" for entry in decision.story]
        return decision

    def look(self, mono: float, verdict: str = "hung", **more: object) -> None:
        """A sweep about the job, and a tick."""
        row = {"job_verdict": verdict, "job_alive": 1, "job_restarts": 0, **more}
        self.tell(sweep({JOB: row}, mono, source="jobs"))  # type: ignore[dict-item]
        self.tell(tick(mono + 0.1))

    def go_on(self, until: float, **more: object) -> None:
        """The job hangs on, seen every 20 seconds."""
        while self.mono < until:
            self.look(self.mono + 20.0, **more)  # type: ignore[arg-type]

    def answer(self, result: str, **more: str) -> None:
        """The one owed action is answered."""
        (key,) = self.owed
        if result != "deferred":
            del self.owed[key]
        event = outcome(key, result, self.mono + 0.5, "as it is")
        self.tell(msgspec.structs.replace(event, **more))


def test_it_is_off_unless_a_site_turns_it_on() -> None:
    node = Node(policy.Settings(mode="drain"))
    node.go_on(7200.0)
    assert (node.keys, node.health.errands) == ([], {})


def test_a_hung_job_is_started_anew_once_the_verdict_has_stood() -> None:
    node = Node()
    node.go_on(300.0)
    assert node.keys == []
    node.go_on(340.0)
    (action,) = node.owed.values()
    assert (action.verb, action.subject, action.restarts) == ("requeue", JOB, 0)
    assert action.key == f"requeue:{action.token}:1"
    assert action.reason == f"gpuguard:{action.token} job8123 hung requeue"
    assert action.token in node.health.tokens.used
    node.go_on(500.0)
    assert len(node.keys) == 1, "one at a time"
    node.answer("done")
    assert f"{JOB}: owed: requeue {action.reason!r}" in node.words
    assert node.words[-1] == f"{JOB}: requeue {action.token}: done; as it is"


def test_tries_are_finite_and_wait_longer_each_time() -> None:
    node = Node(policy.Settings(mode="drain", restart_hung=True, restart_tries=3))
    when = []
    restarts = 0
    while node.mono < 80_000.0:
        node.look(node.mono + 20.0, job_restarts=restarts)
        if node.owed:
            when.append(node.mono)
            restarts += 1
            node.answer("done")
    assert len(when) == 3
    assert 1800.0 <= when[1] - when[0] < 1900.0
    assert 3600.0 <= when[2] - when[1] < 3700.0
    node.go_on(86_400.0 + when[0] + 100.0, job_restarts=restarts)
    assert len(node.keys) == 4, "a day later there is one more"


def test_a_job_that_was_started_anew_too_often_is_left_to_people() -> None:
    node = Node()
    node.go_on(7200.0, job_restarts=5)
    assert node.keys == []


@pytest.mark.parametrize(
    "row",
    [
        {"job_alive": 0}, {"job_alive": None}, {"job_restarts": None}, {"verdict": "straggler"},
        {"job_phase": "info"},
    ],
)  # fmt: skip
def test_what_is_not_sure_starts_nothing(row: dict[str, object]) -> None:
    node = Node()
    node.go_on(3600.0, **row)
    assert node.keys == []


def test_a_hang_that_went_away_before_it_was_sent_cancels_it() -> None:
    node = Node()
    node.go_on(340.0)
    assert len(node.owed) == 1
    node.look(400.0, "")
    assert node.owed == {}
    node.go_on(1000.0)
    assert len(node.owed) == 1, "nothing was done, so it counts for nothing"
    assert len(set(node.keys)) == 2


def test_switching_it_off_cancels_it() -> None:
    node = Node()
    node.go_on(340.0)
    node.settings = policy.Settings(mode="drain")
    node.tell(tick(400.0))
    assert node.owed == {}


def test_an_answer_that_comes_late_is_told_and_changes_nothing() -> None:
    node = Node()
    node.go_on(340.0)
    (key,) = node.keys
    node.look(400.0, "")
    before = node.health.errands
    node.tell(outcome(key, "done", 401.0, "too late"))
    assert node.health.errands == before
    assert node.words[-1].endswith("done; too late")


def test_what_was_refused_waits_for_another_run_of_the_job_or_of_the_agent() -> None:
    node = Node()
    node.go_on(340.0)
    node.answer("refused")
    node.go_on(9000.0)
    assert len(node.keys) == 1
    node.tell(booted(9001.0, previous=BOOT))
    node.go_on(9400.0)
    assert len(node.keys) == 2


def test_not_yet_keeps_it_owed() -> None:
    node = Node()
    node.go_on(340.0)
    node.answer("deferred")
    node.go_on(9000.0)
    assert len(node.owed) == len(node.keys) == 1


def test_observing_only_talks_and_counts_for_nothing() -> None:
    node = Node(policy.Settings(mode="observe", restart_hung=True))
    node.go_on(340.0)
    assert node.keys[0].endswith(":1:dry")
    node.answer("done", node_state="dry_run")
    node.settings = ON
    node.go_on(700.0)
    assert len(node.owed) == 1
    assert not node.keys[-1].endswith(":dry")


def test_what_was_only_to_be_talked_about_is_not_sent_for_real() -> None:
    node = Node(policy.Settings(mode="observe", restart_hung=True))
    node.go_on(340.0)
    node.settings = ON
    node.look(400.0)
    assert [key.endswith(":dry") for key in node.owed] == [False]


def test_a_target_that_only_talks_is_no_success() -> None:
    node = Node()
    node.go_on(340.0)
    node.answer("done", node_state="dry_run")
    (errand,) = node.health.errands.values()
    assert errand.came == "refused"


def test_a_crash_neither_loses_nor_doubles_it() -> None:
    node = Node()
    node.go_on(340.0)
    written, _ = difference(Health(now=instant(0.0)), node.health)
    again = Node(health=restore(written, (Hung(),), instant(0.0)))
    again.tell(booted(341.0, previous=BOOT))
    again.mono = 341.0
    again.go_on(2000.0)
    assert again.keys == [], "it is owed still, under the key it has"
    again.tell(outcome(node.keys[0], "done", 2001.0))
    again.mono = 2001.0
    again.go_on(2300.0, job_restarts=1)
    assert len(again.keys) == 1, "and the second is a second one"
    assert again.keys[0] not in node.keys


def test_what_is_long_over_is_forgotten() -> None:
    node = Node()
    node.go_on(340.0)
    node.answer("done")
    node.look(400.0, "")
    assert node.health.errands
    node.tell(tick(90_000.0))
    assert node.health.errands == {}


def test_jobs_of_others_are_left_alone() -> None:
    node = Node()
    other = SubjectId("job:kubernetes/abc")
    for mono in range(20, 2000, 20):
        row = {"job_verdict": "hung", "job_alive": 1, "job_restarts": 0}
        node.tell(sweep({other: row}, float(mono), source="jobs"))  # type: ignore[dict-item]
        node.tell(tick(mono + 0.1))
    assert node.keys == []


@pytest.mark.parametrize("change", [{"restart_after": -1.0}, {"restart_tries": 0}, {"reclaim_after": -1.0}])
def test_settings_that_cannot_be(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        policy.Settings(**change)  # type: ignore[arg-type]
