"""The metrics that were promised are there, each under its own name, on a node of which everything is known."""

import pytest

from gpuguard.runtime.plugins import shelf
from tests.support.snapshots import full

PAGE = """
gpu_info gpu_up gpu_last_success_timestamp_seconds
gpus_expected gpus_visible gpus_lost
nvml_hung nvml_call_duration_seconds collect_duration_seconds
collect_errors_total rejected_samples_total build_info
sm_clock_hertz memory_clock_hertz
temperature_celsius memory_temperature_celsius temperature_margin_celsius
power_watts power_limit_watts power_default_limit_watts energy_joules_total
utilization_ratio memory_copy_ratio encoder_ratio decoder_ratio
memory_total_bytes memory_used_bytes memory_free_bytes memory_reserved_bytes
bar1_used_bytes
sm_active_ratio sm_occupancy_ratio graphics_active_ratio tensor_active_ratio dram_active_ratio
fp64_active_ratio fp32_active_ratio fp16_active_ratio
pcie_tx_bytes_per_second pcie_rx_bytes_per_second
nvlink_tx_bytes_total nvlink_rx_bytes_total
nvlink_crc_errors_total nvlink_replay_errors_total nvlink_recovery_errors_total nvlink5_errors_total
nvlink_up nvlinks_active nvlinks_expected
pcie_link_generation pcie_link_width pcie_link_degraded pcie_replay_total
clock_event_active clock_event_seconds_total
ecc_errors_total
remapped_rows row_remap_pending row_remap_failure
xid_errors_total xid_last_timestamp_seconds recovery_action
fabric_state fabric_health
health_status
topology_drift topology_changed_total
mig_info process_count
sm_application_clock_hertz sm_clock_limit_hertz
samples_due_total samples_taken_total
"""
PROMISED = PAGE.split()

# The labels that tell the series of a metric apart, where there are more than those of its GPU.
LABELS = {
    "nvlink_tx_bytes_total": {"link"}, "nvlink_rx_bytes_total": {"link"}, "nvlink_up": {"link", "peer"},
    "nvlink5_errors_total": {"kind"}, "pcie_link_degraded": {"kind"}, "clock_event_active": {"reason"},
    "clock_event_seconds_total": {"reason"}, "ecc_errors_total": {"type", "scope"}, "remapped_rows": {"kind"},
    "xid_errors_total": {"xid"}, "xid_last_timestamp_seconds": {"xid"}, "fabric_health": {"bit"},
    "health_status": {"watch"}, "mig_info": {"mig", "ci", "profile", "mig_uuid"},
    "gpu_info": {"pci", "serial", "model", "vbios"},
}  # fmt: skip
OF_THE_NODE = {
    "gpus_expected", "gpus_visible", "gpus_lost", "nvml_hung", "nvml_call_duration_seconds", "samples_due_total",
    "collect_duration_seconds", "collect_errors_total", "rejected_samples_total", "build_info", "samples_taken_total",
    "topology_drift", "topology_changed_total",
}  # fmt: skip


def _shown() -> dict[str, set[str]]:
    """The name of every family, as it is on the page, with the labels of its first sample."""
    snapshot = full()
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: set(family.samples[0].labels)
        for module in shelf("gpuguard.metrics").values() for family in module.families(snapshot)
    }  # fmt: skip


SHOWN = _shown()


@pytest.mark.parametrize("name", PROMISED)
def test_it_is_exported(name: str) -> None:
    assert f"gpuguard_{name}" in SHOWN


@pytest.mark.parametrize("name", [name for name in PROMISED if name not in OF_THE_NODE])
def test_it_says_of_which_gpu_and_part(name: str) -> None:
    assert SHOWN[f"gpuguard_{name}"] == {"gpu", "uuid"} | LABELS.get(name, set())
