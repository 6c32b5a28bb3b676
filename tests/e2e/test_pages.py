"""The pages of recorded machines: how much is on them, and whether Prometheus' own tool finds fault with it."""

import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.agents import Agent
from tests.support.require import require

# How many series a node may cost its Prometheus.
MOST = {"h100x8": 1500, "b200x8": 2000}
# One series of each class of sweep, by which all of them are known to have been taken.
TAKEN = ("gpuguard_power_watts{", "gpuguard_ecc_errors_total{", "gpuguard_gpus_expected ", 'model="NVIDIA')
TAKEN_WITHIN = 30.0
# Names that promtool would have otherwise, and why they stay.
SPELLED = {
    "gpuguard_process_count": "the count is of processes, not of observations; other exporters call it so",
    "gpuguard_ib_rate_bits_per_second": "rates of ports are printed in bits on every cable and by every tool",
}


@pytest.fixture(scope="module", params=MOST)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The name of a machine, and its page when everything was read once."""
    name = str(request.param)
    with Agent(name, tmp_path_factory.mktemp(name)) as agent:
        return name, agent.page_with(*TAKEN, within=TAKEN_WITHIN)


def test_it_has_no_more_series_than_it_may(page: tuple[str, str]) -> None:
    name, text = page
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert 500 < len(lines) <= MOST[name]


def test_no_series_is_there_twice_and_none_has_too_many_labels(page: tuple[str, str]) -> None:
    samples = [s for family in text_string_to_metric_families(page[1]) for s in family.samples]
    assert len({(s.name, *sorted(s.labels.items())) for s in samples}) == len(samples)
    assert max(len(s.labels) for s in samples) <= 6


def test_each_of_the_eight_gpus_is_told_of_by_number_and_uuid(page: tuple[str, str]) -> None:
    (power,) = [f for f in text_string_to_metric_families(page[1]) if f.name == "gpuguard_power_watts"]
    assert sorted(sample.labels["gpu"] for sample in power.samples) == [str(number) for number in range(8)]
    assert len({sample.labels["uuid"] for sample in power.samples}) == 8
    assert all(sample.labels["uuid"].startswith("GPU-") for sample in power.samples)


@pytest.mark.promtool
def test_promtool_finds_no_fault(page: tuple[str, str]) -> None:
    program = shutil.which("promtool")
    require("promtool", program is not None, "apt-get install prometheus, or `./dev test --install`")
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page[1], capture_output=True, text=True, cwd=Path("/"), check=False
    )
    assert done.returncode in (0, 3), done.stderr
    complaints = [line for line in done.stderr.splitlines() if line]
    assert [line for line in complaints if line.partition(" ")[0] not in SPELLED] == []
