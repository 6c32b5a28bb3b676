"""Which alerts recorded machines raise in a real Prometheus: healthy ones none, one with a lost GPU the right ones."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.agents import Agent
from tests.support.machines import NAMES
from tests.support.prometheus import Prometheus

pytestmark = pytest.mark.prometheus

RULES = sorted((Path(__file__).resolve().parents[2] / "rules/alerts").glob("*.yaml"))
# What all of them have once everything was read, and how long until the rules have been asked about it.
TAKEN = ("gpuguard_power_watts{", "gpuguard_ecc_errors_total{", "gpuguard_gpus_on_bus ", 'model="NVIDIA')
TAKEN_WITHIN = 60.0
SETTLED_AFTER = 5.0


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """The alerts that are pending or firing, by machine."""
    folder = tmp_path_factory.mktemp("alerts")
    with ExitStack() as open_things:
        agents = {}
        for name in NAMES:
            (folder / name).mkdir()
            agents[name] = open_things.enter_context(Agent(name, folder / name))
        server = open_things.enter_context(Prometheus(folder, [agent.address for agent in agents.values()], RULES))
        for agent in agents.values():
            agent.page_with(*TAKEN, within=TAKEN_WITHIN)
        ends = time.monotonic() + TAKEN_WITHIN
        while len(server.query('up{job="gpuguard"} == 1')) < len(NAMES):
            assert time.monotonic() < ends, server.query("up")
            time.sleep(0.5)
        time.sleep(SETTLED_AFTER)
        found = server.query("ALERTS")
        yield {
            name: {one["metric"]["alertname"] for one in found if one["metric"].get("instance") == agent.address}
            for name, agent in agents.items()
        }


@pytest.mark.parametrize("name", [name for name in NAMES if name != "h100x8-lost"])
def test_a_healthy_machine_raises_none(raised: dict[str, set[str]], name: str) -> None:
    assert raised[name] == set()


def test_a_lost_gpu_raises_the_verdict_and_what_was_counted(raised: dict[str, set[str]]) -> None:
    assert {"GpuguardGpuUnfit", "GpuguardGpusMissing"} <= raised["h100x8-lost"]
