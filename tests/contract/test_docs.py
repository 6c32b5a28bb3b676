"""Docs, dashboards and alerts speak of things that exist."""

import re
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from gpuguard.commands import COMMANDS
from gpuguard.runtime.plugins import shelf
from tests.support.snapshots import full

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = sorted(path for path in (CHECKOUT / "docs").rglob("*.md") if "reference" not in path.parts)
PROSE = [CHECKOUT / "README.md", *DOCS]
FACING_PROMETHEUS = sorted(
    path for folder in ("exporters", "rules/alerts") for path in (CHECKOUT / folder).rglob("*") if path.is_file()
)


def _families() -> dict[str, Metric]:
    snapshot = full()
    return {
        family.name: family for module in shelf("gpuguard.metrics").values() for family in module.families(snapshot)
    }


def _series() -> dict[str, set[str]]:
    """Every name that /metrics can show, with the labels it can carry."""
    found: dict[str, set[str]] = {}
    for family in _families().values():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def _named(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def _recorded() -> set[str]:
    """The names that recording rules make."""
    rules = (CHECKOUT / "rules" / "alerts" / "gpuguard-recording.yaml").read_text()
    return set(re.findall(r"^ +- record: (\S+)$", rules, flags=re.MULTILINE))


# The files of alerts, in the order in which the page has them.
ALERTS = ("gpuguard.yaml", "gpuguard-gpus.yaml", "gpuguard-jobs.yaml")
# Names that begin like a metric and are none.
NOT_METRICS = {"gpuguard_agent", "gpuguard_actuator"}


@pytest.mark.parametrize("path", [*FACING_PROMETHEUS, *PROSE], ids=_named)
def test_each_metric_that_is_named_exists(path: Path) -> None:
    text = path.read_text()
    recorded = set(re.findall(r"\b\w+:gpuguard_\w+:\w+\b", text))
    assert recorded <= _recorded()
    text = re.sub(r"\b\w+:gpuguard_\w+:\w+\b", "", text)
    named = set(re.findall(r"\bgpuguard_[a-z0-9_]*[a-z0-9]\b", text)) - NOT_METRICS
    assert named - set(_series()) - set(_families()) == set()


@pytest.mark.parametrize("path", FACING_PROMETHEUS, ids=_named)
def test_each_label_that_is_named_exists(path: Path) -> None:
    series = _series()
    for name, inside in re.findall(r"\b(gpuguard_\w+)\{([^}]*)\}", path.read_text()):
        labels = set(re.findall(r"(\w+)=~?\"", inside)) - {"job", "instance"}
        assert labels <= series[name], f"{name} has no {labels - series[name]}"


def test_the_metrics_page_lists_every_family_that_is_computed() -> None:
    """Those that are measured have their table in reference/metrics.md, from their declarations."""
    text = (CHECKOUT / "docs" / "metrics.md").read_text()
    snapshot = full()
    missing = [
        family.name
        for name, module in shelf("gpuguard.metrics").items() if name != "readings"
        for family in module.families(snapshot)
        if f"`{family.name}{'_total' * (family.type == 'counter')}`" not in text
    ]  # fmt: skip
    assert missing == []


def test_the_families_hold_to_the_house() -> None:
    """Native names, base units, at most six labels, each with a help text."""
    for name, family in _families().items():
        assert name.startswith("gpuguard_")
        assert family.documentation
        assert not re.search(r"_(ms|milliseconds|minutes|kib|mib|percent)\b", name)
    assert max(len(labels) for labels in _series().values()) <= 6


def test_the_alerts_page_has_a_section_for_each_alert() -> None:
    files = [CHECKOUT / "rules" / "alerts" / name for name in ALERTS]
    rules = "\n".join(file.read_text() for file in files)
    alerts = re.findall(r"^ +- alert: (\w+)$", rules, flags=re.MULTILINE)
    sections = re.findall(r"^## (Gpuguard\w+)$", (CHECKOUT / "docs" / "alerts.md").read_text(), flags=re.MULTILINE)
    assert sections == alerts


@pytest.mark.parametrize("path", PROSE, ids=_named)
def test_each_command_that_is_named_exists(path: Path) -> None:
    named = set(re.findall(r"`(?:[\w/.]*/)?gpuguard ([a-z][a-z-]+)", path.read_text()))
    assert named - set(COMMANDS) == set()


@pytest.mark.parametrize("path", PROSE, ids=_named)
def test_each_link_leads_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())
    lost = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert lost == []


def test_changes_have_their_folder() -> None:
    assert any((CHECKOUT / "docs" / "changes").glob("*.md"))


def test_the_readme_needs_two_commands() -> None:
    text = (CHECKOUT / "README.md").read_text()
    assert "./dev run" in text
    assert "./dev test" in text
