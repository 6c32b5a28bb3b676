"""Growth within a day counts; over a reboot too."""

import pytest

from gpuguard.detectors.edac import Settings, build
from gpuguard.model.ids import NODE, BootId
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Row
from gpuguard.runtime.assembly import RulesFolder
from tests.support.stories import told

ONLY = "only=edac"


def looked(*rows: str) -> list[str]:
    """What is told of the node after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep edac/medium node {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


def test_one_uncorrected_error_is_told() -> None:
    told_of = looked("0 edac_uncorrected_total=7", "60 edac_uncorrected_total=8")
    assert told_of[0].startswith("edac_uncorrected stands: degraded, advice test")


def test_many_corrected_ones_are_told_for_a_day() -> None:
    assert looked("0 edac_corrected_total=5000", "60 edac_corrected_total=5099") == []
    told_of = looked("0 edac_corrected_total=0", "60 edac_corrected_total=100", "86460 edac_corrected_total=100")
    assert len(told_of) == 1
    assert looked(
        "0 edac_corrected_total=0", "60 edac_corrected_total=100", "86461 edac_corrected_total=100"
    )[1:] == ["edac_corrected stands no longer"]  # fmt: skip


@pytest.mark.parametrize("count", ["?", "-1", "many"])
def test_what_is_no_count_is_unknown(count: str) -> None:
    assert looked(f"0 edac_uncorrected_total={count}", "60 edac_uncorrected_total=5") == []


def test_an_error_of_yesterdays_boot_still_counts() -> None:
    check = build(Settings(), RulesFolder("edac"))
    memory, stands = check.start(), []
    for boot, mono, count in (("A", 100.0, 0), ("A", 200.0, 1), ("B", 10.0, 0)):
        at = Instant(boot=BootId(boot), mono=mono, utc=1e9 + mono + 1000 * (boot == "B"))
        row = Row(subject=NODE, at=at, source="edac", values={"edac_uncorrected_total": count})
        memory, findings = check.observe(memory, NODE, row)
        stands.append(findings[0].stands)
    assert stands == [False, True, True]


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Settings(corrected=0.0)
