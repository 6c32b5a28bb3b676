"""What becomes of a fleet that fails as real ones do: 30,000 node-days under each policy, side by side.

usage  python bench/fleet.py [--node-days N] [--seed N]

Runs `gpuguard simulate fleet --json` once a policy, two at a time, and prints JSON: under `table` the lines that people
see, and each run's figures beside what is asked of ours. Ends with 1 when ours misses one of them.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
POLICIES = ("gpuguard", "any-xid", "reboot-clears")
# False drains in 1,000 node-days; the wall time of one run, in seconds.
FALSE_MOST, WALL_MOST = 0.1, 600.0
NEVER = ("program_xid", "unknown", "own_crash", "configuration_error", "silent_scheduler")


def simulated(policy: str, node_days: int, seed: int) -> dict[str, Any]:
    """The figures of one run."""
    command = [
        sys.executable, "-c", "from gpuguard.cli import main; main()", "simulate", "fleet", "--json", "--policy",
        policy, "--node-days", str(node_days), "--seed", str(seed),
    ]  # fmt: skip
    print(f"{policy}: {node_days:,} node-days", file=sys.stderr)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def broken(ours: dict[str, Any]) -> list[str]:
    """What is asked of the policy that ships, and does not hold."""
    holds = {
        f"false drains in 1,000 node-days at most {FALSE_MOST}": ours["false_drains_per_1000_node_days"] <= FALSE_MOST,
        "none for what is no fault": not any(ours["false_drains_by_cause"][cause] for cause in NEVER),
        "no write over a foreign drain": ours["foreign_writes"] == 0,
        "no evident fault missed": ours["missed"] == 0,
        f"at most {WALL_MOST:.0f} s": ours["wall_s"] <= WALL_MOST,
    }
    return [what for what, held in holds.items() if not held]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--node-days", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda policy: simulated(policy, args.node_days, args.seed), POLICIES))
    sys.path.insert(0, str(ROOT))
    from gpuguard.runtime.fleet import page

    missed = broken(runs[0])
    found = {"broken": missed, **{run["policy"]: run for run in runs}, "table": list(page(runs))}
    print(json.dumps(found, indent=1))
    print("\n".join(page(runs)), file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
