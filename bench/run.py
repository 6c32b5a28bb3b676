"""Every benchmark of this folder, one after the other; prints one JSON object {name: what it measured}.

usage  python bench/run.py [NAME...]

A benchmark is a file that prints one JSON object on standard output; its progress goes to standard error. One that
fails is reported under its name with `error`, the others still run, and the exit code is 1.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LIMIT = 1200.0  # seconds for one; the longest (a 1 GB log) takes a few minutes on a slow disk


def names() -> list[str]:
    """The benchmarks there are."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "run" and not path.stem.startswith("_"))


def measured(name: str) -> dict[str, object]:
    """What one benchmark printed, or `error` with the reason."""
    command = [sys.executable, str(FOLDER / f"{name}.py")]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {LIMIT:.0f} s"}
    try:
        result = json.loads(done.stdout)
    except ValueError:
        result = None
    if not isinstance(result, dict):
        return {"error": f"ended with {done.returncode} and printed no JSON object: {done.stdout[:200]!r}"}
    if done.returncode != 0:
        return {"error": f"ended with {done.returncode}: what it promises does not hold", **result}
    return result


def main(wanted: list[str]) -> int:
    """0 all measured, 1 some failed, 64 no such benchmark."""
    known = names()
    strange = [name for name in wanted if name not in known]
    if strange:
        sys.stderr.write(f"bench: no benchmark {', '.join(strange)}; there are {', '.join(known)}\n")
        return 64
    results: dict[str, dict[str, object]] = {}
    for name in wanted or known:
        sys.stderr.write(f"bench: {name} ...\n")
        began = time.monotonic()
        results[name] = measured(name)
        sys.stderr.write(f"bench: {name} took {time.monotonic() - began:.1f} s\n")
    print(json.dumps(results, indent=2))
    return 1 if any("error" in result for result in results.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
