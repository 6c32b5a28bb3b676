"""The driver and its library: which versions, and how long its calls take.

Reads     driver_version, nvml_version, cuda_version and nvml_call_seconds of the node's readings
Units     seconds
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from gpuguard.metrics._rows import rows
from gpuguard.model.health import Snapshot
from gpuguard.model.quantities import NVML_CALL_BOUNDS
from gpuguard.model.readings import Scalar, Value

# What nvml_call_seconds tells of a group: its name, a count for each bound, the count of all, the sum.
WIDTH = len(NVML_CALL_BOUNDS) + 3
VERSIONS = {"driver": "driver_version", "nvml": "nvml_version", "cuda": "cuda_version"}


def _parts(told: Value) -> Iterator[tuple[Scalar, ...]]:
    told = told if isinstance(told, tuple) else ()
    return (told[start : start + WIDTH] for start in range(0, len(told), WIDTH))


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """What is known of the driver; nothing on a node without one."""
    for _, _, values in rows(snapshot, "node"):
        told = [values.get(column) for column in VERSIONS.values()]
        if any(isinstance(version, str) for version in told):
            versions = GaugeMetricFamily(
                "gpuguard_driver_info", "Versions of the driver, of its library and of CUDA.", labels=tuple(VERSIONS)
            )
            versions.add_metric([version if isinstance(version, str) else "" for version in told], 1.0)
            yield versions
        calls = HistogramMetricFamily(
            "gpuguard_nvml_call_duration_seconds", "How long calls of the driver's library took, by kind.",
            labels=("group",),
        )  # fmt: skip
        for part in _parts(values.get("nvml_call_seconds")):
            match part:
                case (str(group), *below, int(count), int() | float() as total) if len(part) == WIDTH:
                    taken = [took if isinstance(took, int | float) else 0 for took in below]
                    buckets = [(f"{bound}", float(took)) for bound, took in zip(NVML_CALL_BOUNDS, taken, strict=True)]
                    calls.add_metric([group], [*buckets, ("+Inf", float(count))], sum_value=total)
        if calls.samples:
            yield calls
