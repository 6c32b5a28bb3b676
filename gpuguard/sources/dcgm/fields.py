"""DCGM's fields by number, the columns they fill, and the values that mean nothing.

Source  dcgm_fields.h and dcgm_structs.h of DCGM 3.3, 4.2 and 4.6: 4.6 gave most fields a new name and kept the numbers

A field that gpuguard judges (ECC, remapped rows, links, the driver's advice) is not read here: NVML is asked for it, so
that nothing DCGM says can drain a node. The times of limiters are not read either: DCGM's own header once called them
microseconds and once nanoseconds.
"""

import math
from typing import Literal

import msgspec

from gpuguard.model.quantities import BY_NAME
from gpuguard.model.readings import Value, Values, plausible

# What DCGM prints or returns for a value that it does not have: these, and the next few above them say why.
INT32_BLANK = 0x7FFFFFF0
INT32_END = 0x7FFFFFFF
INT64_BLANK = 0x7FFFFFFFFFFFFFF0
FP64_BLANK = float(2**47)
TEXT_BLANKS = ("<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERMISSIONED>>>")
# DCGM itself takes a memory that would be hotter than this for one without a sensor.
HOTTEST = 200

MHZ = 1e6
MILLIJOULE = 1e-3
PERCENT = 0.01
MIB = float(2**20)


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One of DCGM's fields: its number, its names before 4.6 and since, and what a value of it fills.

    `whole` fields are 64-bit integers to DCGM, the others doubles. `scale` makes base units of DCGM's.
    """

    number: int
    name: str
    column: str
    renamed: str = ""
    whole: bool = False
    scale: float = 1.0


def _profile(number: int, name: str, renamed: str, column: str) -> Field:
    return Field(number=number, name=f"DCGM_FI_PROF_{name}", renamed=f"DCGM_FI_PROF_{renamed}", column=column)


def _whole(number: int, name: str, column: str, scale: float, renamed: str = "") -> Field:
    return Field(
        number=number, name=f"DCGM_FI_DEV_{name}", renamed=f"DCGM_FI_DEV_{renamed}" if renamed else "", column=column,
        whole=True, scale=scale,
    )  # fmt: skip


# What no driver's library gives before Hopper: DCGM's profiling module alone.
PROFILING = (
    _profile(1001, "GR_ENGINE_ACTIVE", "GR_ENGINE_UTIL_RATIO", "graphics_active_ratio"),
    _profile(1002, "SM_ACTIVE", "SM_UTIL_RATIO", "sm_active_ratio"),
    _profile(1003, "SM_OCCUPANCY", "SM_OCCUPANCY_RATIO", "sm_occupancy_ratio"),
    _profile(1004, "PIPE_TENSOR_ACTIVE", "TENSOR_UTIL_RATIO", "tensor_active_ratio"),
    _profile(1005, "DRAM_ACTIVE", "DRAM_UTIL_RATIO", "dram_active_ratio"),
    _profile(1006, "PIPE_FP64_ACTIVE", "FP64_UTIL_RATIO", "fp64_active_ratio"),
    _profile(1007, "PIPE_FP32_ACTIVE", "FP32_UTIL_RATIO", "fp32_active_ratio"),
    _profile(1008, "PIPE_FP16_ACTIVE", "FP16_UTIL_RATIO", "fp16_active_ratio"),
    # Rates, whatever their names say.
    Field(number=1009, name="DCGM_FI_PROF_PCIE_TX_BYTES", column="pcie_tx_bytes_per_second", whole=True),
    Field(number=1010, name="DCGM_FI_PROF_PCIE_RX_BYTES", column="pcie_rx_bytes_per_second", whole=True),
    Field(number=1011, name="DCGM_FI_PROF_NVLINK_TX_BYTES", column="nvlink_tx_bytes_per_second", whole=True),
    Field(number=1012, name="DCGM_FI_PROF_NVLINK_RX_BYTES", column="nvlink_rx_bytes_per_second", whole=True),
)
# What NVML gives as well, for a node on which it is not asked.
DEVICE = (
    _whole(92, "BAR1_USED", "bar1_used_bytes", MIB),
    _whole(100, "SM_CLOCK", "sm_clock_hertz", MHZ),
    _whole(101, "MEM_CLOCK", "memory_clock_hertz", MHZ),
    _whole(140, "MEMORY_TEMP", "memory_temperature_celsius", 1.0, "MEMORY_TEMP_CELSIUS"),
    _whole(150, "GPU_TEMP", "temperature_celsius", 1.0, "GPU_TEMP_CELSIUS"),
    Field(
        number=155, name="DCGM_FI_DEV_POWER_USAGE", renamed="DCGM_FI_DEV_BOARD_POWER_WATTS", column="power_watts"
    ),
    _whole(156, "TOTAL_ENERGY_CONSUMPTION", "energy_joules_total", MILLIJOULE),
    # A percentage, though its new name says ratio.
    _whole(203, "GPU_UTIL", "utilization_ratio", PERCENT, "GPU_UTIL_RATIO"),
    _whole(204, "MEM_COPY_UTIL", "memory_copy_ratio", PERCENT),
    _whole(206, "ENC_UTIL", "encoder_ratio", PERCENT),
    _whole(207, "DEC_UTIL", "decoder_ratio", PERCENT),
    _whole(250, "FB_TOTAL", "memory_total_bytes", MIB),
    _whole(251, "FB_FREE", "memory_free_bytes", MIB),
    _whole(252, "FB_USED", "memory_used_bytes", MIB),
    _whole(253, "FB_RESERVED", "memory_reserved_bytes", MIB),
)  # fmt: skip
FIELDS = (*PROFILING, *DEVICE)
BY_NUMBER = {field.number: field for field in FIELDS}
BY_NAME_ON_PAGE = {name: field for field in FIELDS for name in (field.name, field.renamed) if name}


def is_blank(value: int | float | str) -> bool:
    """Whether DCGM says with this value that it has none.

    Integers of both sizes have a range of their own; a 64-bit counter may pass through that of 32 bits, so only those
    sixteen numbers are blank. A blank that a page printed as a floating-point number is one too.
    """
    if isinstance(value, str):
        return value in TEXT_BLANKS or value == ""
    if isinstance(value, int):
        return INT32_BLANK <= value <= INT32_END or value >= INT64_BLANK
    return not math.isfinite(value) or value >= FP64_BLANK


def measured(field: Field, value: int | float) -> tuple[bool, Value]:
    """Whether there is a value, and it in base units: None where it cannot be."""
    if is_blank(value) or (field.number == 140 and value > HOTTEST):
        return False, None
    scaled = float(value) if field.scale == 1.0 and not field.whole else value * field.scale
    return True, scaled if plausible(BY_NAME[field.column], scaled) else None


KindOfRow = Literal["gpu", "mig"]


def fill(row: Values, field: Field, value: int | float, kind: KindOfRow = "gpu") -> None:
    """The column of the field stands in the row, unless DCGM has no value or the row has no such column."""
    there, scaled = measured(field, value)
    column = field.column if kind == "gpu" else f"mig_{field.column}"
    if there and column in BY_NAME:
        row[column] = scaled
