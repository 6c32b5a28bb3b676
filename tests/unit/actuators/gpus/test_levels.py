"""Which level a kind of GPU gets, and that the table that ships can be read."""

from pathlib import Path

import pytest

from gpuguard.actuators.gpus.levels import RULES, Levels, read_levels
from gpuguard.errors import ConfigInvalid

CHECKOUT = Path(__file__).resolve().parents[4]


def test_the_table_that_ships() -> None:
    levels = read_levels((CHECKOUT / RULES).read_text())
    assert levels.of("NVIDIA H100 80GB HBM3") == (2, 600.0)
    assert levels.of("NVIDIA B200") == (2, 1800.0)
    assert levels.of("NVIDIA GeForce RTX 4090") == (1, 120.0)
    assert levels.of("NVIDIA B200", 3) == (3, 2700.0)


def test_an_empty_table_is_one() -> None:
    assert read_levels("") == Levels()
    assert Levels().of("anything") == (1, 120.0)


@pytest.mark.parametrize(
    "text",
    ["level = 5", "level = 'x'", "[[sku]]\nmatch = 'A'\nlevel = 0", "[[sku]]\nmatch = 'A'", "strange = 1", "level ="],
)
def test_a_mistake_is_named_with_its_file(text: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"diagnostics.toml"):
        read_levels(text)
