"""One pass of the daemon over a recorded machine: what it reads, writes and says, and what it refuses to start with."""

import http.client
import json
import sqlite3
import time
from pathlib import Path

import pytest

from gpuguard.daemons.agent import Agent
from gpuguard.errors import StoreFailed
from gpuguard.runtime.assembly import assemble
from gpuguard.runtime.clock import SystemClock
from gpuguard.runtime.log import set_up_log
from gpuguard.store.reader import open_reader


def fault(number: int = 1) -> str:
    """A self-evident fault that happened just now, as this machine's clock has it."""
    return f"4,{number},{time.monotonic() * 1e6:.0f},-;NVRM: Xid (PCI:0000:3b:00): 120, GSP task exception {number}"


class Machine:
    """A recorded machine of nothing but a kernel log."""

    def __init__(self, folder: Path) -> None:
        self.root, self.state = folder / "root", folder / "state"
        (self.root / "dev").mkdir(parents=True)
        (self.root / "proc/sys/kernel/random").mkdir(parents=True)
        self.config = folder / "config.toml"
        self.config.write_text('[agent]\nsources = ["kmsg"]\n')
        self.boot("c0ffee00-0000-4000-8000-000000000001")
        self.log()

    def boot(self, boot: str) -> None:
        (self.root / "proc/sys/kernel/random/boot_id").write_text(f"{boot}\n")

    def log(self, *lines: str) -> None:
        (self.root / "dev/kmsg").write_text("".join(f"{line}\n" for line in lines))

    def once(self) -> int:
        clock = SystemClock(self.root)
        parts = assemble(self.config)
        agent = Agent(parts, state_dir=self.state, root=self.root, listen=None, clock=clock)
        return agent.run(once=True)

    def snapshot(self) -> dict[str, object]:
        return json.loads((self.state / "snapshot.json").read_bytes())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    set_up_log(SystemClock(), level="error")
    return Machine(tmp_path)


def test_a_quiet_machine_is_fine(machine: Machine) -> None:
    assert machine.once() == 0
    assert machine.snapshot()["level"] == 0


def test_a_fault_is_written_down_and_its_drain_is_a_dry_run(machine: Machine) -> None:
    machine.log(fault())
    assert machine.once() == 1
    reader = open_reader(machine.state / "gpuguard.db")
    actions, story = reader.actions(), reader.story()
    reader.close()
    assert machine.snapshot()["level"] == 2
    assert [(a.action.verb, a.state) for a in actions] == [("drain", "done")]
    assert "dry run" in actions[0].message
    assert any(entry.detail.get("finding") == "xid120" for entry in story)


def test_old_news_is_held_for_a_witness(machine: Machine) -> None:
    # The newest record of a recorded machine counts as now.
    machine.log("4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 120, GSP task exception", "6,2,7201000000,-;eth0: link up")
    assert machine.once() == 1
    assert machine.snapshot()["level"] == 1
    assert machine.snapshot()["drain"] is None


def test_a_second_pass_decides_nothing_twice(machine: Machine) -> None:
    machine.log(fault())
    machine.once()
    reader = open_reader(machine.state / "gpuguard.db")
    before = [e for e in reader.story() if e.kind == "verdict"]
    reader.close()
    assert machine.once() == 1
    reader = open_reader(machine.state / "gpuguard.db")
    after = [e for e in reader.story() if e.kind == "verdict"]
    reader.close()
    assert after == before


def test_a_reboot_between_two_passes_is_noticed(machine: Machine) -> None:
    machine.log(fault())
    machine.once()
    machine.boot("c0ffee00-0000-4000-8000-000000000002")
    machine.log()
    machine.once()
    reader = open_reader(machine.state / "gpuguard.db")
    kinds = [entry.kind for entry in reader.story()]
    reader.close()
    assert "boot" in kinds


def test_a_machine_without_kernel_log_says_that_it_is_blind(machine: Machine) -> None:
    (machine.root / "dev/kmsg").unlink()
    assert machine.once() == 1
    snapshot = machine.snapshot()
    assert snapshot["level"] == 3
    assert "kmsg is blind" in str(snapshot["line"])


def test_a_damaged_memory_is_moved_aside_and_the_ring_is_read_anew(machine: Machine) -> None:
    machine.log(fault())
    machine.once()
    database = machine.state / "gpuguard.db"
    database.write_bytes(b"\x00garbage" * 4096)
    assert machine.once() == 1
    assert list(machine.state.glob("gpuguard.db.corrupt-*"))
    assert any(s["id"] == "gpu:0000:3b:00.0" for s in machine.snapshot()["subjects"])  # type: ignore[attr-defined]


def test_a_memory_of_a_newer_version_is_left_alone(machine: Machine) -> None:
    machine.once()
    database = machine.state / "gpuguard.db"
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = database.read_bytes()
    with pytest.raises(StoreFailed, match="99"):
        machine.once()
    assert database.read_bytes() == before


@pytest.mark.parametrize(
    "lines",
    [
        ("\x00\x01\x02\xff" * 500,),
        ("4,1,1000000,-;" + "A" * 200_000,),
        ("4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00", "): 79"),
        ("not a record at all", ";;;;", ",,,,;", "4,x,y,z;NVRM: Xid (PCI:0000:3b:00): 79, GPU"),
        ("12,5,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, written by a process",),
    ],
)
def test_what_a_kernel_never_says_drains_nothing(machine: Machine, lines: tuple[str, ...]) -> None:
    machine.log(*lines)
    machine.once()
    snapshot = machine.snapshot()
    assert snapshot["drain"] is None
    assert all(s["state"] != "unfit" for s in snapshot["subjects"])  # type: ignore[attr-defined]


def test_dcgms_names_have_a_page_of_their_own_when_asked_for(machine: Machine) -> None:
    def pages(compat: str) -> dict[str, tuple[int, str]]:
        agent = Agent(
            assemble(machine.config), state_dir=machine.state, root=machine.root, listen="127.0.0.1:0",
            clock=SystemClock(machine.root), compat=compat,
        )  # fmt: skip
        assert agent._server is not None
        agent._server.start()
        found = {}
        for path in ("/metrics", "/metrics/dcgm"):
            link = http.client.HTTPConnection(*agent._server.address, timeout=10)
            link.request("GET", path)
            answer = link.getresponse()
            found[path] = answer.status, answer.read().decode()
            link.close()
        agent._end()
        return found

    with_it = pages("dcgm")
    assert with_it["/metrics/dcgm"] == (200, "")  # no GPU is known
    assert "DCGM_" not in with_it["/metrics"][1]
    assert pages("")["/metrics/dcgm"][0] == 404
