"""The recorded machines that ship, for tests."""

import shutil
from pathlib import Path

NODES = Path(__file__).resolve().parents[2] / "fixtures/nodes"
NAMES = ("a100x8", "h100x8", "b200x8", "l40sx4", "h100x8-mig", "h100x8-lost")


def machine(name: str) -> Path:
    """A recorded machine as it ships; not to be written to."""
    return NODES / name


def copied(name: str, folder: Path) -> Path:
    """A copy of a recorded machine that things may happen to."""
    return Path(shutil.copytree(NODES / name, folder / name))


def gpus(root: Path) -> list[str]:
    """The PCI addresses of a machine's GPUs."""
    devices = sorted((root / "sys/bus/pci/devices").iterdir())
    return [device.name for device in devices if (device / "class").read_text().startswith("0x0302")]
