"""The way back: what is owed for it, how often, and what follows from the answers."""

import dataclasses

import msgspec
import pytest

from gpuguard.health import policy
from gpuguard.model.events import Acknowledged, ActionOutcome, OperatorAsked
from gpuguard.model.ids import EventId, gpu, parse_pci_address
from tests.support.core import BOOT, Core, booted, looks, tick, xid
from tests.support.faults import PCI, SELF_EVIDENT, drained, outcome

ALL = policy.Settings(mode="drain", test_gpus=True, reset_gpus=True, reboot_node=True, evict_pods=True)
GPU = gpu(parse_pci_address(PCI))
HANG = "pid=100, name=x, Ch 00000008"  # Xid 109: critical, and not self-evident


def pending(core: Core, verb: str) -> str:
    """The key of the action that is pending for an errand of this verb; '' for none."""
    found = [e.pending.key for e in core.health.errands.values() if e.verb == verb and e.pending]
    return found[0] if found else ""


def answer(core: Core, verb: str, result: str, mono: float, message: str = "") -> None:
    key = pending(core, verb)
    assert key, f"no {verb} is owed"
    core.tell(outcome(key, result, mono, message))


def test_nothing_is_done_to_hardware_unless_the_site_says_so() -> None:
    core = Core()
    drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    core.tell(*(tick(100.0 * n) for n in range(1, 100)))
    assert core.owed() == ["drain"]


def test_a_reset_is_owed_under_our_drain_alone() -> None:
    core = Core(policy.Settings(mode="drain", reset_gpus=True))
    core.tell(xid(PCI, 119, 10.0, SELF_EVIDENT[119]), tick(11.0))
    assert core.owed() == ["drain"], "the drain does not stand yet"
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0", "foreign", 12.0, "bob's"), tick(13.0))
    assert core.owed() == ["drain"]
    core.tell(outcome(f"drain:{drain.token}:0", "done", 20.0))
    assert core.owed() == ["drain", "reset"]
    action = next(o.action for o in core.decisions[-1].owed)
    assert (action.subject, action.drain, action.code) == (GPU, drain.token, "xid119")


def test_a_reset_that_came_through_leads_back_and_one_that_did_not_to_the_next_rung() -> None:
    mended, stuck = Core(policy.Settings(mode="drain", reset_gpus=True)), Core(ALL)
    for core in (mended, stuck):
        drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    answer(mended, "reset", "done", 60.0)
    assert mended.state(PCI) == "returning"
    assert mended.codes(PCI) == set()
    answer(stuck, "reset", "failed", 60.0, "GPU Reset couldn't run")
    assert stuck.state(PCI) == "unfit"
    assert stuck.health.subject(GPU).remedy == "reboot"
    assert pending(stuck, "reboot").startswith("reboot:")


def test_where_the_site_tests_nothing_is_given_back_untested() -> None:
    core = Core(policy.Settings(mode="drain", test_gpus=True, reset_gpus=True))
    drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    answer(core, "reset", "done", 60.0)
    core.tell(*looks(60.0), tick(5000.0))
    assert "release" not in core.owed()
    answer(core, "test", "done", 5100.0, "dcgm level 2 passed")
    core.tell(tick(5130.0))
    assert core.owed()[-1] == "release"


def test_a_fault_that_a_test_finds_is_one_of_its_own() -> None:
    core = Core(policy.Settings(mode="drain", test_gpus=True, reset_gpus=True))
    drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    answer(core, "reset", "done", 60.0)
    answer(core, "test", "failed", 100.0, "memory test failed")
    assert core.state(PCI) == "unfit"
    assert "diagnostic_failed" in core.codes(PCI)
    assert "release" not in core.owed()


def test_tries_are_finite() -> None:
    core = Core(policy.Settings(mode="drain", test_gpus=True))
    drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]), xid(PCI, 154, 11.0, SELF_EVIDENT[154]))
    core.tell(xid(PCI, 154, 500.0, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))
    for n in range(1, 80):
        if pending(core, "test"):
            core.tell(outcome(pending(core, "test"), "foreign", 500.0 + 1000.0 * n))
        core.tell(tick(501.0 + 1000.0 * n))
    assert core.owed().count("test") == ALL.test_tries


def test_what_was_refused_is_a_persons_until_the_agent_is_started_anew() -> None:
    core = Core(policy.Settings(mode="drain", reset_gpus=True))
    drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    answer(core, "reset", "refused", 60.0, "MIG is on")
    core.tell(tick(5000.0), tick(9000.0))
    assert core.owed() == ["drain", "reset"]
    core.tell(booted(9001.0, previous=BOOT))
    assert core.owed() == ["drain", "reset", "reset"]


