"""The page in dcgm-exporter's names: its units, labels and silences."""

import re
from collections.abc import Mapping

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuguard.compat.dcgm import FAMILIES, XID_ERRORS, Settings, page
from gpuguard.model.events import SourceLevel
from gpuguard.model.health import ShellFacts, Snapshot, SourceView, XidSeen
from gpuguard.model.ids import PciAddress, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.quantities import BY_NAME
from gpuguard.model.readings import Group, Values
from tests.support.core import BOOT, UTC, instant
from tests.support.snapshots import full

PCI = PciAddress("0000:1b:00.0")
GPU = f"gpu:{PCI}"
IDENTITY: Values = {
    "gpu_uuid": "GPU-6a1d2c3b-0000-4000-8000-000000000001", "gpu_index": 3, "gpu_minor": 5,
    "gpu_name": "NVIDIA H100 80GB HBM3",
}  # fmt: skip
NODE: Values = {"driver_version": "570.124.06"}
LABELS = (
    'gpu="3",UUID="GPU-6a1d2c3b-0000-4000-8000-000000000001",pci_bus_id="00000000:1B:00.0",device="nvidia5",'
    'modelName="NVIDIA H100 80GB HBM3"'
)
END = 'Hostname="node1",DCGM_FI_DRIVER_VERSION="570.124.06"'
# Dashboard 12239 asks for these, by instance (which Prometheus adds) and gpu.
DASHBOARD = (
    "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
)  # fmt: skip


def snapshot(
    rows: Mapping[str, Values], *, now: Instant | None = None, level: SourceLevel = "watching", **shell: object
) -> Snapshot:
    readings = {
        SubjectId(subject): {
            "nvml/fast": Group(source="nvml", rate="fast", at=instant(95.0), valid_for=30.0, values=values)
        }
        for subject, values in rows.items()
    }
    source = SourceView(name="kmsg", level=level, reason="", last_success_utc=UTC, lost=0, restarts=0)
    facts = ShellFacts(version="0", mode="observe", policy="default", sources=(source,), **shell)  # type: ignore[arg-type]
    return msgspec.structs.replace(
        full(), at=now or instant(100.0), boot=BOOT, subjects=(), readings=readings, shell=facts
    )


def shown(rows: Mapping[str, Values], **more: object) -> dict[str, str]:
    """The values on the page by name and labels."""
    text = page(snapshot({"node": NODE, **rows}, **more), Settings(), "node1")  # type: ignore[arg-type]
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def value(name: str, values: Values, **more: object) -> str | None:
    return shown({GPU: {**IDENTITY, **values}}, **more).get(f"{name}{{{LABELS},{END}}}")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "values", "printed"),
    [
        ("DCGM_FI_DEV_SM_CLOCK", {"sm_clock_hertz": 1.98e9}, "1980"),
        ("DCGM_FI_DEV_GPU_TEMP", {"temperature_celsius": 61}, "61"),
        ("DCGM_FI_DEV_POWER_USAGE", {"power_watts": 412.0625}, "412.062500"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", {"energy_joules_total": 28896000.123}, "28896000123"),
        ("DCGM_FI_DEV_GPU_UTIL", {"utilization_ratio": 0.57}, "57"),
        ("DCGM_FI_DEV_FB_USED", {"memory_used_bytes": 71 * 2**30}, "72704"),
        ("DCGM_FI_DEV_POWER_VIOLATION", {"power_violation_seconds_total": 1.5}, "1500000000"),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", {"ecc_uncorrected_volatile": 2}, "2"),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", {"row_remap_failure": 0}, "0"),
        ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", {"remapped_rows_correctable": 4}, "4"),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", {"tensor_active_ratio": 0.4213}, "0.421300"),
        ("DCGM_FI_PROF_PCIE_RX_BYTES", {"pcie_rx_bytes_per_second": 612345678.4}, "612345678"),
        (
            "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
            {"nvlink_tx_bytes_per_second": 1024e6, "nvlink_rx_bytes_per_second": 2048e6}, "3000",
        ),
    ],
)  # fmt: skip
def test_units_and_decimals_are_dcgms(name: str, values: Values, printed: str) -> None:
    assert value(name, values) == printed


def test_what_is_absent_or_unknown_has_no_row() -> None:
    told = shown({GPU: {**IDENTITY, "memory_temperature_celsius": None, "sm_active_ratio": 0.0}})
    assert [name.partition("{")[0] for name in told] == ["DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_PROF_SM_ACTIVE"]
    assert value("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", {"nvlink_tx_bytes_per_second": 1.0}) is None


def test_what_is_too_old_has_no_row() -> None:
    assert shown({GPU: {**IDENTITY, "temperature_celsius": 61}}, now=instant(200.0)) == {}


def test_a_gpu_without_a_name_has_no_row_and_its_neighbour_keeps_its_own() -> None:
    told = shown({GPU: {"temperature_celsius": 61}, "gpu:0000:43:00.0": {**IDENTITY, "temperature_celsius": 62}})
    assert {name.partition("{")[0]: value for name, value in told.items()}["DCGM_FI_DEV_GPU_TEMP"] == "62"
    assert not any("1B:00.0" in name for name in told)


def test_the_uuid_may_come_from_elsewhere() -> None:
    rows = {"gpu:0000:4e:00.0": {"gpu_index": 0, "temperature_celsius": 50}}
    read = msgspec.structs.replace(snapshot(rows), subjects=full().subjects)
    assert 'UUID="GPU-6a1d2c3b-0000-4000-8000-000000000001"' in page(read, Settings(), "node1")


