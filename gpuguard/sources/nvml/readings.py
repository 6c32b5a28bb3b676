"""Which of NVML's answers becomes which column: tables, from the library's units to base units.

An `Ask` is one call with the columns that its answer fills; the next in a tuple is asked where this machine, or this
driver, does not know the first. A `Field` is one entry of the batch of nvmlDeviceGetFieldValues; what it fills is asked
by its `instead` where the field is not supported.

Source  nvml.h 13.5: NVML_FI_DEV_*, NVML_GPM_METRIC_* (NVLink: fields list TX first, GPM lists RX first)
"""

from typing import NamedTuple

from gpuguard.model.quantities import BY_NAME
from gpuguard.sources.nvml.library import ALL_LINKS

MEBIBYTE = 2**20
KIBIBYTE = 2**10


class Column(NamedTuple):
    """Where a number goes, and how it gets there: times `factor`, or over `divisor` where that is not 1.

    Divided rather than multiplied by a fraction, so that 57 percent is 0.57 and not 0.5700000000000001.
    """

    name: str
    low: float
    high: float
    factor: int = 1
    divisor: int = 1
    key: str = ""


class Ask(NamedTuple):
    """One call about a GPU; `text` where its answer is no number."""

    call: str
    columns: tuple[Column, ...]
    arguments: tuple[int, ...] = ()
    text: bool = False


class Field(NamedTuple):
    """One field value; `instead` names the calls that fill its column where the field is not supported."""

    field: int
    scope: int
    column: Column
    instead: tuple[Ask, ...] = ()


def column(name: str, factor: int = 1, *, over: int = 1, key: str = "") -> Column:
    """The column with the bounds of its quantity."""
    quantity = BY_NAME[name]
    low = float("-inf") if quantity.low is None else quantity.low
    high = float("inf") if quantity.high is None else quantity.high
    return Column(name, low, high, factor, over, key)


def _ask(call: str, name: str, factor: int = 1, *arguments: int, over: int = 1) -> Ask:
    return Ask(call, (column(name, factor, over=over),), arguments)


def _struct(call: str, *columns: Column, arguments: tuple[int, ...] = ()) -> Ask:
    return Ask(call, columns, arguments)


def _text(call: str, name: str) -> Ask:
    return Ask(call, (column(name),), text=True)


MEGA = 10**6
_REMAPPED = _struct(
    "nvmlDeviceGetRemappedRows",
    column("remapped_rows_correctable", key="corrRows"),
    column("remapped_rows_uncorrectable", key="uncRows"),
    column("row_remap_pending", key="isPending"),
    column("row_remap_failure", key="failureOccurred"),
)

FAST: tuple[tuple[Ask, ...], ...] = (
    (_ask("nvmlDeviceGetPerformanceState", "performance_state"),),
    (_ask("nvmlDeviceGetClockInfo", "sm_clock_hertz", MEGA, 1),),
    (_ask("nvmlDeviceGetClockInfo", "memory_clock_hertz", MEGA, 2),),
    (
        _ask("nvmlDeviceGetTemperatureV", "temperature_celsius", 1, 0),
        _ask("nvmlDeviceGetTemperature", "temperature_celsius", 1, 0),
    ),
    (_ask("nvmlDeviceGetMarginTemperature", "temperature_margin_celsius"),),
    (_ask("nvmlDeviceGetPowerUsage", "power_watts", over=1000),),
    (
        _ask("nvmlDeviceGetCurrentClocksEventReasons", "clock_events"),
        _ask("nvmlDeviceGetCurrentClocksThrottleReasons", "clock_events"),
    ),
    (
        _struct(
            "nvmlDeviceGetUtilizationRates",
            column("utilization_ratio", over=100, key="gpu"),
            column("memory_copy_ratio", over=100, key="memory"),
        ),
    ),
    (
        _struct(
            "nvmlDeviceGetMemoryInfo_v2",
            column("memory_total_bytes", key="total"),
            column("memory_used_bytes", key="used"),
            column("memory_free_bytes", key="free"),
            column("memory_reserved_bytes", key="reserved"),
        ),
        # Since driver 510 this one counts what the driver reserves as used; only older ones are asked it.
        _struct(
            "nvmlDeviceGetMemoryInfo",
            column("memory_total_bytes", key="total"),
            column("memory_used_bytes", key="used"),
            column("memory_free_bytes", key="free"),
        ),
    ),
)


