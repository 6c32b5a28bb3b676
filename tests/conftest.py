"""What every test gets: the same hypothesis profile, and the place of the checkout."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No deadline: a test that fails because the machine was busy says nothing about the code.
settings.register_profile(
    "gpuguard", deadline=None, derandomize=False, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("gpuguard")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Golden files may be rewritten. It stands here because pytest reads no option from a folder further down."""
    parser.addoption("--rewrite", action="store_true", help="write golden files anew from what the code does now")


CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of this checkout."""
    return CHECKOUT
