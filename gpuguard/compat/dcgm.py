"""The page that a dcgm-exporter would show, for dashboards and alerts that were written for it.

Reads     the readings, the Xids and the sources of a Snapshot
Shape     Prometheus' text format, as dcgm-exporter prints it: families in the order of their names, whole numbers as
          such, others with six decimals, and on each row gpu, UUID, pci_bus_id, device, modelName, where it is about a
          MIG instance GPU_I_PROFILE and GPU_I_ID, then Hostname and DCGM_FI_DRIVER_VERSION, and last hpc_job: each job
          of Slurm on the GPU has its own rows
Units     DCGM's: MHz, MiB, percent, mJ, ns
Source    dcgm-exporter 4.8 default-counters.csv, internal/pkg/rendermetrics and, for hpc_job, which it reads from
          --hpc-job-mapping-dir, internal/pkg/transformation/hpc.go; DCGM 4.5 dcgm_fields.h

What is not known has no row, so no blank of DCGM's is ever shown. Three families are told better than by DCGM:
the last Xid is the last of five minutes, and 0 after that; NVLink's bandwidth is called the gauge that it is, unless a
site's dashboards need the lie; and a GPU that no longer answers loses its rows, not its neighbours theirs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gpuguard.model.health import Snapshot
from gpuguard.model.ids import NODE, PciAddress, SubjectId, kind_of, pci_of
from gpuguard.model.readings import Value, Values, merged

XID_STANDS = 300.0  # seconds: dcgm-exporter's own window for counting Xids
# Any of these would have seen an Xid; while all are blind, nobody knows that there was none.
XID_SOURCES = ("kmsg", "journal", "logfile", "nvml")
MIB = 2**20
JOBS = 8  # of one GPU: each doubles its rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How DCGM's names are spelled on this site."""

    hostname_label: Literal["Hostname", "hostname"] = "Hostname"  # dcgm-exporter prints hostname since May 2026
    hostname: str = ""  # what stands in that label; where it is empty, the name of this machine
    nvlink_bandwidth: Literal["gauge", "counter"] = "gauge"  # dcgm-exporter says counter, though it is a rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One of DCGM's metrics. `columns` are added up; `scale` makes DCGM's unit of the sum, `whole` a number without
    decimals. Without the column `beside`, DCGM would have no value either."""

    name: str
    help: str
    columns: tuple[str, ...]
    scale: float = 1.0
    whole: bool = True
    kind: Literal["gauge", "counter"] = "gauge"
    beside: str = ""


def _gauge(name: str, column: str, scale: float, help: str) -> Family:
    return Family(name=f"DCGM_FI_DEV_{name}", help=help, columns=(column,), scale=scale)


def _counter(name: str, column: str, help: str, scale: float = 1.0) -> Family:
    return Family(name=f"DCGM_FI_DEV_{name}", help=help, columns=(column,), scale=scale, kind="counter")


def _active(name: str, column: str, help: str) -> Family:
    return Family(name=f"DCGM_FI_PROF_{name}", help=help, columns=(f"{column}_ratio",), whole=False)


def _rate(name: str, column: str, help: str, beside: str = "") -> Family:
    columns = (f"{column}_bytes_per_second",)
    return Family(name=f"DCGM_FI_PROF_{name}", help=help, columns=columns, beside=beside)


# Where this is absent nobody profiles, and what gpuguard makes of NVLink's counters is NVLINK_BANDWIDTH_TOTAL alone.
PROFILED = "graphics_active_ratio"


NVLINK_BANDWIDTH = Family(
    name="DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", help="Total number of NVLink bandwidth counters for all lanes",
    columns=("nvlink_tx_bytes_per_second", "nvlink_rx_bytes_per_second"),
    scale=1 / 1024 / 1000,  # DCGM reads KiB and divides by 1000
)  # fmt: skip
XID_ERRORS = Family(name="DCGM_FI_DEV_XID_ERRORS", help="Value of the last XID error encountered.", columns=())

FAMILIES = (
    _gauge("SM_CLOCK", "sm_clock_hertz", 1e-6, "SM clock frequency (in MHz)."),
    _gauge("MEM_CLOCK", "memory_clock_hertz", 1e-6, "Memory clock frequency (in MHz)."),
    _gauge("CLOCK_THROTTLE_REASONS", "clock_events", 1.0, "Current clock throttle reasons (bitmask)."),
    _gauge("MEMORY_TEMP", "memory_temperature_celsius", 1.0, "Memory temperature (in C)."),
    _gauge("GPU_TEMP", "temperature_celsius", 1.0, "GPU temperature (in C)."),
    Family(
        name="DCGM_FI_DEV_POWER_USAGE", help="Power draw (in W).", columns=("power_watts",), whole=False
    ),
    _counter(
        "TOTAL_ENERGY_CONSUMPTION", "energy_joules_total", "Total energy consumption since boot (in mJ).", 1e3
    ),
    _counter("PCIE_REPLAY_COUNTER", "pcie_replay_total", "Total number of PCIe retries."),
    _gauge("GPU_UTIL", "utilization_ratio", 100.0, "GPU utilization (in %)."),
    _gauge("MEM_COPY_UTIL", "memory_copy_ratio", 100.0, "Memory utilization (in %)."),
    _gauge("ENC_UTIL", "encoder_ratio", 100.0, "Encoder utilization (in %)."),
    _gauge("DEC_UTIL", "decoder_ratio", 100.0, "Decoder utilization (in %)."),
    XID_ERRORS,
    *(
        _counter(f"{name}_VIOLATION", f"{column}_violation_seconds_total", f"{words} (in ns).", 1e9)
        for name, column, words in (
            ("POWER", "power", "Throttling duration due to power constraints"),
            ("THERMAL", "thermal", "Throttling duration due to thermal constraints"),
            ("SYNC_BOOST", "sync_boost", "Throttling duration due to sync-boost constraints"),
            ("BOARD_LIMIT", "board_limit", "Throttling duration due to board limit constraints"),
            ("LOW_UTIL", "low_utilization", "Throttling duration due to low utilization"),
            ("RELIABILITY", "reliability", "Throttling duration due to reliability constraints"),
        )
    ),
    _gauge("FB_FREE", "memory_free_bytes", 1 / MIB, "Framebuffer memory free (in MiB)."),
    _gauge("FB_USED", "memory_used_bytes", 1 / MIB, "Framebuffer memory used (in MiB)."),
    _gauge("FB_RESERVED", "memory_reserved_bytes", 1 / MIB, "Framebuffer memory reserved (in MiB)."),
    _gauge("BAR1_USED", "bar1_used_bytes", 1 / MIB, "BAR1 memory used (in MiB)."),
    _counter("ECC_SBE_VOL_TOTAL", "ecc_corrected_volatile", "Total number of single-bit volatile ECC errors."),
    _counter("ECC_DBE_VOL_TOTAL", "ecc_uncorrected_volatile", "Total number of double-bit volatile ECC errors."),
    _counter("ECC_SBE_AGG_TOTAL", "ecc_corrected_aggregate", "Total number of single-bit persistent ECC errors."),
    _counter("ECC_DBE_AGG_TOTAL", "ecc_uncorrected_aggregate", "Total number of double-bit persistent ECC errors."),
    _counter("RETIRED_SBE", "retired_pages_single_bit", "Total number of retired pages due to single-bit errors."),
    _counter("RETIRED_DBE", "retired_pages_double_bit", "Total number of retired pages due to double-bit errors."),
    _counter("RETIRED_PENDING", "retired_pages_pending", "Total number of pages pending retirement."),
    _counter(
        "UNCORRECTABLE_REMAPPED_ROWS", "remapped_rows_uncorrectable",
        "Number of remapped rows for uncorrectable errors",
    ),
    _counter(
        "CORRECTABLE_REMAPPED_ROWS", "remapped_rows_correctable", "Number of remapped rows for correctable errors"
    ),
    _gauge("ROW_REMAP_FAILURE", "row_remap_failure", 1.0, "Whether remapping of rows has failed"),
    _gauge("ROW_REMAP_PENDING", "row_remap_pending", 1.0, "Whether remapping of rows is pending"),
    _gauge("GPU_RECOVERY_ACTION", "recovery_action", 1.0, "What the driver advises to do with the GPU."),
    _counter(
        "NVLINK_REPLAY_ERROR_COUNT_TOTAL", "nvlink_replay_errors_total", "Total number of NVLink retries."
    ),
    _counter(
        "NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "nvlink_recovery_errors_total",
        "Total number of NVLink recovery errors.",
    ),
    NVLINK_BANDWIDTH,
    _active("GR_ENGINE_ACTIVE", "graphics_active", "Ratio of time the graphics engine is active."),
    _active("SM_ACTIVE", "sm_active", "The ratio of cycles an SM has at least 1 warp assigned."),
    _active("SM_OCCUPANCY", "sm_occupancy", "The ratio of number of warps resident on an SM."),
    _active("PIPE_TENSOR_ACTIVE", "tensor_active", "Ratio of cycles the tensor (HMMA) pipe is active."),
    _active(
        "DRAM_ACTIVE", "dram_active",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
    ),
    _active("PIPE_FP64_ACTIVE", "fp64_active", "Ratio of cycles the fp64 pipes are active."),
    _active("PIPE_FP32_ACTIVE", "fp32_active", "Ratio of cycles the fp32 pipes are active."),
    _active("PIPE_FP16_ACTIVE", "fp16_active", "Ratio of cycles the fp16 pipes are active."),
    _rate("PCIE_TX_BYTES", "pcie_tx", "The rate of data transmitted over the PCIe bus in bytes per second."),
    _rate("PCIE_RX_BYTES", "pcie_rx", "The rate of data received over the PCIe bus in bytes per second."),
    _rate("NVLINK_TX_BYTES", "nvlink_tx", "The rate of data transmitted over NVLink in bytes per second.", PROFILED),
    _rate("NVLINK_RX_BYTES", "nvlink_rx", "The rate of data received over NVLink in bytes per second.", PROFILED),
)  # fmt: skip

# The labels of a row as they are printed, and where its value comes from.
Row = tuple[str, Callable[[Family], float | None]]


def page(snapshot: Snapshot, settings: Settings, hostname: str) -> str:
    """The page as text; `hostname` is the name of this machine."""
    rows = list(_rows(snapshot, settings, hostname))
    lines: list[str] = []
    for family in sorted(FAMILIES, key=lambda family: family.name):
        told = [(labels, value) for labels, value_of in rows if (value := value_of(family)) is not None]
        if not told:
            continue
        kind = settings.nvlink_bandwidth if family is NVLINK_BANDWIDTH else family.kind
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {kind}"]
        lines += [f"{family.name}{{{labels}}} {_printed(family, value)}" for labels, value in told]
    return "".join(f"{line}\n" for line in lines)


def _rows(snapshot: Snapshot, settings: Settings, hostname: str) -> Iterator[Row]:
    """GPUs in the order of their index, each followed by its MIG instances."""
    known = {subject: merged(groups, snapshot.at) for subject, groups in snapshot.readings.items()}
    uuids = {subject.id: subject.uuid for subject in snapshot.subjects}
    gpus = {
        subject: index for subject, values in known.items()
        if kind_of(subject) == "gpu" and isinstance(index := values.get("gpu_index"), int)
    }  # fmt: skip
    host = f',{settings.hostname_label}="{_escaped(settings.hostname or hostname)}"'
    driver = known.get(NODE, {}).get("driver_version")
    end = host + (f',DCGM_FI_DRIVER_VERSION="{_escaped(driver)}"' if isinstance(driver, str) else "")
    for subject in sorted(gpus, key=lambda subject: gpus[subject]):
        values = known[subject]
        whose = _whose(subject, gpus[subject], values, uuids.get(subject) or "")
        jobs = _hpc_jobs(values)
        yield from ((whose + end + job, _gpu_values(snapshot, subject, values)) for job in jobs)
        instances = [other for other in known if other.startswith(f"mig:{pci_of(subject)}/")]
        for instance in sorted(instances, key=lambda other: (len(other), other)):
            profile, number = known[instance].get("mig_profile"), instance.rpartition("/")[2]
            named = f',GPU_I_PROFILE="{_escaped(profile if isinstance(profile, str) else "")}",GPU_I_ID="{number}"'
            yield from ((whose + named + end + job, _instance_values(known[instance])) for job in jobs)


def _hpc_jobs(values: Values) -> list[str]:
    """The label of each job of Slurm on the GPU, by Slurm's number; one without any, where there is none."""
    told = values.get("gpu_job")
    names = [name.strip() for name in told.split(",")][:JOBS] if isinstance(told, str) else []
    numbers = [name.removeprefix("slurm/") for name in names if name.startswith("slurm/")]
    return [f',hpc_job="{_escaped(number)}"' for number in dict.fromkeys(numbers)] or [""]


