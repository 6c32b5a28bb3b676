"""What holds a GPU back and what ails its fabric, bit by bit; its links, its instances and when it last answered.

Reads     clock_events, fabric_health_mask, pcie_link_width, mig_* of the readings; findings pcie_width, pcie_speed
Units     1 for what is so, 0 for what is known not to be so; seconds since 1970
Source    nvml.h 13.5: nvmlClocksEventReason*, NVML_GPU_FABRIC_HEALTH_MASK_*
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from gpuguard.metrics._rows import Measured, gpu_labels, rows
from gpuguard.model.health import Snapshot

CLOCK_EVENTS = {
    "idle": 0x1, "application_clocks": 0x2, "sw_power_cap": 0x4, "hw_slowdown": 0x8, "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20, "hw_thermal_slowdown": 0x40, "hw_power_brake": 0x80, "display_clocks": 0x100,
}  # fmt: skip

# Where a field of the fabric's mask begins, and how many bits it has. 0 says that the fabric cannot tell; in two bits
# 1 says yes and 2 no; in the four of the configuration 1 says that nothing is wrong and more says what is.
FABRIC_BITS = {
    "degraded_bandwidth": (0, 2), "route_recovery": (2, 2), "route_unhealthy": (4, 2),
    "access_timeout_recovery": (6, 2), "incorrect_configuration": (8, 4),
}  # fmt: skip

# The finding of a way in which a PCIe link can be degraded, and the column without which nobody could find it.
LINKS = {"width": ("pcie_width", "pcie_link_width"), "speed": ("pcie_speed", "pcie_link_generation")}


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """What is computed of each GPU; families that have nothing to say are left out."""
    gpus = list(rows(snapshot, "gpu"))
    for family in (_clock_events(gpus), _fabric(gpus), _links(snapshot, gpus), _instances(snapshot), _alive(snapshot)):
        if family.samples:
            yield family


def _clock_events(gpus: list[Measured]) -> Metric:
    family = GaugeMetricFamily("gpuguard_clock_event_active", "1 while this holds the clocks down, by reason.")
    for gpu in gpus:
        mask = gpu.values.get("clock_events")
        if isinstance(mask, int):
            for reason, bit in CLOCK_EVENTS.items():
                _put(family, {**gpu.labels, "reason": reason}, bool(mask & bit))
    return family


def _fabric(gpus: list[Measured]) -> Metric:
    family = GaugeMetricFamily("gpuguard_fabric_health", "1 while this ails the fabric, by the bit of NVML's mask.")
    for gpu in gpus:
        mask = gpu.values.get("fabric_health_mask")
        if isinstance(mask, int):
            for bit, (shift, width) in FABRIC_BITS.items():
                field = mask >> shift & (1 << width) - 1
                if field:
                    _put(family, {**gpu.labels, "bit": bit}, field == 1 if width == 2 else field > 1)
    return family


def _links(snapshot: Snapshot, gpus: list[Measured]) -> Metric:
    family = GaugeMetricFamily(
        "gpuguard_pcie_link_degraded", "1 while the PCIe link is found narrower or slower than it can be, by kind."
    )
    standing = {(finding.subject, finding.code) for view in snapshot.subjects for finding in view.findings}
    for gpu in gpus:
        for kind, (code, column) in LINKS.items():
            found = (gpu.subject, code) in standing
            if found or gpu.values.get(column) is not None:
                _put(family, {**gpu.labels, "kind": kind}, found)
    return family


def _instances(snapshot: Snapshot) -> Metric:
    family = GaugeMetricFamily("gpuguard_mig_info", "Which MIG instances there are; `mig` is the GPU instance.")
    for instance in rows(snapshot, "mig"):
        named = {
            label: instance.values.get(column) or ""
            for label, column in (
                ("ci", "mig_compute_instances"), ("profile", "mig_profile"), ("mig_uuid", "mig_uuid")
            )
        }  # fmt: skip
        _put(family, {**instance.labels, **{label: str(value) for label, value in named.items()}}, True)
    return family


def _alive(snapshot: Snapshot) -> Metric:
    family = GaugeMetricFamily(
        "gpuguard_gpu_last_success_timestamp_seconds", "When the GPU last answered the driver's library."
    )
    for view in snapshot.subjects:
        heard = snapshot.shell.gpu_success.get(view.id)
        if heard is not None:
            family.samples.append(Sample(family.name, gpu_labels(view), heard))
    return family


def _put(family: Metric, labels: dict[str, str], true: bool) -> None:
    family.samples.append(Sample(family.name, labels, float(true)))
