"""Slurm's hooks: only a confirmed CRITICAL stops a job, and nothing that breaks or hangs does."""

import subprocess
import time
from pathlib import Path

import pytest

HOOKS = Path(__file__).parents[2] / "deploy" / "slurm"
GATES = ("prolog.sh", "epilog.sh")


def call(hook: str, gpuguard: Path, limit: str = "5") -> subprocess.CompletedProcess[str]:
    """The hook as slurmd calls it: with hardly an environment."""
    environ = {"SLURMD_NODENAME": "node1", "GPUGUARD": str(gpuguard), "GPUGUARD_LIMIT": limit}
    return subprocess.run([str(HOOKS / hook)], env=environ, capture_output=True, text=True, check=False, timeout=30)


def standing_in(folder: Path, shell: str) -> Path:
    path = folder / "gpuguard"
    path.write_text(f"#!/bin/sh\n{shell}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("hook", GATES)
@pytest.mark.parametrize(("code", "exits"), [(0, 0), (1, 0), (2, 1), (3, 0), (64, 0), (70, 0), (126, 0), (137, 0)])
def test_only_critical_stops_a_job(tmp_path: Path, hook: str, code: int, exits: int) -> None:
    done = call(hook, standing_in(tmp_path, f"echo $*; exit {code}"))
    assert (done.returncode, done.stdout) == (exits, f"check --mode {hook.partition('.')[0]}\n")


@pytest.mark.parametrize("code", [0, 1, 2, 3, 70])
def test_the_health_check_always_ends_with_0(tmp_path: Path, code: int) -> None:
    done = call("health-check.sh", standing_in(tmp_path, f"echo $*; exit {code}"))
    assert (done.returncode, done.stdout) == (0, "check --mode health\n")


@pytest.mark.parametrize("hook", [*GATES, "health-check.sh"])
def test_a_node_without_gpuguard_runs_jobs(tmp_path: Path, hook: str) -> None:
    assert call(hook, tmp_path / "absent").returncode == 0
    broken = standing_in(tmp_path, "")
    broken.write_text("#!/no/such/interpreter\n")
    assert call(hook, broken).returncode == 0


@pytest.mark.parametrize("hook", [*GATES, "health-check.sh"])
def test_one_that_hangs_is_ended_and_stops_no_job(tmp_path: Path, hook: str) -> None:
    started = time.monotonic()
    assert call(hook, standing_in(tmp_path, "exec sleep 600"), limit="0.2").returncode == 0
    assert time.monotonic() - started < 3.0


@pytest.mark.parametrize("hook", [*GATES, "health-check.sh"])
def test_no_slurm_command_is_called(hook: str) -> None:
    lines = [line.partition("#")[0] for line in (HOOKS / hook).read_text().splitlines()]
    assert not any(word in line for line in lines for word in ("scontrol", "sinfo", "squeue"))
