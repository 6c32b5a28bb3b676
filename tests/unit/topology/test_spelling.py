"""Names of GPUs, and texts where only some letters may stand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.topology.spelling import identity, is_node, label, short

VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", "h100"), ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA H200", "h200"), ("NVIDIA B200", "b200"), ("NVIDIA GB200", "gb200"), ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA A100-SXM4-40GB", "a100"), ("NVIDIA A100 80GB PCIe", "a100"), ("A100-PCIE-40GB", "a100"),
        ("NVIDIA L40S", "l40s"), ("NVIDIA A10G", "a10g"), ("Tesla T4", "t4"), ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"), ("NVIDIA RTX 6000 Ada Generation", "rtx_6000_ada"),
        ("NVIDIA RTX A6000", "rtx_a6000"), ("NVIDIA TITAN V", "titan_v"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000_blackwell"),
        ("NVIDIA Graphics Device", None), ("", None), (None, None), ("  ", None), ("é(=,:", None),
    ],
)  # fmt: skip
def test_a_product_has_a_short_name(product: str | None, name: str | None) -> None:
    assert short(product) == name
    if product and name:
        # As Slurm's AutoDetect=nvml spells it: a Type must be a part of this.
        assert name in product.lower().replace(" ", "_")


@given(st.text())
def test_a_short_name_can_stand_in_a_configuration(text: str) -> None:
    assert re.fullmatch(r"[a-z0-9_]+", short(text) or "x")


@given(st.text(max_size=200))
def test_any_text_becomes_a_label_or_none(text: str) -> None:
    assert VALUE.fullmatch(label(text) or "x")
    assert VALUE.fullmatch(identity(text))


@given(st.text(max_size=90), st.text(max_size=90))
def test_two_names_stay_two(one: str, other: str) -> None:
    assert (identity(one) == identity(other)) == (one == other)


def test_a_label_that_may_stand_stays_as_it_is() -> None:
    assert label("NVIDIA H100 80GB HBM3") == "NVIDIA-H100-80GB-HBM3"
    domain = "7ec9d7a4-5a5b-4b6e-9f1c-0b6a2c1d3e4f.32766"
    assert identity(domain) == label(domain) == domain
    assert identity("leaf 1").startswith("leaf-1-")
    assert identity("a" * 64).startswith("a" * 54 + "-")


def test_what_a_node_may_be_called() -> None:
    assert all(is_node(name) for name in ("n1", "gpu-07.cluster", "10", "a_b"))
    assert not any(is_node(name) for name in ("", "-a", "a b", "a\n", "a=b", "n[1-2]", "a" * 300, "a#"))
