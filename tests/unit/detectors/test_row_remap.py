"""Rows that wait, rows that could not be replaced, spares that run out."""

import pytest

from gpuguard.detectors.row_remap import RowRemap, Settings
from gpuguard.model.events import Acknowledged
from gpuguard.model.ids import BootId, EventId
from tests.support.core import BOOT, Core, booted, instant, sweep
from tests.support.looks import GPU, Looks


def look() -> Looks:
    return Looks(RowRemap(Settings()))


def test_a_pending_row_asks_for_a_reset_when_idle_and_is_over_after_it() -> None:
    looks = look()
    finding = looks(1.0, row_remap_pending=1)["row_remap_pending"]
    assert (finding.stands, finding.severity, finding.remedy, finding.advice) == (True, "degraded", "reset", "test")
    assert looks.stands(2.0, row_remap_pending=0) == {"row_remap_pending": False}


def test_a_failure_is_believed_when_two_looks_agree() -> None:
    looks = look()
    told = [looks(mono, row_remap_failure=1)["row_remap_failed"] for mono in (1.0, 30.9, 31.0)]
    assert [finding.stands for finding in told] == [False, False, True]
    assert told[-1].self_evident
    assert {(f.severity, f.remedy, f.latched, f.clears) for f in told} == {
        ("critical", "replace", True, ("replace", "ack"))
    }


def test_a_failure_that_was_gone_in_between_is_not_two_looks() -> None:
    looks = look()
    looks(1.0, row_remap_failure=1)
    assert not looks(20.0, row_remap_failure=0)["row_remap_failed"].stands
    assert not looks(40.0, row_remap_failure=1)["row_remap_failed"].stands


def test_spares_and_the_limit() -> None:
    looks = look()
    assert looks.stands(1.0, remap_banks_none=0, remapped_rows_uncorrectable=511) == {
        "row_remap_spares": False, "row_remap_limit": False,
    }  # fmt: skip
    told = looks(2.0, remap_banks_none=1, remapped_rows_uncorrectable=512)
    assert {code: (f.stands, f.severity) for code, f in told.items()} == {
        "row_remap_spares": (True, "degraded"), "row_remap_limit": (True, "degraded"),
    }  # fmt: skip


def test_what_ends_them() -> None:
    told = look()(1.0, row_remap_pending=1, remap_banks_none=1, remapped_rows_uncorrectable=512)
    assert {code: (f.latched, f.clears) for code, f in told.items()} == {
        "row_remap_pending": (False, ("reset", "reboot", "replace", "ack")),
        "row_remap_spares": (False, ("replace", "ack")),
        "row_remap_limit": (True, ("replace", "ack")),
    }


@pytest.mark.parametrize(
    "column", ["row_remap_pending", "row_remap_failure", "remap_banks_none", "remapped_rows_uncorrectable"]
)
@pytest.mark.parametrize("bad", [None, "N/A"])
def test_each_part_is_judged_for_itself_and_only_where_it_is_known(column: str, bad: object) -> None:
    known: dict[str, object] = {
        "row_remap_pending": 0, "row_remap_failure": 0, "remap_banks_none": 0, "remapped_rows_uncorrectable": 0,
    }  # fmt: skip
    assert len(look().stands(1.0, **known)) == 4
    assert len(look().stands(1.0, **{**known, column: bad})) == 3


def test_the_core_drains_for_a_failure_and_only_a_new_board_or_a_person_ends_it() -> None:
    core = Core()
    core.tell(sweep({GPU: {"row_remap_failure": 1}}, 1.0))
    assert core.owed() == []
    core.tell(sweep({GPU: {"row_remap_failure": 1}}, 31.0))
    assert core.owed() == ["drain"]
    core.tell(sweep({GPU: {"row_remap_failure": 0}}, 40.0), booted(1.0, BootId("b"), BOOT))
    assert core.state("0000:1b:00.0") == "unfit"
    ack = Acknowledged(
        id=EventId("ack"), at=instant(2.0, BootId("b")), code="row_remap_failed", subject=GPU, by="mia", reason="new"
    )
    core.tell(ack)
    assert core.state("0000:1b:00.0") == "returning"
