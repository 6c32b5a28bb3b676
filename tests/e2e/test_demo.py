"""The demo, with the real agent behind it."""

import json
import subprocess
import sys


def told(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuguard.cli", "demo", "--exit", *options],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_fault_travels_from_the_log_line_to_the_drain() -> None:
    answer = told("--json")
    assert answer.returncode == 0, answer.stderr
    steps = [json.loads(line) for line in answer.stdout.splitlines()]
    lines = [f"{step['step']}: {step['text']}" for step in steps]
    order = [
        next(number for number, line in enumerate(lines) if wanted in line)
        for wanted in (
            "playing a recorded 8-GPU machine", "xid13: stays healthy",
            "kernel: NVRM: Xid (PCI:0000:9d:00): 79", "xid79: watched -> unfit", "drain: owed: drain 'gpuguard:",
            "dry run: would drain this node", "one of them got stuck", "job_hung", "hang: ", 'state="unfit"', "why:",
        )
    ]  # fmt: skip
    assert order == sorted(order)
    assert steps[-1]["at_s"] < 60


def test_it_fits_a_terminal() -> None:
    answer = told("--speed", "1000", "--policy", "observe")
    assert answer.returncode == 0, answer.stderr
    commands = ("gpuguard", ".venv", "/")  # a path to type is as long as it is
    assert all(len(line) <= 80 for line in answer.stdout.splitlines() if not line.strip().startswith(commands))
