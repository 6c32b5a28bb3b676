"""Decisions on single stories: what drains, what never does, what clears, what escalates."""

import pytest

from gpuguard.health import policy
from gpuguard.health.decide import decide
from gpuguard.health.state import Health
from gpuguard.model.events import Acknowledged, AnyEvent, LogLine
from gpuguard.model.ids import NODE, BootId, EventId, SubjectId, gpu, parse_pci_address
from tests.support.core import ACTING, Core, booted, detectors, line, probed, tick, xid
from tests.support.faults import PCI, SELF_EVIDENT


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


MILD_145 = "RLW_REMAP Nonfatal XC0 i0 Link 01 (0x00000004 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)"


@pytest.mark.parametrize("first", ["kmsg", "nvml"])
@pytest.mark.parametrize(
    ("code", "text"), [(154, SELF_EVIDENT[154]), (145, MILD_145), (109, "pid=1, name=x, CTX SWITCH TIMEOUT")]
)
def test_an_event_of_the_drivers_library_confirms_and_says_nothing_else(first: str, code: int, text: str) -> None:
    """It has the number of the Xid and none of the words: not to what 154 changed, nor which error 145 is."""
    alone, both = Core(), Core()
    alone.tell(xid(PCI, code, 10.0, text))
    reports = [xid(PCI, code, 10.0, text), xid(PCI, code, 10.1, source="nvml")]
    both.tell(*(reports if first == "kmsg" else reversed(reports)))
    (told,), (confirmed,) = (core.health.subject(gpu(parse_pci_address(PCI))).standing for core in (alone, both))
    assert (confirmed.finding.severity, confirmed.finding.reason) == (told.finding.severity, told.finding.reason)
    assert (confirmed.remedy, confirmed.count) == (told.remedy, 1)
    assert {*confirmed.sources} == {"kmsg", "nvml"}


def test_a_recovery_action_that_was_cut_off_takes_back_nothing() -> None:
    core = Core()
    core.tell(xid(PCI, 154, 10.0, SELF_EVIDENT[154]), xid(PCI, 154, 11.0, "GPU recovery action changed from 0x0 (No"))
    assert core.health.subject(gpu(parse_pci_address(PCI))).remedy == "reset"


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


def test_repeats_are_counted_and_decide_nothing_new() -> None:
    core = Core()
    core.tell(xid(PCI, 95, 10.0, SELF_EVIDENT[95]))
    for n in range(500):
        decision = core.tell(xid(PCI, 95, 10.0 + n / 1000, SELF_EVIDENT[95]))
        assert not decision.urgent
    standing = core.health.subject(gpu(parse_pci_address(PCI))).standing[0]
    assert standing.count == 501
    assert core.owed() == ["drain"]


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


def test_a_doubtful_loss_excuses_nobody() -> None:
    core = Core()
    core.tell(probed(PCI, 1.0, answers=True), probed(PCI, 10.0, answers=False))
    core.tell(xid("0000:9b:00", 149, 15.0, SELF_EVIDENT[149]))
    assert core.state("0000:9b:00") == "unfit"
    core.tell(probed(PCI, 20.0, answers=True), probed(PCI, 25.0, answers=False))
    assert core.state("0000:9b:00") == "unfit"


def test_a_peer_that_still_fails_after_the_loss_is_mended_is_judged_itself() -> None:
    core = Core()
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]), xid("0000:9b:00", 149, 11.0, SELF_EVIDENT[149]))
    core.tell(xid("0000:9b:00", 149, 300.0, SELF_EVIDENT[149]))
    assert core.state("0000:9b:00") == "watched", "while the loss stands it explains the repeats"
    core.tell(Acknowledged(id=EventId("a"), at=tick(400.0).at, code="xid79", subject=None, by="jo", reason="reseated"))
    core.tell(xid("0000:9b:00", 149, 5000.0, SELF_EVIDENT[149]))
    assert core.state("0000:9b:00") == "unfit"


def test_an_echo_counts_for_no_remedy() -> None:
    core = Core()
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]), xid("0000:9b:00", 149, 11.0, SELF_EVIDENT[149]))
    after = BootId("aaaaaaaa-0000-4000-8000-000000000002")
    core.tell(booted(1.0, after, BootId("aaaaaaaa-0000-4000-8000-000000000001")))
    core.tell(xid("0000:9b:00", 149, 5000.0, SELF_EVIDENT[149], boot=after))
    assert core.health.subject(gpu(parse_pci_address("0000:9b:00"))).remedy == "reset"


def test_the_drivers_word_about_one_fault_does_not_raise_another() -> None:
    core = Core()
    none = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    core.tell(xid(PCI, 48, 10.0, SELF_EVIDENT[48]), xid(PCI, 154, 11.0, SELF_EVIDENT[154]), xid(PCI, 154, 90.0, none))
    core.tell(xid(PCI, 119, 9000.0, SELF_EVIDENT[119]), xid(PCI, 154, 9001.0, SELF_EVIDENT[154]))
    assert core.health.subject(gpu(parse_pci_address(PCI))).remedy == "reset"


@pytest.mark.parametrize("code", [46, 109, 136, 13])
def test_strict_needs_no_witness_for_any_code(code: int) -> None:
    core = Core(policy.Settings(mode="drain", name="strict"))
    core.tell(xid(PCI, code, 10.0, "pid=7, name=x, Ch 00000008"))
    assert core.state(PCI) == "unfit"


