"""What is remembered of boards and machines, by whom they are and not by where they are."""

import msgspec
import pytest

from gpuguard.health import past
from gpuguard.health.past import DAY, KEPT, Key, Past, Settings, aged, elsewhere, makes_unfit, named, of, remember
from gpuguard.health.state import Health, difference, restore
from gpuguard.model.health import State, SubjectHealth, Transition
from gpuguard.model.ids import NODE, BootId, GpuSerial, GpuUuid, SubjectId
from gpuguard.model.instants import Instant

BOOT = BootId("b0070000-0000-4000-8000-000000000001")
START = 1_700_000_000.0
SETTINGS = Settings()
SERIAL, UUID = "1650000000001", "GPU-6a1d2c3b-0000-4000-8000-000000000001"


def when(days: float) -> Instant:
    return Instant(boot=BOOT, mono=1000.0, utc=START + days * DAY)


def board(address: str = "4e:00", serial: str | None = SERIAL, uuid: str | None = UUID) -> SubjectHealth:
    return SubjectHealth(
        id=SubjectId(f"gpu:0000:{address}.0"), since=when(0), serial=GpuSerial(serial) if serial else None,
        uuid=GpuUuid(uuid) if uuid else None,
    )  # fmt: skip


def fault(before: Past, days: float, subject: SubjectHealth | None = None, **more: bool) -> Past:
    return remember(before, subject or board(), "xid79", when(days), when(days), SETTINGS, **more)


def score(of_whom: Past, subject: SubjectHealth, days: float) -> float:
    record = of(of_whom, subject)
    return 0.0 if record is None else record.score_at(START + days * DAY)


def test_a_fault_weighs_half_as_much_after_ten_days() -> None:
    once = fault(Past(), 0)
    assert [round(score(once, board(), days), 3) for days in (0, 10, 20, 30)] == [1.0, 0.5, 0.25, 0.125]
    twice = fault(once, 10)
    assert score(twice, board(), 10) == pytest.approx(1.5)
    record = of(twice, board())
    assert record is not None
    assert (record.faults, record.last_utc, record.last_code) == (2, START + 10 * DAY, "xid79")


def test_a_mild_repeat_weighs_less() -> None:
    assert score(fault(Past(), 0, mild=True), board(), 0) == SETTINGS.repeat < SETTINGS.fault


def test_a_board_keeps_it_in_another_slot_and_its_successor_begins_at_zero() -> None:
    known = fault(Past(), 0)
    assert score(known, board("d2:00"), 0) == 1.0
    assert of(known, board(serial="1650000000002", uuid="GPU-other")) is None


def test_a_board_without_a_serial_is_known_by_its_uuid_and_found_again_when_it_has_one() -> None:
    known = fault(Past(), 0, board(serial=None))
    assert set(known.records) == {Key(f"uuid/{UUID}")}
    assert score(known, board(), 0) == 1.0
    known = fault(known, 0)
    assert set(known.records) == {Key(f"serial/{SERIAL}")}
    assert score(known, board(), 0) == 2.0


def test_a_board_of_which_nothing_is_known_leaves_its_faults_to_the_machine() -> None:
    stranger = board(serial=None, uuid=None)
    known = fault(named(Past(), {NODE: {"node_serial": "SN-1"}}), 0, stranger)
    assert set(known.records) == {Key("node/SN-1")}
    assert of(known, stranger) is None


def test_whatever_becomes_unfit_counts_for_its_machine_too() -> None:
    known = named(Past(), {NODE: {"node_serial": "SN-1"}})
    known = fault(known, 0)
    known = fault(known, 0, board("d2:00", "1650000000002", "GPU-other"))
    known = fault(known, 0, SubjectHealth(id=SubjectId("nvswitch:0000:a1:00.0"), since=when(0)))
    node = SubjectHealth(id=NODE, since=when(0))
    assert score(fault(known, 0, node), node, 0) == 4.0
    assert score(known, board(), 0) == 1.0


def test_a_disk_in_another_machine_leaves_that_ones_past_to_it() -> None:
    known = fault(named(Past(), {NODE: {"node_serial": "SN-1"}}), 0)
    moved = named(known, {NODE: {"node_serial": "SN-2"}})
    assert of(moved, SubjectHealth(id=NODE, since=when(0))) is None
    assert set(elsewhere(moved, [board()])) == {Key("node/SN-1")}
    assert set(elsewhere(moved, [])) == {Key("node/SN-1"), Key(f"serial/{SERIAL}")}


