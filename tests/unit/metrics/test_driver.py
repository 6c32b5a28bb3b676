"""The driver's versions, and the histogram of its calls."""

import msgspec
import pytest
from prometheus_client.core import Metric

from gpuguard.metrics.driver import families
from gpuguard.model.ids import NODE
from gpuguard.model.quantities import NVML_CALL_BOUNDS
from gpuguard.model.readings import Group, Value
from tests.support.snapshots import NOW, full


def shown(**values: Value) -> dict[str, Metric]:
    group = Group(source="nvml", rate="fast", at=NOW, valid_for=15.0, values=values)
    snapshot = msgspec.structs.replace(full(), readings={NODE: {"nvml/fast": group}})
    return {family.name: family for family in families(snapshot)}


def test_the_calls_are_a_histogram() -> None:
    below = tuple(range(1, len(NVML_CALL_BOUNDS) + 1))
    (family,) = shown(nvml_call_seconds=("call", *below, 77, 0.25, "gpm", *below, 78, 0.5)).values()
    assert {s.labels["group"] for s in family.samples} == {"call", "gpm"}
    found = {(s.name.removeprefix("gpuguard_nvml_call_duration_seconds"), s.labels.get("le")): s.value
             for s in family.samples if s.labels["group"] == "call"}  # fmt: skip
    assert family.type == "histogram"
    assert found == {
        **{("_bucket", f"{bound}"): number for number, bound in enumerate(NVML_CALL_BOUNDS, 1)},
        ("_bucket", "+Inf"): 77, ("_count", None): 77, ("_sum", None): 0.25,
    }  # fmt: skip


@pytest.mark.parametrize("value", [None, (), (1, 2, 3), tuple(range(20)), ("call", *NVML_CALL_BOUNDS, None, 0.1)])
def test_counts_of_another_shape_are_not_guessed_at(value: Value) -> None:
    assert shown(nvml_call_seconds=value) == {}


def test_the_versions_that_are_known() -> None:
    (family,) = shown(driver_version="570.124.06", cuda_version=None).values()
    assert family.samples[0].labels == {"driver": "570.124.06", "nvml": "", "cuda": ""}


def test_a_node_without_a_driver_says_nothing() -> None:
    assert shown(driver_version=None) == {}
