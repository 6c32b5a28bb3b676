"""Decisions on single stories: what drains, what never does, what clears, what escalates."""

import msgspec
import pytest

from gpuguard.health import policy
from gpuguard.health.decide import decide
from gpuguard.health.state import Health
from gpuguard.model.events import Acknowledged, ActionOutcome, AnyEvent, LogLine, OperatorAsked, SourceChanged
from gpuguard.model.ids import NODE, BootId, EventId, SubjectId, TokenId, gpu, parse_pci_address
from tests.support.core import ACTING, Core, booted, detectors, line, probed, tick, xid

PCI = "0000:5e:00"
SELF_EVIDENT = {
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 2",
    62: "2b0f 3c11 00000000 00000000",
    64: "Row Remapper Error: (0x0000000000a1b200) - All reserved rows for bank are remapped",
    79: "GPU has fallen off the bus.",
    95: "Uncontained: FBHUB. RST: Yes, D-RST: No",
    110: "",
    119: "Timeout after 6s of waiting for RPC response from GPU2 GSP! Expected function 76 (GSP_RM_CONTROL) (0x1 0x2)",
    120: "GSP task exception",
    140: "An uncorrectable ECC error detected (possible firmware handling failure) DRAM:1, LTC:0, MMU:0, PCIE:0",
    143: "",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    149: "NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
}  # fmt: skip


def outcome(key: str, result: str, mono: float, message: str = "") -> ActionOutcome:
    return msgspec.convert(
        {
            "event": "action_outcome", "id": f"outcome:{key}:{mono}", "key": key, "result": result, "message": message,
            "at": {"boot": "aaaaaaaa-0000-4000-8000-000000000001", "mono": mono, "utc": 1_750_000_000.0 + mono},
        },
        ActionOutcome,
    )  # fmt: skip


def drained(core: Core, *events: AnyEvent) -> str:
    """The token of the drain that the events led to, after the target said that it is done."""
    core.tell(*events)
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0", "done", events[-1].at.mono + 0.1))
    return drain.token


@pytest.mark.parametrize("code", SELF_EVIDENT)
def test_a_self_evident_fault_drains_at_once(code: int) -> None:
    core = Core()
    decision = core.tell(xid(PCI, code, 10.0, SELF_EVIDENT[code]))
    assert core.state(PCI) == "unfit"
    assert [o.action.verb for o in decision.owed] == ["drain"]
    assert decision.transitions[0].action == "drain"
    assert f"xid{code}" in decision.owed[0].action.reason


@pytest.mark.parametrize("code", [8, 11, 13, 25, 31, 32, 43, 45, 68, 69, 137])
def test_a_program_fault_alone_changes_no_state(code: int) -> None:
    core = Core()
    core.tell(xid(PCI, code, 10.0, "pid=4242, name=train, Ch 00000008"))
    assert core.state(PCI) in ("healthy", "watched")
    assert core.owed() == []


@pytest.mark.parametrize("code", [46, 109, 136, 155, 156, 158])
def test_a_reset_needed_waits_for_its_second_witness(code: int) -> None:
    core = Core()
    decision = core.tell(xid(PCI, code, 10.0, "pid=1, name=x, Ch 00000008"))
    assert core.state(PCI) == "watched"
    assert decision.transitions[0].action == "watch"
    assert [q.code for q in decision.questions] == [f"xid{code}"]
    core.tell(xid(PCI, code, 10.0, "pid=1, name=x, Ch 00000008", source="journal"))
    assert core.state(PCI) == "unfit"
    assert core.owed() == ["drain"]
    standing = core.health.subject(gpu(parse_pci_address(PCI))).standing[0]
    assert standing.count == 1


def test_an_unknown_code_is_visible_and_never_drains() -> None:
    core = Core()
    decision = core.tell(xid(PCI, 999, 10.0, "something new"))
    assert core.state(PCI) == "watched"
    assert decision.transitions[0].finding == "xid999"
    assert core.owed() == []


def test_xid_45_at_teardown_on_many_gpus_drains_nothing() -> None:
    core = Core()
    for n in range(700):
        core.tell(xid(f"0000:{n % 8 + 16:02x}:00", 45, 10.0 + n / 100, f"pid={n}, name=python3, Ch 00000008"))
    assert core.owed() == []
    assert all(s.state in ("healthy", "watched") for s in core.health.subjects.values())


