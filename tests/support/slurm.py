"""A real Slurm on loopback for tests: munged, slurmctld and one slurmd a node, all of them children of the test run.

Needs root and the packages slurm-wlm and munge. Nothing outside its own folder is read or written, and nothing is left
behind. What makes several nodes on one machine work (Slurm 22.05.8 of Debian 12):

- `slurmd -N nodeN` with a port each and `SlurmdParameters=config_overrides`, so that CPUs and memory may be pretended;
- GPUs need character devices: `mknod` of /dev/null's numbers does;
- the daemons must be started under the names slurmctld and slurmd; under others they silently drop GRES.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.require import require

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "slurmstepd", "scontrol", "sbatch", "scancel", "squeue")
READY_S = 40.0

CONF = """\
ClusterName=gpuguard
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.sock,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
PlugStackConfig={root}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=1
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmctldTimeout=30
SlurmdTimeout=30
InactiveLimit=0
KillWait=1
RebootProgram=/bin/true
NodeName=node[1-{nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=8 RealMemory=8000 {gres}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """One controller and a few nodes; `environ` is what a client needs to reach them."""

    def __init__(self, root: Path, nodes: int = 3) -> None:
        self.root = root
        self.names = [f"node{number}" for number in range(1, nodes + 1)]
        self.conf = root / "slurm.conf"
        self.environ = {"PATH": PATH, "SLURM_CONF": str(self.conf), "HOME": str(root), "LC_ALL": "C"}
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """All nodes are idle."""
        for folder in ("state", "spool", "log", "bin", "dev"):
            (self.root / folder).mkdir()
        for name in ("slurmctld", "slurmd", "slurmstepd"):
            real = shutil.which(f"{name}-wlm", path=PATH) or shutil.which(name, path=PATH)
            assert real is not None
            (self.root / "bin" / name).symlink_to(Path(real).resolve())
        key = self.root / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        (self.root / "plugstack.conf").touch()
        self._configure()
        files = [f"--{what}-file={self.root}/munge.{what}" for what in ("pid", "seed", "log")]
        ours = [f"--key-file={key}", f"--socket={self.root}/munge.sock"]
        self._spawn("munged", ["munged", "--foreground", "--force", *ours, *files])
        self.until("munged answers", lambda: self._quiet(["munge", "-S", f"{self.root}/munge.sock", "-n"]))
        self.start_controller("-c")
        for name in self.names:
            self.start_node(name)
        self.until("all nodes are idle", lambda: set(self.states().values()) == {"IDLE"})

    def start_controller(self, *options: str) -> None:
        """slurmctld answers; without `-c` it remembers what was drained."""
        self._spawn("slurmctld", [f"{self.root}/bin/slurmctld", "-D", "-i", *options, "-f", str(self.conf)])
        self.until("slurmctld answers", lambda: " UP" in self.client("scontrol", "ping", check=False))

    def stop_controller(self) -> None:
        """slurmctld is gone and its port closed."""
        self._end("slurmctld")

    def pid(self, name: str) -> int:
        """Process id of `slurmctld`, `munged` or a node's slurmd."""
        return self._children[name].pid

    def start_node(self, name: str, *options: str) -> None:
        """The node's slurmd runs; it may still have to register. With `-b` it says that the machine was booted."""
        (self.root / "spool" / name).mkdir(exist_ok=True)
        daemon, step = f"{self.root}/bin/slurmd", f"{self.root}/bin/slurmstepd"
        self._spawn(name, [daemon, *options, "-D", "-d", step, "-f", str(self.conf), "-N", name])

    def boot_node(self, name: str) -> None:
        """The node's slurmd comes up as after a boot of its machine."""
        self._end(name)
        self.start_node(name, "-b")

    def client(self, *command: str, check: bool = True) -> str:
        """What a Slurm command printed."""
        done = subprocess.run(
            command, env=self.environ, cwd=self.root, capture_output=True, text=True, timeout=20, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{command} exited with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def update(self, node: str, *assignments: str) -> None:
        """An administrator's `scontrol update` of the node."""
        self.client("scontrol", "update", f"nodename={node}", *assignments)

    def states(self) -> dict[str, str]:
        """State of each node as scontrol prints it."""
        records = self.client("scontrol", "-o", "show", "node", check=False).splitlines()
        return {
            record.split()[0].removeprefix("NodeName="): record.partition(" State=")[2].split()[0]
            for record in records
            if record.startswith("NodeName=")
        }

    def reason(self, node: str) -> str:
        """What stands behind Reason= for the node, with its tail; '' for none."""
        return self.client("scontrol", "-o", "show", "node", node).partition(" Reason=")[2].rstrip("\n")

    def run_job(self, node: str) -> str:
        """Id of a job that runs on the node until it is cancelled."""
        line = self.client("sbatch", "--parsable", "-w", node, "-n1", "-o", "/dev/null", "--wrap", "exec sleep 600")
        job = line.strip()
        self.until("the job runs", lambda: self.client("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING")
        return job

    def await_state(self, node: str, state: str) -> None:
        """The node is in this state."""
        self.until(f"{node} is {state}", lambda: self.states().get(node) == state)

    def reset(self) -> None:
        """No jobs and all nodes idle, whatever a test did."""
        if self._children["slurmctld"].poll() is not None:
            self.start_controller()
        for name in self.names:
            if self._children[name].poll() is not None:
                self.start_node(name)
        for reservation in self.client("scontrol", "-o", "show", "res", check=False).splitlines():
            if reservation.startswith("ReservationName="):
                self.client("scontrol", "delete", f"reservationname={reservation.split()[0].partition('=')[2]}")
        for job in self.client("squeue", "-h", "-o", "%A").split():
            self.client("scancel", job, check=False)
        self.until("all jobs have ended", lambda: not self.client("squeue", "-h", "-o", "%A").strip())

        def idle() -> bool:
            for name, state in self.states().items():
                if state not in ("IDLE", "IDLE+NOT_RESPONDING"):
                    # `undrain` is the quicker one; `resume` clears the rest.
                    word = "undrain" if state == "IDLE+DRAIN" else "resume"
                    self.client("scontrol", "update", f"nodename={name}", f"state={word}", check=False)
            return set(self.states().values()) == {"IDLE"}

        self.until("all nodes are idle", idle)

    def stop(self) -> None:
        """Nothing of the cluster runs any more."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired, KeyError):
            if self._children["slurmctld"].poll() is None:
                for job in self.client("squeue", "-h", "-o", "%A", check=False).split():
                    self.client("scancel", job, check=False)
                deadline = time.monotonic() + 5.0
                while self.client("squeue", "-h", check=False).strip() and time.monotonic() < deadline:
                    time.sleep(0.05)
        for name in [*self.names, "slurmctld", "munged"]:
            self._end(name)
        for pid in self._strays():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _configure(self) -> None:
        first = free_ports(len(self.names) + 1)
        devices = [self.root / "dev" / f"nvidia{index}" for index in range(4)]
        try:
            for device in devices:
                os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))
            how = f"File={self.root}/dev/nvidia[0-3]"
        except PermissionError:
            how = "Count=4"
        (self.root / "gres.conf").write_text(f"NodeName=node[1-{len(self.names)}] Name=gpu Type=h100 {how}\n")
        self.conf.write_text(
            CONF.format(
                root=self.root,
                port=first,
                first=first + 1,
                last=first + len(self.names),
                nodes=len(self.names),
                gres="Gres=gpu:h100:4",
            )
        )

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        with open(self.root / "log" / "start.log", "ab") as log:
            self._children[name] = subprocess.Popen(
                command, env=self.environ, cwd=self.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _end(self, name: str) -> None:
        child = self._children.get(name)
        if child is None:
            return
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(10)

    def _strays(self) -> Iterator[int]:
        """Job steps outlive their slurmd; those of this cluster carry its configuration in their environment."""
        mark = f"SLURM_CONF={self.conf}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        yield int(entry.name)

    def _quiet(self, command: Sequence[str]) -> bool:
        return subprocess.run(command, env=self.environ, capture_output=True, timeout=10, check=False).returncode == 0

    def until(self, what: str, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_S
        while not true():
            dead = [name for name, child in self._children.items() if child.poll() not in (None, 0)]
            if dead or time.monotonic() > deadline:
                logs = "\n".join(_tail(log) for log in sorted((self.root / "log").iterdir()))
                raise AssertionError(f"Slurm: {what}: not within {READY_S:g} s; ended: {dead or 'none'}\n{logs}")
            time.sleep(0.05)


def missing_programs() -> list[str]:
    """What a cluster needs and this machine lacks."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=f"{PATH}:/usr/lib/slurm") is None]
    return [program for program in missing if program != "slurmstepd" or shutil.which("slurmd", path=PATH) is None]


C = TypeVar("C", bound="Cluster")


@contextmanager
def running(kind: type[C], *arguments: int) -> Iterator[C]:
    """A running cluster of this kind, or a skip that names what is missing."""
    missing = missing_programs()
    require("slurm", not missing, f"no {', '.join(missing)}; `apt install slurm-wlm munge` brings them")
    require("slurm", os.geteuid() == 0, "slurmctld, slurmd and mknod need root")
    # Unix socket names end at 107 bytes, so the folder must have a short one; others must be able to read slurm.conf.
    with tempfile.TemporaryDirectory(prefix="gg-slurm-", dir="/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        cluster = kind(root, *arguments)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Cluster]:
    """One for the whole session."""
    with running(Cluster) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_cluster: Cluster) -> Cluster:
    """The cluster with no jobs and all nodes idle."""
    slurm_cluster.reset()
    return slurm_cluster


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name (107 bytes in all)."""
    with tempfile.TemporaryDirectory(prefix="gg-", dir="/tmp") as folder:
        yield Path(folder)


def free_ports(count: int) -> int:
    """First of `count` ports in a row that nobody listens on, below the range of outgoing connections."""
    for _ in range(200):
        first = random.randrange(20000, 32000)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports on loopback")


def _tail(log: Path) -> str:
    return f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}"
