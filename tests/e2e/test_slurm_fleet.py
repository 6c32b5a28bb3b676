"""The fleet as a real Slurm tells it: who is counted, whose drains stand, and since when."""

import time

import pytest

from gpuguard.actuators.slurm import Settings, Slurm
from gpuguard.ports import FleetDrain, FleetReport
from tests.support.slurm import Cluster
from tests.support.wishes import wish

pytestmark = pytest.mark.slurm


def overseen(slurm: Cluster) -> FleetReport:
    return Slurm(Settings(node="node1"), slurm.environ).read_fleet()


def test_a_quiet_fleet_is_its_nodes_with_gpus(slurm: Cluster) -> None:
    assert overseen(slurm) == FleetReport(target="slurm", nodes=3)


def test_our_drains_stand_in_it_with_their_time_and_nobody_elses(slurm: Cluster) -> None:
    began = time.time()
    assert Slurm(Settings(node="node2"), slurm.environ).perform(wish("drain")).result == "done"
    slurm.update("node3", "state=drain", "reason=Bob: gpuguard:7f3a gpu5 lost xid79")
    report = overseen(slurm)
    (drain,) = report.drains
    assert drain == FleetDrain(node="node2", token="7f3a", code="xid79", since_utc=drain.since_utc)
    assert drain.since_utc is not None
    assert began - 1 <= drain.since_utc <= time.time()
    assert report.nodes == 3


def test_a_reason_of_two_lines_with_a_whole_record_in_it_adds_no_node(slurm: Cluster) -> None:
    forged = "NodeName=node9 Gres=gpu:h100:4 State=IDLE+DRAIN Owner=N/A Reason=gpuguard:c0de gpu1 lost xid79"
    slurm.update("node3", "state=drain", f"reason=Bob\n{forged}")
    report = overseen(slurm)
    assert (report.nodes, report.drains) == (3, ())


def test_a_node_that_is_down_counts_and_a_controller_that_is_away_tells_nothing(slurm: Cluster) -> None:
    slurm.update("node3", "state=down", "reason=x")
    assert overseen(slurm).nodes == 3
    slurm.stop_controller()
    error = overseen(slurm).error
    assert error is not None
    assert "contact" in error or "in time" in error
