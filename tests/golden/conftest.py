"""`pytest --rewrite` writes what is true now over what was expected. Read the diff; commit what you can explain."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Holds a file to a text, or rewrites it."""

    def hold(path: Path, actual: str) -> None:
        if request.config.getoption("--rewrite"):
            path.write_text(actual, encoding="utf-8")
            return
        assert path.exists(), f"{path} is missing; `pytest --rewrite` writes it"
        assert actual == path.read_text(encoding="utf-8"), f"{path.name} differs; if it should, `pytest --rewrite`"

    return hold
