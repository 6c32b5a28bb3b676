"""What a test needs of this machine: missing on a laptop it skips by name, missing in CI it fails."""

import os

import pytest


def require(name: str, present: bool, hint: str) -> None:
    """The test goes on only if the thing is there.

    Raises  pytest's Skipped, or its Failed when GPUGUARD_REQUIRE_SERVICES=1 (`./dev test --install` sets it)
    """
    if present:
        return
    if os.environ.get("GPUGUARD_REQUIRE_SERVICES") == "1":
        pytest.fail(f"{name} is missing: {hint}", pytrace=False)
    pytest.skip(f"{name} is missing: {hint}")
