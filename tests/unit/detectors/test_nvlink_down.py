"""Fewer links than the profile expects, never without one, never under MIG."""

import pytest

from tests.support.stories import told

ONLY = "only=nvlink_down"
GPU = "gpu:0000:1b:00.0"


def looked(*rows: str) -> list[str]:
    """What is told of one GPU after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep nvml/medium {GPU} {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


DOWN = "nvlinks_expected=4 nvlink_up=1,0,1,1"


def test_a_missing_link_is_told_by_name_after_the_hold() -> None:
    assert looked(f"0 {DOWN}", f"119 {DOWN}") == []
    assert looked(f"0 {DOWN}", f"120 {DOWN}")[0].endswith("3 of 4 NVLinks are up; down: link 1")


def test_all_links_end_it() -> None:
    up = DOWN.replace("1,0", "1,1")
    assert looked(f"0 {DOWN}", f"120 {DOWN}", f"180 {up}")[1:] == ["nvlink_down stands no longer"]
    assert looked(f"0 {DOWN}", f"60 {up}", f"90 {DOWN}", f"180 {DOWN}") == []


def test_a_count_alone_will_do() -> None:
    row = "nvlinks_expected=18 nvlinks_active=17"
    assert "17 of 18" in looked(f"0 {row}", f"120 {row}")[0]


@pytest.mark.parametrize("expected", ["", "nvlinks_expected=?", "nvlinks_expected=0"])
def test_never_without_an_expectation(expected: str) -> None:
    row = f"nvlink_up=0,0,0,0 nvlinks_active=0 {expected}".strip()
    assert looked(f"0 {row}", f"900 {row}") == []


@pytest.mark.parametrize("mode", ["1", "?"])
def test_never_under_mig_nor_where_nobody_knows(mode: str) -> None:
    row = f"{DOWN} mig_mode={mode}"
    assert looked(f"0 {row}", f"900 {row}") == []


def test_what_stood_ends_when_the_gpu_is_cut_into_instances() -> None:
    whole = [f"0 {DOWN} mig_mode=0", f"120 {DOWN} mig_mode=0"]
    assert looked(*whole, f"180 {DOWN} mig_mode=1")[1:] == ["nvlink_down stands no longer"]
    assert len(looked(*whole, f"180 {DOWN} mig_mode=?")) == 1


def test_mig_begins_the_hold_anew() -> None:
    whole = f"{DOWN} mig_mode=0"
    assert looked(f"0 {whole}", f"100 {DOWN} mig_mode=1", f"130 {whole}", f"240 {whole}") == []
    assert looked(f"0 {whole}", f"100 {DOWN} mig_mode=1", f"130 {whole}", f"250 {whole}") != []


def test_a_link_without_an_answer_is_neither_up_nor_down() -> None:
    row = "nvlinks_expected=4 nvlink_up=1,?,1,1"
    assert looked(f"0 {row}", f"900 {row}") == []
    row = "nvlinks_expected=4 nvlink_up=1,?,0,1"
    assert looked(f"0 {row}", f"900 {row}")[0].endswith("2 of 4 NVLinks are up; down: link 2")
    # What stands is not taken back by a guess.
    assert len(looked(f"0 {DOWN}", f"120 {DOWN}", "180 nvlinks_expected=4 nvlink_up=1,?,1,1")) == 1