def test_a_reboot_stands_for_the_resets_that_are_due() -> None:
    core = Core(ALL)
    drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]), xid("0000:0f:00", 79, 11.0, SELF_EVIDENT[79]))
    verbs = {e.verb for e in core.health.errands.values() if e.pending}
    assert verbs == {"reboot", "evict"}


def test_only_a_severe_fault_moves_what_runs() -> None:
    core = Core(ALL)
    drained(core, xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    assert core.owed().count("evict") == 1
    answer(core, "evict", "done", 20.0)
    core.tell(tick(2000.0))
    assert core.owed().count("evict") == 1, "once for each drain"


def test_a_second_look_decides_what_one_witness_says() -> None:
    for result, state in (("done", "watched"), ("failed", "unfit"), ("refused", "watched")):
        core = Core(policy.Settings(mode="drain", test_gpus=True))
        core.tell(xid(PCI, 109, 10.0, HANG), tick(40.0))
        assert core.owed() == [], "a second witness is waited for first"
        core.tell(tick(71.0))
        assert core.owed() == ["test"]
        action = core.decisions[-1].owed[0].action
        assert action.drain is None
        answer(core, "test", result, 80.0)
        core.tell(tick(90.0))
        assert core.state(PCI) == state
        assert ("drain" in core.owed()) == (state == "unfit")


@pytest.mark.parametrize("result", ["done", "failed"])
def test_while_it_only_observes_what_is_told_is_no_evidence(result: str) -> None:
    core = Core(dataclasses.replace(ALL, mode="observe"))
    core.tell(xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0:dry", "done", 11.0))
    assert pending(core, "reset").endswith(":dry")
    told = outcome(pending(core, "reset"), result, 12.0)
    core.tell(msgspec.structs.replace(told, node_state="dry_run"))
    assert core.state(PCI) == "unfit"


def pause(mono: float, seconds: float | None, wish: str = "pause") -> OperatorAsked:
    return OperatorAsked(
        id=EventId(f"{wish}{mono}"),
        at=tick(mono).at,
        wish=wish,
        by="kim",
        reason="cables",
        seconds=seconds,  # type: ignore[arg-type]
    )


def test_hands_off_means_that_nothing_is_owed_and_what_is_owed_is_taken_back() -> None:
    core = Core(ALL)
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    drain = core.health.drain
    assert drain is not None
    decision = core.tell(pause(20.0, 3600.0))
    assert [(o.action.verb, o.cancelled) for o in decision.owed] == [("drain", True)]
    core.tell(tick(30.0), xid("0000:0f:00", 79, 40.0, SELF_EVIDENT[79]), tick(3000.0))
    assert core.owed() == ["drain"]
    core.tell(tick(3621.0))
    assert core.health.pause is None
    assert core.owed() == ["drain", "drain"], "the second GPU was lost a moment ago"


def test_what_was_seen_before_a_pause_and_not_since_decides_nothing() -> None:
    core = Core()
    core.tell(pause(5.0, 2 * 3600.0), xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    decision = core.tell(tick(2 * 3600.0 + 6.0))
    assert core.owed() == []
    assert [q.subject for q in decision.questions] == [GPU], "witnesses are asked"
    assert core.state(PCI) == "returning"
    core.tell(*looks(2 * 3600.0 + 6.0))
    assert core.owed() == []
    assert core.health.subject(GPU).tested is None


def test_a_drain_that_stands_stays_through_a_pause() -> None:
    core = Core()
    drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    core.tell(pause(20.0, 3600.0))
    core.tell(xid(PCI, 154, 30.0, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))
    core.tell(*looks(30.0), tick(2000.0))
    assert core.owed() == ["drain"], "it is not given back either"
    core.tell(pause(2100.0, None, "unpause"), tick(2101.0))
    assert core.owed() == ["drain", "release"]


def held(core: Core) -> str:
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0", "held", 10.5, "5 nodes began a drain within 10 min"))
    return drain.token


def test_what_the_budget_held_is_a_persons() -> None:
    core = Core()
    token = held(core)
    core.tell(*(tick(100.0 * n) for n in range(1, 60)), booted(6001.0), tick(6100.0))
    assert core.owed() == ["drain"], "not asked again by itself, nor by a restart"
    asked = OperatorAsked(id=EventId("o"), at=tick(7000.0).at, wish="drain", by="kim", reason="go on")
    decision = core.tell(asked)
    action = next(o.action for o in decision.owed if not o.cancelled)
    assert (action.verb, action.token, action.by) == ("drain", token, "kim")


def test_a_new_fault_on_a_node_that_was_held_asks_anew() -> None:
    core = Core()
    token = held(core)
    decision = core.tell(xid("0000:0f:00", 79, 500.0, SELF_EVIDENT[79]))
    assert [o.action.key for o in decision.owed] == [f"drain:{token}:1"]


def test_a_held_drain_is_forgotten_with_its_fault() -> None:
    core = Core()
    held(core)
    core.tell(acknowledged("xid79", 600.0), *looks(600.0))
    assert core.health.drain is None
    assert core.owed() == ["drain"], "there is nothing to give back"


def acknowledged(code: str, mono: float) -> Acknowledged:
    return Acknowledged(id=EventId(f"ack{mono}"), at=tick(mono).at, code=code, subject=None, by="jo", reason="looked")


def test_the_third_return_within_a_day_is_a_persons() -> None:
    core = Core()
    start = 0.0
    for number in range(3):
        token = drained(core, xid(PCI, 119, start + 10.0, SELF_EVIDENT[119]))
        core.tell(acknowledged("xid119", start + 500.0))
        core.tell(*looks(start + 500.0))
        release = [o.action.key for d in core.decisions for o in d.owed if o.action.key.startswith(f"release:{token}")]
        assert bool(release) == (number < 2)
        if release:
            core.tell(outcome(release[0], "done", start + 1200.0))
        start += 2000.0
    drain = core.health.drain
    assert drain is not None
    assert "a person is to give it back" in drain.kept
    asked = OperatorAsked(id=EventId("o"), at=tick(start).at, wish="release", by="kim", reason="looked")
    assert [o.action.verb for o in core.tell(asked).owed if not o.cancelled] == ["release"]


def test_a_mild_fault_on_probation_drains_after_the_job() -> None:
    core = Core()
    token = drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]), xid(PCI, 154, 11.0, SELF_EVIDENT[154]))
    core.tell(xid(PCI, 154, 500.0, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))
    core.tell(*looks(500.0), outcome(f"release:{token}:1", "done", 1200.0))
    core.tell(xid(PCI, 31, 2000.0, "pid=1, name=x, Ch 0"), xid(PCI, 999, 2100.0, "new"))
    assert core.owed() == ["drain", "release"], "programs and unknown codes take nothing out"
    core.tell(xid(PCI, 63, 3000.0, "Row Remapper: New row (0x0000000000a1b200) marked for remapping"))
    assert core.owed() == ["drain", "release", "drain"]
    drain = core.health.drain
    assert drain is not None
    assert (drain.code, drain.severe) == ("xid63", False)


