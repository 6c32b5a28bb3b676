"""The project's own kernel-log lines, case by case."""

from pathlib import Path
from typing import Any

import msgspec

from gpuguard.kernel_log.reader import Found, LogReader

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "kernel_log"


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Printed lines, and the facts that must be found in them; only the keys that stand there are compared."""

    origin: str
    log: str
    events: tuple[dict[str, Any], ...]  # Any: a table of expected values


def cases(kind: str) -> list[Case]:
    """The cases of one kind, in the order of its file."""
    lines = (FIXTURES / kind / "lines.jsonl").read_text().splitlines()
    return [msgspec.json.decode(line, type=Case) for line in lines]


def kinds() -> list[str]:
    """Every kind that has cases."""
    return sorted(path.parent.name for path in FIXTURES.glob("*/lines.jsonl"))


def read_all(text: str, *, trust_user: bool = False) -> list[Found]:
    """What a whole log holds."""
    reader = LogReader(trust_user=trust_user)
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        found += reader.feed(line, number)
    return found + reader.flush()


def differences(expected: dict[str, Any], found: Found) -> list[str]:
    """Where a report is not what the case says."""
    wrong = []
    for key, value in expected.items():
        if key == "detail":
            told = found.parsed.detail
            wrong += [f"detail.{k}: {told.get(k)!r}, not {v!r}" for k, v in value.items() if told.get(k) != v]
            continue
        actual = found.line if key == "line" else getattr(found.parsed, key)
        if actual != value:
            wrong.append(f"{key}: {actual!r}, not {value!r}")
    return wrong