def test_a_mig_instance_has_rows_of_its_own() -> None:
    told = shown(
        {
            GPU: {**IDENTITY, "temperature_celsius": 50},
            f"mig:{PCI}/9": {"mig_profile": "1g.10gb", "mig_sm_active_ratio": 0.5, "mig_memory_used_bytes": 2**30},
        }
    )
    instance = f'{{{LABELS},GPU_I_PROFILE="1g.10gb",GPU_I_ID="9",{END}}}'
    assert told[f"DCGM_FI_PROF_SM_ACTIVE{instance}"] == "0.500000"
    assert told[f"DCGM_FI_DEV_FB_USED{instance}"] == "1024"
    assert f"DCGM_FI_DEV_XID_ERRORS{instance}" not in told


def test_the_jobs_of_slurm_on_a_gpu_each_have_rows() -> None:
    rows: dict[str, Values] = {
        GPU: {**IDENTITY, "temperature_celsius": 50, "gpu_job": 'slurm/8123, kubernetes/0f1e,slurm/8124,slurm/x"y'},
        f"mig:{PCI}/9": {"mig_profile": "1g.10gb", "mig_sm_active_ratio": 0.5},
        "gpu:0000:43:00.0": {**IDENTITY, "gpu_index": 4, "temperature_celsius": 51, "gpu_job": "kubernetes/0f1e"},
    }
    told = [name for name in shown(rows) if name.startswith(("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_PROF_SM_ACTIVE"))]
    assert [name.partition(END)[2] for name in told] == [
        ',hpc_job="8123"}', ',hpc_job="8124"}', r',hpc_job="x\"y"}', "}",
        ',hpc_job="8123"}', ',hpc_job="8124"}', r',hpc_job="x\"y"}',
    ]  # fmt: skip


def test_rates_that_were_made_of_counters_are_no_profiling() -> None:
    """On Ampere without DCGM."""
    counted: Values = {**IDENTITY, "nvlink_tx_bytes_per_second": 1024e6, "nvlink_rx_bytes_per_second": 0.0}
    names = {row.partition("{")[0] for row in shown({GPU: counted})}
    assert {name for name in names if "NVLINK" in name} == {"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"}
    assert len([row for row in shown({GPU: {**counted, "graphics_active_ratio": None}}) if "NVLINK" in row]) == 3


def test_a_site_spells_the_host_and_types_nvlink_as_it_likes() -> None:
    values: Values = {**IDENTITY, "nvlink_tx_bytes_per_second": 1.0, "nvlink_rx_bytes_per_second": 1.0}
    read = snapshot({"node": NODE, GPU: values})
    newer = Settings(hostname_label="hostname", hostname='odd "name"', nvlink_bandwidth="counter")
    assert r',hostname="odd \"name\"",DCGM_FI_DRIVER' in page(read, newer, "node1")
    assert "# TYPE DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL counter\n" in page(read, newer, "node1")
    assert "# TYPE DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL gauge\n" in page(read, Settings(), "node1")


# --- the last Xid ------------------------------------------------------------------------------------------------

NOW = UTC + 100.0


def xid(code: int, ago: float, pci: str | None = PCI) -> XidSeen:
    return XidSeen(pci=PciAddress(pci) if pci else None, xid=code, count=1, last_utc=NOW - ago)


@pytest.mark.parametrize(
    ("seen", "printed"),
    [
        ((), "0"),
        ((xid(79, 299.0), xid(31, 250.0)), "31"),
        ((xid(79, 301.0),), "0"),
        ((xid(79, 10.0, "0000:43:00.0"), xid(48, 5.0, None)), "0"),
        ((XidSeen(pci=PCI, xid=79, count=1, last_utc=None),), "0"),
        ((xid(74, -20.0),), "74"),  # the clock was set back
    ],
)
def test_the_last_xid_stands_for_five_minutes(seen: tuple[XidSeen, ...], printed: str) -> None:
    assert value(XID_ERRORS.name, {}, xids=seen) == printed


def test_the_last_xid_of_a_gpu_that_is_lost_is_still_told() -> None:
    fast = Group(source="nvml", rate="fast", at=instant(95.0), valid_for=15.0, values={"gpu_up": 0, "nvml_error": 15})
    slow = Group(source="nvml", rate="slow", at=instant(10.0), valid_for=1800.0, values=IDENTITY)
    read = msgspec.structs.replace(
        snapshot({}, xids=(xid(79, 10.0),)), readings={SubjectId(GPU): {"nvml/fast": fast, "nvml/slow": slow}}
    )
    rows = [line for line in page(read, Settings(), "node1").splitlines() if not line.startswith("#")]
    assert rows == [f'{XID_ERRORS.name}{{{LABELS},Hostname="node1"}} 79']


def test_while_nobody_would_see_an_xid_there_is_no_zero() -> None:
    assert value(XID_ERRORS.name, {}, level="degraded") == "0"
    assert value(XID_ERRORS.name, {}, level="blind", xids=(xid(79, 1.0),)) is None


# --- the page as a whole -------------------------------------------------------------------------------------------


def test_every_family_is_one_of_dcgms_over_columns_that_exist() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"DCGM_FI_(DEV|PROF)_[A-Z0-9_]+", name) for name in names)
    assert {column for family in FAMILIES for column in family.columns} <= BY_NAME.keys()


def test_prometheus_reads_it_and_the_dashboard_finds_its_own() -> None:
    columns = {column for family in FAMILIES for column in family.columns}
    everything: Values = {**IDENTITY, **dict.fromkeys(columns, 1)}
    text = page(snapshot({"node": NODE, GPU: everything}), Settings(), "node1")
    rows = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels["gpu"] for sample in rows} == {"3"}
    names = re.findall(r"^(DCGM_\w+)\{", text, flags=re.MULTILINE)
    assert names == sorted(family.name for family in FAMILIES)
    assert set(DASHBOARD) <= set(names)
    assert "gpuguard_" not in text
