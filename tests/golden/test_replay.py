"""What `gpuguard replay` says of whole logs, for people and as JSON, byte for byte.

`pytest --rewrite` writes the files anew; commit the difference only if you can explain each line.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguard import cli

LOGS = Path(__file__).resolve().parents[2] / "fixtures/scenarios/logs"
NAMES = ["gpu_lost.dmesg", "reboot.syslog", "mixed.log", "program.journal"]
KEYS = [
    "at", "boot_seconds", "subject", "uuid", "finding", "severity", "action", "state", "reason", "because",
]  # fmt: skip


def replay(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    code = cli.run(["replay", *options])
    captured = capsys.readouterr()
    assert captured.err == ""
    return code, captured.out


@pytest.mark.parametrize("name", NAMES)
def test_the_words_for_people(
    name: str, golden: Callable[[Path, str], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(LOGS)
    _, told = replay(capsys, name)
    golden(LOGS / f"{name}.txt", told)
    assert all(len(line) <= 80 for line in told.splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_the_objects_of_the_contract(
    name: str, golden: Callable[[Path, str], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(LOGS)
    _, told = replay(capsys, "--json", name)
    golden(LOGS / f"{name}.jsonl", told)
    rows = [json.loads(line) for line in told.splitlines()]
    assert all(list(row) == KEYS for row in rows)
    assert all(list(place) == ["file", "line"] for row in rows for place in row["because"])


@pytest.mark.parametrize("policy", ["strict", "observe"])
def test_other_policies(
    policy: str,
    golden: Callable[[Path, str], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(LOGS)
    _, told = replay(capsys, "--policy", policy, "program.journal", "gpu_lost.dmesg")
    golden(LOGS / f"{policy}.txt", told)
