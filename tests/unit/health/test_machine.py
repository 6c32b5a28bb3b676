"""The table of states, remedies and their ladders."""

import msgspec
import pytest

from gpuguard.health import machine
from gpuguard.model.findings import Clear, Finding, Remedy
from gpuguard.model.health import STATES, Applied, Incident, Standing, State, SubjectHealth
from gpuguard.model.ids import EventId, IncidentId, SubjectId
from tests.support.core import instant

GPU = SubjectId("gpu:0000:3b:00.0")
INCIDENT = Incident(
    id=IncidentId("i"), subject=GPU, name="xid1", opened=instant(0.0), last=instant(0.0), members=("xid1",)
)


def finding(code: str = "xid120", mono: float = 10.0, **more: object) -> Finding:
    given: dict[str, object] = {"severity": "critical", "self_evident": True, "source": "kmsg", "remedy": "reset"}
    given.update(more)
    because = (EventId(f"e{mono}"),)
    return Finding(subject=GPU, check="c", code=code, at=instant(mono), because=because, **given)  # type: ignore[arg-type]


PROOF = machine.Proof()
DAY = 86400.0


def subject(*findings: Finding, state: State = "healthy") -> SubjectHealth:
    record = SubjectHealth(id=GPU, since=instant(0.0), state=state)
    for one in findings:
        record = machine.observe(record, one, INCIDENT, None, fresh=True)
    return record


def codes(record: SubjectHealth) -> list[str]:
    return [s.finding.code for s in record.standing]


def moved(record: SubjectHealth, mono: float = 20.0) -> SubjectHealth:
    return machine.move(record, instant(mono), proof=PROOF, watching=True)


def test_the_table_is_complete_and_nothing_skips_probation() -> None:
    for situation, row in machine.TABLE.items():
        assert set(row) == set(STATES), situation
        assert row["unfit"] in ("unfit", "returning")
    assert {row[s] for row in machine.TABLE.values() for s in STATES} == set(STATES)


@pytest.mark.parametrize("state", STATES)
def test_a_confirmed_critical_finding_makes_any_state_unfit(state: State) -> None:
    assert moved(subject(finding(), state=state)).state == "unfit"


def test_unconfirmed_is_watched_and_a_second_source_confirms_for_good() -> None:
    once = moved(subject(finding(self_evident=False)))
    assert once.state == "watched"
    twice = moved(machine.observe(once, finding(self_evident=False, source="journal"), INCIDENT, None, fresh=True))
    assert twice.state == "unfit"
    assert [s.count for s in twice.standing] == [1]


def test_what_the_driver_asks_for_now_comes_before_what_it_printed() -> None:
    printed, told = finding("xid154", remedy="reboot"), finding("recovery_action", 11.0, remedy="reset", source="nvml")
    assert moved(subject(printed, told)).remedy == "reset"
    assert moved(subject(finding("xid79", remedy="reboot"), told)).remedy == "reset"
    assert moved(subject(finding("xid64", remedy="replace"), told)).remedy == "replace"


def test_what_the_driver_asks_for_is_never_raised_by_what_was_tried() -> None:
    tried = machine.prove(subject(finding("recovery_action")), "reset", instant(12.0))
    again = machine.observe(tried, finding("recovery_action", 13.0), INCIDENT, None, fresh=True)
    assert [s.remedy for s in again.standing] == ["reset"]


def test_old_news_is_not_confirmed_by_a_second_log() -> None:
    record = SubjectHealth(id=GPU, since=instant(0.0))
    for source in ("kmsg", "journal"):
        record = machine.observe(record, finding(source=source), INCIDENT, None, fresh=False)
    assert moved(record).state == "watched"
    record = machine.observe(record, finding("gpu_silent", source="pci_config"), INCIDENT, None, fresh=True)
    assert moved(record).state == "unfit"


def test_a_consequence_never_decides() -> None:
    assert moved(subject(finding("xid45", consequence=True))).state == "watched"