def _limiter(field: int, reason: str) -> Field:
    return Field(field, 0, column(f"{reason}_seconds_total", over=10**9))


FAST_FIELDS: tuple[Field, ...] = (
    Field(82, 0, column("memory_temperature_celsius")),
    Field(
        83, 0, column("energy_joules_total", over=1000),
        (_ask("nvmlDeviceGetTotalEnergyConsumption", "energy_joules_total", over=1000),),
    ),
    _limiter(74, "power_violation"),
    _limiter(75, "thermal_violation"),
    _limiter(76, "sync_boost_violation"),
    _limiter(77, "board_limit_violation"),
    _limiter(78, "low_utilization_violation"),
    _limiter(79, "reliability_violation"),
    _limiter(269, "sw_thermal_slowdown"),
    _limiter(270, "hw_thermal_slowdown"),
    _limiter(271, "hw_power_brake"),
    Field(94, 0, column("pcie_replay_total"), (_ask("nvmlDeviceGetPcieReplayCounter", "pcie_replay_total"),)),
    Field(138, ALL_LINKS, column("nvlink_tx_bytes_all_total", KIBIBYTE)),
    Field(139, ALL_LINKS, column("nvlink_rx_bytes_all_total", KIBIBYTE)),
    Field(142, 0, column("remapped_rows_correctable"), (_REMAPPED,)),
    Field(143, 0, column("remapped_rows_uncorrectable"), (_REMAPPED,)),
    Field(144, 0, column("row_remap_pending"), (_REMAPPED,)),
    Field(145, 0, column("row_remap_failure"), (_REMAPPED,)),
    Field(230, 0, column("recovery_action")),
)  # fmt: skip
# Of NVLink; while MIG mode is on they say nothing.
LINK_FIELDS = frozenset({138, 139})

GPM: dict[int, Column] = {
    1: column("graphics_active_ratio", over=100),
    2: column("sm_active_ratio", over=100),
    3: column("sm_occupancy_ratio", over=100),
    5: column("tensor_active_ratio", over=100),
    10: column("dram_active_ratio", over=100),
    11: column("fp64_active_ratio", over=100),
    12: column("fp32_active_ratio", over=100),
    13: column("fp16_active_ratio", over=100),
    20: column("pcie_tx_bytes_per_second", MEBIBYTE),
    21: column("pcie_rx_bytes_per_second", MEBIBYTE),
    60: column("nvlink_rx_bytes_per_second", MEBIBYTE),
    61: column("nvlink_tx_bytes_per_second", MEBIBYTE),
}
GPM_OF_PART: dict[int, Column] = {
    1: column("mig_graphics_active_ratio", over=100),
    2: column("mig_sm_active_ratio", over=100),
    3: column("mig_sm_occupancy_ratio", over=100),
    5: column("mig_tensor_active_ratio", over=100),
    10: column("mig_dram_active_ratio", over=100),
}
MEMORY_OF_PART = (
    _struct(
        "nvmlDeviceGetMemoryInfo_v2",
        column("mig_memory_total_bytes", key="total"),
        column("mig_memory_used_bytes", key="used"),
    ),
    _struct(
        "nvmlDeviceGetMemoryInfo",
        column("mig_memory_total_bytes", key="total"),
        column("mig_memory_used_bytes", key="used"),
    ),
)


def _errors(name: str, kind: int, counter: int) -> tuple[Ask, ...]:
    return (_ask("nvmlDeviceGetTotalEccErrors", name, 1, kind, counter),)


