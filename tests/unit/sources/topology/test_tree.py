"""The PCI tree: paths of every shape, and a bus that changes while it is read."""

from pathlib import Path

import pytest

from gpuguard.errors import ReadFailed
from gpuguard.sources.topology import tree
from gpuguard.sweeping.links import Links
from tests.support.trees import link, pci_bridge, pci_function, put

GPU = "0000:1b:00.0"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0",
         ("pci0000:15", "0000:15:01.0", "0000:16:00.0")),
        ("sys/devices/pci0000:00/0000:00:04.0", ("pci0000:00",)),
        # Hyper-V and ARM have more above the root complex; VMD makes a root complex of its own.
        ("sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/guid/pci7f5a:00/7f5a:00:02.0", ("pci7f5a:00",)),
        ("sys/devices/platform/10000000.pcie/pci0009:01/0009:01:00.0", ("pci0009:01",)),
        ("sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0",
         ("pci0000:00", "0000:00:0e.0", "pci10000:e0", "10000:e0:06.0")),
        (None, None), ("", None), ("sys/devices/virtual/net/lo", None), ("sys/devices/pci0000:15", None),
        ("sys/bus/pci/0000:15:01.0", None), ("sys/devices/0000:15:01.0", None),
    ],
)  # fmt: skip
def test_paths(target: str | None, path: tuple[str, ...] | None) -> None:
    assert tree.parse_path(target) == path


@pytest.mark.parametrize(
    ("target", "device"),
    [
        ("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.1", ("0000:16:00.1", True)),
        ("sys/devices/pci0000:00/0000:00:03.0/virtio0", ("0000:00:03.0", False)),
        ("sys/devices/pci0000:15/0000:16:00.0/mlx5_core.sf.2", ("0000:16:00.0", False)),
        ("sys/devices/virtual/net/lo", (None, False)), (None, (None, False)),
    ],
)  # fmt: skip
def test_what_something_hangs_on(target: str | None, device: tuple[str | None, bool]) -> None:
    assert tree.device_of(target) == device


def test_devices_by_what_they_are(tmp_path: Path) -> None:
    root = ("pci0000:15",)
    for address, vendor, kind in (
        (GPU, "0x10de", "0x030200"), ("0000:02:00.0", "0x1a03", "0x030000"), ("0000:05:00.0", "0x10de", "0x068000"),
        ("0000:06:00.0", "0x8086", "0x068000"), ("0000:1c:00.0", "0x15b3", "0x020700"),
        ("0000:1d:00.0", "0x1d0f", "0x020000"), ("0000:1e:00.0", "0x8086", "0x020800"),
        ("0000:1f:00.0", "0x8086", "0x010802"),
    ):  # fmt: skip
        pci_function(tmp_path, address, root, {"vendor": vendor, "class": kind})
    pci_function(tmp_path, "not-an-address", root, {"vendor": "0x10de", "class": "0x030200"})
    assert tree.look(tmp_path) == tree.Listed(
        (GPU,),
        ("0000:05:00.0",),
        ("0000:1c:00.0", "0000:1d:00.0", "0000:1e:00.0"),  # type: ignore[arg-type]
    )


def test_what_vanishes_while_it_is_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pci_function(tmp_path, GPU, ("pci0000:15",), {"vendor": "0x10de", "class": "0x030200"})
    (tmp_path / "sys/bus/pci/devices/0000:1c:00.0").symlink_to("../../../devices/gone")
    assert tree.look(tmp_path).gpus == (GPU,)

    # The kernel answers ENODEV for what goes between opening and reading.
    def vanish(path: Path) -> str:
        path.parent.unlink()
        raise ReadFailed(f"{path}: No such device")

    monkeypatch.setattr(tree, "read_text", vanish)
    assert tree.look(tmp_path).gpus == ()


def test_what_cannot_be_read_and_is_there_is_not_missing(tmp_path: Path) -> None:
    (pci_function(tmp_path, GPU, ("pci0000:15",), {}) / "class").mkdir()
    with pytest.raises(ReadFailed):
        tree.look(tmp_path)


def test_a_place_is_known_unknown_or_absent(tmp_path: Path) -> None:
    above = pci_bridge(tmp_path, "0000:15:01.0", ("pci0000:15",))
    pci_function(tmp_path, GPU, above, {"numa_node": "1"})
    pci_function(tmp_path, "0000:1c:00.0", above, {"numa_node": "-1"})
    put(tmp_path / "sys/bus/pci/devices/0000:1d:00.0", {"vendor": "0x10de"})
    link(tmp_path, "sys/bus/pci/devices/0000:1e:00.0", "elsewhere/0000:1e:00.0")
    links = Links(tmp_path)
    assert tree.place(tmp_path, links, GPU, "gpu") == {"gpu_pci_path": above, "gpu_numa_node": 1}  # type: ignore[arg-type]
    assert tree.place(tmp_path, links, "0000:1c:00.0", "gpu")["gpu_numa_node"] is None  # type: ignore[arg-type]
    for address in ("0000:1d:00.0", "0000:1e:00.0"):
        assert tree.place(tmp_path, links, address, "gpu") == {"gpu_pci_path": None}  # type: ignore[arg-type]


def test_ids(tmp_path: Path) -> None:
    folder = put(tmp_path, {"vendor": "0x15b3", "device": "0x1021"})
    assert tree.read_id(folder) == "15b3:1021"
    put(tmp_path, {"device": "1021"})
    assert tree.read_id(folder) is None
    (tmp_path / "device").unlink()
    assert tree.read_id(folder) is None
