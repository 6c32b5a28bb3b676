"""Data that is not part of the project: public logs and tables to hold gpuguard against."""

import os
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


def shared(*parts: str) -> Path:
    """A file below GPUGUARD_TEST_DATA, or else a folder `shared` beside the checkout; without it the test skips.

    Also where services are required: whoever clones the project alone has no such data.
    """
    root = Path(os.environ.get("GPUGUARD_TEST_DATA") or CHECKOUT.parent / "shared")
    path = root.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{'/'.join(parts)} is missing: set GPUGUARD_TEST_DATA to the folder that holds it")
    return path