@pytest.mark.parametrize(
    ("proof", "stands"), [("reset", False), ("reboot", False), ("replace", False), ("ack", True), ("quiet", True)]
)
def test_which_proof_ends_a_finding(proof: Clear, stands: bool) -> None:
    record = subject(finding(clears=("reset", "reboot")))
    ended = machine.prove(record, proof, instant(30.0))
    assert bool(ended.standing) is stands


def test_a_ladder_goes_up_only_by_what_was_applied_for_that_fault() -> None:
    ladder: tuple[Remedy, ...] = ("reset", "reboot", "replace")
    record = SubjectHealth(id=GPU, since=instant(0.0))
    one = finding(ladder=ladder)
    assert machine.due_remedy(record, one) == "reset"
    for applied, due in (("reset", "reboot"), ("reboot", "replace"), ("replace", "replace")):
        tried = Applied(code="xid120", remedy=applied, at=instant(1.0))  # type: ignore[arg-type]
        record = msgspec.structs.replace(record, applied=(*record.applied, tried))
        assert machine.due_remedy(record, one) == due
    assert machine.due_remedy(record, finding("xid62", ladder=ladder)) == "reset"


def test_what_needs_more_is_not_ended_by_less() -> None:
    tried = Applied(code="xid120", remedy="reset", at=instant(1.0))
    record = msgspec.structs.replace(SubjectHealth(id=GPU, since=instant(0.0)), applied=(tried,))
    one = finding(ladder=("reset", "reboot"), clears=("reset", "reboot"))
    record = machine.observe(record, one, INCIDENT, None, fresh=True)
    assert machine.prove(record, "reset", instant(30.0)).standing
    assert not machine.prove(record, "reboot", instant(30.0)).standing


def test_quiet_ends_only_what_may_end_by_quiet() -> None:
    record = subject(
        finding("mild", severity="degraded", quiet_after=100.0),
        finding("latched", severity="degraded", quiet_after=100.0, latched=True),
        finding("reset_only", severity="degraded", quiet_after=100.0, clears=("reset",)),
    )
    assert [s.finding.code for s in machine.expire(record, instant(109.0)).standing] == [
        "mild",
        "latched",
        "reset_only",
    ]
    assert [s.finding.code for s in machine.expire(record, instant(110.0)).standing] == ["latched", "reset_only"]


def test_the_drivers_own_word_replaces_the_catalogues_but_not_an_escalation() -> None:
    verdict = finding("xid154", remedy="reboot")
    assert moved(subject(finding("xid48", remedy="reset"), verdict)).remedy == "reboot"
    lesser = finding("xid154", remedy="reset")
    assert moved(subject(finding("xid79", remedy="reboot"), lesser)).remedy == "reset"
    tried = Applied(code="xid79", remedy="reboot", at=instant(1.0))
    record = msgspec.structs.replace(SubjectHealth(id=GPU, since=instant(0.0)), applied=(tried,))
    for one in (finding("xid79", remedy="reboot", ladder=("reboot", "replace")), lesser):
        record = machine.observe(record, one, INCIDENT, None, fresh=True)
    assert moved(record).remedy == "replace"


def test_the_newest_word_of_the_driver_counts() -> None:
    record = subject(finding("xid154", 10.0, remedy="reboot"), finding("xid154", 11.0, remedy="reset"))
    assert moved(record).remedy == "reset"


def looked_at(record: SubjectHealth, *at: float, watching: bool = True, proof: machine.Proof = PROOF) -> SubjectHealth:
    for mono in at:
        record = machine.move(record, instant(mono), proof=proof, watching=watching)
    return record


RETURNING = msgspec.structs.replace(subject(state="returning"), probation_from=instant(0.0))


@pytest.mark.parametrize(
    ("at", "tested"),
    [
        ((200.0, 400.0, 600.0), True),
        ((200.0, 400.0, 599.0), False),
        ((700.0,), False),  # one look is not three
        ((700.0, 701.0, 702.0), False),  # nor are three in one moment
        ((700.0, 900.0, 1100.0), True),
    ],
)
def test_it_may_be_used_again_after_three_looks_over_ten_minutes(at: tuple[float, ...], tested: bool) -> None:
    record = looked_at(RETURNING, *at)
    assert (record.tested is not None, record.state) == (tested, "returning")