def _located(name: str, kind: int, counter: int, place: int) -> Ask:
    return _ask("nvmlDeviceGetMemoryErrorCounter", name, 1, kind, counter, place)


DRAM, SRAM = 2, 7  # nvmlMemoryLocation_t

MEDIUM: tuple[tuple[Ask, ...], ...] = (
    (_located("ecc_dram_corrected", 0, 0, DRAM),),
    (_located("ecc_dram_uncorrected", 1, 0, DRAM),),
    (_located("ecc_sram_corrected", 0, 0, SRAM),),
    (_located("ecc_sram_uncorrected", 1, 0, SRAM),),
    (_located("ecc_sram_uncorrected_aggregate", 1, 1, SRAM),),
    (
        _struct(
            "nvmlDeviceGetSramEccErrorStatus", column("sram_threshold_exceeded", key="bThresholdExceeded")
        ),
    ),
    (_ask("nvmlDeviceGetUnrepairableMemoryFlag_v1", "memory_unrepairable"),),
    (_ask("nvmlDeviceGetCurrPcieLinkGeneration", "pcie_link_generation"),),
    (_ask("nvmlDeviceGetCurrPcieLinkWidth", "pcie_link_width"),),
    (
        _struct("nvmlDeviceGetEncoderUtilization", column("encoder_ratio", over=100, key="utilization")),
    ),
    (
        _struct("nvmlDeviceGetDecoderUtilization", column("decoder_ratio", over=100, key="utilization")),
    ),
    (_struct("nvmlDeviceGetBAR1MemoryInfo", column("bar1_used_bytes", key="bar1Used")),),
    (_ask("nvmlDeviceGetEnforcedPowerLimit", "power_limit_watts", over=1000),),
    (_ask("nvmlDeviceGetPersistenceMode", "persistence_mode"),),
    (_ask("nvmlDeviceGetComputeMode", "compute_mode"),),
    (
        _struct(
            "nvmlDeviceGetEccMode", column("ecc_mode", key="current"), column("ecc_mode_pending", key="pending")
        ),
    ),
)  # fmt: skip

MEDIUM_FIELDS: tuple[Field, ...] = (
    Field(3, 0, column("ecc_corrected_volatile"), _errors("ecc_corrected_volatile", 0, 0)),
    Field(4, 0, column("ecc_uncorrected_volatile"), _errors("ecc_uncorrected_volatile", 1, 0)),
    Field(5, 0, column("ecc_corrected_aggregate"), _errors("ecc_corrected_aggregate", 0, 1)),
    Field(6, 0, column("ecc_uncorrected_aggregate"), _errors("ecc_uncorrected_aggregate", 1, 1)),
    Field(29, 0, column("retired_pages_single_bit")),
    Field(30, 0, column("retired_pages_double_bit")),
    Field(31, 0, column("retired_pages_pending")),
)

