"""Killed at random while faults arrive: a short run of the benchmark that does it hundreds of times."""

import json
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_a_killed_agent_neither_loses_nor_doubles_an_action() -> None:
    command = [sys.executable, str(CHECKOUT / "bench" / "kill.py"), "--kills", "15"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["holds"] is True
    assert result["drains_written"] >= 1
