"""Whole stories of a node, and those of single checks: an event, then, indented, all that followed.

`pytest --rewrite` writes them anew; commit the difference only if you can explain each line.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stories import rewritten

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
STORIES = sorted([*FIXTURES.glob("scenarios/*.scn"), *FIXTURES.glob("detectors/*/*.scn")])
# A story about these words may end in no drain, whatever else is changed about it.
NEVER_DRAIN = (
    "teardown_45", "program_burst", "program_repeats", "fabric_nonfatal_flood", "unknown_code", "held_109",
    "power_smoothing", "old_backlog_answers", "nvlink_wedge", "nvml_lost_alone", "recovery_action_glitch",
    "node_measured_mild", "overheating", "links_under_mig", "crc_flood", "power_brake_36h", "fabric_refused",
)  # fmt: skip


def _name(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


@pytest.mark.parametrize("path", STORIES, ids=_name)
def test_everything_that_follows_is_as_told(path: Path, golden: Callable[[Path, str], None]) -> None:
    golden(path, rewritten(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", STORIES, ids=_name)
def test_a_story_says_where_it_comes_from(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("name", NEVER_DRAIN)
def test_nothing_is_drained(name: str) -> None:
    told = rewritten((FIXTURES / "scenarios" / f"{name}.scn").read_text(encoding="utf-8"))
    assert "owed: drain" not in told
    assert "-> unfit" not in told
