"""CPU that a hook pays: `gpuguard xid explain 79` and `gpuguard check` against a bare interpreter, in one run.

`check` answers from the cache of an agent that is started for this; `check_without_agent` looks by itself and has no
limit.
Prints JSON: medians in milliseconds of user and system time together, and their ratios to the interpreter's. The kinds
take turns, so that what else the machine does hits all alike. Names as arguments measure those alone. Exit code 1 when
a ratio is over LIMIT.
"""

import contextlib
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LIMIT = 6.0
ROUNDS = 31
PYTHON = sys.executable
COMMANDS = {
    "interpreter": [PYTHON, "-c", "pass"],
    "xid_explain": ["gpuguard", "xid", "explain", "79"],
    "sxid_explain": ["gpuguard", "sxid", "explain", "20034"],
    "check": ["gpuguard", "check", "--state-dir", "STATE"],
    "check_without_agent": ["gpuguard", "check", "--state-dir", "NOWHERE"],
}
UNLIMITED = ("interpreter", "check_without_agent")
CHECK_ANSWERS = range(4)


def cpu_of(command: list[str]) -> tuple[float, int]:
    """CPU seconds that the command and its children took, and its exit code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, code


@contextlib.contextmanager
def running_agent(program: str) -> Iterator[str]:
    """The state directory of an agent that has written its cache."""
    with tempfile.TemporaryDirectory(prefix="gg-start-") as folder:
        command = [program, "agent", "--state-dir", folder, "--listen", ""]
        agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 30
            while not Path(folder, "snapshot.json").exists():
                if agent.poll() is not None or time.monotonic() > until:
                    raise SystemExit("the agent wrote no cache; try `gpuguard agent --state-dir DIR` by hand")
                time.sleep(0.05)
            yield folder
        finally:
            agent.terminate()
            agent.wait(15)


def measure(names: list[str], rounds: int = ROUNDS) -> dict[str, object]:
    """Medians, ratios and whether all are within LIMIT."""
    chosen = {name: command for name, command in COMMANDS.items() if name in (*names, "interpreter") or not names}
    script = Path(PYTHON).parent / "gpuguard"
    program = str(script) if script.exists() else shutil.which("gpuguard")
    if program is None:
        raise SystemExit("gpuguard is not installed; `./dev run` makes its environment")
    times: dict[str, list[float]] = {name: [] for name in chosen}
    codes: dict[str, int] = {}
    with running_agent(program) as state:
        places = {"gpuguard": program, "STATE": state, "NOWHERE": f"{state}/nowhere"}
        for _ in range(rounds):
            for name, command in chosen.items():
                seconds, codes[name] = cpu_of([places.get(word, word) for word in command])
                times[name].append(seconds)
    for name, code in codes.items():
        if code not in (CHECK_ANSWERS if name.startswith("check") else (0,)):
            raise SystemExit(f"{name} ended with {code}: its time says nothing")
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = {name: medians[name] / medians["interpreter"] for name in chosen if name != "interpreter"}
    return {
        "bench": "startup",
        "rounds": rounds,
        "cpu_ms": {name: round(seconds * 1000, 2) for name, seconds in medians.items()},
        "ratio": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "limit": LIMIT,
        "holds": all(ratio <= LIMIT for name, ratio in ratios.items() if name not in UNLIMITED),
    }


def main() -> int:
    """Prints the measurement."""
    result = measure(sys.argv[1:])
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
