"""The text that Prometheus reads is the one that its own client would write."""

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gpuguard.model.health import Snapshot
from gpuguard.runtime.exposition import exposition
from gpuguard.runtime.plugins import shelf
from tests.support.snapshots import full, node


class Given(Collector):
    """These families and no others."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> list[Metric]:
        return self.families


def theirs(families: list[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Given(families))
    return generate_latest(registry)


@pytest.mark.parametrize("snapshot", [full(), node()], ids=["full", "node"])
def test_a_whole_page(snapshot: Snapshot) -> None:
    families = [family for module in shelf("gpuguard.metrics").values() for family in module.families(snapshot)]
    assert exposition(families).splitlines() == theirs(families).splitlines()


@pytest.mark.parametrize(
    "value", [0, 0.0, 1, 1.0, 2, 0.5, 1e-9, 123456.5, 1234567.0, 2**53, 1.7e9 + 0.25, 1e21, float("inf"),
              float("-inf"), float("nan"), True],
)  # fmt: skip
def test_numbers(value: float) -> None:
    family = GaugeMetricFamily("x", "A number.", value=value)
    assert exposition([family]) == theirs([family])


def test_what_must_be_escaped_in_labels_and_help() -> None:
    family = GaugeMetricFamily("x", 'back\\slash "quote"\nline', labels=("a", "b"))
    family.add_metric(('back\\slash "quote"\nline', "ä"), 1.0)
    assert exposition([family]) == theirs([family])


def test_each_type() -> None:
    families = [
        CounterMetricFamily("c", "A counter.", value=3),
        HistogramMetricFamily("h", "A histogram.", buckets=[("0.1", 1), ("+Inf", 2)], sum_value=0.5),
        GaugeMetricFamily("g", "A gauge without a sample.", labels=("a",)),
    ]
    assert exposition(families) == theirs(families)


def test_labels_that_are_gone_lend_their_place_to_no_others() -> None:
    """Each family here is made when it is asked for, and gone before the next one is."""

    def made() -> Iterator[Metric]:
        for number in range(500):
            family = Metric(f"x{number}", "A number.", "gauge")
            family.samples.append(Sample(family.name, {"number": str(number)}, 1.0))
            yield family

    assert exposition(made()) == theirs(list(made()))
