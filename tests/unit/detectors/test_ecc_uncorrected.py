"""Only growth counts, and where the errors are decides how grave they are."""

from gpuguard.detectors.ecc_uncorrected import EccUncorrected, Settings
from tests.support.looks import Looks

DRAM, SRAM = "ecc_uncorrected", "ecc_sram_uncorrected"


def look() -> Looks:
    return Looks(EccUncorrected(Settings()))


def test_what_a_counter_shows_first_is_no_growth() -> None:
    looks = look()
    assert looks.stands(1.0, ecc_dram_uncorrected=9, ecc_sram_uncorrected=5) == {DRAM: False, SRAM: False}
    assert looks.stands(2.0, ecc_dram_uncorrected=9, ecc_sram_uncorrected=5) == {DRAM: False, SRAM: False}


def test_growth_of_the_dram_is_critical_and_needs_a_witness() -> None:
    looks = look()
    looks(1.0, ecc_dram_uncorrected=0)
    finding = looks(2.0, ecc_dram_uncorrected=1)[DRAM]
    assert (finding.stands, finding.severity, finding.self_evident) == (True, "critical", False)
    assert finding.remedy == "reset"


def test_growth_of_the_sram_is_worth_a_look() -> None:
    looks = look()
    looks(1.0, ecc_sram_uncorrected=0)
    finding = looks(2.0, ecc_sram_uncorrected=3)[SRAM]
    assert (finding.stands, finding.severity, finding.advice) == (True, "degraded", "watch")


def test_it_stands_for_a_day_without_growth() -> None:
    looks = look()
    looks(0.0, ecc_dram_uncorrected=0)
    looks(60.0, ecc_dram_uncorrected=1)
    assert looks.stands(86460.0, ecc_dram_uncorrected=1) == {DRAM: True}
    assert looks.stands(86461.0, ecc_dram_uncorrected=1) == {DRAM: False}


def test_a_counter_that_begins_anew_ends_it_and_is_no_growth() -> None:
    looks = look()
    looks(1.0, ecc_dram_uncorrected=4)
    assert looks.stands(2.0, ecc_dram_uncorrected=6) == {DRAM: True}
    assert looks.stands(3.0, ecc_dram_uncorrected=2) == {DRAM: False}
    assert looks.stands(4.0, ecc_dram_uncorrected=3) == {DRAM: True}


def test_the_sum_is_judged_only_where_the_places_are_not_told() -> None:
    looks = look()
    looks(1.0, ecc_uncorrected_volatile=0, ecc_uncorrected_aggregate=0)
    assert looks.stands(2.0, ecc_uncorrected_volatile=1, ecc_uncorrected_aggregate=0) == {DRAM: True}
    looks = look()
    looks(1.0, ecc_uncorrected_volatile=0, ecc_dram_uncorrected=0)
    assert looks.stands(2.0, ecc_uncorrected_volatile=1, ecc_dram_uncorrected=0) == {DRAM: False}
    assert looks.stands(3.0, ecc_uncorrected_volatile=2, ecc_dram_uncorrected=None) == {}


def test_a_counter_for_life_is_judged_by_its_change() -> None:
    looks = look()
    assert looks.stands(1.0, ecc_uncorrected_aggregate=5000) == {DRAM: False}
    assert looks.stands(2.0, ecc_uncorrected_aggregate=5001) == {DRAM: True}


def test_the_counter_for_life_is_no_stand_in_for_one_that_did_not_answer() -> None:
    looks = look()
    looks(1.0, ecc_uncorrected_volatile=0, ecc_uncorrected_aggregate=5000)
    looks(2.0, ecc_uncorrected_volatile=3, ecc_uncorrected_aggregate=5003)
    # A reset: the one begins anew, the other goes on.
    assert looks.stands(3.0, ecc_uncorrected_volatile=0, ecc_uncorrected_aggregate=5003) == {DRAM: False}
    assert looks.stands(4.0, ecc_uncorrected_volatile=None, ecc_uncorrected_aggregate=5003) == {}


def test_what_is_not_known_ends_nothing() -> None:
    looks = look()
    looks(1.0, ecc_dram_uncorrected=0)
    looks(2.0, ecc_dram_uncorrected=1)
    assert looks(3.0, ecc_dram_uncorrected=None) == {}
    assert looks(4.0, ecc_dram_uncorrected="N/A") == {}
    assert looks.stands(5.0, ecc_dram_uncorrected=1) == {DRAM: True}
