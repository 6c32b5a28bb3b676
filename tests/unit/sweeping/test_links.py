"""Links of sysfs, real ones and recorded ones: where they lead, and those that lead nowhere."""

from pathlib import Path

import pytest

from gpuguard.sweeping.links import LINKS, Links
from tests.support.trees import link

DEVICE = "sys/bus/pci/devices/0000:1b:00.0"
PLACE = "sys/devices/pci0000:18/0000:18:01.0/0000:1b:00.0"


def test_a_link_is_followed_to_its_end(tmp_path: Path) -> None:
    link(tmp_path, DEVICE, PLACE)
    (tmp_path / "sys/class").mkdir()
    (tmp_path / "sys/class/other").symlink_to(tmp_path / DEVICE)
    assert Links(tmp_path).target(DEVICE) == PLACE
    assert Links(tmp_path).target("sys/class/other") == PLACE


def test_a_root_that_is_a_link_itself(tmp_path: Path) -> None:
    link(tmp_path / "real", DEVICE, PLACE)
    (tmp_path / "root").symlink_to(tmp_path / "real")
    assert Links(tmp_path / "root").target(DEVICE) == PLACE


def test_a_recorded_machine_has_its_links_in_a_file(tmp_path: Path) -> None:
    (tmp_path / DEVICE).mkdir(parents=True)
    (tmp_path / LINKS).write_text(f"{DEVICE} {PLACE}\n")
    assert Links(tmp_path).target(DEVICE) == PLACE
    assert Links(tmp_path).target(f"{DEVICE}/driver") is None


@pytest.mark.parametrize(
    "text",
    [
        "", "\x00\x00", f"{DEVICE}", f"{DEVICE} ", f"{DEVICE} {PLACE} more", f"{DEVICE} /etc/passwd",
        f"{DEVICE} ../../outside", f"{DEVICE} sys/../../outside", f"{DEVICE}\t{PLACE}", "x" * 100_000,
    ],
)  # fmt: skip
def test_a_file_of_anything_else_tells_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / LINKS).write_text(text)
    assert Links(tmp_path).target(DEVICE) is None


def test_a_file_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / LINKS).mkdir()
    assert Links(tmp_path).target(DEVICE) is None


def test_links_that_lead_nowhere_in_circles_or_outside(tmp_path: Path) -> None:
    root = tmp_path / "root"
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "root-beside").mkdir()
    for name, target in (
        ("dangling", "../nothing"), ("circle", "circle"), ("outside", str(tmp_path / "outside")),
        ("beside", str(tmp_path / "root-beside")),
    ):  # fmt: skip
        (devices / name).symlink_to(target)
        assert Links(root).target(f"sys/bus/pci/devices/{name}") is None
    assert Links(root).target("sys/bus/pci/devices/absent") is None
