"""Labels of a Kubernetes node: topograph's names, our own, and none whose value is not known."""

import re

import pytest

from gpuguard.errors import Absent, ConfigInvalid
from gpuguard.model.ids import NODE, SubjectId
from gpuguard.model.readings import Values
from gpuguard.topology.formats import Wish
from gpuguard.topology.formats.labels import digest, render
from tests.support.layouts import lost_and_split, nps4
from tests.support.wirings import Rows, graph, h100x8, l40sx4
from tests.support.yaml_subset import read

KEY = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
FABRIC = """
[switches.core]
switches = "spine"
[switches.spine]
switches = "leaf"
[switches.leaf]
nodes = "node[1-17]"
[blocks.rack7]
nodes = "node[1-17]"
"""
CLUSTER = "7ec9d7a4-5a5b-4b6e-9f1c-0b6a2c1d3e4f"


def labels(rows: Rows, wish: Wish | None = None) -> dict[str, str]:
    told = read(render(graph(rows), wish or Wish()))
    assert isinstance(told, dict)
    metadata = told["metadata"]
    assert isinstance(metadata, dict)
    found = metadata["labels"]
    assert isinstance(found, dict)
    values = {key: str(value) for key, value in found.items()}
    assert all(KEY.fullmatch(key) and VALUE.fullmatch(value) for key, value in values.items())
    assert list(values) == sorted(values)
    return values


def ours(rows: Rows) -> dict[str, str]:
    return {key.partition("/")[2]: value for key, value in labels(rows).items() if key.startswith("gpuguard.io/")}


def each_gpu(rows: Rows, **columns: object) -> Rows:
    more: Values = columns  # type: ignore[assignment]
    return {name: {**row, **more} if name.startswith("gpu:") else row for name, row in rows.items()}


def test_eight_gpus_behind_nvswitches() -> None:
    found = ours(h100x8())
    assert re.fullmatch(r"[0-9a-f]{12}", found.pop("topology"))
    assert found == {
        "gpu-count": "8", "gpu-product": "NVIDIA-H100-80GB-HBM3", "nvlinks-per-gpu": "18", "nvswitch-count": "4",
        "numa-nodes": "2", "pcie-switch-groups": "8", "nic-count": "8",
    }  # fmt: skip


def test_cards_without_nvlink() -> None:
    found = ours(l40sx4())
    assert (found["nvlinks-per-gpu"], found["pcie-switch-groups"]) == ("0", "0")
    assert "nvswitch-count" not in found


def test_the_network_above_is_told_in_both_of_topographs_ways() -> None:
    found = labels(h100x8(), Wish(node="node3", fabric=FABRIC))
    assert {key: value for key, value in found.items() if not key.startswith("gpuguard.io/")} == {
        "fabric.topograph.run/tier-0": "leaf", "fabric.topograph.run/tier-1": "spine",
        "fabric.topograph.run/tier-2": "core", "accelerator.topograph.run/domain": "rack7",
        "network.topology.nvidia.com/leaf": "leaf", "network.topology.nvidia.com/spine": "spine",
        "network.topology.nvidia.com/core": "core", "network.topology.nvidia.com/accelerator": "rack7",
    }  # fmt: skip


def test_the_host_name_will_do_for_the_node() -> None:
    assert labels(h100x8(), Wish(fabric=FABRIC))["fabric.topograph.run/tier-0"] == "leaf"


def test_a_measured_domain_comes_before_what_a_file_says() -> None:
    rows = each_gpu(h100x8(), fabric_cluster=CLUSTER, fabric_clique=3)
    found = labels(rows, Wish(fabric=FABRIC))
    for key in (
        "accelerator.topograph.run/domain",
        "network.topology.nvidia.com/accelerator",
        "gpuguard.io/nvlink-domain",
    ):
        assert found[key] == f"{CLUSTER}.3"


def test_two_domains_in_one_node_are_none() -> None:
    rows = each_gpu(h100x8(), fabric_cluster=CLUSTER, fabric_clique=3)
    name = SubjectId("gpu:0000:1b:00.0")
    rows[name] = {**rows[name], "fabric_clique": 4}
    assert "gpuguard.io/nvlink-domain" not in labels(rows)


@pytest.mark.parametrize("node", ["node99", "leaf"])
def test_a_node_that_the_fabric_file_lacks_is_a_mistake(node: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"{node} is below no switch and in no block; add it"):
        render(graph(h100x8()), Wish(node=node, fabric=FABRIC))


def test_a_gpu_that_is_lost_is_unknown_and_not_zero() -> None:
    found = ours(lost_and_split())
    assert found["gpu-count"] == "8"
    assert not {"nvlinks-per-gpu", "gpu-product"} & found.keys()


def test_the_gpu_with_the_fewest_links_counts() -> None:
    rows = h100x8()
    name = SubjectId("gpu:0000:d1:00.0")
    rows[name] = {**rows[name], "nvlink_up": (1,) * 15 + (0,) * 3}
    assert ours(rows)["nvlinks-per-gpu"] == "15"


def test_switches_without_address_are_not_counted() -> None:
    rows = {name: row for name, row in h100x8().items() if not name.startswith("nvswitch:")}
    assert "nvswitch-count" not in ours(each_gpu(rows, nvlink_peers=("nvswitch",) * 18))
    straight = each_gpu(rows, nvlink_peers=("gpu:0000:1b:00.0",) * 4, nvlink_up=(1,) * 4)
    assert ours(straight)["nvswitch-count"] == "0"


def test_two_products_are_named_by_their_short_names() -> None:
    rows = h100x8()
    name = SubjectId("gpu:0000:d1:00.0")
    rows[name] = {**rows[name], "gpu_name": "NVIDIA A100-SXM4-40GB"}
    assert ours(rows)["gpu-product"] == "a100.h100"


@pytest.mark.parametrize("product", ["x" * 300, "é", 'a"\n  evil: "b', "-NVIDIA-"])
def test_any_product_makes_a_label_or_none(product: str) -> None:
    assert ours(each_gpu(h100x8(), gpu_name=product))["gpu-count"] == "8"


def test_a_hidden_tree_has_no_count_of_switches() -> None:
    rows = {
        name: {key: value for key, value in row.items() if not key.endswith("_path")} for name, row in h100x8().items()
    }
    assert "pcie-switch-groups" not in ours(rows)


def test_machines_that_are_wired_alike_have_one_digest() -> None:
    first = graph(h100x8())
    other = each_gpu(h100x8(), gpu_serial="7")
    for n, name in enumerate(sorted(name for name in other if name.startswith("gpu:"))):
        other[name] = {**other[name], "gpu_uuid": f"GPU-{n}"}
    # Memory that the driver adds of its GPUs is a NUMA node without processors.
    other[NODE] = {**other[NODE], "numa_cpus": (*other[NODE]["numa_cpus"], "2", "")}  # type: ignore[misc]  # a tuple
    assert digest(graph(other)) == digest(first)
    lame = h100x8()
    name = SubjectId("gpu:0000:d1:00.0")
    lame[name] = {**lame[name], "nvlink_up": (1,) * 17 + (0,)}
    seen = {digest(graph(rows)) for rows in (h100x8(), lame, nps4(), l40sx4(), lost_and_split())}
    assert len(seen) == 5


def test_without_gpus_it_is_refused_with_a_next_step() -> None:
    with pytest.raises(Absent, match="gpuguard topo"):
        render(graph({}), Wish())
