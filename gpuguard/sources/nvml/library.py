"""What is asked of NVML, with plain Python answers: the seam between the reader and whoever answers.

Two answer: `live`, over the driver's own library, and `played`, from a recorded machine. Answers are raw, in the units
of nvml.h (mW, MHz, KiB, percent); a struct comes as a dict with the names of its fields in nvml.h. Names of calls are
the C symbols, so that the reader, a recording and a fake library speak of the same thing.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

# Codes of nvmlReturn_t that mean something to us.
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
CORRUPTED_INFOROM = 14
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
NO_DATA = 21
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26
GPU_NOT_FOUND = 28
UNKNOWN = 999

# The machine, or its driver, does not do this: no error, and not asked again until the driver or its mode changes.
ABSENT_CODES = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED})
# Counted from the start, so that the first step of their counters is not missed.
USUAL_ERRORS = (GPU_IS_LOST, RESET_REQUIRED, UNKNOWN)
# Nothing can be asked of the GPU any more.
LOST_CODES = frozenset({GPU_IS_LOST, RESET_REQUIRED})
# Nothing can be asked of the library any more: another process may have more luck, later.
FATAL_CODES = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH})
# What a person is told beside the number, of those that keep all of NVML away.
WORDS = {
    NO_PERMISSION: "no permission for /dev/nvidia*",
    DRIVER_NOT_LOADED: "the driver is not loaded",
    LIBRARY_NOT_FOUND: "there is no libnvidia-ml.so.1",
    LIB_RM_VERSION_MISMATCH: "driver and library have different versions: reboot, or reload the driver",
}

WHOLE_GPU = 0xFFFFFFFF  # the instance of an event or a process that concerns no instance
ALL_LINKS = 0xFFFFFFFF  # the scope of a field that is summed over NVLinks
XID_EVENT = 8  # nvmlEventTypeXidCriticalError

Raw = int | float | str
Struct = dict[str, Raw]
Answer = Raw | Struct | list[int] | list[Struct]


class NvmlError(Exception):
    """NVML's answer was an error; `code` is its nvmlReturn_t."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}, {WORDS[code]}" if code in WORDS else f"NVML error {code}")
        self.code = code


class Device(Protocol):
    """A handle: of a GPU or of a part of one. Only whoever gave it knows what is in it."""

    @property
    def uuid(self) -> str:
        """The UUID that NVML gives it now."""


class Listed(msgspec.Struct, frozen=True):
    """A GPU in the list of them; `error` instead of a device where its place in the list gave none."""

    index: int
    device: Device | None
    error: int = 0


class Part(msgspec.Struct, frozen=True):
    """One MIG device: a compute instance in a GPU instance."""

    gpu_instance: int
    compute_instance: int
    device: Device


class Noticed(msgspec.Struct, frozen=True):
    """An event that NVML delivered."""

    uuid: str
    type: int
    value: int
    gpu_instance: int = WHOLE_GPU


Number = int | float
# The value of one field or metric, or why there is none.
Value = Number | NvmlError


class Library(Protocol):
    """NVML, as far as gpuguard asks it. One thread asks; `wait` alone is for another.

    Raises  NvmlError with the code of the call
    """

    def open(self) -> None:
        """NVML is ready to be asked."""

    def close(self) -> None:
        """NVML let go of the driver; nobody waits for events any more."""

    def hush(self) -> None:
        """Whoever waits for an event need not wait to the end."""

    def system(self, call: str, *arguments: int) -> Raw:
        """The answer of a call that concerns no device."""

    def devices(self) -> Sequence[Listed]:
        """Every GPU that is listed now, in the order of the list, with its UUID as it is now."""

    def call(self, device: Device, call: str, *arguments: int) -> Answer:
        """The answer of a call about a device; the arguments are those after the handle."""

    def pair(self, device: Device, peer: Device, call: str, *arguments: int) -> Raw:
        """The answer of a call about two GPUs; the arguments are those after both handles."""

    def fields(self, device: Device, wanted: tuple[tuple[int, int], ...]) -> Sequence[Value]:
        """The values of (field, scope) in their order, all in one call."""

    def gpm(self, device: Device, metrics: tuple[int, ...], instance: int | None = None) -> Sequence[Value] | None:
        """The metrics over the time since the last call, of the GPU or of a GPU instance; None the first time, and
        where the time is too short or too long to say anything."""

    def parts(self, device: Device) -> Sequence[Part]:
        """The MIG devices of a GPU in MIG mode."""

    def forget(self, device: Device) -> None:
        """What was kept for this GPU is given back: it is gone, or was cut up anew."""

    def listen(self) -> None:
        """Events of every GPU that is listed by now are collected, for `wait`; asked again when there are others."""

    def wait(self, seconds: float) -> Noticed | None:
        """The next event, None where none came in time."""
