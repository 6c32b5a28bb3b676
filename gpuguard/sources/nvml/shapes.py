"""The shapes of NVML's calls: which fill one number, which several, which a struct; and the buffers of the two batches.

Layouts are those of nvidia-ml-py but for one struct; where this file counts bytes itself it checks them when it is
loaded, so that a nvidia-ml-py with another layout is refused rather than misread.
Source  nvml.h 13.5
"""

import ctypes
import struct
from ctypes import c_uint

import pynvml  # type: ignore[import-untyped] # it has no types

from gpuguard.errors import InvariantBroken
from gpuguard.sources.nvml.library import UNKNOWN, NvmlError, Value

FIELD_BYTES = 40
METRIC_BYTES = 40
METRICS_AT = 24  # where the metrics begin in nvmlGpmMetricsGet_t


class Unrepairable(ctypes.Structure):
    _fields_ = (("bUnrepairableMemory", c_uint),)


class Batch:
    """Buffers for one list of fields: what is sent, as it must be before each call, and how to read it afterwards."""

    __slots__ = ("buffer", "count", "pristine", "reads")

    def __init__(self, wanted: tuple[tuple[int, int], ...]) -> None:
        self.count = len(wanted)
        # A code that is no success stands in each entry, so that one which the library leaves alone is no zero.
        packed = (struct.pack("=IIqqii8x", field, scope, 0, 0, 0, UNKNOWN) for field, scope in wanted)
        self.pristine = b"".join(packed)
        self.buffer = ctypes.create_string_buffer(self.pristine, len(self.pristine))
        self.reads = struct.Struct("=" + "24xiiQ" * self.count)


class Query:
    """The struct for one list of metrics."""

    __slots__ = ("buffer", "count", "pristine", "reads")

    def __init__(self, metrics: tuple[int, ...]) -> None:
        self.count = len(metrics)
        packed = (struct.pack("=IidQQQ", metric, UNKNOWN, 0.0, 0, 0, 0) for metric in metrics)
        self.pristine = b"".join(packed)
        self.buffer = pynvml.c_nvmlGpmMetricsGet_t()
        self.buffer.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self.buffer.numMetrics = self.count
        self.reads = struct.Struct("=" + "4xid24x" * self.count)


def number_in(value_type: int, bits: int) -> Value:
    """The number in the union of a field value.

    Source  nvmlValueType_t: 0 double, 1 unsigned, 2 unsigned long, 3 unsigned long long, 4 long long, 5 int, 6 short
    """
    match value_type:
        case 1:
            return bits & 0xFFFFFFFF
        case 2 | 3:
            return bits
        case 0:
            number: float = struct.unpack("=d", bits.to_bytes(8, "little"))[0]
            return number
        case 4:
            return bits - 2**64 if bits >= 2**63 else bits
        case 5:
            low = bits & 0xFFFFFFFF
            return low - 2**32 if low >= 2**31 else low
        case 6:
            return bits & 0xFFFF
    return NvmlError(UNKNOWN)


# Calls that give one number into a c_uint, whatever their other arguments are.
UINTS = (
    "nvmlDeviceGetPerformanceState", "nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetApplicationsClock", "nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetMinorNumber", "nvmlDeviceGetArchitecture", "nvmlDeviceGetIndex", "nvmlDeviceGetBrand",
    "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetGpuMaxPcieLinkGeneration", "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetModuleId", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetNvLinkRemoteDeviceType",
)  # fmt: skip
LONGS = (
    "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetMemoryErrorCounter",
    "nvmlDeviceGetNvLinkErrorCounter", "nvmlDeviceGetSupportedEventTypes",
)  # fmt: skip
TEXTS = (
    "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetSerial", "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetInforomImageVersion",
)  # fmt: skip
# Calls that fill several c_uint, with the names that a recording gives them.
ROWS: dict[str, tuple[str, ...]] = {
    "nvmlDeviceGetEncoderUtilization": ("utilization", "samplingPeriodUs"),
    "nvmlDeviceGetDecoderUtilization": ("utilization", "samplingPeriodUs"),
    "nvmlDeviceGetEccMode": ("current", "pending"),
    "nvmlDeviceGetCudaComputeCapability": ("major", "minor"),
    "nvmlDeviceGetMigMode": ("currentMode", "pendingMode"),
    "nvmlDeviceGetPowerManagementLimitConstraints": ("minLimit", "maxLimit"),
    "nvmlDeviceGetRemappedRows": ("corrRows", "uncRows", "isPending", "failureOccurred"),
}
# Calls that fill a bit mask: words of 64 bits, as many as Linux can have processors (8192) and NUMA nodes (1024).
MASKS = {"nvmlDeviceGetCpuAffinity": 128, "nvmlDeviceGetMemoryAffinity": 16}
# Calls about two GPUs that give one number into a c_uint.
PAIRS = frozenset({"nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus"})


def structs() -> dict[str, tuple[type[ctypes.Structure], int | None, tuple[str, ...]]]:
    """Calls that fill a struct: which, its version, and the fields that are read."""
    sram = tuple(name for name, _ in pynvml.c_nvmlEccSramErrorStatus_v1_t._fields_ if name != "version")
    return {
        "nvmlDeviceGetUtilizationRates": (pynvml.c_nvmlUtilization_t, None, ("gpu", "memory")),
        "nvmlDeviceGetMemoryInfo_v2": (
            pynvml.c_nvmlMemory_v2_t, pynvml.nvmlMemory_v2, ("total", "reserved", "free", "used"),
        ),
        "nvmlDeviceGetMemoryInfo": (pynvml.c_nvmlMemory_t, None, ("total", "free", "used")),
        "nvmlDeviceGetBAR1MemoryInfo": (pynvml.c_nvmlBAR1Memory_t, None, ("bar1Total", "bar1Free", "bar1Used")),
        "nvmlDeviceGetSramEccErrorStatus": (
            pynvml.c_nvmlEccSramErrorStatus_v1_t, pynvml.nvmlEccSramErrorStatus_v1, sram,
        ),
        "nvmlDeviceGetRowRemapperHistogram": (
            pynvml.c_nvmlRowRemapperHistogramValues, None, ("max", "high", "partial", "low", "none"),
        ),
        "nvmlDeviceGetPciInfo_v3": (pynvml.nvmlPciInfo_t, None, ("busId", "pciDeviceId", "pciSubSystemId")),
        "nvmlDeviceGetNvLinkRemotePciInfo_v2": (pynvml.nvmlPciInfo_t, None, ("busId",)),
        "nvmlDeviceGetAttributes_v2": (
            pynvml.c_nvmlDeviceAttributes, None,
            ("gpuInstanceSliceCount", "computeInstanceSliceCount", "memorySizeMB", "multiprocessorCount"),
        ),
    }  # fmt: skip


# Structs with a version, of which one number is wanted.
VERSIONED = {
    "nvmlDeviceGetTemperatureV": ("c_nvmlTemperature_v1_t", "nvmlTemperature_v1", "temperature"),
    "nvmlDeviceGetMarginTemperature": (
        "c_nvmlMarginTemperature_v1_t", "nvmlMarginTemperature_v1", "marginTemperature",
    ),
}  # fmt: skip


if (
    ctypes.sizeof(pynvml.c_nvmlFieldValue_t), ctypes.sizeof(pynvml.c_nvmlGpmMetric_t),
    pynvml.c_nvmlGpmMetricsGet_t.metrics.offset,
) != (FIELD_BYTES, METRIC_BYTES, METRICS_AT):  # fmt: skip
    raise InvariantBroken("this nvidia-ml-py has other structs than gpuguard reads; install 13.615")
