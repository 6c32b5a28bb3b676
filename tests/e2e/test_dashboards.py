"""Every expression of every dashboard, and every recording, has data in a real Prometheus that scrapes real agents.

The agents play recorded machines: a healthy one, one of the next generation for its NVLink 5, and one with a lost GPU
for what a healthy one has not.
"""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.agents import Agent
from tests.support.dashboards import FILES, Shown, board, shown
from tests.support.prometheus import Prometheus

pytestmark = pytest.mark.prometheus

RULES = sorted((Path(__file__).resolve().parents[2] / "rules/alerts").glob("*.yaml"))
MACHINES = ("h100x8", "b200x8", "h100x8-lost")
# No job runs on a recorded machine that would tell how far it is.
OF_JOBS = re.compile(r"gpuguard_(?:job_|gpu_allocation_info|orphan_bytes|unowned_processes)")
ALL = [asked for path in FILES for asked in shown(path) if not OF_JOBS.search(asked.expression)]
RECORDED = re.findall(r"record: (\S+)", "\n".join(file.read_text() for file in RULES))
# A rate needs two sweeps, and the longest class of what is shown comes each 4 s.
FILLED_WITHIN = 60.0


def _asked(expression: str) -> str:
    """The expression as Grafana sends it, for any node and any GPU."""
    return re.sub(r'="\$(?:instance|gpu)"', '=~".+"', expression).replace("$instance", ".+")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("dashboards")
    with ExitStack() as open_things:
        addresses = []
        for name in MACHINES:
            (folder / name).mkdir()
            addresses.append(open_things.enter_context(Agent(name, folder / name)).address)
        server = open_things.enter_context(Prometheus(folder, addresses, RULES))
        ends = time.monotonic() + FILLED_WITHIN
        while time.monotonic() < ends and not all(server.query(_asked(asked.expression)) for asked in ALL):
            time.sleep(2.0)
        yield server


@pytest.mark.parametrize("asked", ALL, ids=lambda asked: f"{asked.board}-{asked.panel}-{asked.legend}")
def test_an_expression_has_data(prometheus: Prometheus, asked: Shown) -> None:
    assert prometheus.query(_asked(asked.expression))


@pytest.mark.parametrize("record", RECORDED)
def test_a_recording_has_data(prometheus: Prometheus, record: str) -> None:
    assert prometheus.query(record)


VARIABLES = [
    pytest.param(variable["definition"], id=f"{path.stem}-{variable['name']}")
    for path in FILES for variable in board(path)["templating"]["list"] if variable["type"] == "query"
]  # fmt: skip


@pytest.mark.parametrize("definition", VARIABLES)
def test_a_variable_has_something_to_choose_from(prometheus: Prometheus, definition: str) -> None:
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", definition)
    assert found
    series = prometheus.query(_asked(found[1]))
    assert {one["metric"][found[2]] for one in series}


def test_every_agent_is_scraped_and_no_rule_fails(prometheus: Prometheus) -> None:
    assert [one["value"][1] for one in prometheus.query('up{job="gpuguard"}')] == ["1"] * len(MACHINES)
    assert prometheus.query("sum(scrape_samples_scraped)")[0]["value"][1] != "0"


def test_an_expression_without_data_is_noticed(prometheus: Prometheus) -> None:
    assert prometheus.query(_asked('gpuguard_power_watts{job="gpuguard", instance=~"$instance", gpu="none"}')) == []
