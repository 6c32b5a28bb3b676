"""Bridges: their kind by place and by registers, their links, and what ACS does by registers and by IOMMU groups."""

from pathlib import Path

import pytest

from gpuguard.model.ids import PciAddress, SubjectId
from gpuguard.model.readings import Values
from gpuguard.sources.topology import bridges
from gpuguard.sweeping.links import Links
from gpuguard.sweeping.rounds import Rows
from tests.support.trees import link, pci_bridge, pci_function, put

ROOT, PORT, UP, DOWN, GPU, NIC, BESIDE = (
    "pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:1b:00.0", "0000:1c:00.0", "0000:17:01.0"
)  # fmt: skip


def switch(root: Path) -> dict[PciAddress, tuple[str, ...]]:
    """A root port, a switch, and behind it a GPU and a card; gives their paths."""
    port = pci_bridge(root, PORT, (ROOT,))
    up = pci_bridge(root, UP, port, max_link_width="8", current_link_width="8")
    gpu, nic = pci_bridge(root, DOWN, up), pci_bridge(root, BESIDE, up)
    pci_function(root, GPU, gpu, {"vendor": "0x10de", "class": "0x030200"})
    pci_function(root, NIC, nic, {"vendor": "0x15b3", "class": "0x020700"})
    return {PciAddress(GPU): gpu, PciAddress(NIC): nic}


def group(root: Path, **groups: tuple[str, ...]) -> None:
    for number, addresses in groups.items():
        for address in addresses:
            link(root, f"sys/bus/pci/devices/{address}/iommu_group", f"sys/kernel/iommu_groups/{number[1:]}")


def rows(root: Path, paths: dict[PciAddress, tuple[str, ...]], **instead: Values | None) -> Rows:
    found = bridges.find(paths)
    read: dict[PciAddress, Values | None] = {
        pci: bridges.read(root / "sys/bus/pci/devices" / pci) for pci in found
    }  # fmt: skip
    read.update({PciAddress(pci): values for pci, values in instead.items()})
    return bridges.rows(root, Links(root), found, read)


def redirects(made: Rows) -> dict[str, object]:
    return {
        subject.partition(":")[2]: values["bridge_p2p_redirect"]
        for subject, values in made.items() if "bridge_p2p_redirect" in values
    }  # fmt: skip


def test_a_switch_by_its_place(tmp_path: Path) -> None:
    made = rows(tmp_path, switch(tmp_path))
    assert list(made) == [f"bridge:{pci}" for pci in (PORT, UP, DOWN, BESIDE)]
    assert [row["bridge_kind"] for row in made.values()] == ["root_port", "upstream", "downstream", "downstream"]
    assert made[SubjectId(f"bridge:{UP}")] == {
        "bridge_kind": "upstream", "bridge_pci_path": (ROOT, PORT), "bridge_pci_id": "1000:c030",
        "bridge_link_width": 8, "bridge_link_generation": 5, "bridge_link_width_limit": 8,
        "bridge_link_generation_limit": 5,
    }  # fmt: skip
    assert made[SubjectId(f"bridge:{DOWN}")]["bridge_pci_path"] == (ROOT, PORT, UP)


def test_the_limit_above_an_upstream_port_is_that_of_both_ends(tmp_path: Path) -> None:
    paths = switch(tmp_path)
    put(tmp_path / "sys/bus/pci/devices" / PORT, {"max_link_speed": "16.0 GT/s PCIe"})
    put(tmp_path / "sys/bus/pci/devices" / UP, {"max_link_width": "16"})
    row = rows(tmp_path, paths)[SubjectId(f"bridge:{UP}")]
    assert (row["bridge_link_generation_limit"], row["bridge_link_width_limit"]) == (4, 16)
    below = rows(tmp_path, paths)[SubjectId(f"bridge:{DOWN}")]
    assert below["bridge_link_generation_limit"] == 5, "the link below it is another"


def test_one_that_does_not_answer_is_unknown(tmp_path: Path) -> None:
    made = rows(tmp_path, switch(tmp_path), **{UP: None})
    row = made[SubjectId(f"bridge:{UP}")]
    assert (row["bridge_kind"], row["bridge_link_width"], row["bridge_link_generation"]) == ("upstream", None, None)
    assert made[SubjectId(f"bridge:{DOWN}")]["bridge_kind"] == "downstream"