def test_a_lesser_newer_fault_never_replaces_a_worse_one() -> None:
    core = Core()
    token = drained(core, xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    core.tell(xid(PCI, 119, 700.0, SELF_EVIDENT[119]), xid("0000:0f:00", 62, 800.0, SELF_EVIDENT[62]))
    assert core.health.drain is not None
    assert (core.health.drain.token, core.health.drain.code) == (token, "xid79")
    assert core.health.subject(gpu(parse_pci_address(PCI))).remedy == "reboot"
    assert core.owed() == ["drain"]


def test_the_reason_follows_a_worse_fault_but_not_too_often() -> None:
    core = Core()
    token = drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    core.tell(xid("0000:0f:00", 79, 100.0, SELF_EVIDENT[79]))
    assert core.owed() == ["drain"]
    core.tell(tick(620.0))
    assert core.owed() == ["drain", "update_reason"]
    assert core.health.drain is not None
    assert core.health.drain.reason == f"gpuguard:{token} 0f:00.0 lost xid79"


def test_repeats_are_counted_and_decide_nothing_new() -> None:
    core = Core()
    core.tell(xid(PCI, 95, 10.0, SELF_EVIDENT[95]))
    for n in range(500):
        decision = core.tell(xid(PCI, 95, 10.0 + n / 1000, SELF_EVIDENT[95]))
        assert not decision.urgent
    standing = core.health.subject(gpu(parse_pci_address(PCI))).standing[0]
    assert standing.count == 501
    assert core.owed() == ["drain"]


def test_a_reset_that_the_driver_shows_leads_back_by_probation() -> None:
    core = Core()
    token = drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]), xid(PCI, 154, 11.0, SELF_EVIDENT[154]))
    core.tell(xid(PCI, 154, 500.0, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))
    assert core.state(PCI) == "returning"
    core.tell(tick(1000.0))
    assert core.state(PCI) == "returning"
    decision = core.tell(tick(1101.0))
    assert core.state(PCI) == "healthy"
    assert [(t.action, t.state) for t in decision.transitions] == [("release", "healthy")]
    assert [o.action.key for o in decision.owed] == [f"release:{token}:1"]
    core.tell(outcome(f"release:{token}:1", "done", 1101.1))
    assert core.health.drain is None


def test_a_fault_on_probation_starts_it_again_or_ends_it() -> None:
    core = Core()
    drained(core, xid(PCI, 119, 10.0, SELF_EVIDENT[119]), xid(PCI, 154, 11.0, SELF_EVIDENT[154]))
    core.tell(xid(PCI, 154, 500.0, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))
    core.tell(xid(PCI, 999, 900.0, "new"), tick(1200.0))
    assert core.state(PCI) == "returning"
    core.tell(tick(1550.0))
    assert core.state(PCI) == "watched"


def test_only_a_remedy_that_was_applied_for_the_fault_escalates() -> None:
    core = Core()
    none = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    remedies = []
    for n in range(3):
        core.tell(xid(PCI, 119, 1000.0 * n + 10.0, SELF_EVIDENT[119]))
        remedies.append(core.health.subject(gpu(parse_pci_address(PCI))).remedy)
        core.tell(xid(PCI, 154, 1000.0 * n + 11.0, SELF_EVIDENT[154]), xid(PCI, 154, 1000.0 * n + 100.0, none))
    assert remedies == ["reset", "reboot", "reboot"], "a reset does not end what already asks for a reboot"


def test_planned_reboots_of_a_healthy_node_count_for_nothing() -> None:
    core = Core()
    before = BootId("aaaaaaaa-0000-4000-8000-000000000001")
    for n in range(2, 6):
        after = BootId(f"aaaaaaaa-0000-4000-8000-00000000000{n}")
        core.tell(booted(1.0, after, before))
        before = after
    core.tell(xid(PCI, 119, 10.0, SELF_EVIDENT[119], boot=before))
    assert core.health.subject(gpu(parse_pci_address(PCI))).remedy == "reset"


def test_a_reboot_clears_what_it_may_and_a_verdict_on_hardware_stays() -> None:
    core = Core()
    boots = [BootId(f"aaaaaaaa-0000-4000-8000-00000000000{n}") for n in range(1, 5)]
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    core.tell(booted(1.0, boots[1], boots[0]))
    assert core.state(PCI) == "returning"
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79], boot=boots[1]))
    assert core.health.subject(gpu(parse_pci_address(PCI))).remedy == "replace"
    core.tell(booted(1.0, boots[2], boots[1]))
    assert core.state(PCI) == "unfit", "a reboot does not mend what needs a new board"
    core.tell(
        Acknowledged(
            id=EventId("a"), at=tick(20.0, boots[2]).at, code="xid79", subject=None, by="kim", reason="board replaced"
        )
    )
    assert core.state(PCI) == "returning"


def test_162_clears_163_and_nothing_else() -> None:
    core = Core()
    core.tell(xid(PCI, 163, 10.0), xid(PCI, 999, 10.5, "other"), xid(PCI, 162, 11.0))
    assert "xid163" not in core.codes(PCI)
    assert "xid999" in core.codes(PCI)


def test_peers_of_a_lost_gpu_are_not_blamed_in_either_order() -> None:
    for order in ((0, 1), (1, 0)):
        core = Core()
        events: list[AnyEvent] = [
            xid(PCI, 79, 10.0, SELF_EVIDENT[79]),
            xid("0000:9b:00", 149, 10.4, SELF_EVIDENT[149]),
        ]
        core.tell(*(events[n] for n in order))
        assert core.state(PCI) == "unfit"
        assert core.state("0000:9b:00") != "unfit"


