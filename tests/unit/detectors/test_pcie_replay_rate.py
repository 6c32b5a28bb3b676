"""More replays than lanes and speed explain, over the window, in this boot."""

import pytest

from gpuguard.detectors.pcie_replay_rate import Settings, build
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.readings import Row
from gpuguard.runtime.assembly import RulesFolder
from tests.support.core import instant
from tests.support.stories import told

ONLY = "only=pcie_replay_rate"
GPU = "gpu:0000:1b:00.0"


def looked(*rows: str) -> list[str]:
    """What is told of one GPU after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep nvml/fast {GPU} {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


def rates(per_minute: float, link: str, minutes: int = 5) -> list[str]:
    return looked(*(f"{60 * n} pcie_replay_total={int(7000 + n * per_minute)} {link}" for n in range(minutes + 1)))


@pytest.mark.parametrize(("lanes", "generation", "limit"), [
    (16, 1, 3), (16, 2, 5), (16, 3, 8), (16, 4, 16), (16, 5, 31), (16, 6, 62), (16, 7, 62), (1, 1, 1), (8, 4, 8),
])  # fmt: skip
def test_what_is_normal_grows_with_lanes_and_speed(lanes: int, generation: int, limit: int) -> None:
    link = f"pcie_link_width={lanes} pcie_link_generation_limit={generation}"
    assert rates(limit, link) == []
    assert f"{limit} are normal" in rates(limit + 1, link)[0]


def test_the_best_speed_of_the_link_counts_not_that_of_this_moment() -> None:
    link = "pcie_link_width=16 pcie_link_generation=1 pcie_link_generation_limit=5"
    assert rates(30, link) == []
    assert rates(30, "pcie_link_width=16 pcie_link_generation=1") != []


def test_a_single_burst_is_no_rate() -> None:
    link = "pcie_link_width=16 pcie_link_generation=5"
    assert looked(f"0 pcie_replay_total=0 {link}", f"60 pcie_replay_total=155 {link}") == []
    assert looked(f"0 pcie_replay_total=0 {link}", f"60 pcie_replay_total=156 {link}") != []


@pytest.mark.parametrize("link", [
    "", "pcie_link_width=16", "pcie_link_generation=5", "pcie_link_width=0 pcie_link_generation=5",
    "pcie_link_width=64 pcie_link_generation=5", "pcie_link_width=16 pcie_link_generation=0",
    "pcie_link_width=? pcie_link_generation=?",
])  # fmt: skip
def test_without_the_link_nothing_is_said(link: str) -> None:
    assert rates(90000, link) == []


def test_what_training_the_link_costs_at_a_start_is_no_fault() -> None:
    check = build(Settings(), RulesFolder("pcie_replay_rate"))
    subject, memory = SubjectId(GPU), check.start()
    for boot, mono, count in (("A", 5000.0, 3), ("B", 20.0, 9000), ("B", 80.0, 9000)):
        values = {"pcie_replay_total": count, "pcie_link_width": 16, "pcie_link_generation": 4}
        row = Row(subject=subject, at=instant(mono, BootId(boot)), source="nvml", values=values)
        memory, findings = check.observe(memory, subject, row)
        assert not findings[0].stands


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="per_lane"):
        Settings(per_lane=())
