"""What the scheduler core makes of recorded traces, and how quickly: waits, use, nearness, what stays unallocated.

usage  python bench/simulated.py [--seeds N]

Runs `gpuguard simulate --json` on the traces of the folder that GPUGUARD_TEST_DATA names (its `traces`); where it is
not there, it says so. Philly: jobs submitted on days 42 to 84, at most 7 days long, walltimes in buckets, on 130 nodes,
ours beside EASY; and on 90 nodes, where there is more work than room, for speed. openb: inflated to 130 % of all GPUs,
mean of --seeds shuffles beside best fit, and with the GPU types that some jobs asked for. Prints JSON: each figure
beside what is asked of it.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WINDOW = ("--from-day", "42", "--to-day", "84", "--max-days", "7", "--walltime", "bucket")


def simulated(*options: str) -> dict[str, Any]:
    """The object that one run prints."""
    command = [sys.executable, "-c", "from gpuguard.cli import main; main()", "simulate", "--json", *options]
    print(" ".join(options), file=sys.stderr)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def minutes(waits: dict[str, float | None]) -> dict[str, int | None]:
    return {name: None if value is None else round(value / 60) for name, value in waits.items()}


def philly(traces: Path) -> dict[str, Any]:
    jobs, nodes = traces / "philly11vc_jobs.csv.gz", traces / "philly11vc_sim_nodes.csv.gz"
    if not jobs.exists() or not nodes.exists():
        return {"skipped": f"{jobs} or {nodes} is absent"}
    asked = {"mean": 250, "p95": 1600, "9+ mean": 300, "utilisation": 0.870, "wall_s": 30, "one_rack_share": 0.95}
    found: dict[str, Any] = {"asked": asked}
    for policy in ("gpuguard", "easy-pack"):
        run = simulated("--jobs", str(jobs), "--nodes", str(nodes), *WINDOW, "--policy", policy)
        found[policy] = {
            "wait_min": minutes(run["wait_s"]), "9+_min": minutes(run["wait_s_by_gpus"]["9+"]),
            "1-8_min": minutes(run["wait_s_by_gpus"]["1-8"]), "utilisation": run["utilisation"],
            "placement": run["placement"], "cycles": run["cycles"], "wall_s": run["wall_s"],
            "jobs_per_s": round(run["jobs"] / run["wall_s"]), "peak_rss_mib": run["peak_rss_mib"],
        }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        fewer = Path(folder) / "nodes.csv"
        with gzip.open(nodes, "rt") as lines:
            fewer.write_text("\n".join(lines.read().splitlines()[:91]) + "\n")
        run = simulated("--jobs", str(jobs), "--nodes", str(fewer), *WINDOW)
    found["on 90 nodes"] = {"asked_jobs_per_s": 2000, "jobs_per_s": round(run["jobs"] / run["wall_s"])}
    return found


def openb(traces: Path, seeds: int) -> dict[str, Any]:
    jobs, nodes = traces / "openb_jobs.csv.gz", traces / "openb_nodes.csv.gz"
    types = traces / "openb_gpuspec33.csv.gz"
    if not jobs.exists() or not nodes.exists():
        return {"skipped": f"{jobs} or {nodes} is absent"}
    found: dict[str, Any] = {"asked_percent": 4.7}
    for name, more in {"default": (), "gpuspec33": ("--gpu-types", str(types))}.items():
        rows = {
            policy: [
                simulated(
                    "--jobs", str(jobs), "--nodes", str(nodes), *more, "--inflate", "1.3", "--seed", str(seed),
                    "--policy", policy,
                )
                for seed in range(seeds)
            ]
            for policy in ("gpuguard", "easy-pack")
        }  # fmt: skip
        percent = {policy: [round(100 * run["unallocated_share"], 2) for run in runs] for policy, runs in rows.items()}
        found[name] = {
            "ours_percent": round(fmean(percent["gpuguard"]), 2),
            "best_fit_percent": round(fmean(percent["easy-pack"]), 2),
            "by_seed": percent, "wall_s": round(fmean(run["wall_s"] for run in rows["gpuguard"]), 1),
        }  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    traces = Path(os.environ.get("GPUGUARD_TEST_DATA", ROOT.parent / "shared")) / "traces"
    print(json.dumps({"philly": philly(traces), "openb": openb(traces, options.seeds)}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
