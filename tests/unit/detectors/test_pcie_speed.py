"""Slow at work, at several looks, none of them at full speed."""

import pytest

from gpuguard.detectors.pcie_speed import Settings, build
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.readings import Row
from gpuguard.runtime.assembly import RulesFolder
from tests.support.core import instant
from tests.support.stories import told

ONLY = "only=pcie_speed"
GPU = "gpu:0000:1b:00.0"


def looked(*rows: str) -> list[str]:
    """What is told of one GPU after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep nvml/medium {GPU} {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


SLOW = "pcie_link_generation=2 pcie_link_generation_limit=5 performance_state=0 utilization_ratio=0.01"
IDLE = "pcie_link_generation=1 pcie_link_generation_limit=5 performance_state=8 utilization_ratio=0"
FULL = SLOW.replace("generation=2", "generation=5")


def at(*rows: str, every: int = 60) -> list[str]:
    return looked(*(f"{place * every} {row}" for place, row in enumerate(rows)))


def test_five_looks_in_a_row_at_work() -> None:
    assert at(*[SLOW] * 4) == []
    assert "generation 2 of 5 also under load" in at(*[SLOW] * 5)[0]


def test_the_best_look_is_what_is_told() -> None:
    assert "generation 3 of 5" in at(SLOW, SLOW.replace("=2", "=3"), SLOW, SLOW, SLOW)[0]


@pytest.mark.parametrize("other", [IDLE, FULL])
def test_rest_and_full_speed_begin_anew(other: str) -> None:
    assert at(SLOW, SLOW, SLOW, SLOW, other, SLOW, SLOW, SLOW, SLOW) == []


def test_looks_close_together_count_as_one() -> None:
    assert at(*[SLOW] * 20, every=6) == []


def test_a_gpu_at_rest_takes_nothing_back() -> None:
    assert len(at(*[SLOW] * 5, IDLE, IDLE, SLOW)) == 1
    assert at(*[SLOW] * 5, IDLE, FULL)[-1] == "pcie_speed stands no longer"


@pytest.mark.parametrize(("rate", "told_of"), [("99999999", False), ("100000000", True), ("?", False)])
def test_traffic_is_work_where_no_kernel_runs(rate: str, told_of: bool) -> None:
    row = SLOW.replace("=0.01", "=0") + f" pcie_tx_bytes_per_second={rate}"
    assert bool(at(*[row] * 5)) == told_of


@pytest.mark.parametrize(("known", "otherwise"), [
    ("utilization_ratio=0.01", "utilization_ratio=?"), ("performance_state=0", "performance_state=?"),
    ("performance_state=0", "performance_state=2"), ("generation_limit=5", "generation_limit=?"),
    ("generation_limit=5", "generation_limit=0"), ("generation=2", "generation=0"), ("generation=2", "generation=?"),
])  # fmt: skip
def test_otherwise_nothing_is_said(known: str, otherwise: str) -> None:
    assert at(*[SLOW.replace(known, otherwise)] * 9) == []


def test_a_slot_below_the_profile_is_information_also_at_rest() -> None:
    row = IDLE.replace("limit=5", "limit=4")
    assert at(f"{row} pcie_link_generation_expected=5")[0].startswith("pcie_slot_speed stands: info, advice none")
    for expected in ("4", "3", "0", "?"):
        assert at(f"{row} pcie_link_generation_expected={expected}") == []


def test_a_reboot_begins_anew() -> None:
    check = build(Settings(), RulesFolder("pcie_speed"))
    subject = SubjectId(GPU)
    values = {
        "pcie_link_generation": 1,
        "pcie_link_generation_limit": 4,
        "performance_state": 0,
        "utilization_ratio": 1,
    }
    memory = check.start()
    for mono in (10.0, 70.0, 130.0, 190.0, 250.0):
        row = Row(subject=subject, at=instant(mono), source="nvml", values=values)
        memory, findings = check.observe(memory, subject, row)
    assert findings[0].stands
    row = Row(subject=subject, at=instant(30.0, BootId("another")), source="nvml", values=values)
    assert check.observe(memory, subject, row)[1] == ()
