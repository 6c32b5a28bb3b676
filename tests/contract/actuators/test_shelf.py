"""Every actuator on the shelf has its shape, over real programs and sockets: a script as scontrol, a door, a wire.

What each target does in which state of a node is held by test_table and test_failures beside this.
"""

import importlib
import os
import pkgutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from gpuguard import actuators
from gpuguard.actuators import BESIDE, TARGETS, bundled, delegate, dry_run, gpus, processes, slurm
from gpuguard.custody.ownership import VERBS
from gpuguard.model.actions import Action, Outcome, Verb
from gpuguard.model.ids import SubjectId
from gpuguard.ports import Actuator, NodeReport
from tests.support.bundled_scheduler import Scheduler
from tests.support.door_server import door_at
from tests.support.fake_scontrol import FakeScontrol
from tests.support.serving import serving
from tests.support.wishes import reclaim, remedy, requeue, wish

NOBODY = 2**22 + 1  # one more than the kernel's most (PID_MAX_LIMIT)
OURS = "gpuguard:7f3a gpu3 lost xid79"
SHELF = sorted(module.name for module in pkgutil.iter_modules(actuators.__path__))
# Those that reach Slurm, here the fake one.
REAL = ["delegate", "slurm"]
# Those that know of drains at all.
DRAINING = [name for name in SHELF if name not in ("gpus", "processes")]
REMEDIES: tuple[Verb, ...] = ("evict", "test", "reset", "reboot")
ALL_VERBS: tuple[Verb, ...] = (*VERBS, "requeue", "reclaim", *REMEDIES)


@pytest.fixture
def fake(tmp_path: Path) -> FakeScontrol:
    return FakeScontrol(tmp_path)


@pytest.fixture
def make(fake: FakeScontrol, tmp_path: Path) -> Iterator[Callable[[str], Actuator]]:
    """Makes the actuator of that name, over the fake scontrol or the door where it reaches a scheduler."""
    with ExitStack() as stack:

        def over_slurm() -> slurm.Slurm:
            return slurm.build(slurm.Settings(scontrol=str(fake.path), node=fake.node))

        def over_the_wire() -> delegate.Delegate:
            path = tmp_path / "s"
            stack.enter_context(serving(path, over_slurm(), frozenset({os.geteuid()})))
            return delegate.build(delegate.Settings(socket=str(path)))

        def over_the_door() -> bundled.Bundled:
            door = stack.enter_context(door_at(tmp_path / "d", Scheduler(fake.node)))
            return bundled.build(bundled.Settings(address=door.address, node=fake.node))

        makers: dict[str, Callable[[], Actuator]] = {
            "bundled": over_the_door,
            "dry_run": lambda: dry_run.build(dry_run.Settings()),
            "slurm": over_slurm,
            "delegate": over_the_wire,
            "gpus": lambda: gpus.build(gpus.Settings()),
            "processes": lambda: processes.build(processes.Settings()),
        }
        yield lambda name: makers[name]()


def test_the_index_is_the_folder() -> None:
    assert {*TARGETS, *BESIDE} == set(SHELF)


@pytest.mark.parametrize("name", SHELF)
def test_the_shape_of_the_shelf(name: str, make: Callable[[str], Actuator]) -> None:
    module = importlib.import_module(f"gpuguard.actuators.{name}")
    assert module.__doc__
    assert module.build(module.Settings()).name == name
    assert isinstance(make(name), Actuator)


@pytest.mark.parametrize("name", SHELF)
@pytest.mark.parametrize("verb", ALL_VERBS)
def test_each_verb_has_an_outcome_that_a_person_can_read(
    name: str, verb: Verb, make: Callable[[str], Actuator]
) -> None:
    outcome = make(name).perform(any_wish(verb))
    assert isinstance(outcome, Outcome)
    assert len(outcome.message) > 10
    assert outcome.message.isprintable()
    assert (outcome.retry_after is not None) == (outcome.result == "deferred")


def any_wish(verb: Verb) -> Action:
    """One action of the verb, about something that is not there where it is about a job or a process."""
    if verb == "requeue":
        return requeue()
    if verb in REMEDIES:
        return remedy(verb)
    return reclaim(NOBODY, 1.0) if verb == "reclaim" else wish(verb)


