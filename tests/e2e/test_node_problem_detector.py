"""node-problem-detector's plugin: only a confirmed CRITICAL is a problem, and what does not answer is unknown."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "deploy" / "node-problem-detector"
OK, NON_OK, UNKNOWN = 0, 1, 2  # pkg/custompluginmonitor/plugin/plugin.go: 0, 1, and everything else


def call(gpuguard: Path, limit: str = "5") -> subprocess.CompletedProcess[str]:
    """The plugin as NPD calls it."""
    environ = {"GPUGUARD": str(gpuguard), "GPUGUARD_LIMIT": limit}
    command = [str(FOLDER / "gpuguard-check.sh")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=30)


def standing_in(folder: Path, code: int, prolog: int | None = None, line: str = "CRITICAL: gpu:4e lost") -> Path:
    """A gpuguard that prints this line for Nagios, and ends with `prolog` in that mode."""
    path = folder / "gpuguard"
    path.write_text(
        f"""#!/bin/sh
[ "$1" = check ] || exit 64
case "$2 $3" in
"--format nagios") echo "GPUGUARD {line} | healthy=7 unfit=1"; exit {code} ;;
"--mode prolog") echo "told apart" >&2; exit {code if prolog is None else prolog} ;;
esac
exit 64
"""
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("code", "prolog", "status"),
    [
        (0, 0, OK), (1, 0, OK), (2, 2, NON_OK), (2, 0, UNKNOWN), (2, 70, UNKNOWN), (3, 0, UNKNOWN), (64, 64, UNKNOWN),
        (70, 70, UNKNOWN), (126, 126, UNKNOWN), (137, 137, UNKNOWN),
    ],
)  # fmt: skip
def test_only_a_confirmed_critical_is_a_problem(tmp_path: Path, code: int, prolog: int, status: int) -> None:
    done = call(standing_in(tmp_path, code, prolog))
    assert done.returncode == status
    said = "CRITICAL: gpu:4e lost\n" if code < 4 else f"gpuguard gave no answer (exit code {code})\n"
    assert (done.stdout, done.stderr) == (said, "")


def test_one_line_whatever_it_says(tmp_path: Path) -> None:
    done = call(standing_in(tmp_path, 1, line="WARNING: $(reboot) `id` %s \\n *"))
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("WARNING: ")


def test_a_node_without_gpuguard_is_unknown(tmp_path: Path) -> None:
    assert call(tmp_path / "absent").returncode == UNKNOWN
    broken = standing_in(tmp_path, 0)
    broken.write_text("#!/no/such/interpreter\n")
    assert call(broken).returncode == UNKNOWN


def test_one_that_hangs_is_ended_and_unknown(tmp_path: Path) -> None:
    hanging = standing_in(tmp_path, 0)
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    started = time.monotonic()
    assert call(hanging, limit="0.2").returncode == UNKNOWN
    assert time.monotonic() - started < 3.0


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)s", text)
    assert match
    return float(match[1])


def test_the_monitor_is_one_that_npd_takes() -> None:
    """The keys are NPD's; its own limits hold both questions of the plugin, so that it is the plugin that answers.

    Source  pkg/custompluginmonitor/types/config.go and types.go
    """
    monitor = json.loads((FOLDER / "gpuguard.json").read_text())
    assert monitor.keys() == {"plugin", "pluginConfig", "source", "metricsReporting", "conditions", "rules"}
    assert monitor["plugin"] == "custom"
    (condition,), (rule,) = monitor["conditions"], monitor["rules"]
    assert rule["type"] == "permanent"
    assert rule["condition"] == condition["type"]
    assert condition["type"] != "GpuguardUnfit", "that condition is the actuator's"
    assert Path(rule["path"]).name == "gpuguard-check.sh"
    settings = monitor["pluginConfig"]
    limit = re.search(r"GPUGUARD_LIMIT:-(\d+)", (FOLDER / "gpuguard-check.sh").read_text())
    assert limit
    assert 2 * float(limit[1]) < seconds(rule["timeout"]) <= seconds(settings["timeout"])
    assert seconds(settings["timeout"]) < seconds(settings["invoke_interval"])
    # A condition is patched when it changes, not with each count in its message.
    assert settings["enable_message_change_based_condition_update"] is False
