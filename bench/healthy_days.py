"""A day of each healthy recorded machine, every sweep of it through every detector: how long, and nobody says a word.

usage  python bench/healthy_days.py [HOURS [MACHINE...]]

On a clock that nobody waits for. Prints JSON: for each machine its sweeps, the seconds of CPU that they took, and what
was found; exit code 1 when anything was.
"""

import json
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
HOURS = 24.0


def main(words: list[str]) -> int:
    """0 nothing found, 1 something."""
    sys.path.insert(0, str(CHECKOUT))
    from tests.support.days import HEALTHY, live
    from tests.support.machines import machine

    hours = float(words[0]) if words else HOURS
    results: dict[str, dict[str, object]] = {}
    for name in words[1:] or HEALTHY:
        sys.stderr.write(f"healthy_days: {hours:g} h of {name} ...\n")
        began = time.process_time()
        outcome = live(machine(name), hours)
        sweeps = sum(outcome.sweeps.values())
        seconds = time.process_time() - began
        results[name] = {
            "sweeps": sweeps, "cpu_seconds": round(seconds, 1), "cpu_ms_a_sweep": round(1000 * seconds / sweeps, 3),
            "found": outcome.found[:20], "crashed": sorted(outcome.failed),
        }  # fmt: skip
    print(json.dumps({"hours": hours, "machines": results}, indent=2))
    return 1 if any(result["found"] or result["crashed"] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
