"""The shapes of small files of sysfs: what they say, and what says nothing."""

import pytest

from gpuguard.sweeping.attributes import least, parse_generation, parse_lanes, parse_numa_node, parse_rate


@pytest.mark.parametrize(
    ("text", "generation"),
    [
        ("2.5 GT/s PCIe", 1), ("5.0 GT/s PCIe", 2), ("8 GT/s", 3), ("16 GT/s", 4), ("16.0 GT/s PCIe", 4),
        ("32.0 GT/s PCIe", 5), ("64.0 GT/s PCIe", 6), ("Unknown", None), ("Unknown speed", None), ("", None),
        ("3.7 GT/s", None),
    ],
)  # fmt: skip
def test_speeds(text: str, generation: int | None) -> None:
    assert parse_generation(text) == generation


@pytest.mark.parametrize(
    ("text", "lanes"), [("16", 16), ("1", 1), ("0", None), ("63", None), ("255", None), ("x", None)]
)
def test_lanes(text: str, lanes: int | None) -> None:
    assert parse_lanes(text) == lanes


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", 400 * 10**9), ("2.5 Gb/sec (1X SDR)", 2_500_000_000), ("100 Gb/sec (2X HDR)", 10**11),
        ("0 Gb/sec", 0), ("fast", None), ("", None),
    ],
)  # fmt: skip
def test_rates(text: str, rate: int | None) -> None:
    assert parse_rate(text) == rate


def test_nodes() -> None:
    assert (parse_numa_node("0"), parse_numa_node("-1"), parse_numa_node("")) == (0, None, None)


def test_the_least_of_what_is_known() -> None:
    assert least([16, 8]) == 8
    assert least([16, None]) is None, "the other may be lower"
    assert least([]) is None
