"""The wiring in the real agent: what its page says of it, and a drift that comes and goes while it runs."""

import json
import os
import tarfile
import time
from pathlib import Path

import pytest

from gpuguard import cli
from gpuguard.runtime.board import ask_agent
from gpuguard.runtime.wiring import rows_of
from gpuguard.topology.build import build
from tests.support.agents import Agent
from tests.support.machines import copied, machine

Output = pytest.CaptureFixture[str]
WITHIN = 30.0
SOON = """\
[sources.topology]
every = 0.5
[detectors.topology_drift]
hold = 1.0
"""


def value(page: str, name: str) -> float | None:
    """The one series of this name on a page."""
    found = [line.split()[-1] for line in page.splitlines() if line.startswith(f"{name} ")]
    return float(found[0]) if found else None


def wait_for(agent: Agent, name: str, wanted: float) -> None:
    """The page says it of this series."""
    ends = time.monotonic() + WITHIN
    while value(page := agent.page(), name) != wanted:
        assert time.monotonic() < ends, page
        time.sleep(0.1)


def test_the_snapshot_of_a_running_agent_is_the_whole_graph(tmp_path: Path) -> None:
    with Agent("h100x8", tmp_path) as agent:
        page = agent.page_with(
            'gpuguard_nvlink_up{gpu="0"', "gpuguard_topology_drift", "nvswitch:0000:05", within=WITHIN
        )
        snapshot = ask_agent(agent.address)
    assert value(page, "gpuguard_topology_drift") == 0
    assert value(page, "gpuguard_topology_changed_total") == 0
    links = [line for line in page.splitlines() if line.startswith('gpuguard_nvlink_up{gpu="0"')]
    assert len(links) == 18
    assert all('peer="nvswitch:0000:0' in line for line in links)
    assert snapshot is not None
    graph = build(rows_of(snapshot))
    assert graph.notes == ()
    assert {graph.cell(i, j) for i in range(8) for j in range(i)} == {"NV18"}
    assert len(graph.nics) == 10


def test_a_card_that_vanishes_is_a_finding_and_its_return_ends_it(tmp_path: Path, capsys: Output) -> None:
    root = copied("h100x8", tmp_path)
    assert cli.run(["topo", "--root", str(root), "--learn"]) == 0
    state = tmp_path / "run"
    state.mkdir()
    with Agent(str(root), state, more=SOON) as agent:
        wait_for(agent, "gpuguard_topology_drift", 0)
        card, aside = root / "sys/class/infiniband/mlx5_3", root / "mlx5_3"
        bus, away = root / "sys/bus/pci/devices/0000:62:00.0", root / "62"
        os.rename(card, aside)
        os.rename(bus, away)
        wait_for(agent, "gpuguard_topology_drift", 1)
        (standing,) = [line for line in agent.page().splitlines() if line.startswith("gpuguard_findings{")]
        assert 'code="topology_nic_missing"' in standing
        assert "nic:mlx5_3" in standing
        capsys.readouterr()
        assert cli.run(["why", "--root", str(root), "--state-dir", str(state / "state")]) in (0, 1)
        assert "topology_nic_missing" in capsys.readouterr().out
        os.rename(aside, card)
        os.rename(away, bus)
        wait_for(agent, "gpuguard_topology_drift", 0)
        assert value(agent.page(), "gpuguard_topology_changed_total") == 2


def test_the_support_bundle_holds_the_wiring(tmp_path: Path) -> None:
    root, state, bundle = str(machine("h100x8")), str(tmp_path / "state"), tmp_path / "bundle.tar.gz"
    assert cli.run(["agent", "--once", "--root", root, "--state-dir", state]) == 0
    cli.run(["support-bundle", "--root", root, "--state-dir", state, "--output", str(bundle)])
    with tarfile.open(bundle) as tar:
        names = {Path(name).name: name for name in tar.getnames()}
        told = tar.extractfile(names["topo.json"])
        assert told is not None
        assert json.loads(told.read())["devices"][:2] == ["GPU0", "GPU1"]
        assert "topo.txt" in names