def test_a_witness_is_asked_again_while_a_fault_is_held() -> None:
    core = Core()
    core.tell(xid(PCI, 109, 10.0, "pid=1, name=x, Ch 00000008"))
    for mono in range(40, 2000, 30):
        core.tell(tick(float(mono)))
    asked = [q for d in core.decisions for q in d.questions]
    assert len(asked) == 4
    assert {q.raw for q in asked} == {f"NVRM: Xid (PCI:{PCI}): 109, pid=1, name=x, Ch 00000008"}


def test_an_old_line_that_the_journal_tells_is_old_news_too() -> None:
    core = Core()
    core.tell(booted(200_000.0))
    core.tell(
        xid(PCI, 79, 100.0, SELF_EVIDENT[79], backlog=True), xid(PCI, 79, 100.0, SELF_EVIDENT[79], source="journal")
    )
    assert core.state(PCI) == "watched"
    assert core.owed() == []


def test_what_another_log_tells_late_of_a_mended_fault_is_over() -> None:
    core = Core()
    none = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    core.tell(xid(PCI, 48, 10.0, SELF_EVIDENT[48], source="journal"))
    core.tell(xid(PCI, 154, 11.0, SELF_EVIDENT[154], source="journal"), xid(PCI, 154, 90.0, none, source="journal"))
    assert core.state(PCI) == "returning"
    core.tell(xid(PCI, 48, 10.0, SELF_EVIDENT[48], backlog=True), xid(PCI, 154, 11.0, SELF_EVIDENT[154], backlog=True))
    assert core.state(PCI) == "returning"
    core.tell(xid(PCI, 48, 200.0, SELF_EVIDENT[48]))
    assert core.state(PCI) == "unfit", "a new one is no old one"


def test_a_silence_weeks_later_is_no_witness_of_an_old_line() -> None:
    core = Core()
    core.tell(probed(PCI, 1.0, answers=True), booted(20_000.0))
    core.tell(xid(PCI, 48, 100.0, SELF_EVIDENT[48], backlog=True))
    core.tell(probed(PCI, 2_000_000.0, answers=False))
    assert core.state(PCI) == "watched"


def test_a_mild_repeat_does_not_keep_a_grave_finding_alive() -> None:
    core = Core()
    device = "pcieport 0000:5d:00.0: AER: "
    core.tell(probed(PCI, 1.0, answers=True))
    core.tell(line(f"{device}Uncorrectable (Fatal) error message received from {PCI}.0", 10.0))
    assert core.state(PCI) == "watched"
    for n in range(1, 9):
        core.tell(line(f"{device}Correctable error message received from {PCI}.0", 10.0 + 600.0 * n))
        core.tell(tick(11.0 + 600.0 * n))
    assert core.state(PCI) == "healthy"


def test_every_finding_of_one_line_is_told() -> None:
    core = Core()
    for pid in range(5):
        decision = core.tell(xid(PCI, 109, 10.0 + pid, f"pid={pid + 100}, name=x, Ch 00000008"))
    assert {t.finding for d in core.decisions for t in d.transitions} >= {"xid109", "program_repeats"}
    assert decision.transitions


def test_the_time_a_machine_was_off_is_no_probation() -> None:
    core = Core()
    core.tell(xid(PCI, 119, 10.0, SELF_EVIDENT[119]))
    boots = [BootId(f"aaaaaaaa-0000-4000-8000-00000000000{n}") for n in range(1, 4)]
    core.tell(booted(1.0, boots[1], boots[0]), booted(5.0, boots[2], boots[1]), tick(300.0, boots[2]))
    assert core.state(PCI) == "returning"


def test_addresses_that_were_named_once_are_forgotten() -> None:
    core = Core()
    for bus in range(200):
        core.tell(xid(f"0000:{bus:02x}:1f", 43, 10.0, "pid=1, name=x, Ch 00000008"))
    core.tell(tick(100_000.0), tick(800_000.0), tick(900_000.0))
    assert set(core.health.subjects) <= {NODE}
    assert not [key for key in core.health.memory if key[1] != NODE]


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


def test_a_syslog_file_alone_proves_nothing() -> None:
    core = Core()
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79], source="logfile"))
    assert core.state(PCI) == "watched"
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    assert core.state(PCI) == "unfit"


def test_a_fault_of_this_boot_is_not_over_because_an_earlier_one_was_ended_by_the_reboot() -> None:
    core = Core()
    core.tell(xid(PCI, 79, 10.0, SELF_EVIDENT[79]))
    after = BootId("aaaaaaaa-0000-4000-8000-000000000002")
    core.tell(booted(60.0, after, BootId("aaaaaaaa-0000-4000-8000-000000000001")))
    core.tell(xid(PCI, 79, 20.0, SELF_EVIDENT[79], boot=after, backlog=True))
    assert core.state(PCI) == "unfit"


def test_a_fault_after_a_reset_is_not_over_when_both_are_read_late() -> None:
    core = Core()
    core.tell(booted(400.0))
    none = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    core.tell(xid(PCI, 119, 100.0, SELF_EVIDENT[119], backlog=True), xid(PCI, 154, 200.0, none, backlog=True))
    core.tell(xid(PCI, 119, 300.0, SELF_EVIDENT[119], backlog=True))
    assert core.state(PCI) == "unfit"
