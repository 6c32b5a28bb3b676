"""The dashboards that ship, taken apart."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[2] / "exporters/grafana"
FILES = sorted(FOLDER.glob("*.json"))


class Shown(NamedTuple):
    """One expression of one panel."""

    board: str
    panel: str
    expression: str
    legend: str


def board(path: Path) -> dict[str, Any]:
    """One dashboard, as Grafana imports it."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def shown(path: Path) -> Iterator[Shown]:
    """Every expression of a dashboard, those of its variables not among them."""
    for panel in board(path)["panels"]:
        for target in panel.get("targets", ()):
            yield Shown(path.stem, panel["title"], target["expr"], target["legendFormat"])
