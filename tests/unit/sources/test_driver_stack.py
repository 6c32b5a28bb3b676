"""Modules, services and versions of the driver."""

from pathlib import Path

import pytest

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.ids import NODE
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.driver_stack import (
    DriverStack,
    Settings,
    build,
    is_listed,
    parse_modules,
    read_driver_version,
    read_library_version,
)
from gpuguard.sweeping import processes
from tests.support.trees import host, process, put

NOW = ManualClock().now()
MODULES = """nvidia_uvm 2076672 4 - Live 0x0000000000000000 (OE)
nvidia_peermem 16384 0 - Live 0x0000000000000000 (OE)
nvidia 11534336 310 nvidia_uvm,nvidia_peermem, Live 0x0000000000000000 (OE)
nvidia_fs 1 0 - Unloading 0x0000000000000000"""
NVRM = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U16)"
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def test_modules_that_stay() -> None:
    assert parse_modules(MODULES) == {"nvidia_uvm", "nvidia_peermem", "nvidia"}
    assert parse_modules("cut of") == set()


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"sys/module/nvidia/version": "570.124.06", "proc/driver/nvidia/version": "x"}, "570.124.06"),
        ({"proc/driver/nvidia/version": NVRM}, "570.124.06"),
        (
            {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun"},
            "535.54.03",
        ),
        ({"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82"}, "470.82"),
        ({"sys/module/nvidia/version": "devel"}, None),
    ],
)
def test_versions_of_the_kernel_module(tmp_path: Path, files: dict[str, str], version: str | None) -> None:
    assert read_driver_version(put(tmp_path, files)) == version


def test_the_library_is_the_one_that_the_link_leads_to(tmp_path: Path) -> None:
    folder = put(tmp_path / LIBRARIES, {"libnvidia-ml.so.570.124.06": "", "libnvidia-ml.so.535.54.03": ""})
    assert read_library_version(tmp_path) is None, "two, and nothing tells which"
    (folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.535.54.03")
    assert read_library_version(tmp_path) == "535.54.03"


def test_a_library_without_a_link_and_none(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        read_library_version(tmp_path)
    put(tmp_path / "usr/lib64", {"libnvidia-ml.so.580.65": "", "libnvidia-ml.so.x": "", "libother.so.1": ""})
    assert read_library_version(tmp_path) == "580.65"


@pytest.mark.parametrize(
    ("file", "text", "so"),
    [
        ("etc/modules-load.d/gpu.conf", "# RDMA\nnvidia-peermem", True), ("etc/modules", "nvidia_peermem", True),
        ("etc/modules-load.d/gpu.conf", "# nvidia-peermem", False),
        ("etc/modules-load.d/gpu.txt", "nvidia-peermem", False),
        ("usr/lib/modules-load.d/old.conf", "nv_peer_mem", True),
    ],
)  # fmt: skip
def test_what_the_host_is_set_to_load(tmp_path: Path, file: str, text: str, so: bool) -> None:
    assert is_listed(put(tmp_path, {file: text}), ("nvidia_peermem", "nv_peer_mem")) is so


def test_one_row_tells_it_all(tmp_path: Path) -> None:
    put(tmp_path, {
        "sys/module/nvidia/version": "570.124.06", "proc/modules": MODULES,
        f"{LIBRARIES}/libnvidia-ml.so.570.86.15": "", "etc/modules-load.d/x.conf": "nvidia-peermem",
    })  # fmt: skip
    host(tmp_path)
    process(tmp_path, 900, "nv-fabricmanage", "D")
    process(tmp_path, 901, "nvidia-persiste", "Z")
    process(tmp_path, 902, "nvidia-imex-ctl")
    assert DriverStack(Settings(), tmp_path).sweep(NOW) == {
        NODE: {
            "driver_version": "570.124.06", "driver_library_version": "570.86.15", "peermem_configured": 1,
            "module_nvidia_loaded": 1, "module_nvidia_uvm_loaded": 1, "module_nvidia_peermem_loaded": 1,
            "module_nvidia_fs_loaded": 0, "fabric_manager_running": 1, "fabric_manager_state": "D",
            "persistenced_running": 0, "imex_running": 0,
        }
    }  # fmt: skip


def test_what_is_no_service_at_two_looks_is_asked_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(host(tmp_path), {"proc/driver/nvidia/version": NVRM})
    process(tmp_path, 900, "sh")
    process(tmp_path, 901, "sh")
    stack = DriverStack(Settings(), tmp_path)
    assert stack.sweep(NOW)[NODE]["fabric_manager_running"] == 0
    process(tmp_path, 900, "nv-fabricmanage")
    assert stack.sweep(NOW)[NODE]["fabric_manager_running"] == 1
    (tmp_path / "proc/900/stat").unlink()
    process(tmp_path, 901, "nv-fabricmanage")
    assert stack.sweep(NOW)[NODE]["fabric_manager_running"] == 0, "901 was a shell twice"
    process(tmp_path, 902, "nv-fabricmanage")
    assert stack.sweep(NOW)[NODE]["fabric_manager_running"] == 1
    (tmp_path / "proc/902/stat").unlink()
    monkeypatch.setattr(processes, "ANEW", 1)
    assert stack.sweep(NOW)[NODE]["fabric_manager_running"] == 1, "now and then all are asked"


def test_in_a_container_nothing_is_said_of_services(tmp_path: Path) -> None:
    put(tmp_path, {"proc/driver/nvidia/version": NVRM})
    process(tmp_path, 1, "python3")
    assert DriverStack(Settings(), tmp_path).sweep(NOW) == {NODE: {"driver_version": "570.124.06"}}


def test_a_version_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "sys/module/nvidia/version").mkdir(parents=True)
    assert DriverStack(Settings(), tmp_path).sweep(NOW) == {NODE: {"driver_version": None}}


def test_a_machine_whose_driver_cannot_be_looked_for_is_not_absent(tmp_path: Path) -> None:
    (host(tmp_path) / "proc/modules").mkdir()
    with pytest.raises(ReadFailed):
        DriverStack(Settings(), tmp_path).sweep(NOW)
    (tmp_path / "proc/modules").rmdir()
    with pytest.raises(Absent):
        DriverStack(Settings(), tmp_path).sweep(NOW)


def test_a_machine_without_the_driver_is_absent(tmp_path: Path) -> None:
    put(host(tmp_path), {"proc/modules": "ext4 1 1 - Live 0x0"})
    with pytest.raises(Absent):
        build(Settings(), tmp_path, ManualClock()).run(lambda batch: None, None)
    with pytest.raises(ValueError, match="above 0"):
        Settings(every=0.0)  # type: ignore[arg-type]