@pytest.mark.parametrize("told", [{}, {NODE: {}}, {NODE: {"node_serial": None}}, {NODE: {"node_serial": "SN-1"}}])
def test_a_sweep_that_says_nothing_new_changes_nothing(told: dict[SubjectId, dict[str, str | None]]) -> None:
    known = Past(node="SN-1")
    assert named(known, told) is known  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["job:slurm/8123", "rank:slurm/8123/0", "task:4711", "process:0000:4e:00.0/4711"])
def test_what_people_run_is_no_part_of_the_machine(name: str) -> None:
    known = Past(node="SN-1")
    assert fault(known, 0, SubjectHealth(id=SubjectId(name), since=when(0))) is known


def test_what_has_no_date_is_not_remembered() -> None:
    undated = Instant(boot=BOOT, mono=1.0)
    assert remember(Past(), board(), "xid79", undated, when(0), SETTINGS) == Past()
    assert remember(Past(), board(), "xid79", when(0), undated, SETTINGS) == Past()


def test_a_clock_that_was_set_back_makes_nothing_young_again() -> None:
    known = aged(fault(Past(), 0), when(10))
    assert score(known, board(), 10) == pytest.approx(0.5)
    assert score(known, board(), -300) == pytest.approx(0.5)  # set back, and nobody noticed yet
    noticed = aged(known, when(-300))
    assert score(noticed, board(), -300) == pytest.approx(0.5)
    assert score(noticed, board(), -290) == pytest.approx(0.25)
    assert score(fault(noticed, -290), board(), -290) == pytest.approx(1.25)


def test_a_clock_that_was_far_ahead_blinds_the_memory_for_nobody() -> None:
    """The old is as good as forgotten, and what comes next counts in full."""
    known = fault(aged(fault(Past(), 0), when(5000)), 1)
    assert score(known, board(), 1) == pytest.approx(1.0)
    assert score(known, board(), 11) == pytest.approx(0.5)


def test_a_line_of_the_future_is_of_now() -> None:
    known = remember(Past(), board(), "xid79", when(900), when(0), SETTINGS)
    assert score(known, board(), 10) == pytest.approx(0.5)


def test_time_is_noted_seldom_and_never_for_nothing() -> None:
    assert aged(Past(node="SN-1"), when(100)) == Past(node="SN-1")
    known = fault(Past(), 0)
    assert aged(known, when(0.01)) is known
    assert aged(known, when(0.1)).newest == START + 0.1 * DAY


def test_no_more_is_kept_than_a_node_can_see() -> None:
    known = fault(Past(), 0)
    for number in range(KEPT + 10):
        known = fault(known, 50 + number / 1000, board(serial=f"{number:013d}", uuid=None))
    assert len(known.records) == KEPT
    assert of(known, board()) is None
    assert of(known, board(serial=f"{KEPT + 9:013d}", uuid=None)) is not None


def transition(before: State, after: State, subject: SubjectId = NODE) -> Transition:
    return Transition(
        at=when(0), subject=subject, uuid=None, finding="xid79", severity="critical", action="none", before=before,
        state=after, remedy="none", reason="", incident=None, because=(),
    )  # fmt: skip


def test_a_fault_is_what_makes_a_part_unfit() -> None:
    assert makes_unfit(transition("healthy", "unfit"))
    assert makes_unfit(transition("returning", "unfit"))
    assert not makes_unfit(transition("unfit", "unfit"))
    assert not makes_unfit(transition("unfit", "returning"))
    assert not makes_unfit(transition("healthy", "unfit", SubjectId("job:slurm/1")))


def test_it_goes_to_disk_and_comes_back() -> None:
    known = named(fault(Past(), 0), {NODE: {"node_serial": "SN-1"}})
    before = Health(now=when(0))
    puts, _ = difference(before, msgspec.structs.replace(before, past=known))
    assert set(puts) == {"past", "meta"}
    assert restore(puts, (), when(0)).past == known
    assert restore({}, (), when(0)).past == Past()


@pytest.mark.parametrize("wrong", [{"half_life": 0.0}, {"half_life": -1.0}, {"fault": -1.0}, {"repeat": 1e9}])
def test_settings_cannot_make_a_score_grow(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        past.Settings(**wrong)  # type: ignore[arg-type]
