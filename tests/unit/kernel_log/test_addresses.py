"""PCI addresses in every print."""

import re

import pytest

from gpuguard.kernel_log.addresses import ANY, read_address


@pytest.mark.parametrize(
    ("text", "pci"),
    [
        ("0000:C8:00", "0000:c8:00.0"),
        ("00000000:c8:00.1", "0000:c8:00.1"),
        ("10001:02:00.0", "10001:02:00.0"),
        ("c8:00.0", "0000:c8:00.0"),
        ("00c8:00", "0000:c8:00.0"),
    ],
)
def test_read_address(text: str, pci: str) -> None:
    assert read_address(text) == pci


def test_any_takes_whole_addresses_only() -> None:
    assert re.fullmatch(ANY, "0000:c8:00.0")
    assert re.fullmatch(ANY, "c8:00.0")
    assert not re.fullmatch(ANY, "c8:00")
