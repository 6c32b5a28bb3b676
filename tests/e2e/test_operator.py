"""An operator's day with a real agent, its privileged process and a real Slurm: look, ask why, clear, give back."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.slurm import PATH, Cluster

pytestmark = pytest.mark.slurm

NODE = "node2"
READY_S = 20.0
# The form of the driver's "NVRM: Xid (PCI:%s): %d, pid=%d, name=%s, ..."; values made up.
LOST = "NVRM: Xid (PCI:0000:a1:00): 79, pid=7311, name=amber, GPU has fallen off the bus."
CONFIG = """\
[agent]
sources = ["kmsg"]
[policy]
mode = "{mode}"
clean_for = 600
[actuator]
target = "slurm"
[actuators.delegate]
socket = "{folder}/act.sock"
[actuators.slurm]
node = "{node}"
slurm_conf = "{conf}"
"""


class Site:
    """A node: its configuration, its kernel log, its agent and its actuator, each of them a process."""

    def __init__(self, slurm: Cluster, folder: Path, mode: str = "drain") -> None:
        self.slurm, self.folder = slurm, folder
        self.environ = {**slurm.environ, "PATH": PATH}
        self.config = folder / "config.toml"
        self.config.write_text(CONFIG.format(mode=mode, folder=folder, node=NODE, conf=slurm.conf))
        self.ring = folder / "root" / "dev" / "kmsg"
        self.ring.parent.mkdir(parents=True)
        self.ring.touch()
        self._records = 0
        (folder / "state").mkdir()
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start_actuator(self) -> None:
        socket = self.folder / "act.sock"
        self._start("actuator", "gpuguard.daemons.actuator", "--config", str(self.config), "--socket", str(socket))
        self._until("the actuator listens", socket.exists)

    def start_agent(self) -> None:
        places = ["--config", str(self.config), "--state-dir", str(self.folder / "state"), "--listen", ""]
        places += ["--root", str(self.folder / "root")]
        snapshot = self.folder / "state" / "snapshot.json"
        snapshot.unlink(missing_ok=True)
        self._start("agent", "gpuguard.cli", "agent", *places)
        self._until("the agent is ready", snapshot.exists)

    def stop(self, *names: str) -> None:
        ending = {name: self._children.pop(name) for name in names or tuple(self._children)}
        for child in ending.values():
            child.send_signal(signal.SIGTERM)
        codes = {name: child.wait(10) for name, child in ending.items()}
        assert set(codes.values()) <= {0}, [(self.folder / f"{name}.log").read_text() for name in codes]

    def kernel_prints(self, line: str) -> None:
        self._records += 1
        with self.ring.open("a") as ring:
            ring.write(f"4,{self._records},{time.monotonic() * 1e6:.0f},-;{line}\n")

    def gpuguard(self, *words: str, code: int) -> str:
        """What the command printed, and its complaint."""
        places = ["--config", str(self.config), "--state-dir", str(self.folder / "state")]
        command = [sys.executable, "-m", "gpuguard.cli", *words, *places]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return " ".join((done.stdout + done.stderr).split())

    def await_drain(self) -> str:
        """The reason under which the node is drained."""
        self._until("the node is drained", lambda: self.slurm.states()[NODE] == "IDLE+DRAIN")
        return self.slurm.reason(NODE).partition(" [")[0]

    def _start(self, name: str, module: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._children[name] = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _until(self, what: str, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_S
        while not true():
            dead = [name for name, child in self._children.items() if child.poll() is not None]
            if dead or time.monotonic() > deadline:
                logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
                raise AssertionError(f"{what}: not within {READY_S:g} s; ended: {dead or 'none'}\n{logs}")
            time.sleep(0.05)


@contextlib.contextmanager
def site_of(slurm: Cluster, folder: Path, mode: str = "drain") -> Iterator[Site]:
    site = Site(slurm, folder, mode)
    try:
        yield site
    finally:
        site.stop()


@pytest.fixture
def site(slurm: Cluster, short_path: Path) -> Iterator[Site]:
    with site_of(slurm, short_path) as here:
        yield here


def test_a_fault_is_understood_cleared_and_the_node_given_back(site: Site) -> None:
    site.start_actuator()
    site.start_agent()
    assert "nothing stands against this node" in site.gpuguard("status", "--live", code=0)
    site.kernel_prints(LOST)
    reason = site.await_drain()
    token = reason.split()[0].removeprefix("gpuguard:")

    status = site.gpuguard("status", "--live", code=1)
    assert f"slurm: IDLE+DRAIN, our drain {token}: {reason}" in status
    why = site.gpuguard("why", token, code=1)
    assert reason in why
    assert "GPU has fallen off the bus." in why
    assert "is unfit (xid79)" in site.gpuguard("resume", "--yes", code=2)
    assert site.slurm.states()[NODE] == "IDLE+DRAIN"

    ack = site.gpuguard("ack", "xid79", "--gpu", "a1:00", "--by", "mia", "--reason", "reseated", code=0)
    assert "unfit -> returning" in ack
    assert "The node is given back." in site.gpuguard("resume", "--by", "mia", "--yes", code=0)
    site.slurm.await_state(NODE, "IDLE")
    assert site.slurm.reason(NODE) == ""
    history = site.gpuguard("history", code=0)
    assert "xid79 acknowledged by mia: reseated" in history
    assert f"release {token}: done" in history


def test_a_person_drains_and_resumes_through_the_agent(site: Site) -> None:
    site.start_actuator()
    site.start_agent()
    assert "IDLE, nobody drained it" in site.gpuguard("drain", "--reason", "fans", code=0)
    assert site.slurm.states()[NODE] == "IDLE", "without --yes nothing is written"
    site.gpuguard("drain", "--reason", "fans", "--by", "mia", "--yes", code=0)
    assert site.await_drain().endswith(" node operator mia")
    site.gpuguard("resume", "--by", "mia", "--yes", code=0)
    site.slurm.await_state(NODE, "IDLE")


def test_everything_works_without_agent_and_actuator(site: Site) -> None:
    site.start_agent()
    site.stop("agent")
    answer = json.loads(site.gpuguard("drain", "--reason", "fans", "--by", "mia", "--yes", "--json", code=0))
    assert site.await_drain() == answer["text"]
    status = site.gpuguard("status", "--live", code=1)
    assert "none runs" in status
    assert f"our drain {answer['token']}" in status
    site.gpuguard("resume", "--yes", code=0)
    site.slurm.await_state(NODE, "IDLE")
    # The next agent finds what was done without it, and adds nothing.
    site.start_agent()
    assert "none of gpuguard's" in site.gpuguard("status", code=0)
    assert site.slurm.states()[NODE] == "IDLE"


def test_somebody_elses_drain_is_left_alone(site: Site) -> None:
    site.start_actuator()
    site.start_agent()
    site.slurm.update(NODE, "state=drain", "reason=admin: moving racks")
    stood = site.slurm.reason(NODE)
    assert "somebody else" in site.gpuguard("drain", "--reason", "fans", "--yes", code=1)
    assert site.slurm.reason(NODE) == stood
    site.gpuguard("resume", "--yes", code=1)
    assert site.slurm.reason(NODE) == stood


def test_an_orphan_is_adopted_before_it_is_given_back(site: Site) -> None:
    site.start_actuator()
    site.start_agent()
    site.slurm.update(NODE, "state=drain", "reason=gpuguard:beef gpu3 lost xid79")
    assert "`gpuguard resume --adopt beef` takes it over" in site.gpuguard("status", "--live", code=1)
    assert "an orphan" in site.gpuguard("why", "beef", code=1)
    site.gpuguard("resume", "--yes", code=1)
    assert site.slurm.states()[NODE] == "IDLE+DRAIN"
    site.gpuguard("resume", "--adopt", "beef", "--by", "mia", "--yes", code=0)
    site.gpuguard("resume", "--by", "mia", "--yes", code=0)
    site.slurm.await_state(NODE, "IDLE")


def test_a_controller_that_is_away_is_waited_for(site: Site) -> None:
    site.start_actuator()
    site.start_agent()
    site.slurm.stop_controller()
    assert "Not yet" in site.gpuguard("drain", "--reason", "fans", "--by", "mia", "--yes", code=1)
    site.slurm.start_controller()
    site.await_drain()
    assert "The node is given back." in site.gpuguard("resume", "--by", "mia", "--yes", code=0)


def test_an_observing_node_writes_nothing(slurm: Cluster, short_path: Path) -> None:
    with site_of(slurm, short_path, "observe") as site:
        site.start_agent()
        site.kernel_prints(LOST)
        site._until("the agent saw it", lambda: "xid79" in site.gpuguard("history", code=0))
        assert "(observe-only: nothing was written)" in site.gpuguard("why", code=1)
        assert "Observe-only" in site.gpuguard("drain", "--reason", "x", code=1)
        assert slurm.states()[NODE] == "IDLE"


def test_the_bundle_of_a_running_node_is_complete(site: Site, tmp_path: Path) -> None:
    site.start_actuator()
    site.start_agent()
    answer = json.loads(site.gpuguard("support-bundle", "--output", str(tmp_path / "b.tar.gz"), "--json", code=0))
    assert answer["missing"] == {}
    assert (tmp_path / "b.tar.gz").stat().st_size == answer["bytes"] < 50_000_000
