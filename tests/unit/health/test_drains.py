"""When the node is drained and given back, by whom, and what becomes of a drain that others touch."""

import msgspec

from gpuguard.health import policy
from gpuguard.model.events import Acknowledged, OperatorAsked, SourceChanged
from gpuguard.model.ids import NODE, BootId, EventId, TokenId, gpu, parse_pci_address
from tests.support.core import ACTING, Core, booted, looks, probed, tick, xid
from tests.support.faults import PCI, SELF_EVIDENT, drained, outcome

DAY = 86400.0


def test_a_lesser_newer_fault_never_replaces_a_worse_one() -> None:
    core = Core()
    token = drained(core, xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    core.tell(xid(PCI, 119, 700.0, SELF_EVIDENT[119]), xid("0000:0f:00", 62, 800.0, SELF_EVIDENT[62]))
    assert core.health.drain is not None
    assert (core.health.drain.token, core.health.drain.code) == (token, "xid79")
    assert core.health.subject(gpu(parse_pci_address(PCI))).remedy == "reboot"
    # Another GPU became unfit: the drain is owed once more, in case somebody lifted it; its reason stays.
    assert core.owed() == ["drain", "drain"]
    assert {o.action.reason for d in core.decisions for o in d.owed} == {core.health.drain.reason}


def test_the_reason_follows_a_worse_fault_but_not_too_often() -> None:
    core = Core()
    token = drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    core.tell(xid("0000:0f:00", 79, 100.0, SELF_EVIDENT[79]), outcome(f"drain:{token}:2", "done", 100.1))
    assert core.owed() == ["drain", "drain"]
    core.tell(tick(620.0))
    assert core.owed() == ["drain", "drain", "update_reason"]
    assert core.health.drain is not None
    assert core.health.drain.reason == f"gpuguard:{token} 0f:00.0 lost xid79"


def test_a_reset_that_the_driver_shows_leads_back_by_probation() -> None:
    core = Core()
    token = drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]), xid(PCI, 154, 11.0, SELF_EVIDENT[154]))
    core.tell(xid(PCI, 154, 500.0, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))
    assert core.state(PCI) == "returning"
    core.tell(tick(700.0), tick(900.0))
    assert core.owed() == ["drain"]
    decision = core.tell(tick(1101.0))
    assert core.state(PCI) == "returning"
    assert [(t.action, t.state) for t in decision.transitions] == [("release", "returning")]
    assert [o.action.key for o in decision.owed if not o.cancelled] == [f"release:{token}:1"]
    core.tell(outcome(f"release:{token}:1", "done", 1101.1))
    assert core.health.drain is None
    assert core.tell(tick(1101.0 + 7 * DAY)).transitions[0].reason == "nothing came back in 7 d of probation"
    assert core.state(PCI) == "healthy"


def test_a_fault_on_probation_starts_it_again_or_ends_it() -> None:
    core = Core()
    drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]), xid(PCI, 154, 11.0, SELF_EVIDENT[154]))
    core.tell(xid(PCI, 154, 500.0, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))
    core.tell(tick(700.0), xid(PCI, 999, 890.0, "new"), tick(900.0), tick(1100.0), tick(1301.0))
    assert core.owed() == ["drain"]
    core.tell(tick(1502.0))
    assert core.owed() == ["drain", "release"]
    core.tell(xid(PCI, 119, 1600.0, SELF_EVIDENT[119]))
    assert core.state(PCI) == "unfit"


def test_observe_decides_everything_and_says_so() -> None:
    core = Core(policy.Settings(mode="drain", name="observe"))
    decision = core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    assert core.state(PCI) == "unfit"
    assert decision.transitions[0].action == "none"
    assert core.health.drain is not None
    assert core.health.drain.dry_run