def test_old_news_waits_for_a_witness_that_is_no_log() -> None:
    core = Core()
    core.tell(probed(PCI, 1.0, answers=True), booted(20_000.0))
    decision = core.tell(xid(PCI, 79, 100.0, SELF_EVIDENT[79], backlog=True))
    assert core.state(PCI) == "watched"
    assert decision.questions
    core.tell(xid(PCI, 79, 100.0, SELF_EVIDENT[79], source="journal", backlog=True))
    assert core.state(PCI) == "watched"
    core.tell(probed(PCI, 20_001.0, answers=False))
    assert core.state(PCI) == "unfit"
    assert core.owed() == ["drain"]


def test_a_silent_config_space_alone_does_not_drain() -> None:
    core = Core()
    core.tell(probed(PCI, 1.0, answers=True), probed(PCI, 61.0, answers=False))
    assert core.state(PCI) == "watched"
    assert core.owed() == []


def test_strict_takes_a_gpu_out_on_any_xid() -> None:
    core = Core(policy.Settings(mode="drain", name="strict"))
    core.tell(xid(PCI, 43, 10.0, "pid=7, name=x, Ch 00000008"))
    assert core.state(PCI) == "unfit"
    assert core.owed() == ["drain"]


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
    assert [o.action.verb for o in decision.owed] == ["drain"]
    assert not decision.owed[0].action.key.endswith(":dry")


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
    core.tell(xid("0000:0f:00", 79, 700.0, SELF_EVIDENT[79]))
    core.tell(outcome(f"update_reason:{token}:2", "foreign", 701.0, "not ours any more"))
    assert core.health.drain is not None
    assert core.health.drain.state == "overridden"
    core.tell(tick(2000.0), tick(3000.0))
    assert core.owed() == ["drain", "update_reason"]
    core.tell(xid("0000:aa:00", 79, 3100.0, SELF_EVIDENT[79]))
    assert core.owed() == ["drain", "update_reason", "drain"]


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


def test_another_gpu_at_the_same_address_is_another_subject() -> None:
    core = Core()
    first = line(f"NVRM: GPU at PCI:{PCI}: GPU-11111111-2222-3333-4444-555555555555", 5.0)
    core.tell(first, xid(PCI, 64, 10.0, SELF_EVIDENT[64]))
    core.tell(line(f"NVRM: GPU at PCI:{PCI}: GPU-99999999-2222-3333-4444-555555555555", 900.0))
    assert core.state(PCI) == "returning"
    assert core.codes(PCI) == set()
    moved = line("NVRM: GPU at PCI:0000:aa:00: GPU-11111111-2222-3333-4444-555555555555", 950.0)
    core.tell(moved)
    assert core.state("0000:aa:00") == "unfit", "a moved GPU keeps its history"


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
    core.tell(tick(5602.0))
    assert core.state(PCI) == "healthy"


def test_a_check_that_crashes_blinds_no_other() -> None:
    class Broken:
        name = "broken"
        reads = (LogLine,)
        memory = dict

        def subjects(self, event: AnyEvent) -> tuple[SubjectId, ...]:
            return (NODE,)

        def start(self) -> dict[str, int]:
            return {}

        def observe(
            self, memory: dict[str, int], subject: SubjectId, event: AnyEvent
        ) -> tuple[dict[str, int], list[object]]:
            raise ZeroDivisionError("our own bug")

    event = xid(PCI, 79, 10.0, SELF_EVIDENT[79])
    health, decision = decide(Health(now=event.at), event, (Broken(), *detectors()), ACTING)  # type: ignore[arg-type]
    assert decision.failed == ("broken",)
    assert health.subject(NODE).state == "unknown"
    assert [o.action.verb for o in decision.owed] == ["drain"]


def test_tokens_of_an_answer_about_an_older_drain_change_nothing() -> None:
    core = Core()
    drained(core, xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    before = core.health.drain
    core.tell(outcome(f"release:{TokenId('ffff')}:1", "done", 20.0))
    assert core.health.drain == before


def test_a_word_on_the_cause_covers_its_lesser_lines_and_no_other_witness() -> None:
    core = Core()
    core.tell(
        probed(PCI, 1.0, answers=True),
        xid(PCI, 79, 10.0, SELF_EVIDENT[79]),
        line(f"NVRM: GPU {PCI}.0: GPU has fallen off the bus.", 10.1),
        xid(PCI, 154, 10.2, SELF_EVIDENT[154]),
        probed(PCI, 11.0, answers=False),
    )
    said = Acknowledged(id=EventId("a"), at=tick(20.0).at, code="xid79", subject=None, by="kim", reason="reseated")
    core.tell(said)
    assert core.codes(PCI) == {"gpu_silent"}
    assert core.state(PCI) != "healthy"


def test_a_word_on_a_consequence_leaves_the_cause() -> None:
    core = Core()
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]), xid(PCI, 154, 10.2, SELF_EVIDENT[154]))
    core.tell(Acknowledged(id=EventId("a"), at=tick(20.0).at, code="xid154", subject=None, by="kim", reason="no"))
    assert core.codes(PCI) == {"xid79"}
    assert core.state(PCI) == "unfit"


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
