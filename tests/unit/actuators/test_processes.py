"""Which process is ended, and at which doubts it lives. The processes are real; what /proc says of them is made up."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpuguard.actuators.processes import TICK, LeftOver, Settings
from gpuguard.model.actions import Action
from gpuguard.sweeping.processes import parse_stat
from tests.support.wishes import reclaim, wish

V1 = "9:freezer:/slurm/uid_1000/job_77/step_0\n4:memory:/slurm_n1/uid_1000/job_77/step_0/task_0\n0::/\n"
V2 = "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0\n"
QUICK = Settings(grace=0.3, deadline=3.0)
STUBBORN = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); sys.stdin.read()"

Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts a process that goes on until it is ended."""
    started = []

    def start(program: str = "print('x', flush=True); import sys; sys.stdin.read()") -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        child = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe)
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.read(1) == b"x"
        return child

    yield start
    for child in started:
        with child:
            child.kill()


class Proc:
    """A /proc that says of real processes what a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, pid: int, cgroup: str, stat: str | None = None) -> float:
        """When the process was started, in seconds since boot."""
        here = self.folder / str(pid)
        here.mkdir()
        text = stat or Path(f"/proc/{pid}/stat").read_text()
        (here / "stat").write_text(text)
        (here / "cgroup").write_text(cgroup)
        process = parse_stat(text.encode())
        assert process is not None
        return process.started * TICK


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def over(job: str, until: float) -> bool | None:
    """Slurm, which has no job here."""
    assert job == "77"
    return False


@pytest.mark.parametrize("cgroup", [V1, V2, V2.replace("slurmstepd", "n1_slurmstepd")])
def test_what_is_left_of_a_job_that_is_over_is_ended(cgroup: str, spawn: Spawn, proc: Proc) -> None:
    child = spawn()
    started = proc.put(child.pid, cgroup)
    outcome = LeftOver(QUICK, over, proc.folder).perform(reclaim(child.pid, started))
    assert (outcome.result, child.wait()) == ("done", -signal.SIGTERM)
    assert outcome.message.endswith("of job 77, which is over, was ended by SIGTERM")
    again = LeftOver(QUICK, over, proc.folder).perform(reclaim(child.pid, started))
    assert (again.result, again.message) == ("done", f"process {child.pid} is gone already")


def test_one_that_does_not_listen_is_killed(spawn: Spawn, proc: Proc) -> None:
    child = spawn(STUBBORN)
    outcome = LeftOver(QUICK, over, proc.folder).perform(reclaim(child.pid, proc.put(child.pid, V2)))
    assert (outcome.result, child.wait()) == ("done", -signal.SIGKILL)
    assert "SIGKILL" in outcome.message


def test_a_number_that_means_another_process_now_is_left_alone(spawn: Spawn, proc: Proc) -> None:
    child = spawn()
    started = proc.put(child.pid, V2)
    for wrong in (started - 0.1, started + 0.1, started + 3600.0):
        outcome = LeftOver(QUICK, over, proc.folder).perform(reclaim(child.pid, wrong))
        assert (outcome.result, child.poll()) == ("done", None)
        assert "another's" in outcome.message


@pytest.mark.parametrize(
    ("says", "result", "words"),
    [(True, "foreign", "runs on this node"), (None, "deferred", "does not say")],
)
def test_a_job_that_may_be_alive_keeps_its_processes(
    says: bool | None, result: str, words: str, spawn: Spawn, proc: Proc
) -> None:
    child = spawn()
    outcome = LeftOver(QUICK, lambda job, until: says, proc.folder).perform(reclaim(child.pid, proc.put(child.pid, V2)))
    assert (outcome.result, child.poll()) == (result, None)
    assert words in outcome.message


@pytest.mark.parametrize("cgroup", [V1, V2])
def test_a_job_whose_slurmstepd_lives_is_not_over(cgroup: str, spawn: Spawn, proc: Proc) -> None:
    child, stepd = spawn(), spawn()
    started = proc.put(child.pid, V2)
    stat = Path(f"/proc/{stepd.pid}/stat").read_text()
    proc.put(stepd.pid, cgroup, f"{stepd.pid} (slurmstepd){stat[stat.rindex(')') + 1 :]}")
    outcome = LeftOver(QUICK, over, proc.folder).perform(reclaim(child.pid, started))
    assert (outcome.result, child.poll()) == ("deferred", None)
    assert f"slurmstepd {stepd.pid}" in outcome.message


@pytest.mark.parametrize(
    ("cgroup", "words"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "no job of Slurm's"),
        ("0::/system.slice/nvidia-persistenced.service\n", "no job of Slurm's"),
        ("0::/\n", "no job of Slurm's"),
        # A user's own group that only looks like one of Slurm's.
        ("0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_77/step_0\n", "no job of Slurm's"),
        ("0::/system.slice/slurmstepd.scope/job_77x/step_0\n", "no job of Slurm's"),
        (V1 + V2.replace("77", "78"), "no job of Slurm's"),
        ("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-ab.scope\n", "kubelet"),
        (V1 + "1:name=systemd:/kubepods/pod1/ab\n", "kubelet"),
    ],
)
def test_whoever_is_no_job_of_slurms_is_spared(cgroup: str, words: str, spawn: Spawn, proc: Proc) -> None:
    child = spawn()
    outcome = LeftOver(QUICK, over, proc.folder).perform(reclaim(child.pid, proc.put(child.pid, cgroup)))
    assert (outcome.result, child.poll()) == ("refused", None)
    assert words in outcome.message


@pytest.mark.parametrize("pid", [1, os.getpid(), os.getppid()])
def test_the_first_process_and_our_own_are_never_ended(pid: int, proc: Proc) -> None:
    for own in {os.getpid(), os.getppid(), pid} - {pid}:
        proc.put(own, V2)
    outcome = LeftOver(QUICK, over, proc.folder).perform(reclaim(pid, proc.put(pid, V2)))
    assert outcome.result == "refused"
    assert "never ended" in outcome.message


def test_a_thread_of_the_kernel_is_never_ended(spawn: Spawn, proc: Proc) -> None:
    child = spawn()
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(") ")[2].split()
    fields[1] = "2"
    started = proc.put(child.pid, V2, f"{child.pid} (nvidia) {' '.join(fields)}")
    outcome = LeftOver(QUICK, over, proc.folder).perform(reclaim(child.pid, started))
    assert (outcome.result, child.poll()) == ("refused", None)


def test_the_dead_are_reported_and_not_ended(spawn: Spawn, proc: Proc) -> None:
    child = spawn()
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(") ")[2].split()
    fields[0] = "Z"
    started = proc.put(child.pid, V2, f"{child.pid} (python3) {' '.join(fields)}")
    outcome = LeftOver(QUICK, over, proc.folder).perform(reclaim(child.pid, started))
    assert outcome.result == "refused"
    assert "reset" in outcome.message


def test_a_cgroup_that_cannot_be_read_is_no_permission(spawn: Spawn, proc: Proc) -> None:
    child = spawn()
    started = proc.put(child.pid, V2)
    (proc.folder / str(child.pid) / "cgroup").unlink()
    outcome = LeftOver(QUICK, over, proc.folder).perform(reclaim(child.pid, started))
    assert (outcome.result, child.poll()) == ("deferred", None)


@pytest.mark.parametrize(
    "action", [wish("drain"), msgspec.structs.replace(reclaim(4711, 1.0), pid=None), reclaim(0, 1.0), reclaim(-1, 1.0)]
)
def test_what_is_no_wish_about_a_process_is_refused(action: Action) -> None:
    assert LeftOver(QUICK, over).perform(action).result == "refused"


@pytest.mark.parametrize("change", [{"grace": 6.0}, {"deadline": 0.0}, {"grace": -1.0}])
def test_settings_that_cannot_be(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        Settings(**change)  # type: ignore[arg-type]
