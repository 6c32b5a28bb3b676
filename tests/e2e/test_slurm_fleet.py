"""The fleet as a real Slurm tells it: who is counted, whose drains stand, and since when."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import msgspec
import pytest

from gpuguard.actuators.slurm import Settings, Slurm
from gpuguard.custody.budget import Limits
from gpuguard.model.actions import Outcome
from gpuguard.ports import Actuator, FleetDrain, FleetReport
from gpuguard.runtime.guard import Settings as FleetSettings
from gpuguard.runtime.guard import guarded
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


@pytest.mark.parametrize("ledger", ["records", "directory"])
def test_of_three_nodes_that_want_it_at_once_one_is_drained(slurm: Cluster, tmp_path: Path, ledger: str) -> None:
    """One of three is the most that a fleet so small may lose: all ask in the same moment."""
    (tmp_path / "gpuguard-fleet").touch()
    settings = FleetSettings(directory=str(tmp_path) if ledger == "directory" else "")
    ready = Barrier(3)

    def ask(node: str) -> Outcome:
        here = guarded(Slurm(Settings(node=node), slurm.environ), settings, Limits())
        token = f"000{node[-1]}"
        ready.wait(60)
        return here.perform(msgspec.structs.replace(wish("drain", token=token), code=f"xid{token}"))

    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(ask, slurm.names))
    assert sorted(outcome.result for outcome in outcomes) == ["done", "held", "held"], outcomes
    assert sorted(state for state in slurm.states().values() if "DRAIN" in state) == ["IDLE+DRAIN"]
    (drain,) = overseen(slurm).drains
    assert [o.result for n, o in zip(slurm.names, outcomes, strict=True) if n == drain.node] == ["done"]


def test_one_node_after_the_other_the_second_is_held_and_a_person_is_not(slurm: Cluster) -> None:
    def here(node: str) -> Actuator:
        return guarded(Slurm(Settings(node=node), slurm.environ), FleetSettings(), Limits())

    assert here("node1").perform(wish("drain", token="0001")).result == "done"
    assert here("node2").perform(wish("drain", token="0002")).result == "held"
    assert slurm.states()["node2"] == "IDLE"
    person = msgspec.structs.replace(wish("drain", token="0003"), by="mia")
    assert here("node3").perform(person).result == "done"
    assert here("node1").perform(wish("release", token="0001")).result == "done"
