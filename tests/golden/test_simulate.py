"""What `gpuguard simulate` says at 80 columns and as JSON of one small trace, without what each run costs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguard import cli

HERE = Path(__file__).parent
TRACES = HERE.parents[1] / "fixtures" / "traces"
MORNING = ["--jobs", str(TRACES / "morning_jobs.csv"), "--nodes", str(TRACES / "morning_nodes.csv")]
COSTS = ("cycles", "wall_s", "peak_rss_mib")

Golden = Callable[[Path, str], None]
RUNS = {
    "all": ["--policy", "all"],
    "exact": ["--walltime", "exact", "--gpu-types", str(TRACES / "morning_gpu_types.csv")],
    "window": [
        "--walltime",
        "x3",
        "--from-day",
        "0.01",
        "--to-day",
        "0.09",
        "--max-days",
        "0.1",
        "--reservations",
        "2",
    ],
    "inflated": ["--inflate", "1.3", "--seed", "11", "--policy", "easy-spread", "--policy", "gpuguard"],
}


@pytest.mark.parametrize("name", RUNS)
def test_what_is_told(name: str, golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["simulate", *MORNING, *RUNS[name]]) == 0
    table = capsys.readouterr().out.partition("cycles of the core")[0]
    assert cli.run(["simulate", *MORNING, *RUNS[name], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = [
        {key: value for key, value in one.items() if key not in COSTS}
        for one in (found if isinstance(found, list) else [found])
    ]
    text = "".join(json.dumps(row, indent=1) + "\n" for row in rows)
    golden(HERE / "simulate" / f"{name}.txt", f"{table}\n{text}")
