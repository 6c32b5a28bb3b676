"""A reboot asked of a real Slurm: what the node looks like before, during and after it, and whose drain it stays."""

import time

import pytest

from gpuguard.actuators.slurm import Settings, Slurm
from tests.support.slurm import Cluster
from tests.support.wishes import remedy, wish

pytestmark = pytest.mark.slurm

NODE = "node2"
WISH = remedy("reboot")


def actuator(slurm: Cluster, boot: str = "3f6c") -> Slurm:
    return Slurm(Settings(node=NODE, reboot=True), slurm.environ, lambda: boot)


def test_a_drained_node_reboots_and_stays_ours_until_we_release_it(slurm: Cluster) -> None:
    here = actuator(slurm)
    assert here.perform(wish("drain")).result == "done"
    assert here.perform(WISH).result == "deferred"
    slurm.await_state(NODE, "DOWN+DRAIN+REBOOT_ISSUED")
    assert slurm.reason(NODE).startswith("gpuguard:7f3a gpu3 lost xid79 : reboot issued [")
    stood = slurm.reason(NODE)
    assert here.perform(WISH).result == "deferred"
    assert here.perform(wish("release")).result == "deferred"
    assert slurm.reason(NODE) == stood, "neither asked again nor written to while it reboots"

    slurm.boot_node(NODE)
    slurm.await_state(NODE, "IDLE+DRAIN")
    report = here.read_state()
    assert (report.drained, report.ours) == (True, "7f3a")
    booted = actuator(slurm, boot="a0b1")
    assert booted.perform(WISH).result == "done"
    time.sleep(1.5)  # slurmctld begins a reboot within a second
    assert slurm.states()[NODE] == "IDLE+DRAIN", "the wish sent again was no second reboot"
    assert booted.perform(wish("release")).result == "done"
    slurm.await_state(NODE, "IDLE")


def test_a_node_with_work_is_not_rebooted(slurm: Cluster) -> None:
    slurm.run_job(NODE)
    here = actuator(slurm)
    assert here.perform(wish("drain")).result == "done"
    assert here.perform(WISH).result == "deferred"
    assert slurm.states()[NODE] == "MIXED+DRAIN"


def test_neither_a_free_node_nor_somebody_elses_is_rebooted(slurm: Cluster) -> None:
    here = actuator(slurm)
    assert here.perform(WISH).result == "foreign"
    slurm.update(NODE, "state=drain", "reason=Bob: fan 3 rattles")
    assert here.perform(WISH).result == "foreign"
    assert slurm.states()[NODE] == "IDLE+DRAIN"


def test_a_reboot_that_an_administrator_calls_off_takes_our_drain_with_it(slurm: Cluster) -> None:
    """Slurm's own doing: whoever cancels has taken the node over, and it is told, not fought."""
    slurm.run_job(NODE)
    here = actuator(slurm)
    assert here.perform(wish("drain")).result == "done"
    slurm.client("scontrol", "reboot", NODE)
    assert here.perform(WISH).result == "deferred"
    slurm.client("scontrol", "cancel_reboot", NODE)
    slurm.await_state(NODE, "MIXED")
    assert here.perform(WISH).result == "foreign"
