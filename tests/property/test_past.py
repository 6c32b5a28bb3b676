"""Scores of boards, whatever happened to them and to the clock."""

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.health.past import DAY, KEPT, Key, Past, Settings, aged, of, remember, score
from gpuguard.model.health import SubjectHealth
from gpuguard.model.ids import NODE, BootId, GpuSerial, GpuUuid, SubjectId
from gpuguard.model.instants import Instant

BOOT = BootId("b0070000-0000-4000-8000-000000000001")
START = 1_700_000_000.0
NOW = 400.0
SETTINGS = Settings()

DAYS = st.floats(0, NOW)
BOARDS = st.integers(0, 5)
FAULTS = st.tuples(DAYS, BOARDS, st.sampled_from(["xid79", "xid48", "sram"]), st.booleans())


def when(days: float) -> Instant:
    return Instant(boot=BOOT, mono=1000.0, utc=START + days * DAY)


def board(number: int, slot: int = 0) -> SubjectHealth:
    """Every third has no serial number."""
    return SubjectHealth(
        id=SubjectId(f"gpu:0000:{slot:02x}:00.0"), since=when(0), uuid=GpuUuid(f"GPU-{number}"),
        serial=GpuSerial(f"165000000000{number}") if number % 3 else None,
    )  # fmt: skip


def told(faults: list[tuple[float, int, str, bool]], known: Past | None = None) -> Past:
    """All of these, read in this order at one moment: a ring that was read whole."""
    known = Past(node="SN-1") if known is None else known
    for days, number, code, mild in faults:
        known = remember(known, board(number), code, when(days), when(NOW), SETTINGS, mild=mild)
    return known


@given(st.lists(FAULTS, max_size=12), st.randoms(use_true_random=False))
def test_the_order_in_which_faults_are_told_does_not_matter(
    faults: list[tuple[float, int, str, bool]], dice: Random
) -> None:
    other = list(faults)
    dice.shuffle(other)
    one, another = told(faults), told(other)
    assert one.records.keys() == another.records.keys()
    for key, record in one.records.items():
        twin = another.records[key]
        assert record.score == pytest.approx(twin.score)
        assert msgspec.structs.replace(record, score=0.0) == msgspec.structs.replace(twin, score=0.0)


@given(st.lists(FAULTS, min_size=1, max_size=12), st.floats(0, 1000), st.floats(0, 1000))
def test_scores_only_fall_are_never_negative_and_no_more_than_was_told(
    faults: list[tuple[float, int, str, bool]], some: float, more: float
) -> None:
    known = told(faults)
    for key in known.records:
        at, later = START + (NOW + some) * DAY, START + (NOW + some + more) * DAY
        assert 0.0 <= score(known, key, later) <= score(known, key, at) <= len(faults) * SETTINGS.fault


@given(st.lists(FAULTS, min_size=1, max_size=12))
def test_the_sum_is_that_of_its_faults(faults: list[tuple[float, int, str, bool]]) -> None:
    known = told(faults)
    wanted = sum(
        (SETTINGS.repeat if mild else SETTINGS.fault) * 2 ** (-(NOW - days) / 10) for days, _, _, mild in faults
    )
    assert score(known, Key("node/SN-1"), START + NOW * DAY) == pytest.approx(wanted)
    each = [record.score_at(START + NOW * DAY) for n in range(6) if (record := of(known, board(n))) is not None]
    assert sum(each) == pytest.approx(wanted)


@given(st.lists(FAULTS, min_size=1, max_size=6), st.lists(st.floats(-3000, 3000), max_size=8))
def test_no_step_of_the_clock_makes_a_score_grow(
    faults: list[tuple[float, int, str, bool]], steps: list[float]
) -> None:
    known, days = told(faults), NOW
    node = SubjectHealth(id=NODE, since=when(0))
    for step in steps:
        before = {key: score(known, key, START + days * DAY) for key in known.records}
        days += step
        known = aged(known, when(days))
        for key, value in before.items():
            # The newest moment is noted once an hour: what a step shorter than that gives back is 0.3 %.
            assert score(known, key, START + days * DAY) <= value * 1.003 + 1e-12
        record = of(known, node)
        assert record is not None
        assert record.score_at(START + days * DAY) <= before[Key("node/SN-1")] * 1.003 + 1e-12


@given(st.lists(st.tuples(DAYS, st.integers(0, 10_000)), max_size=40), st.integers(0, 3))
def test_a_slot_says_nothing(faults: list[tuple[float, int]], slot: int) -> None:
    known = Past()
    for days, number in faults:
        known = remember(known, board(number, slot=number % 8), "xid79", when(days), when(NOW), SETTINGS)
    assert len(known.records) <= KEPT
    for _, number in faults:
        assert of(known, board(number, slot)) == of(known, board(number, slot + 1)) is not None


@given(st.lists(FAULTS, max_size=12))
def test_the_disk_gives_back_what_it_got(faults: list[tuple[float, int, str, bool]]) -> None:
    known = told(faults)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(known), type=Past) == known
