"""Which devices belong together, in words."""

import msgspec

from gpuguard.model.ids import SubjectId
from gpuguard.topology.islands import Island, islands
from tests.support.topo_samples import samples
from tests.support.wirings import H100_BUSES, H100_SWITCHES, graph, h100x8, l40sx4, node, plain


def words(found: tuple[Island, ...], kind: str) -> list[str]:
    return [island.words for island in found if island.kind == kind]


def test_eight_gpus_on_switches() -> None:
    found = islands(graph(h100x8()))
    assert words(found, "nvlink") == ["GPU0 to GPU7 are one NVLink domain, 18 links each through 4 NVSwitches"]
    assert words(found, "switch") == [f"GPU{n} and NIC{n} share one PCIe switch (PIX)" for n in range(8)]
    assert words(found, "numa") == [
        "GPU0 to GPU3 and NIC0 to NIC3 are on NUMA node 0, which is socket 0, with CPUs 0-55,112-167",
        "GPU4 to GPU7 and NIC4 to NIC7 are on NUMA node 1, which is socket 1, with CPUs 56-111,168-223",
    ]
    assert words(found, "socket") == []
    assert found[0].members == tuple(f"GPU{n}" for n in range(8))


def test_who_has_fewer_links_is_named_and_hidden_switches_are_not_counted() -> None:
    rows = h100x8()
    rows[SubjectId(f"gpu:0000:{H100_BUSES[2]}:00.0")]["nvlink_up"] = (1,) * 6 + (0,) + (1,) * 11
    rows[SubjectId(f"gpu:0000:{H100_BUSES[4]}:00.0")] |= {"fabric_cluster": "c0ffee", "fabric_clique": 3}
    assert words(islands(graph(rows)), "nvlink") == [
        "GPU0 to GPU7 are one NVLink domain, 18 links each through 4 NVSwitches, GPU2 17"
    ]
    for name, row in rows.items():
        if name.startswith("gpu:"):
            row |= {"nvlink_peers": ("nvswitch",) * 18, "fabric_cluster": "c0ffee", "fabric_clique": 3}
    assert words(islands(graph(rows)), "nvlink") == [
        "GPU0 to GPU7 are one NVLink domain, 18 links each through NVSwitches, GPU2 17, part of c0ffee.3 beyond this "
        "node"
    ]
    for name, row in rows.items():
        if name.startswith("gpu:"):
            row["nvlink_peers"] = (f"nvswitch:{H100_SWITCHES[0]}",)
    assert "1 link each through 1 NVSwitch," in words(islands(graph(rows)), "nvlink")[0]


def test_domains_of_published_machines() -> None:
    assert words(islands(samples()["02"]), "nvlink") == [
        "GPU0 to GPU7 are one NVLink domain, 12 NVLinks between each two"
    ]
    assert words(islands(samples()["24"]), "nvlink") == [
        "GPU0 to GPU7 are one NVLink domain, a mesh with 1 to 2 NVLinks between neighbours, none between 12 of 28 pairs"
    ]
    assert words(islands(samples()["27"]), "nvlink") == [
        "GPU0 to GPU3 are one NVLink domain, 1 to 2 NVLinks between each two"
    ]
    assert words(islands(samples()["33"]), "nvlink") == [
        "GPU0 and GPU3 are one NVLink domain, 12 NVLinks between them",
        "GPU1 and GPU2 are one NVLink domain, 12 NVLinks between them",
        "GPU4 and GPU5 are one NVLink domain, 12 NVLinks between them",
    ]
    assert words(islands(samples()["20"]), "nvlink")[0].endswith("; between 1 pair they are not known")
    assert words(islands(samples()["07"]), "nvlink") == []


def test_switches_of_published_machines() -> None:
    assert words(islands(samples()["02"]), "switch")[0] == (
        "GPU0, GPU1, mlx5_0 and mlx5_1 are below one PCIe root port, through more than one switch (PXB)"
    )
    assert words(islands(samples()["07"]), "switch") == [
        f"GPU{n} and GPU{n + 1} share one PCIe switch (PIX)" for n in (0, 2, 4, 6)
    ]
    assert words(islands(samples()["24"]), "switch")[0] == "GPU0, GPU1 and mlx5_0 share one PCIe switch (PIX)"
    assert words(islands(samples()["08"]), "switch") == [
        "NIC0 and NIC1 share one PCIe switch or are ports of one card (PIX)"
    ]


def test_a_switch_within_a_root_port_is_told_beside_it() -> None:
    assert words(islands(samples()["05"]), "switch")[1:] == [
        "GPU2, GPU3, NIC2 and NIC3 are below one PCIe root port, through more than one switch (PXB)",
        "NIC2 and NIC3 share one PCIe switch or are ports of one card (PIX)",
    ]


def test_the_ports_of_one_card_are_no_island() -> None:
    assert words(islands(graph(l40sx4())), "switch") == []


def test_nodes_that_nobody_tells_are_no_island() -> None:
    assert words(islands(samples()["26"]), "numa") == []
    assert islands(plain([[0, None], [None, 0]])) == ()
    made = graph(h100x8())
    devices = tuple(
        msgspec.structs.replace(device, nodes="0-1" if device.name == "GPU0" else None) for device in made.devices
    )
    assert words(islands(msgspec.structs.replace(made, devices=devices)), "numa") == []


def test_a_node_with_one_gpu_is_told_and_its_processors_where_all_say_the_same() -> None:
    assert "GPU3 is on NUMA node 1, with CPUs 24-47,120-143" in words(islands(samples()["20"]), "numa")
    assert "GPU2 and GPU3 are on NUMA node 1" in words(islands(samples()["09"]), "numa")


def test_a_socket_with_two_nodes_is_an_island() -> None:
    rows = l40sx4()
    rows[SubjectId("node")] = node(("0-31", "32-63"), numa_sockets=("0", 0, "1", 0))
    found = islands(graph(rows))
    assert words(found, "socket") == ["GPU0 to GPU3, NIC0 and NIC1 are in socket 0, which has the NUMA nodes 0 and 1"]
    assert words(found, "numa")[0] == "GPU0 and GPU1 are on NUMA node 0, with CPUs 0-31"