def test_one_that_sleeps_has_no_link_to_tell_of(tmp_path: Path) -> None:
    paths = switch(tmp_path)
    made = bridges.rows(tmp_path, Links(tmp_path), bridges.find(paths), {})
    assert {column for column in made[SubjectId(f"bridge:{UP}")] if "link" in column} == set()


def test_older_buses_are_plain_bridges(tmp_path: Path) -> None:
    port = pci_bridge(tmp_path, PORT, (ROOT,))
    above = pci_bridge(tmp_path, UP, port)
    pci_function(tmp_path, GPU, above, {})
    old = pci_function(tmp_path, "0000:00:1e.0", ("pci0000:00",), {"class": "0x060401"})
    pci_function(tmp_path, NIC, ("pci0000:00", old.name), {})
    paths = {PciAddress(GPU): above, PciAddress(NIC): ("pci0000:00", old.name)}
    kinds = {subject: row["bridge_kind"] for subject, row in rows(tmp_path, paths).items()}
    assert kinds == {f"bridge:{PORT}": "root_port", f"bridge:{UP}": "bridge", "bridge:0000:00:1e.0": "bridge"}


def test_registers_come_before_the_place_and_before_groups(tmp_path: Path) -> None:
    paths = switch(tmp_path)
    group(tmp_path, _10=(PORT,), _11=(UP,), _12=(DOWN, GPU), _13=(BESIDE, NIC))
    made = rows(tmp_path, paths, **{
        DOWN: {"kind": "downstream", "acs": True, "redirects": True},
        BESIDE: {"kind": "downstream", "acs": False, "redirects": None},
        UP: {"kind": "bridge", "acs": True, "redirects": True},
    })  # fmt: skip
    assert redirects(made) == {PORT: None, DOWN: 1}, "without ACS there is nothing to say, nor above an upstream port"
    assert made[SubjectId(f"bridge:{UP}")]["bridge_kind"] == "bridge"


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        # Groups of their own: every port isolated when they were made, and may have been changed since.
        ({"_10": (PORT,), "_11": (UP,), "_12": (DOWN,), "_13": (BESIDE,), "_14": (GPU,), "_15": (NIC,)},
         {PORT: None, DOWN: None, BESIDE: None}),
        # Each device with the port above it, below a root port that isolates: as kernels of old make it.
        ({"_10": (PORT,), "_11": (UP,), "_12": (DOWN, GPU), "_13": (BESIDE, NIC)}, {PORT: None, DOWN: 0, BESIDE: 0}),
        # The whole switch in one group.
        ({"_10": (PORT,), "_11": (UP, DOWN, BESIDE, GPU, NIC)}, {PORT: None, DOWN: 0, BESIDE: 0}),
        # One port isolates, the other does not.
        ({"_10": (PORT,), "_11": (UP,), "_12": (DOWN, GPU), "_13": (BESIDE,), "_15": (NIC,)},
         {PORT: None, DOWN: 0, BESIDE: None}),
        # The root port does not isolate: what the switch does cannot be told from groups.
        ({"_10": (PORT, UP, DOWN, BESIDE, GPU, NIC)}, {PORT: None, DOWN: None, BESIDE: None}),
        # No IOMMU, no groups.
        ({}, {PORT: None, DOWN: None, BESIDE: None}),
    ],
)  # fmt: skip
def test_acs_by_groups(tmp_path: Path, groups: dict[str, tuple[str, ...]], expected: dict[str, int | None]) -> None:
    paths = switch(tmp_path)
    group(tmp_path, **groups)
    assert redirects(rows(tmp_path, paths)) == expected


def test_registers_that_cannot_be_read_leave_the_rest(tmp_path: Path) -> None:
    paths = switch(tmp_path)
    (tmp_path / "sys/bus/pci/devices" / DOWN / "config").mkdir()
    row = rows(tmp_path, paths)[SubjectId(f"bridge:{DOWN}")]
    assert (row["bridge_link_width"], row["bridge_p2p_redirect"]) == (16, None)