SLOW: tuple[tuple[Ask, ...], ...] = (
    (_text("nvmlDeviceGetSerial", "gpu_serial"),),
    (_text("nvmlDeviceGetName", "gpu_name"),),
    (_text("nvmlDeviceGetVbiosVersion", "gpu_vbios"),),
    (_text("nvmlDeviceGetInforomImageVersion", "gpu_inforom"),),
    (_ask("nvmlDeviceGetMinorNumber", "gpu_minor"),),
    (_ask("nvmlDeviceGetArchitecture", "gpu_architecture"),),
    (_ask("nvmlDeviceGetModuleId", "gpu_module_id"),),
    (_ask("nvmlDeviceGetNumaNodeId", "gpu_memory_numa_node"),),
    (_ask("nvmlDeviceGetMaxClockInfo", "sm_clock_limit_hertz", MEGA, 1),),
    (_ask("nvmlDeviceGetMaxClockInfo", "memory_clock_limit_hertz", MEGA, 2),),
    (_ask("nvmlDeviceGetApplicationsClock", "sm_application_clock_hertz", MEGA, 1),),
    (_ask("nvmlDeviceGetTemperatureThreshold", "shutdown_temperature_celsius", 1, 0),),
    (_ask("nvmlDeviceGetTemperatureThreshold", "slowdown_temperature_celsius", 1, 1),),
    (_ask("nvmlDeviceGetTemperatureThreshold", "memory_temperature_limit_celsius", 1, 2),),
    (_ask("nvmlDeviceGetTemperatureThreshold", "operating_temperature_limit_celsius", 1, 3),),
    (_ask("nvmlDeviceGetPowerManagementDefaultLimit", "power_default_limit_watts", over=1000),),
    (
        _struct(
            "nvmlDeviceGetPowerManagementLimitConstraints",
            column("power_highest_limit_watts", over=1000, key="maxLimit"),
        ),
    ),
    (_ask("nvmlDeviceGetMaxPcieLinkGeneration", "pcie_link_generation_limit"),),
    (_ask("nvmlDeviceGetMaxPcieLinkWidth", "pcie_link_width_limit"),),
    (
        _struct(
            "nvmlDeviceGetRowRemapperHistogram",
            column("remap_banks_all", key="max"),
            column("remap_banks_most", key="high"),
            column("remap_banks_some", key="partial"),
            column("remap_banks_few", key="low"),
            column("remap_banks_none", key="none"),
        ),
    ),
)

# --- NVLink, one entry for each link ---------------------------------------------------------------------------------

LINK_COUNT = 91
LINK_STATE = 165
LINK_TX, LINK_RX = 138, 139  # KiB of payload
LINK5_TX, LINK5_RX = 202, 204  # bytes; NVLink 5
# nvmlNvLinkErrorCounter_t, by column: Pascal to Hopper
ERROR_CALLS: dict[str, tuple[int, ...]] = {
    "nvlink_replay_errors_total": (0,), "nvlink_recovery_errors_total": (1,), "nvlink_crc_errors_total": (2, 3),
}  # fmt: skip
# Summed over links; 161 to 163 are Hopper's, those from 206 NVLink 5's.
SUMMED: dict[int, Column] = {
    161: column("nvlink_replay_errors_total"),
    162: column("nvlink_recovery_errors_total"),
    163: column("nvlink_crc_errors_total"),
    206: column("nvlink5_malformed_total"),
    207: column("nvlink5_buffer_overrun_total"),
    208: column("nvlink5_receive_total"),
    209: column("nvlink5_receive_remote_total"),
    210: column("nvlink5_receive_general_total"),
    211: column("nvlink5_local_integrity_total"),
    212: column("nvlink5_transmit_discards_total"),
    213: column("nvlink5_recovery_successful_total"),
    214: column("nvlink5_recovery_failed_total"),
    215: column("nvlink5_recovery_events_total"),
    219: column("nvlink5_effective_total"),
    221: column("nvlink5_symbol_total"),
}
# The worst link counts; packed as m * 10^-e.
RATES: dict[int, Column] = {220: column("nvlink_effective_ber"), 222: column("nvlink_symbol_ber")}
# Links to switches; what one link carries, in MB/s: of all that are up, and of each from Hopper on.
SWITCHED, LINKS_SPEED, LINK_SPEED = 147, 90, 164
LINK_UP = frozenset({1, 2})  # active, and asleep to save power; 3 is active but carries no traffic


def unpack_rate(packed: int) -> float:
    """A bit error rate from its bits.

    Shape   bits 0 to 7 the exponent e, 8 to 11 the mantissa m: m * 10^-e; 15 * 10^-255 means none
    """
    exponent, mantissa = packed & 0xFF, packed >> 8 & 0xF
    return 0.0 if (mantissa, exponent) == (15, 255) else mantissa * 10.0**-exponent


# --- fabric ----------------------------------------------------------------------------------------------------------

FABRIC_CALL = "nvmlDeviceGetGpuFabricInfoV"
FABRIC_DONE = 3  # nvmlGpuFabricState_t
