"""The alerts and the scrape configuration, held against Prometheus' own tool."""

import re
import shutil
from pathlib import Path

import pytest

from tests.support.promtool import promtool

pytestmark = pytest.mark.promtool

CHECKOUT = Path(__file__).resolve().parents[2]
ALERTS = CHECKOUT / "rules" / "alerts"
RULES = sorted(ALERTS.glob("*.yaml"))
CASES = sorted((ALERTS / "tests").glob("*.yaml"))


def _named(kind: str, *files: Path) -> list[str]:
    return [
        name for file in files for name in re.findall(rf"^ +- {kind}: (\S+)$", file.read_text(), flags=re.MULTILINE)
    ]  # fmt: skip


@pytest.mark.parametrize("file", RULES, ids=lambda path: path.stem)
def test_the_rules_are_valid(file: Path) -> None:
    done = promtool("check", "rules", file.name, folder=ALERTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(_named('(?:alert|record)', file))} rules found" in done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_alert(case: Path) -> None:
    done = promtool("test", "rules", case.name, folder=case.parent)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", _named("alert", *RULES))
def test_each_alert_is_seen_to_fire_and_to_stay_silent(alert: str) -> None:
    """Its test file holds at least one moment when it fires and one when it does not."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", alert.removeprefix("Gpuguard")).lower()
    text = (ALERTS / "tests" / f"{name}.yaml").read_text()
    moments = re.findall(rf"alertname: {alert}\n +exp_alerts:(.*)", text)
    assert "" in moments
    assert " []" in moments


@pytest.mark.parametrize("record", _named("record", *RULES))
def test_each_recording_is_seen_to_have_the_right_value(record: str) -> None:
    text = (ALERTS / "tests" / "recording.yaml").read_text()
    assert re.search(rf"- expr: {record}\n +eval_time: \w+\n +exp_samples:\n +- labels: '{record}{{", text)


def test_an_alert_that_does_not_fire_is_noticed(tmp_path: Path) -> None:
    """The tests above can fail: without its rule the test of an alert does."""
    shutil.copytree(ALERTS, tmp_path / "alerts")
    rules = tmp_path / "alerts" / "gpuguard.yaml"
    rules.write_text(rules.read_text().replace('state="unfit"', 'state="unwell"'))
    done = promtool("test", "rules", "gpu_unfit.yaml", folder=tmp_path / "alerts" / "tests")
    assert done.returncode != 0


@pytest.mark.parametrize("name", ["prometheus-scrape.yaml", "dcgm-exporter/prometheus-scrape.yaml"])
def test_the_scrape_configuration_is_valid(name: str, tmp_path: Path) -> None:
    """With the alerts laid beside it, as docs/metrics.md says."""
    shutil.copy(CHECKOUT / "exporters" / name, tmp_path)
    for file in RULES:
        shutil.copy(file, tmp_path)
    done = promtool("check", "config", "prometheus-scrape.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for file in RULES:
        assert f"{len(_named('(?:alert|record)', file))} rules found" in done.stdout + done.stderr