def test_an_outcome_that_nobody_waits_for_changes_nothing() -> None:
    core = Core(ALL)
    before = core.health.errands
    core.tell(ActionOutcome(id=EventId("x"), at=tick(5.0).at, key="reset:beef:1", result="done", message=""))
    assert core.health.errands == before


def test_a_drain_that_may_have_been_written_is_not_forgotten_by_a_pause() -> None:
    core = Core()
    core.tell(xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0", "deferred", 11.0, "cordoned, the condition is still to be written"))
    core.tell(pause(20.0, 600.0), acknowledged("xid119", 30.0), *looks(30.0), tick(700.0), tick(900.0))
    releases = [
        o.action.token for d in core.decisions for o in d.owed if o.action.verb == "release" and not o.cancelled
    ]
    assert releases == [drain.token]


def test_after_a_pause_a_drain_is_owed_again_under_its_token() -> None:
    core = Core()
    core.tell(xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    drain = core.health.drain
    assert drain is not None
    core.tell(pause(20.0, 600.0), tick(100.0))
    decision = core.tell(xid(PCI, 119, 619.0, SELF_EVIDENT[119]), tick(621.0))
    assert [(o.action.token, o.action.key) for o in decision.owed] == [(drain.token, f"drain:{drain.token}:2")]


def test_a_pause_takes_back_a_release_that_is_on_its_way() -> None:
    core = Core()
    token = drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    core.tell(acknowledged("xid119", 20.0), *looks(20.0))
    assert core.owed() == ["drain", "release"]
    decision = core.tell(pause(700.0, 600.0))
    assert [(o.action.verb, o.cancelled) for o in decision.owed] == [("release", True)]
    core.tell(tick(1000.0))
    assert core.owed() == ["drain", "release"]
    decision = core.tell(tick(1301.0))
    assert [(o.action.verb, o.action.token) for o in decision.owed] == [("release", token)]


def test_a_persons_drain_is_sent_as_a_persons() -> None:
    core = Core()
    core.tell(xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    asked = OperatorAsked(id=EventId("o"), at=tick(11.0).at, wish="drain", by="kim", reason="now")
    decision = core.tell(asked)
    assert [(o.action.by, o.cancelled) for o in decision.owed] == [("gpuguard", True), ("kim", False)]


def test_a_late_answer_about_what_was_overtaken_changes_nothing() -> None:
    core = Core()
    token = drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    core.tell(xid("0000:aa:00", 79, 700.0, SELF_EVIDENT[79]))
    drain = core.health.drain
    assert drain is not None
    assert drain.state == "owed"
    core.tell(outcome(f"update_reason:{token}:1", "foreign", 700.5), outcome(f"drain:{token}:0", "held", 700.6))
    assert core.health.drain is not None
    assert core.health.drain.state == "owed"


def test_a_drain_that_waits_for_somebody_elses_is_wanted_no_more_when_the_fault_is_over() -> None:
    core = Core()
    core.tell(xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0", "foreign", 11.0, "bob's"))
    decision = core.tell(acknowledged("xid119", 20.0))
    assert [(o.action.verb, o.cancelled) for o in decision.owed] == [("drain", True)]
    assert core.health.drain is None


def test_a_held_drain_that_is_asked_anew_names_what_decides_now() -> None:
    core = Core()
    held(core)
    core.tell(acknowledged("xid79", 600.0))
    decision = core.tell(xid("0000:0f:00", 62, 650.0, SELF_EVIDENT[62]))
    action = next(o.action for o in decision.owed if not o.cancelled)
    assert (action.subject, action.code) == ("gpu:0000:0f:00.0", "xid62")


def test_without_a_drain_of_ours_no_test_is_waited_for() -> None:
    core = Core(policy.Settings(mode="drain", test_gpus=True))
    held(core)
    core.tell(acknowledged("xid79", 600.0), *looks(600.0))
    assert core.health.subject(GPU).tested is not None


def test_waiting_is_told_once() -> None:
    core = Core(policy.Settings(mode="drain", reset_gpus=True))
    drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    for n in range(50):
        answer_late(core, f"work is still on the node, {n} jobs", 100.0 + n)
    told = [
        entry.text for d in core.decisions for entry in d.story if entry.kind == "outcome" and "reset" in entry.text
    ]
    assert len(told) == 1
    assert not core.decisions[-1].urgent


def answer_late(core: Core, message: str, mono: float) -> None:
    core.tell(outcome(pending(core, "reset"), "deferred", mono, message))


def test_tries_that_are_used_up_are_known() -> None:
    core = Core(policy.Settings(mode="drain", reboot_node=True))
    drained(core, xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    for n in (1, 2):
        core.tell(tick(7 * 3600.0 * n))
        core.tell(outcome(pending(core, "reboot"), "done", 7 * 3600.0 * n + 10.0), tick(7 * 3600.0 * n + 20.0))
    (errand,) = core.health.errands.values()
    assert (errand.verb, errand.number, errand.spent) == ("reboot", 2, True)


def test_second_looks_are_finite_and_call_nobody() -> None:
    core = Core(policy.Settings(mode="drain", test_gpus=True))
    core.tell(xid(PCI, 109, 10.0, HANG))
    for n in range(1, 12):
        core.tell(xid(PCI, 109, 1000.0 * n, HANG), tick(1000.0 * n + 1.0))
        if pending(core, "test"):
            answer(core, "test", "done", 1000.0 * n + 2.0)
    (errand,) = core.health.errands.values()
    assert (core.owed().count("test"), errand.spent) == (ALL.test_tries, False)


def test_an_eviction_that_was_only_told_is_made_when_the_site_acts() -> None:
    watching = Core(dataclasses.replace(ALL, mode="observe"))
    watching.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    drain = watching.health.drain
    assert drain is not None
    watching.tell(outcome(f"drain:{drain.token}:0:dry", "done", 11.0))
    assert pending(watching, "evict").endswith(":dry")
    acting = Core(ALL, watching.health)
    acting.tell(booted(20.0, previous=BOOT))
    drain = acting.health.drain
    assert drain is not None
    acting.tell(outcome(f"drain:{drain.token}:{drain.writes}", "done", 21.0), tick(22.0))
    assert pending(acting, "evict").startswith("evict:")
    assert not pending(acting, "evict").endswith(":dry")


def test_what_a_pause_took_back_waits_for_no_test() -> None:
    core = Core(policy.Settings(mode="drain", test_gpus=True))
    core.tell(xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    core.tell(pause(20.0, 600.0))
    core.tell(xid(PCI, 154, 30.0, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))
    core.tell(tick(621.0), *looks(621.0), tick(1300.0))
    assert core.health.subject(GPU).tested is not None
    assert core.owed()[-1] == "release", "what may have been written is taken back"
