"""The dashboards can be imported anywhere, can be read, and ask for what there is."""

import re
from pathlib import Path
from typing import Any

import pytest

from gpuguard.runtime.plugins import shelf
from tests.support.dashboards import FILES, Shown, board, shown
from tests.support.snapshots import full

ALL = [expression for path in FILES for expression in shown(path)]
RECORDING = Path(__file__).resolve().parents[2] / "rules/alerts/gpuguard-recording.yaml"
EVERYWHERE = {"job", "instance"}


def _panels(path: Path) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = board(path)["panels"]
    return panels


def _labels() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for module in shelf("gpuguard.metrics").values():
        for family in module.families(full()):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_there_is_one_for_the_fleet_one_for_a_node_and_one_for_a_gpu() -> None:
    assert [path.stem for path in FILES] == ["fleet", "gpu", "node"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_can_be_imported_anywhere(path: Path) -> None:
    """A name of its own, no number of a Grafana that it came from, and the data source is for the reader to choose."""
    found = board(path)
    assert found["uid"] == f"gpuguard-{path.stem}"
    assert found["schemaVersion"] >= 36
    assert "id" not in found
    variables = {variable["name"]: variable for variable in found["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    panels = [panel for panel in _panels(path) if panel["type"] != "row"]
    queries = [variable for variable in variables.values() if variable["type"] == "query"]
    targets = [target for panel in panels for target in panel["targets"]]
    assert {asking["datasource"]["uid"] for asking in (*panels, *queries, *targets)} == {"${datasource}"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_panel_lies_on_another_and_each_says_what_it_shows(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in _panels(path):
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
        }  # fmt: skip
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["title"]
    numbers = [panel["id"] for panel in _panels(path)]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_variable_that_is_used_is_there(path: Path) -> None:
    there = {variable["name"] for variable in board(path)["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", path.read_text()))
    assert used <= there


@pytest.mark.parametrize("asked", ALL, ids=lambda asked: f"{asked.board}-{asked.panel}-{asked.legend}")
def test_its_metrics_and_labels_exist(asked: Shown) -> None:
    labels = _labels()
    recorded = set(re.findall(r"record: (\S+)", RECORDING.read_text()))
    selectors = re.findall(r"([\w:]*gpuguard_\w+(?::\w+)?)\{([^}]*)\}", asked.expression)
    assert selectors or asked.expression.startswith("count(up{")
    for name, inside in selectors:
        assert name in labels or name in recorded
        known = labels.get(name, set()) | EVERYWHERE
        assert set(re.findall(r"(\w+)[=!]~?\"", inside)) <= known
        legend = set(re.findall(r"\{\{(\w+)\}\}", asked.legend))
        assert name in recorded or legend <= known


@pytest.mark.parametrize("asked", ALL, ids=lambda asked: f"{asked.board}-{asked.panel}-{asked.legend}")
def test_it_looks_at_our_job_and_the_node_that_was_chosen_alone(asked: Shown) -> None:
    selectors = re.findall(r"[\w:]+\{([^}]*)\}", asked.expression)
    assert selectors
    for inside in selectors:
        assert 'job="gpuguard"' in inside
        assert "$instance" in inside
        assert ("$gpu" in inside) == (asked.board == "gpu")
