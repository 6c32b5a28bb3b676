"""The ledger of use: decayed, and by month."""

import math

import pytest

from gpuguard.errors import ConfigInvalid, InvariantBroken
from gpuguard.scheduler.tariff import CARD
from gpuguard.scheduler.usage import Holder, Ledger

HALF = 604800
ANN, BOB = Holder("lab", "ann"), Holder("lab", "bob")


def ran(seconds: int) -> float:
    """What one card that ran so long, until now, counts."""
    return HALF / math.log(2) * (1 - 0.5 ** (seconds / HALF))


def test_use_halves_in_a_half_life() -> None:
    ledger = Ledger(HALF)
    ledger.charge(ANN, 4 * CARD, 1000, 1100)
    now = ledger.used(ANN, 1100)
    assert now == pytest.approx(4 * ran(100), rel=1e-9)
    assert ledger.used(ANN, 1100 + HALF) == now / 2
    assert ledger.used(ANN, 1100 + 3 * HALF) == now / 8
    assert ledger.used(BOB, 1100) == 0.0


def test_a_job_counts_while_it_runs() -> None:
    ledger = Ledger(HALF)
    ledger.start(ANN, CARD, 0)
    assert ledger.used(ANN, 1) == pytest.approx(1.0, rel=1e-6)
    assert ledger.used(ANN, HALF) == pytest.approx(ran(HALF), rel=1e-12)
    before = ledger.used(ANN, 5000)
    ledger.stop(ANN, CARD, 5000)
    assert (ledger.used(ANN, 5000), ledger.rate(ANN)) == (before, 0)


def test_one_second_among_years_is_not_lost() -> None:
    ledger = Ledger(100 * 365 * 86400)
    ledger.start(ANN, CARD, 0)
    assert ledger.used(ANN, 1) == pytest.approx(1.0, rel=1e-9)


def test_it_tends_to_what_a_steady_user_has() -> None:
    ledger = Ledger(HALF)
    ledger.start(ANN, 2 * CARD, 0)
    assert ledger.used(ANN, 10**12) == pytest.approx(2 * HALF / math.log(2))


def test_who_is_told_late_has_what_he_would_have_had() -> None:
    late, timely = Ledger(HALF), Ledger(HALF)
    for ledger in (late, timely):
        ledger.start(ANN, CARD, 0)
        ledger.start(ANN, CARD, 10)
    timely.stop(ANN, CARD, 5000)
    for ledger in (late, timely):
        ledger.start(ANN, CARD, 9000)
    late.stop(ANN, CARD, 5000)
    assert late.used(ANN, 20000) == pytest.approx(timely.used(ANN, 20000), rel=1e-12)
    assert late.monthly(20000) == timely.monthly(20000)


def test_what_never_ran_leaves_nothing() -> None:
    ledger = Ledger(HALF)
    ledger.start(ANN, CARD, 100)
    ledger.start(ANN, CARD, 160)
    ledger.stop(ANN, CARD, 160)
    ledger.stop(ANN, CARD, 100)
    assert ledger.used(ANN, 160) == 0.0
    assert ledger.monthly(10**6) == ()


def test_an_instant_before_the_last_change_reads_as_that() -> None:
    ledger = Ledger(HALF)
    ledger.charge(ANN, CARD, 0, 100)
    assert ledger.used(ANN, 50) == ledger.used(ANN, 100) == ledger.all_used(50)[0]


def test_more_cannot_stop_than_had_started() -> None:
    ledger = Ledger(HALF)
    ledger.start(ANN, CARD, 0)
    with pytest.raises(InvariantBroken, match="ann"):
        ledger.stop(ANN, CARD + 1, 10)
    with pytest.raises(InvariantBroken, match="before its begin"):
        ledger.charge(ANN, CARD, 10, 9)


def test_a_half_life_is_above_nought() -> None:
    with pytest.raises(ConfigInvalid, match="half_life"):
        Ledger(0)


def test_all_are_read_as_each_is() -> None:
    ledger = Ledger(HALF)
    ledger.charge(BOB, 3 * CARD, 50, 4000)
    ledger.start(ANN, 5 * CARD, 700)
    assert ledger.holders == (BOB, ANN)
    expected = [ledger.used(holder, 10**6) for holder in ledger.holders]
    assert ledger.all_used(10**6).tolist() == pytest.approx(expected, rel=1e-12)


def test_hours_are_split_at_the_end_of_a_month() -> None:
    epoch = 1_769_900_400  # 2026-01-31T23:00:00 UTC
    ledger = Ledger(HALF, epoch=epoch)
    ledger.start(ANN, 4 * CARD, 0)
    ledger.charge(BOB, CARD // 2, 0, 7200)
    running = [(use.month, use.user, use.hours) for use in ledger.monthly(10800)]
    assert running == [
        ("2026-01", "ann", 4.0),
        ("2026-01", "bob", 0.5),
        ("2026-02", "ann", 8.0),
        ("2026-02", "bob", 0.5),
    ]
    ledger.stop(ANN, 4 * CARD, 10800)
    assert [(use.month, use.user, use.hours) for use in ledger.monthly(10**8)] == running


def test_copies_go_their_own_ways() -> None:
    first = Ledger(HALF)
    first.charge(ANN, CARD, 0, 100)
    second = first.copy()
    third = second.copy()
    before = first.rows()
    second.charge(ANN, CARD, 0, 500)
    second.enrol(BOB)
    assert (first.rows(), third.rows()) == (before, before)
    assert first == third != second
    first.charge(ANN, CARD, 0, 900)
    assert third.rows() == before
    assert third.copy() == third
    assert (BOB in second, BOB in first, len(second), len(first)) == (True, False, 2, 1)


def test_a_ledger_comes_back_from_its_rows() -> None:
    ledger = Ledger(HALF, epoch=86400)
    ledger.charge(BOB, 3 * CARD, 50, 4_000_000)
    ledger.start(ANN, 5 * CARD, 700)
    again = Ledger.restore(ledger.rows(), HALF, epoch=86400)
    assert again == ledger
    assert again.monthly(10**7) == ledger.monthly(10**7)
