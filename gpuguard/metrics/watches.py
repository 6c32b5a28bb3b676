"""What stands against each GPU, by the parts of it that DCGM's health watches name.

A watch passes (0), warns (10) or fails (20) by the findings that stand: degraded warns, critical fails. One that rests
on values that nobody could read has no series.

Reads     the findings of a Snapshot, and which columns its readings have
Units     0, 10, 20
Source    DCGM 4.6: dcgmHealthSystems_t, the table of DcgmHealthWatch by Xid
"""

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from gpuguard.metrics._rows import gpu_labels, rows
from gpuguard.model.findings import Severity
from gpuguard.model.health import FindingView, Snapshot
from gpuguard.model.ids import kind_of

WORTH: dict[Severity, int] = {"info": 0, "degraded": 10, "critical": 20}


class Watch(NamedTuple):
    """What belongs to a watch: checks, Xids, and columns of which one has to be known for it to pass."""

    checks: tuple[str, ...]
    xids: tuple[int, ...]
    columns: tuple[str, ...]


WATCHES = {
    "pcie": Watch(
        ("pcie_width", "pcie_speed", "pcie_replay_rate", "pcie_errors", "pcie_aer", "config_space"), (38, 39, 42, 79),
        ("pcie_replay_total", "pcie_link_width"),
    ),
    "nvlink": Watch(
        ("nvlink_down", "nvlink_error_rate", "fabric_state"), (67, 73, 74, 121, 137, *range(144, 151)),
        ("nvlink_up", "nvlinks_active"),
    ),
    "memory": Watch(
        (
            "ecc_uncorrected", "ecc_corrected_rate", "row_remap", "retired_pages", "memory_unrepairable",
            "memory_temperature",
        ),
        (48, 63, 64, 92, 94, 95, 140, 171, 172),
        ("ecc_uncorrected_volatile", "row_remap_pending", "retired_pages_pending"),
    ),
    "sm": Watch(("sram_threshold",), (), ("sram_threshold_exceeded",)),
    "inforom": Watch(("inforom",), (93,), ("inforom_valid",)),
    "thermal": Watch(("thermal", "memory_temperature"), (60, 61, 62), ("temperature_celsius",)),
    "power": Watch(
        ("power_brake", "power_cap", "hw_slowdown"), (54, 56, 57, 58, 78), ("power_watts", "clock_events")
    ),
    "driver": Watch(
        ("recovery_action", "gpu_lost", "nvml_unresponsive", "driver_mismatch"), (79, 109, 119, 120, 143, 154),
        ("gpu_up", "recovery_action"),
    ),
}  # fmt: skip


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """Each watch of each GPU of which the driver's library tells, or against which something stands."""
    family = GaugeMetricFamily(
        "gpuguard_health_status", "0 while nothing stands against this part of the GPU, 10 a warning, 20 a failure."
    )
    known = {measured.subject: measured.values for measured in rows(snapshot, "gpu")}
    for view in snapshot.subjects:
        if kind_of(view.id) != "gpu":
            continue
        values = known.get(view.id, {})
        labels = gpu_labels(view)
        for name, watch in WATCHES.items():
            standing = [WORTH[finding.severity] for finding in view.findings if _belongs(finding, watch)]
            if standing or any(values.get(column) is not None for column in watch.columns):
                family.samples.append(Sample(family.name, {**labels, "watch": name}, max(standing, default=0)))
        standing = [WORTH[finding.severity] for finding in view.findings]
        if standing or values.get("gpu_up") is not None:
            family.samples.append(Sample(family.name, {**labels, "watch": "all"}, max(standing, default=0)))
    if family.samples:
        yield family


def _belongs(finding: FindingView, watch: Watch) -> bool:
    if finding.check == "fault_codes":
        return finding.code.removeprefix("xid").isdecimal() and int(finding.code.removeprefix("xid")) in watch.xids
    return finding.check in watch.checks