def test_a_look_needs_sight() -> None:
    assert looked_at(RETURNING, 200.0, 400.0, 600.0, watching=False).passes == 0
    silent = machine.observe(RETURNING, finding("deaf", severity="degraded", silent=True), INCIDENT, None, fresh=True)
    assert looked_at(silent, 200.0, 400.0, 600.0).passes == 0
    waiting = machine.observe(RETURNING, finding(self_evident=False), INCIDENT, None, fresh=True)
    assert looked_at(waiting, 700.0, 900.0, 1100.0).tested is None


def test_where_the_site_tests_a_test_must_have_passed() -> None:
    tests = machine.Proof(tests=True)
    clean = looked_at(RETURNING, 200.0, 400.0, 600.0, 800.0, proof=tests)
    assert clean.tested is None
    proven = msgspec.structs.replace(clean, proven=instant(810.0))
    assert looked_at(proven, 820.0, proof=tests).tested == instant(820.0)


def test_probation_lasts_a_week_and_outlives_a_reboot() -> None:
    tested = looked_at(RETURNING, 200.0, 400.0, 600.0)
    assert looked_at(tested, 600.0 + 7 * DAY - 1).state == "returning"
    assert looked_at(tested, 600.0 + 7 * DAY).state == "healthy"
    assert machine.begin_anew(tested, instant(700.0)) is tested
    early = looked_at(RETURNING, 200.0)
    assert machine.begin_anew(early, instant(700.0)).passes == 0


@pytest.mark.parametrize(
    ("blame", "severity", "state"),
    [
        ("hardware", "degraded", "unfit"),
        ("hardware", "info", "returning"),
        ("program", "degraded", "returning"),
        ("unknown", "degraded", "returning"),
    ],
)
def test_a_mild_fault_of_the_hardware_on_probation_takes_it_out(blame: str, severity: str, state: str) -> None:
    tested = looked_at(RETURNING, 200.0, 400.0, 600.0)
    mild = finding("xid63", 5000.0, severity=severity, blame=blame, self_evident=False, remedy="none")
    mild = msgspec.structs.replace(mild, check="fault_codes")
    after = moved(machine.observe(tested, mild, INCIDENT, None, fresh=True), 5000.0)
    assert after.state == state
    assert after.remedy == ("test" if state == "unfit" else "none")
    assert moved(machine.observe(subject(), mild, INCIDENT, None, fresh=True), 5000.0).state != "unfit"


def test_what_programs_or_a_hot_room_can_cause_takes_nothing_out_on_probation() -> None:
    tested = looked_at(RETURNING, 200.0, 400.0, 600.0)
    for check in ("program_repeats", "hw_slowdown", "clocks_below_expected"):
        mild = finding("mild", 5000.0, severity="degraded", blame="hardware", self_evident=False)
        mild = msgspec.structs.replace(mild, check=check)
        assert moved(machine.observe(tested, mild, INCIDENT, None, fresh=True), 5000.0).state == "returning"


def test_what_was_seen_before_a_pause_needs_a_new_witness() -> None:
    unfit = moved(subject(finding()))
    assert machine.doubt(unfit, instant(3000.0), 3600.0) == unfit
    doubted = moved(machine.doubt(unfit, instant(4000.0), 3600.0), 4000.0)
    assert doubted.state == "returning"
    assert not doubted.standing[0].confirmed
    again = machine.observe(doubted, finding("gpu_silent", 4001.0, source="pci_config"), INCIDENT, None, fresh=True)
    assert moved(again, 4001.0).state == "unfit"


def test_a_remedy_that_did_not_come_through_was_tried() -> None:
    record = subject(finding(ladder=("reset", "reboot", "replace")))
    failed = machine.tried(record, [Applied(code=record.standing[0].finding.code, remedy="reset", at=instant(30.0))])
    assert moved(failed, 31.0).remedy == "reboot"


def test_what_is_kept_of_a_burst_is_bounded() -> None:
    record = subject(*(finding(mono=10.0 + n) for n in range(100)))
    standing: Standing = record.standing[0]
    assert standing.count == 100
    assert len(standing.because) == machine.BECAUSE_KEPT
