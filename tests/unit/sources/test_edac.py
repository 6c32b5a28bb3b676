"""Memory errors of the host: sums, parts that cannot be read, machines that count nothing."""

from pathlib import Path

import pytest

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.ids import NODE
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.edac import Edac, Settings, build, read_machine_checks
from tests.support.trees import put

INTERRUPTS = """           CPU0       CPU1
  0:         36          0  IR-IO-APIC    2-edge      timer
MCE:          1          2   Machine check exceptions
MCP:         50         50   Machine check polls"""


def test_the_sums_over_all_controllers(tmp_path: Path) -> None:
    put(tmp_path / "sys/devices/system/edac/mc", {
        "mc0/ce_count": "3", "mc0/ue_count": "0", "mc1/ce_count": "4", "mc1/ue_count": "1", "power/control": "auto",
    })  # fmt: skip
    put(tmp_path, {"proc/interrupts": INTERRUPTS})
    assert Edac(Settings(), tmp_path).sweep(ManualClock().now()) == {
        NODE: {"edac_corrected_total": 7, "edac_uncorrected_total": 1, "machine_checks_total": 3}
    }


def test_a_sum_without_one_of_its_parts_is_unknown(tmp_path: Path) -> None:
    put(tmp_path / "sys/devices/system/edac/mc", {"mc0/ce_count": "3", "mc0/ue_count": "0", "mc1/ce_count": "?"})
    assert Edac(Settings(), tmp_path).sweep(ManualClock().now()) == {
        NODE: {"edac_corrected_total": None, "edac_uncorrected_total": 0}
    }


def test_machine_checks_are_looked_at_seldom(tmp_path: Path) -> None:
    put(tmp_path, {"proc/interrupts": INTERRUPTS})
    clock, edac = ManualClock(), Edac(Settings(), tmp_path)
    assert edac.sweep(clock.now()) == {NODE: {"machine_checks_total": 3}}
    put(tmp_path, {"proc/interrupts": INTERRUPTS.replace("  2   Mach", "  5   Mach")})
    clock.advance(60.0)
    assert edac.sweep(clock.now()) == {NODE: {"machine_checks_total": 3}}
    clock.advance(600.0)
    assert edac.sweep(clock.now()) == {NODE: {"machine_checks_total": 6}}


def test_rows_of_interrupts(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        read_machine_checks(tmp_path)
    put(tmp_path, {"proc/interrupts": "IPI0: 1 2 Rescheduling"})
    with pytest.raises(Absent, match="no machine checks"):
        read_machine_checks(tmp_path)
    put(tmp_path, {"proc/interrupts": "MCE: Machine check exceptions"})
    assert read_machine_checks(tmp_path) is None


def test_a_machine_that_counts_nothing_is_absent(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        build(Settings(), tmp_path, ManualClock()).run(lambda batch: None, None)
    with pytest.raises(ValueError, match="above 0"):
        Settings(every=0.0)  # type: ignore[arg-type]


def test_a_machine_whose_counters_cannot_be_read_is_not_absent(tmp_path: Path) -> None:
    (tmp_path / "proc/interrupts").mkdir(parents=True)
    with pytest.raises(ReadFailed):
        Edac(Settings(), tmp_path).sweep(ManualClock().now())