def test_switching_from_watching_to_acting_sends_the_drain_that_stands() -> None:
    core = Core(policy.Settings(mode="observe"))
    drained(core, xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0:dry", "done", 11.0))
    again = Core(ACTING, core.health)
    decision = again.tell(booted(20.0))
    assert [o.action.key.endswith(":dry") for o in decision.owed if not o.cancelled] == [False]


def test_a_foreign_drain_is_left_alone_and_ours_waits() -> None:
    core = Core()
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0", "foreign", 10.2, "drained by root: bad PSU"))
    assert core.health.drain is not None
    assert core.health.drain.state == "foreign"


def test_a_drain_that_an_administrator_lifted_is_not_forced_again() -> None:
    core = Core()
    token = drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    core.tell(xid(PCI, 79, 700.0, SELF_EVIDENT[79]))
    assert core.owed() == ["drain", "update_reason"]
    core.tell(outcome(f"update_reason:{token}:2", "foreign", 701.0, "not ours any more"))
    assert core.health.drain is not None
    assert core.health.drain.state == "overridden"
    core.tell(tick(2000.0), tick(3000.0))
    assert core.owed() == ["drain", "update_reason"]
    core.tell(xid("0000:aa:00", 79, 3100.0, SELF_EVIDENT[79]))
    assert core.owed() == ["drain", "update_reason", "drain"]
    assert core.health.drain.token != token


def test_the_fault_behind_a_new_reason_is_not_lost_with_a_lifted_drain() -> None:
    core = Core()
    token = drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    core.tell(xid("0000:aa:00", 79, 700.0, SELF_EVIDENT[79]), outcome(f"drain:{token}:2", "foreign", 700.1, "bob's"))
    assert core.health.drain is not None
    assert core.health.drain.state == "foreign", "it waits for bob, and is asked for again"


def test_a_gpu_that_fails_again_after_a_reboot_that_lifted_the_drain_drains_again() -> None:
    core = Core()
    token = drained(core, xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    after = BootId("aaaaaaaa-0000-4000-8000-000000000002")
    core.tell(booted(1.0, after, BootId("aaaaaaaa-0000-4000-8000-000000000001")))
    decision = core.tell(xid(PCI, 79, 60.0, SELF_EVIDENT[79], boot=after))
    assert [o.action.key for o in decision.owed] == [f"drain:{token}:2"]


def test_a_fault_under_a_persons_drain_is_owed_in_case_it_was_lifted() -> None:
    core = Core()
    core.tell(OperatorAsked(id=EventId("o1"), at=tick(5.0).at, wish="drain", by="kim", reason="cables"))
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0", "done", 6.0))
    decision = core.tell(xid(PCI, 79, 100.0, SELF_EVIDENT[79]))
    assert [(o.action.verb, o.action.token) for o in decision.owed] == [("drain", drain.token)]
    assert core.health.drain is not None
    assert core.health.drain.by == "kim"


def test_a_persons_wish_for_a_drain_that_stands_keeps_it() -> None:
    core = Core()
    drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    core.tell(OperatorAsked(id=EventId("o1"), at=tick(20.0).at, wish="drain", by="kim", reason="fans"))
    core.tell(Acknowledged(id=EventId("a"), at=tick(30.0).at, code="xid119", subject=None, by="jo", reason="ok"))
    core.tell(*looks(30.0), tick(5000.0))
    assert core.health.subject(gpu(parse_pci_address(PCI))).tested is not None
    assert core.owed() == ["drain"]


def test_a_release_cancels_the_drain_that_still_waits() -> None:
    core = Core()
    core.tell(OperatorAsked(id=EventId("o1"), at=tick(5.0).at, wish="drain", by="kim", reason="cables"))
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0", "foreign", 6.0, "bob's"))
    decision = core.tell(
        OperatorAsked(id=EventId("o2"), at=tick(60.0).at, wish="release", by="kim", reason="not needed")
    )
    assert [(o.action.key, o.cancelled) for o in decision.owed] == [
        (f"drain:{drain.token}:0", True), (f"release:{drain.token}:0", False),
    ]  # fmt: skip


def test_a_drain_that_is_written_after_it_was_given_up_is_lifted() -> None:
    core = Core()
    decision = core.tell(outcome("drain:beef:0", "done", 10.0, "written late"))
    assert [(o.action.verb, o.action.token) for o in decision.owed] == [("release", "beef")]
    assert core.tell(outcome("drain:beef:0:dry", "done", 11.0)).owed == ()


def test_a_refused_release_keeps_the_drain_on_record() -> None:
    core = Core()
    token = drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    core.tell(Acknowledged(id=EventId("a"), at=tick(20.0).at, code="xid119", subject=None, by="jo", reason="ok"))
    core.tell(*looks(20.0), outcome(f"release:{token}:1", "refused", 701.0, "no rights"), tick(5000.0))
    assert core.health.drain is not None
    assert core.health.drain.state == "refused"
    decision = core.tell(booted(6000.0))
    assert [o.action.key for o in decision.owed if not o.cancelled] == [f"release:{token}:2"]


def test_a_recovery_while_observing_keeps_a_real_drain() -> None:
    core = Core()
    token = drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    watching = Core(policy.Settings(mode="observe"), core.health)
    watching.tell(booted(20.0))
    watching.tell(Acknowledged(id=EventId("a"), at=tick(30.0).at, code="xid119", subject=None, by="jo", reason="ok"))
    watching.tell(*looks(30.0), tick(5000.0))
    watching.tell(OperatorAsked(id=EventId("o"), at=tick(5001.0).at, wish="release", by="kim", reason="please"))
    assert watching.owed() == []
    acting = Core(ACTING, watching.health)
    decision = acting.tell(booted(6000.0))
    assert [o.action.key for o in decision.owed if not o.cancelled] == [f"release:{token}:1"]


def test_a_board_that_was_taken_out_is_given_up_by_a_person() -> None:
    core = Core()
    core.tell(probed(PCI, 1.0, answers=True))
    token = drained(core, xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    after = BootId("aaaaaaaa-0000-4000-8000-000000000002")
    decision = core.tell(booted(1.0, after, BootId("aaaaaaaa-0000-4000-8000-000000000001")))
    assert [(q.subject, q.code) for q in decision.questions] == [(gpu(parse_pci_address(PCI)), "presence")]
    core.tell(tick(90_000.0, after))
    assert core.state(PCI) == "returning", "nobody saw it since"
    asked = OperatorAsked(id=EventId("o"), at=tick(90_001.0, after).at, wish="release", by="kim", reason="board out")
    decision = core.tell(asked)
    assert [o.action.token for o in decision.owed if not o.cancelled] == [token]
    assert gpu(parse_pci_address(PCI)) not in core.health.subjects


def test_a_persons_drain_is_given_back_only_by_a_person() -> None:
    core = Core()
    core.tell(OperatorAsked(id=EventId("o1"), at=tick(5.0).at, wish="drain", by="kim", reason="cables"))
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0", "done", 6.0), tick(5000.0))
    assert core.owed() == ["drain"]
    core.tell(OperatorAsked(id=EventId("o2"), at=tick(6000.0).at, wish="release", by="kim", reason="done"))
    assert core.owed() == ["drain", "release"]


def test_a_release_is_refused_while_a_gpu_is_unfit() -> None:
    core = Core()
    drained(core, xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    core.tell(OperatorAsked(id=EventId("o"), at=tick(20.0).at, wish="release", by="kim", reason="please"))
    assert core.owed() == ["drain"]


def test_a_blind_kernel_log_makes_the_node_unknown_and_holds_probation() -> None:
    core = Core()
    drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]), xid(PCI, 154, 11.0, SELF_EVIDENT[154]))
    core.tell(xid(PCI, 154, 500.0, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))
    blind = SourceChanged(id=EventId("s"), at=tick(600.0).at, source="kmsg", level="blind", reason="no permission")
    core.tell(blind, tick(5000.0))
    assert core.health.subject(NODE).state == "unknown"
    assert core.state(PCI) == "returning"
    seeing = SourceChanged(id=EventId("s2"), at=tick(5001.0).at, source="kmsg", level="watching", reason="")
    core.tell(seeing, tick(5002.0))
    assert core.health.subject(NODE).state == "healthy"
    assert core.state(PCI) == "returning"  # nobody watched its probation: it begins anew
    core.tell(*looks(5001.0))
    assert core.owed() == ["drain", "release"]


def test_tokens_of_an_answer_about_an_older_drain_change_nothing() -> None:
    core = Core()
    drained(core, xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    before = core.health.drain
    core.tell(outcome(f"release:{TokenId('ffff')}:1", "done", 20.0))
    assert core.health.drain == before


def test_what_a_target_refused_is_asked_again_after_a_restart() -> None:
    core = Core()
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0", "refused", 10.2, "no such node"), tick(5000.0))
    assert core.owed() == ["drain"]
    core.tell(booted(5001.0))
    assert core.owed() == ["drain", "drain"]
    assert core.decisions[-1].owed[0].action.key == f"drain:{drain.token}:1"


def test_a_target_that_only_talks_is_no_drain() -> None:
    core = Core()
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    drain = core.health.drain
    assert drain is not None
    said = outcome(f"drain:{drain.token}:0", "done", 10.2, "dry run: would drain")
    core.tell(msgspec.structs.replace(said, node_state="dry_run"), tick(100.0))
    assert core.health.drain is not None
    assert core.health.drain.state == "refused"
    assert core.owed() == ["drain"]


def test_another_fault_is_tried_after_a_refusal() -> None:
    core = Core()
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0", "refused", 10.2, "gave up after 300"), tick(100.0))
    core.tell(xid("0000:0f:00", 79, 200.0, SELF_EVIDENT[79]))
    assert core.owed() == ["drain", "drain"]


def test_no_two_drains_of_a_node_have_the_same_token() -> None:
    core = Core()
    tokens = []
    for n in range(400):
        start = 100_000.0 * n  # a node is given back twice a day by itself, and no more
        core.tell(xid(f"{n // 200:04x}:{n % 200 + 1:02x}:00", 120, start + 10.0, SELF_EVIDENT[120]))
        drain = core.health.drain
        assert drain is not None
        tokens.append(drain.token)
        core.tell(outcome(f"drain:{drain.token}:0", "done", start + 11.0))
        core.tell(
            Acknowledged(id=EventId(f"a{n}"), at=tick(start + 20.0).at, code="xid120", subject=None, by="j", reason="r")
        )
        core.tell(*looks(start + 20.0), outcome(f"release:{drain.token}:1", "done", start + 701.0))
        assert core.health.drain is None
    assert len(set(tokens)) == 400
