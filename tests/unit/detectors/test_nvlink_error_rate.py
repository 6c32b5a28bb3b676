"""Growth alone counts; nothing drains alone; each kind has its own limit."""

import pytest

from gpuguard.detectors.nvlink_error_rate import Settings, build
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.readings import Row
from gpuguard.runtime.assembly import RulesFolder
from tests.support.core import instant
from tests.support.stories import told

ONLY = "only=nvlink_error_rate"
GPU = "gpu:0000:1b:00.0"


def looked(*rows: str) -> list[str]:
    """What is told of one GPU after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep nvml/medium {GPU} {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


def grows(column: str, *counts: float, every: int = 60) -> list[str]:
    return looked(*(f"{every * place} {column}={count}" for place, count in enumerate(counts)))


def test_counters_since_the_driver_was_loaded_are_no_errors() -> None:
    for column in reads():
        assert column == "nvlink_effective_ber" or grows(column, 1e9, 1e9, 1e9) == []


def test_crc_errors_by_rate() -> None:
    assert grows("nvlink_crc_errors_total", 100, 104) == []
    assert grows("nvlink_crc_errors_total", 100, 105)[0].startswith("nvlink_crc stands: degraded, advice test")
    assert "degraded" in grows("nvlink_crc_errors_total", 0, 29999)[0]
    (told_of,) = grows("nvlink_crc_errors_total", 0, 30000)
    assert told_of.startswith("nvlink_crc stands: critical, advice drain, remedy reset;")
    assert "self-evident" not in told_of


@pytest.mark.parametrize("column", ["nvlink_replay_errors_total", "nvlink_recovery_errors_total"])
def test_one_retry_is_told_and_ends_after_the_window(column: str) -> None:
    told_of = looked(f"0 {column}=5", f"60 {column}=6", f"660 {column}=6", f"661 {column}=6")
    assert told_of[0].startswith("nvlink_retries stands: degraded, advice watch")
    assert told_of[1:] == ["nvlink_retries stands no longer"]


@pytest.mark.parametrize("kind", [
    "malformed", "buffer_overrun", "receive", "receive_remote", "receive_general", "local_integrity", "effective",
])  # fmt: skip
def test_one_error_of_nvlink_5_is_told(kind: str) -> None:
    words = kind.replace("_", " ")
    assert grows(f"nvlink5_{kind}_total", 3, 4)[0].endswith(f"within 600 s: {words} 1")


@pytest.mark.parametrize("kind", ["symbol", "recovery_events", "transmit_discards"])
def test_what_is_no_error_is_not(kind: str) -> None:
    assert grows(f"nvlink5_{kind}_total", 0, 1e6) == []


def test_a_failed_recovery_is_grave_and_alone_drains_nothing() -> None:
    (told_of,) = grows("nvlink5_recovery_failed_total", 0, 1)
    assert told_of.startswith("nvlink5_recovery_failed stands: critical")
    lines = [f"{t} sweep nvml/medium {GPU} nvlink5_recovery_failed_total={n}" for t, n in ((1, 0), (60, 3))]
    story, followed = told("0 boot A", *lines)
    assert not any("owed" in line for line in followed)
    assert story.health is not None
    assert story.health.subject(SubjectId(GPU)).state == "watched"


def test_a_recovery_is_information() -> None:
    assert "info" in grows("nvlink5_recovery_successful_total", 0, 1)[0]


@pytest.mark.parametrize(("rate", "told_of"), [("1e-12", False), ("1.1e-12", True), ("0", False), ("1.5e-254", False)])
def test_bits_that_stay_wrong(rate: str, told_of: bool) -> None:
    assert bool(looked(f"0 nvlink_effective_ber={rate}")) == told_of


def test_a_reset_is_no_growth_and_neither_is_a_start() -> None:
    assert grows("nvlink_replay_errors_total", 50, 3) == []
    check = build(Settings(), RulesFolder("nvlink_error_rate"))
    subject, memory = SubjectId(GPU), check.start()
    for boot, count in (("A", 0), ("B", 4)):
        row = Row(
            subject=subject, at=instant(100.0, BootId(boot)), source="nvml",
            values={"nvlink_replay_errors_total": count},
        )  # fmt: skip
        memory, findings = check.observe(memory, subject, row)
        assert not findings[0].stands


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Settings(errors=0.0)


def reads() -> tuple[str, ...]:
    return build(Settings(), RulesFolder("nvlink_error_rate")).reads
