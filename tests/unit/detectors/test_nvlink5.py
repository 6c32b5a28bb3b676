"""Registers are made up after the published layout; none is taken from a log."""

import pytest

from gpuguard.detectors.fault_codes.catalogue import load_catalogue
from gpuguard.detectors.fault_codes.nvlink5 import Nvlink5Rule, best, decode, encodings_of, is_known
from gpuguard.runtime.assets import read_text

CATALOGUE = load_catalogue("", "", read_text("rules", "detectors", "fault_codes", "nvlink5.toml"))


def decoded(xid: int, *registers: int, **words: object) -> tuple[Nvlink5Rule, ...]:
    return decode(CATALOGUE.nvlink5_rules(xid), registers, **words)  # type: ignore[arg-type]


def test_the_old_encoding_has_ten_low_bits() -> None:
    (rule,) = decoded(145, 0x0400_A8E2, 0x20)
    assert (rule.units, rule.encoding, rule.fatal) == (("RLW_SRC_TRACK",), "v1", True)


def test_the_new_encoding_has_seven_low_bits() -> None:
    (rule,) = decoded(145, 0x0400_A807, 0x20, driver="580.65.06")
    assert (rule.units, rule.encoding, rule.fatal) == (("RLW_SRC_TRACK",), "v2", True)


def test_without_a_version_both_encodings_are_tried() -> None:
    assert {rule.encoding for rule in decoded(145, 0x0000_0007, 0x2)} == {"v2"}
    assert {rule.encoding for rule in decoded(145, 0x0000_00E2, 0x2)} == {"v1"}


@pytest.mark.parametrize("driver", ["575.57.08", "R580", "590"])
def test_a_new_driver_that_prints_the_old_form_is_still_understood(driver: str) -> None:
    (rule,) = decoded(149, 0x0214_85C6, 0, driver=driver)
    assert (rule.encoding, rule.sub) == ("v1", 0x21)


def test_the_reason_bits_choose_among_link_events() -> None:
    (down,) = decoded(149, (0x04 << 20) | 0x1C6, 0)
    (peer,) = decoded(149, (0x22 << 20) | 0x1C6, 0)
    assert (down.nvidia_investigate, peer.nvidia_investigate) == ("INVESTIGATE_LINK_SI", "INVESTIGATE_PEER_DEVICE")
    assert decoded(149, (0x3F << 20) | 0x1C6, 0) == ()


def test_the_printed_unit_tells_apart_what_the_registers_do_not() -> None:
    both = decoded(146, 0x143, 0x4)
    assert len(both) == 2
    (one,) = decoded(146, 0x143, 0x4, unit="tlw_rx_pipe1")
    assert "TLW_RX_PIPE1" in one.units
    answer = best(both)
    assert answer is not None
    assert not answer.ambiguous, "two rules with the same outcome are no ambiguity"


def test_a_rule_that_contradicts_the_word_does_not_fit() -> None:
    assert decoded(144, 0x21, 0x2, fatal=False) == ()
    assert len(decoded(144, 0x21, 0x2, fatal=True)) == 1


def test_a_line_cut_before_register_two_leaves_several_rules_and_says_so() -> None:
    fitting = decoded(144, 0x21)
    assert len(fitting) == 6
    answer = best(fitting)
    assert answer is not None
    assert answer.ambiguous
    assert answer.fatal, "the worst of those that fit"


def test_the_bit_above_asks_for_a_reset() -> None:
    (calm,) = decoded(145, 0x0C2, 0x1)
    (urgent,) = decoded(145, 0x4C2, 0x1)
    assert (calm.resets, calm.remedy) == (False, "none")
    assert (urgent.resets, urgent.remedy) == (True, "reset")


def test_a_firmware_watchdog_is_told_by_its_name() -> None:
    named = {unit: decoded(150, 0, 0, unit=unit) for unit in ("MSE_WATCHDOG", "MSE_DEGRADED")}
    assert [rules[0].units for rules in named.values()] == [("MSE_WATCHDOG",), ("MSE_DEGRADED",)]


def test_a_rule_that_fits_in_both_encodings_counts_once() -> None:
    assert len(decoded(150, 0, 0xFFFF_FFFF)) == 1


def test_nothing_is_guessed_without_registers_or_for_another_xid() -> None:
    assert decoded(149) == ()
    assert decoded(79, 0x1C6, 0) == ()
    assert best(()) is None


@pytest.mark.parametrize(
    ("driver", "first", "known"),
    [
        ("570.86.10", "v1", True),
        ("575", "v2", True),
        ("R595", "v2", True),
        ("", "v1", False),
        ("newest", "v1", False),
        (None, "v1", False),
    ],
)
def test_a_driver_version_names_the_encoding(driver: str | None, first: str, known: bool) -> None:
    assert (encodings_of(driver)[0], is_known(driver)) == (first, known)
