"""The real agent makes one pass over each recorded machine that ships."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuguard.runtime.rehearsal import Rehearsal
from tests.support.machines import NAMES, gpus, machine


@pytest.mark.parametrize("name", NAMES)
def test_only_the_machine_with_a_lost_gpu_needs_attention(name: str, tmp_path: Path) -> None:
    answer = subprocess.run(
        [
            sys.executable, "-m", "gpuguard.cli", "agent", "--once", "--root", str(machine(name)),
            "--state-dir", str(tmp_path),
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert answer.returncode == int(name == "h100x8-lost"), answer.stderr
    snapshot = json.loads((tmp_path / "snapshot.json").read_text())
    states = {subject["id"]: subject["state"] for subject in snapshot["subjects"]}
    known = {f"gpu:{address}" for address in gpus(machine(name))}
    assert known <= set(states)
    assert [subject for subject, state in states.items() if state == "unfit"] == (
        ["gpu:0000:9d:00.0"] if name == "h100x8-lost" else []
    )


def test_the_driver_tells_who_each_gpu_is(tmp_path: Path) -> None:
    with Rehearsal("h100x8", tmp_path) as rehearsal:
        ends = time.monotonic() + 10.0
        while (named := rehearsal.metrics().count('uuid="GPU-')) < 8 and time.monotonic() < ends:
            time.sleep(0.05)
    assert named == 8
