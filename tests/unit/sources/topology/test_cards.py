"""Network cards of every make: names, rates, ports; virtual functions, representors, and what is only software."""

from pathlib import Path

import pytest

from gpuguard.model.ids import PciAddress
from gpuguard.model.readings import Values
from gpuguard.sources.topology import cards
from gpuguard.sweeping.links import Links
from tests.support.trees import link, pci_function, put

ABOVE = ("pci0000:15", "0000:15:01.0")


def function(root: Path, address: str, driver: str, vendor: str = "0x15b3", device: str = "0x1021") -> None:
    """A card at its full link."""
    pci_function(
        root, address, ABOVE,
        {
            "vendor": vendor, "device": device, "class": "0x020000", "numa_node": "1", "local_cpulist": "56-111",
            "current_link_width": "16", "max_link_width": "16", "current_link_speed": "32.0 GT/s PCIe",
            "max_link_speed": "32.0 GT/s PCIe",
        },
    )  # fmt: skip
    link(root, f"sys/bus/pci/devices/{address}/driver", f"sys/bus/pci/drivers/{driver}")


def hang(root: Path, kind: str, name: str, address: str, between: str = "", **files: str) -> None:
    """A device of a class, below its function as the kernel has it."""
    place = "/".join(part for part in ("sys/devices", *ABOVE, address, between) if part)
    real = put(root / place / kind / name, {"uevent": "", **files})
    (root / "sys/class" / kind).mkdir(parents=True, exist_ok=True)
    (root / "sys/class" / kind / name).symlink_to(real)
    link(root, f"{place}/{kind}/{name}/device", place)


def rdma(root: Path, name: str, address: str, *rates: str, **files: str) -> None:
    hang(root, "infiniband", name, address, node_guid="0c42:a103:0065:1234", **files)
    for port, rate in enumerate(rates, 1):
        put(root / "sys/class/infiniband" / name / "ports" / str(port), {"rate": rate})


def told(root: Path, *functions: str) -> dict[str, Values]:
    """What is said of each card, by its name."""
    links = Links(root)
    found = cards.find(root, links, [PciAddress(address) for address in functions])
    return {card.subject: {**cards.describe(root, links, card), **cards.read(root, card)} for card in found}


def test_an_infiniband_card(tmp_path: Path) -> None:
    function(tmp_path, "0000:1c:00.0", "mlx5_core")
    rdma(tmp_path, "mlx5_0", "0000:1c:00.0", "400 Gb/sec (4X NDR)")
    hang(tmp_path, "net", "ibs0", "0000:1c:00.0", speed="400000")
    assert told(tmp_path, "0000:1c:00.0") == {
        "nic:mlx5_0": {
            "nic_pci": "0000:1c:00.0", "nic_pci_path": ABOVE, "nic_numa_node": 1, "nic_local_cpus": "56-111",
            "nic_pci_id": "15b3:1021", "nic_driver": "mlx5_core", "nic_rdma": "mlx5_0", "nic_netdevs": "ibs0",
            "nic_guid": "0c42:a103:0065:1234", "nic_ports": 1, "nic_rate_bits_per_second": 400_000_000_000,
            "width": 16, "width_limit": 16, "generation": 5, "generation_limit": 5,
        }
    }  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "vendor", "device", "rdma_name", "rate", "bits"),
    [
        ("efa", "0x1d0f", "0xefa1", "rdmap16s27", "100 Gb/sec (4X EDR)", 10**11),
        ("efa", "0x1d0f", "0xefa0", "efa_0", "100 Gb/sec (4X EDR)", 10**11),
        ("bnxt_en", "0x14e4", "0x1750", "bnxt_re0", "200 Gb/sec (4X HDR)", 2 * 10**11),
        ("ice", "0x8086", "0x1592", "irdma0", "100 Gb/sec (4X EDR)", 10**11),
        ("hfi1", "0x8086", "0x24f0", "hfi1_0", "100 Gb/sec (4X EDR)", 10**11),
    ],
)
def test_other_makes(
    tmp_path: Path, driver: str, vendor: str, device: str, rdma_name: str, rate: str, bits: int
) -> None:
    function(tmp_path, "0000:10:1b.0", driver, vendor, device)
    rdma(tmp_path, rdma_name, "0000:10:1b.0", rate)
    # Not even its class need say that it is a card: it is one by its RDMA device.
    ((subject, row),) = told(tmp_path).items()
    assert subject == f"nic:{rdma_name}"
    assert (row["nic_driver"], row["nic_rdma"], row["nic_rate_bits_per_second"]) == (driver, rdma_name, bits)
    assert "nic_netdevs" not in row