def _whose(subject: SubjectId, index: int, values: Values, uuid: str) -> str:
    """The labels that name a GPU, in dcgm-exporter's spelling and order."""
    minor, told = values.get("gpu_minor"), values.get("gpu_uuid")
    domain, _, rest = (pci_of(subject) or PciAddress("")).partition(":")
    labels = {
        "gpu": str(index),
        "UUID": told if isinstance(told, str) else uuid,
        "pci_bus_id": f"{domain:0>8}:{rest}".upper(),
        "device": f"nvidia{minor if isinstance(minor, int) else index}",
        "modelName": name if isinstance(name := values.get("gpu_name"), str) else "",
    }
    return ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())


def _gpu_values(snapshot: Snapshot, subject: SubjectId, values: Values) -> Callable[[Family], float | None]:
    def value_of(family: Family) -> float | None:
        return _last_xid(snapshot, subject) if family is XID_ERRORS else _summed(family, values, "")

    return value_of


def _instance_values(values: Values) -> Callable[[Family], float | None]:
    return lambda family: _summed(family, values, "mig_")


def _summed(family: Family, values: Mapping[str, Value], prefix: str) -> float | None:
    if family.beside and prefix + family.beside not in values:
        return None
    parts = [values.get(prefix + column) for column in family.columns]
    numbers = [part for part in parts if isinstance(part, int | float)]
    return sum(numbers) * family.scale if numbers and len(numbers) == len(parts) else None


def _last_xid(snapshot: Snapshot, subject: SubjectId) -> float | None:
    """The newest Xid of the last five minutes, 0 where there was none; None while nobody would have seen one."""
    now = snapshot.at.utc
    if now is None or not any(s.level != "blind" for s in snapshot.shell.sources if s.name in XID_SOURCES):
        return None
    recent = [
        (seen.last_utc, seen.xid) for seen in snapshot.shell.xids
        if seen.pci == pci_of(subject) and seen.last_utc is not None and abs(now - seen.last_utc) < XID_STANDS
    ]  # fmt: skip
    return float(max(recent)[1]) if recent else 0.0


def _printed(family: Family, value: float) -> str:
    return str(round(value)) if family.whole else f"{value:.6f}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
