"""From a line in the real kernel ring to a drained node in a real Slurm, a metric, and an answer to "why"."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chain import Chain, until
from tests.support.kmsg import require_kmsg, say
from tests.support.slurm import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.kmsg]


@pytest.fixture
def chain(slurm: Cluster, short_path: Path) -> Iterator[Chain]:
    require_kmsg()
    chain = Chain(short_path, slurm)
    with chain.running():
        yield chain


_ADDRESS = iter(range(0x10, 0xF0))


def address() -> str:
    """An address that no other test of this run used: the ring is read whole at each start."""
    return f"{os.getpid() % 0xEFFF + 0x1000:04x}:{next(_ADDRESS):02x}:00"


def test_a_kernel_line_drains_the_node_and_is_explained(chain: Chain) -> None:
    pci = address()
    say(f"NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    until(lambda: "DRAIN" in chain.slurm.states()["node1"], "node1 is drained")
    reason = chain.reason()
    token = reason.removeprefix("gpuguard:")[:4]
    assert reason == f"gpuguard:{token} {pci.partition(':')[2]}.0 lost xid79"
    until(lambda: chain.snapshot().get("drain", {}).get("state") == "standing", "the outcome is known")

    assert chain.run("check")[0] == 2
    assert chain.run("check", "--mode", "prolog")[0] == 2
    code, why = chain.run("why", token)
    assert code in (0, 1)
    assert "xid79" in why
    assert "fallen off the bus" in why
    samples = chain.metrics()
    assert samples["gpuguard_drain_active[('owner', 'gpuguard')]"] == 1.0
    assert samples[f"gpuguard_subject_health[('state', 'unfit'), ('subject', 'gpu:{pci}.0')]"] == 1.0
    assert samples["gpuguard_actuator_ok[]"] == 1.0


def test_a_line_of_a_program_in_the_ring_drains_nothing(chain: Chain) -> None:
    pci = address()
    say(
        f"NVRM: Xid (PCI:{pci}): 43, pid=4711, name=): 79, GPU, Ch 00000008",
        "myjob: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        f"NVRM: Xid (PCI:{pci}): 45, pid=4711, name=python3, Ch 00000009",
    )
    until(
        lambda: chain.metrics().get("gpuguard_events_total[('code', '45'), ('kind', 'xid')]", 0) >= 1, "45 was counted"
    )
    assert chain.slurm.states()["node1"] == "IDLE"


def test_a_foreign_drain_keeps_its_reason(chain: Chain) -> None:
    chain.slurm.update("node1", "state=drain", "reason=bad PSU, ask kim")
    say(f"NVRM: Xid (PCI:{address()}): 120, GSP task exception")
    until(lambda: (chain.snapshot().get("drain") or {}).get("state") == "foreign", "the agent knows")
    assert chain.reason() == "bad PSU, ask kim"
    code, status = chain.run("status")
    assert code == 1
    assert "foreign" in status


def test_our_drain_is_given_back_after_a_reset_and_only_then(chain: Chain) -> None:
    pci = address()
    say(f"NVRM: Xid (PCI:{pci}): 120, GSP task exception")
    until(lambda: "DRAIN" in chain.slurm.states()["node1"], "node1 is drained")
    say(f"NVRM: Xid (PCI:{pci}): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    until(lambda: "DRAIN" not in chain.slurm.states()["node1"], "node1 is given back")


def test_a_controller_that_is_away_gets_the_drain_when_it_is_back(chain: Chain) -> None:
    chain.slurm.stop_controller()
    say(f"NVRM: Xid (PCI:{address()}): 120, GSP task exception")
    until(lambda: (chain.snapshot().get("drain") or {}).get("state") == "owed", "the drain is owed")
    chain.slurm.start_controller()
    until(lambda: "DRAIN" in chain.slurm.states()["node1"], "node1 is drained", patience=60.0)


def test_an_agent_killed_between_verdict_and_drain_drains_after_its_restart(chain: Chain) -> None:
    chain.end("actuator", signal.SIGKILL)
    say(f"NVRM: Xid (PCI:{address()}): 120, GSP task exception")
    until(lambda: (chain.snapshot().get("drain") or {}).get("state") == "owed", "the drain is owed")
    chain.end("agent", signal.SIGKILL)
    assert chain.slurm.states()["node1"] == "IDLE"
    chain.start("actuator")
    chain.start("agent")
    until(lambda: "DRAIN" in chain.slurm.states()["node1"], "node1 is drained")


def test_a_person_clears_a_fault_and_the_node_comes_back(chain: Chain) -> None:
    pci = address()
    say(
        f"NVRM: Xid (PCI:{pci}): 64, Row Remapper Error: (0x0000000000aa5500) - All reserved rows for bank are remapped"
    )
    until(lambda: "DRAIN" in chain.slurm.states()["node1"], "node1 is drained")
    code, said = chain.run("ack", "xid64", "--by", "kim", "--reason", "board replaced")
    assert code == 0, said
    until(lambda: "DRAIN" not in chain.slurm.states()["node1"], "node1 is given back")
    assert "kim" in chain.run("history")[1]


def test_a_second_agent_is_refused(chain: Chain) -> None:
    code, said = chain.run("agent", "--config", str(chain.config))
    assert code == 2
    assert str(chain.processes["agent"].pid) in said
