"""Narrower than GPU and slot allow, for longer than a retraining."""

import pytest

from gpuguard.detectors.pcie_width import Settings, build
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.readings import Row
from gpuguard.runtime.assembly import RulesFolder
from tests.support.core import instant
from tests.support.stories import told

ONLY = "only=pcie_width"
GPU = "gpu:0000:1b:00.0"


def looked(*rows: str) -> list[str]:
    """What is told of one GPU after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep nvml/medium {GPU} {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


NARROW = "pcie_link_width=8 pcie_link_width_limit=16"
FULL = "pcie_link_width=16 pcie_link_width_limit=16"


def test_a_narrow_link_is_told_after_the_hold() -> None:
    assert looked(f"0 {NARROW}", f"29 {NARROW}") == []
    assert looked(f"0 {NARROW}", f"30 {NARROW}")[0].startswith("pcie_width stands: degraded, advice test, remedy test")


def test_full_width_ends_it_and_begins_the_hold_anew() -> None:
    assert looked(f"0 {NARROW}", f"30 {NARROW}", f"60 {FULL}")[1:] == ["pcie_width stands no longer"]
    assert looked(f"0 {NARROW}", f"20 {FULL}", f"25 {NARROW}", f"50 {NARROW}") == []


def test_it_is_judged_at_rest_too() -> None:
    row = f"{NARROW} performance_state=8 utilization_ratio=0"
    assert looked(f"0 {row}", f"30 {row}") != []


def test_more_than_the_limit_is_no_fault() -> None:
    row = "pcie_link_width=16 pcie_link_width_limit=8"
    assert looked(f"0 {row}", f"90 {row}") == []


@pytest.mark.parametrize("row", [
    "pcie_link_width=8", "pcie_link_width=8 pcie_link_width_limit=?", "pcie_link_width=8 pcie_link_width_limit=0",
    "pcie_link_width=0 pcie_link_width_limit=16", "pcie_link_width=? pcie_link_width_limit=16",
])  # fmt: skip
def test_without_both_nothing_is_said(row: str) -> None:
    assert looked(f"0 {row}", f"90 {row}") == []


def test_a_slot_below_the_profile_is_information() -> None:
    row = "pcie_link_width=8 pcie_link_width_limit=8 pcie_link_width_expected=16"
    assert looked(f"0 {row}", f"29 {row}") == []
    assert looked(f"0 {row}", f"30 {row}")[0].startswith("pcie_slot_width stands: info, advice none")
    for expected in ("8", "4", "0", "?"):
        row = f"pcie_link_width=8 pcie_link_width_limit=8 pcie_link_width_expected={expected}"
        assert looked(f"0 {row}", f"90 {row}") == []


def test_a_reboot_begins_the_hold_anew() -> None:
    check = build(Settings(), RulesFolder("pcie_width"))
    subject, values = SubjectId(GPU), {"pcie_link_width": 8, "pcie_link_width_limit": 16}

    def row(mono: float, boot: str) -> Row:
        return Row(subject=subject, at=instant(mono, BootId(boot)), source="nvml", values=values)

    memory, _ = check.observe(check.start(), subject, row(10.0, "A"))
    memory, findings = check.observe(memory, subject, row(12.0, "B"))
    assert not findings[0].stands
    assert check.observe(memory, subject, row(42.0, "B"))[1][0].stands