def test_cards_without_rdma_go_by_their_interface_or_address(tmp_path: Path) -> None:
    for address in ("0000:2a:00.0", "0000:2a:00.1"):
        function(tmp_path, address, "bnxt_en", "0x14e4", "0x1750")
    function(tmp_path, "0000:2b:00.0", "vfio-pci", "0x8086", "0x10fb")
    hang(tmp_path, "net", "ens2f0np0", "0000:2a:00.0", speed="100000")
    hang(tmp_path, "net", "ens2f1np1", "0000:2a:00.1", speed="-1")
    row = told(tmp_path, "0000:2a:00.0", "0000:2a:00.1", "0000:2b:00.0")
    assert list(row) == ["nic:ens2f0np0", "nic:ens2f1np1", "nic:0000:2b:00.0"]
    assert row["nic:ens2f0np0"]["nic_rate_bits_per_second"] == 10**11
    assert row["nic:ens2f1np1"]["nic_rate_bits_per_second"] is None, "it is down"
    assert not row["nic:0000:2b:00.0"].keys() & {"nic_rdma", "nic_guid", "nic_ports", "nic_rate_bits_per_second"}


def test_a_speed_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    function(tmp_path, "0000:2a:00.0", "igb", "0x8086", "0x1521")
    hang(tmp_path, "net", "eth0", "0000:2a:00.0")
    (tmp_path / "sys/class/net/eth0/speed").mkdir()
    assert told(tmp_path, "0000:2a:00.0")["nic:eth0"]["nic_rate_bits_per_second"] is None


@pytest.mark.parametrize("speed", ["4294967295", "0", "", "x"])
def test_speeds_that_are_none(tmp_path: Path, speed: str) -> None:
    function(tmp_path, "0000:2a:00.0", "igb")
    hang(tmp_path, "net", "eth0", "0000:2a:00.0", speed=speed)
    assert told(tmp_path, "0000:2a:00.0")["nic:eth0"]["nic_rate_bits_per_second"] is None


def test_two_ports_of_one_function(tmp_path: Path) -> None:
    function(tmp_path, "0000:1c:00.0", "mlx4_core")
    rdma(tmp_path, "mlx4_0", "0000:1c:00.0", "10 Gb/sec (4X SDR)", "40 Gb/sec (4X FDR10)")
    for name in ("eth10", "eth2"):
        hang(tmp_path, "net", name, "0000:1c:00.0", speed="40000")
    row = told(tmp_path, "0000:1c:00.0")["nic:mlx4_0"]
    assert (row["nic_ports"], row["nic_rate_bits_per_second"], row["nic_netdevs"]) == (2, 40 * 10**9, "eth2,eth10")


def test_virtual_functions_stand_for_their_card(tmp_path: Path) -> None:
    for address in ("0000:1c:00.0", "0000:1c:00.1"):
        function(tmp_path, address, "mlx5_core")
    link(tmp_path, "sys/bus/pci/devices/0000:1c:00.1/physfn", "sys/devices/pci0000:15/0000:15:01.0/0000:1c:00.0")
    assert list(told(tmp_path, "0000:1c:00.0", "0000:1c:00.1")) == ["nic:0000:1c:00.0"]
    assert list(told(tmp_path, "0000:1c:00.1")) == ["nic:0000:1c:00.1"], "where they are all there is, they are cards"


def test_representors_and_subfunctions_are_no_interfaces_of_the_card(tmp_path: Path) -> None:
    function(tmp_path, "0000:1c:00.0", "mlx5_core")
    rdma(tmp_path, "mlx5_0", "0000:1c:00.0", "400 Gb/sec (4X NDR)")
    hang(tmp_path, "net", "eth0", "0000:1c:00.0", phys_port_name="p0")
    hang(tmp_path, "net", "eth1", "0000:1c:00.0", phys_port_name="pf0vf0")
    hang(tmp_path, "net", "eth2", "0000:1c:00.0", phys_port_name="c1pf0sf88")
    hang(tmp_path, "net", "eth3", "0000:1c:00.0", "mlx5_core.sf.2")
    hang(tmp_path, "infiniband", "mlx5_2", "0000:1c:00.0", "mlx5_core.sf.2")
    row = told(tmp_path, "0000:1c:00.0")
    assert list(row) == ["nic:mlx5_0"]
    assert (row["nic:mlx5_0"]["nic_rdma"], row["nic:mlx5_0"]["nic_netdevs"]) == ("mlx5_0", "eth0")


def test_a_virtual_machines_card(tmp_path: Path) -> None:
    function(tmp_path, "0000:00:03.0", "virtio-pci", "0x1af4", "0x1041")
    hang(tmp_path, "net", "eth0", "0000:00:03.0", "virtio2", speed="-1")
    assert list(told(tmp_path, "0000:00:03.0")) == ["nic:eth0"]


def test_software_hangs_on_no_card(tmp_path: Path) -> None:
    put(tmp_path / "sys/devices/virtual/infiniband/rxe0", {"node_guid": "0000:0000:0000:0001"})
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband/rxe0").symlink_to(tmp_path / "sys/devices/virtual/infiniband/rxe0")
    put(tmp_path / "sys/class/net", {"bonding_masters": "bond0"})
    put(tmp_path / "sys/class/net/lo", {"speed": "-1"})
    assert told(tmp_path) == {}


def test_many_cards_are_in_the_order_of_their_numbers() -> None:
    assert sorted(("mlx5_10", "mlx5_2", "efa_0", "7"), key=cards.natural) == ["7", "efa_0", "mlx5_2", "mlx5_10"]
