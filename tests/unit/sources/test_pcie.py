"""PCIe links from sysfs: what is known, unknown, absent, asleep, and what hangs."""

import threading
from pathlib import Path

import pytest

from gpuguard.errors import Absent
from gpuguard.model.events import Sweep
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Values
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources import pcie
from gpuguard.sources.pcie import Pcie, Settings, build, parse_aer_total
from tests.support.trees import gpu_device, put

PCI = "0000:1b:00.0"
GPU = SubjectId(f"gpu:{PCI}")
PORT = "0000:16:01.0"
NOW = ManualClock().now()


def test_totals() -> None:
    assert parse_aer_total("RxErr 0\nTOTAL_ERR_COR 12", "TOTAL_ERR_COR") == 12
    assert parse_aer_total("RxErr 0", "TOTAL_ERR_COR") is None


def test_everything_that_the_kernel_tells(tmp_path: Path) -> None:
    gpu_device(tmp_path, PCI, port=PORT)
    put(tmp_path / "sys/devices/pci0000:16" / PORT, {"max_link_speed": "16.0 GT/s PCIe", "max_link_width": "8"})
    put(tmp_path / "sys/bus/pci/devices/0000:20:00.0", {"vendor": "0x15b3", "class": "0x020700"})
    assert Pcie(Settings(), tmp_path).sweep(NOW) == {
        GPU: {
            "pcie_link_generation": 5, "pcie_link_generation_limit": 4, "pcie_link_width": 16,
            "pcie_link_width_limit": 8, "pcie_aer_correctable_total": 3, "pcie_aer_nonfatal_total": 0,
            "pcie_aer_fatal_total": 1, "gpu_numa_node": 1,
        }
    }  # fmt: skip


def test_a_limit_of_which_a_part_is_unknown_is_unknown(tmp_path: Path) -> None:
    gpu_device(tmp_path, PCI, port=PORT)
    put(tmp_path / "sys/devices/pci0000:16" / PORT, {"max_link_speed": "Unknown"})
    row = Pcie(Settings(), tmp_path).sweep(NOW)[GPU]
    assert row["pcie_link_generation_limit"] is None
    assert row["pcie_link_width_limit"] == 16


def test_absent_files_are_absent_columns(tmp_path: Path) -> None:
    put(tmp_path / "sys/bus/pci/devices" / PCI, {"vendor": "0x10de", "class": "0x030200", "current_link_width": "255"})
    assert Pcie(Settings(), tmp_path).sweep(NOW) == {GPU: {"pcie_link_width": None}}


def test_nothing_that_sleeps_is_woken(tmp_path: Path) -> None:
    asleep = gpu_device(tmp_path, "0000:1c:00.0")
    put(asleep, {"power/runtime_status": "suspended"})
    gpu_device(tmp_path, "0000:1d:00.0", port="0000:16:03.0")
    put(tmp_path / "sys/devices/pci0000:16/0000:16:03.0", {"power/runtime_status": "suspended"})
    gpu_device(tmp_path, PCI, port=PORT)
    read: list[Path] = []

    def look(device: Path, port: Path | None) -> Values:
        read.append(device)
        return {"pcie_link_width": 16}

    assert set(Pcie(Settings(), tmp_path, read=look).sweep(NOW)) == {GPU}
    assert [device.name for device in read] == [PCI]


def test_a_read_that_hangs_makes_its_gpu_unknown_and_no_other(tmp_path: Path) -> None:
    gpu_device(tmp_path, PCI)
    gpu_device(tmp_path, "0000:1c:00.0")
    release, read = threading.Event(), []

    def look(device: Path, port: Path | None) -> Values:
        read.append(device.name)
        if device.name == PCI:
            release.wait(30)
        return {"pcie_link_width": 16}

    links = Pcie(Settings(deadline=0.05), tmp_path, read=look)  # type: ignore[arg-type]
    for _ in range(2):
        assert links.sweep(NOW) == {
            GPU: {"pcie_link_generation": None, "pcie_link_width": None},
            SubjectId("gpu:0000:1c:00.0"): {"pcie_link_width": 16},
        }
    assert read.count(PCI) == 1
    release.set()


def test_machines_without_a_bus_or_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="no PCI bus"):
        Pcie(Settings(), tmp_path).sweep(NOW)
    (tmp_path / pcie.DEVICES).mkdir(parents=True)
    links = Pcie(Settings(), tmp_path)
    with pytest.raises(Absent, match="no NVIDIA GPU"):
        links.sweep(NOW)
    device = gpu_device(tmp_path, PCI)
    assert set(links.sweep(NOW)) == {GPU}
    (device / "vendor").unlink()
    assert links.sweep(NOW) == {}, "the last GPU is gone: that is no absence"


def test_it_is_a_source(tmp_path: Path) -> None:
    gpu_device(tmp_path, PCI)
    source = build(Settings(), tmp_path, ManualClock())
    batches = []

    def emit(batch: object) -> None:
        batches.append(batch)
        source.stop()

    source.run(emit, None)
    (sweep,) = batches[0].events  # type: ignore[attr-defined]
    assert isinstance(sweep, Sweep)
    assert (sweep.source, sweep.valid_for, set(sweep.rows)) == ("pcie", 90.0, {GPU})
    with pytest.raises(ValueError, match="above 0"):
        Settings(every=0.0)  # type: ignore[arg-type]
