"""GPUs on the bus: what is none is asked once, what comes later is seen, what goes is forgotten."""

import shutil
from pathlib import Path

import pytest

from gpuguard.errors import ReadFailed
from gpuguard.sweeping.gpus import Bus
from tests.support.trees import gpu_device, put


def test_gpus_come_and_go(tmp_path: Path) -> None:
    bus = Bus(tmp_path)
    assert bus.gpus() == {}
    folder = gpu_device(tmp_path, "0000:1b:00.0")
    other = put(tmp_path / "sys/bus/pci/devices/0000:1c:00.0", {"vendor": "0x8086", "class": "0x060400"})
    put(tmp_path / "sys/bus/pci/devices/odd", {"vendor": "0x10de", "class": "0x030200"})
    assert bus.gpus() == {"0000:1b:00.0": folder}
    put(other, {"vendor": "0x10de", "class": "0x030200"})
    assert set(bus.gpus()) == {"0000:1b:00.0"}, "a device that is there does not become another one"
    shutil.rmtree(other)
    assert set(bus.gpus()) == {"0000:1b:00.0"}
    gpu_device(tmp_path, "0000:1c:00.0")
    assert set(bus.gpus()) == {"0000:1b:00.0", "0000:1c:00.0"}


def test_a_gpu_that_could_not_be_read_once_is_not_taken_for_another_device(tmp_path: Path) -> None:
    folder = gpu_device(tmp_path, "0000:1b:00.0")
    vendor = folder / "vendor"
    said = vendor.read_text()
    vendor.unlink()
    vendor.mkdir()
    bus = Bus(tmp_path)
    with pytest.raises(ReadFailed):
        bus.gpus()
    vendor.rmdir()
    vendor.write_text(said)
    assert set(bus.gpus()) == {"0000:1b:00.0"}
