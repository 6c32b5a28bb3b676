"""The driver and its library: which versions, and how long its calls take.

Reads     driver_version, nvml_version, cuda_version and nvml_call_seconds of the node's readings
Units     seconds
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from gpuguard.metrics._rows import rows
from gpuguard.model.health import Snapshot
from gpuguard.model.quantities import NVML_CALL_BOUNDS

VERSIONS = {"driver": "driver_version", "nvml": "nvml_version", "cuda": "cuda_version"}


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
        match values.get("nvml_call_seconds"):
            case (*below, int(count), int() | float() as total) if len(below) == len(NVML_CALL_BOUNDS):
                bounds = zip(NVML_CALL_BOUNDS, below, strict=True)
                yield HistogramMetricFamily(
                    "gpuguard_nvml_call_duration_seconds", "How long calls of the driver's library took.",
                    buckets=[*((f"{bound}", float(calls or 0)) for bound, calls in bounds), ("+Inf", count)],
                    sum_value=total,
                )  # fmt: skip
