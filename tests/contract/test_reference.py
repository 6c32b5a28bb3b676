"""The generated reference says what the code says."""

import re
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_reference_is_fresh() -> None:
    command = [sys.executable, str(CHECKOUT / "docs" / "generate_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_each_key_says_what_it_does() -> None:
    rows = re.findall(r"^\| `.*", (CHECKOUT / "docs/reference/configuration.md").read_text(), flags=re.MULTILINE)
    assert len(rows) > 50
    assert [row for row in rows if row.endswith("| |")] == []