@pytest.mark.parametrize("name", REAL)
def test_a_requeue_sent_twice_is_done_twice_and_written_once(
    name: str, make: Callable[[str], Actuator], fake: FakeScontrol
) -> None:
    fake.put_job("8123")
    here = make(name)
    assert [here.perform(requeue()).result for _ in range(2)] == ["done", "done"]
    assert fake.writes == ["requeue 8123"]


@pytest.mark.parametrize("name", SHELF)
@pytest.mark.parametrize("subject", ["job:slurm/8123,8124", "job:slurm/all", "job:kubernetes/x", "node", "job:slurm/0"])
def test_what_is_no_job_is_never_named_to_a_program(
    name: str, subject: str, make: Callable[[str], Actuator], fake: FakeScontrol
) -> None:
    fake.put_job("8123")
    action = msgspec.structs.replace(requeue(), subject=SubjectId(subject))
    assert make(name).perform(action).result == ("done" if name == "dry_run" else "refused")
    assert fake.calls == []


@pytest.mark.parametrize("name", DRAINING)
def test_a_drain_sent_twice_is_done_twice_and_written_once(
    name: str, make: Callable[[str], Actuator], fake: FakeScontrol
) -> None:
    here = make(name)
    assert [here.perform(wish("drain")).result for _ in range(2)] == ["done", "done"]
    assert len(fake.writes) == (name in REAL)
    assert [here.perform(wish("release")).result for _ in range(2)] == ["done", "done"]
    assert len(fake.writes) == 2 * (name in REAL)


@pytest.mark.parametrize("name", SHELF)
@pytest.mark.parametrize("verb", ["requeue", "reclaim"])
def test_nothing_is_done_about_jobs_without_the_token(
    name: str, verb: Verb, make: Callable[[str], Actuator], fake: FakeScontrol
) -> None:
    fake.put_job("8123")
    action = msgspec.structs.replace(any_wish(verb), reason="Bob: fan")
    assert make(name).perform(action).result == "refused"
    assert fake.writes == []


@pytest.mark.parametrize("name", SHELF)
@pytest.mark.parametrize("verb", REMEDIES)
def test_no_remedy_without_the_token_or_the_drain_that_must_stand(
    name: str, verb: Verb, make: Callable[[str], Actuator], fake: FakeScontrol
) -> None:
    fake.set("IDLE+DRAIN", OURS)
    here, asked = make(name), remedy(verb)
    assert here.perform(msgspec.structs.replace(asked, reason="Bob: fan")).result == "refused"
    if name != "dry_run":
        assert here.perform(msgspec.structs.replace(asked, drain=None)).result in ("refused", "done")
    assert fake.writes == []


@pytest.mark.parametrize("name", SHELF)
def test_a_reason_without_the_token_is_refused(name: str, make: Callable[[str], Actuator], fake: FakeScontrol) -> None:
    action = msgspec.structs.replace(wish("drain"), reason="Bob: fan")
    assert make(name).perform(action).result == "refused"
    assert fake.writes == []


@pytest.mark.parametrize("name", REAL)
def test_a_foreign_drain_is_left_alone(name: str, make: Callable[[str], Actuator], fake: FakeScontrol) -> None:
    here = make(name)
    for reason in ("Bob: fan", "", f"{OURS} Bob: keep"):
        fake.set("IDLE+DRAIN", reason)
        for verb in VERBS:
            assert here.perform(wish(verb)).result == "foreign"
        assert (fake.state, fake.reason) == ("IDLE+DRAIN", reason)
    assert fake.writes == []


@pytest.mark.parametrize("name", REAL)
def test_the_state_is_what_the_scheduler_says(name: str, make: Callable[[str], Actuator], fake: FakeScontrol) -> None:
    fake.set("MIXED+DRAIN", OURS)
    assert make(name).read_state() == NodeReport(
        target="slurm",
        node="here",
        state="MIXED+DRAIN",
        flags=("MIXED", "DRAIN"),
        drained=True,
        reason=OURS,
        ours="7f3a",
    )


@pytest.mark.parametrize("name", REAL)
def test_a_scheduler_that_is_away_is_an_outcome_and_not_an_exception(
    name: str, make: Callable[[str], Actuator], fake: FakeScontrol
) -> None:
    fake.trap("show", "echo 'slurm_load_node error: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    here, started = make(name), time.monotonic()
    for verb in VERBS:
        assert here.perform(wish(verb)).result == "deferred"
    assert here.read_state().error is not None
    assert time.monotonic() - started < 5.0
    assert fake.writes == []
