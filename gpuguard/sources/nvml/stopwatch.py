"""A library that is timed: how long its calls took, and which one is under way at this moment."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from time import perf_counter

from gpuguard.model.quantities import NVML_CALL_BOUNDS
from gpuguard.sources.nvml.library import Answer, Device, Library, Listed, Noticed, Part, Raw, Value

# A batch of fields and a sample of activity each take many times what a single call does.
GROUPS = ("call", "fields", "gpm")


class Stopwatch:
    """Hands every call on to a library. `current` names the call under way, '' for none."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._counts = {group: [0] * (len(NVML_CALL_BOUNDS) + 1) for group in GROUPS}
        self._sums = dict.fromkeys(GROUPS, 0.0)
        self.current = ""

    @property
    def histogram(self) -> tuple[str | int | float | None, ...]:
        """For each group of calls its name, how many took at most each bound, how many there were, and their sum in
        seconds.
        """
        told: list[str | int | float | None] = []
        for group, counts in self._counts.items():
            told += (group, *accumulate(counts), round(self._sums[group], 6))
        return tuple(told)

    def _took(self, began: float, group: str = "call") -> None:
        seconds = perf_counter() - began
        self._counts[group][bisect_left(NVML_CALL_BOUNDS, seconds)] += 1
        self._sums[group] += seconds
        self.current = ""

    def open(self) -> None:
        """As the library."""
        self.current = "nvmlInitWithFlags"
        began = perf_counter()
        try:
            self._library.open()
        finally:
            self._took(began)

    def close(self) -> None:
        """As the library."""
        self.current = "nvmlShutdown"
        self._library.close()

    def hush(self) -> None:
        """As the library."""
        self._library.hush()

    def system(self, call: str, *arguments: int) -> Raw:
        """As the library."""
        self.current = call
        began = perf_counter()
        try:
            return self._library.system(call, *arguments)
        finally:
            self._took(began)

    def devices(self) -> Sequence[Listed]:
        """As the library; counts as one call."""
        self.current = "nvmlDeviceGetHandleByIndex_v2"
        began = perf_counter()
        try:
            return self._library.devices()
        finally:
            self._took(began)

    def call(self, device: Device, call: str, *arguments: int) -> Answer:
        """As the library."""
        self.current = call
        began = perf_counter()
        try:
            return self._library.call(device, call, *arguments)
        finally:
            self._took(began)

    def pair(self, device: Device, peer: Device, call: str, *arguments: int) -> Raw:
        """As the library."""
        self.current = call
        began = perf_counter()
        try:
            return self._library.pair(device, peer, call, *arguments)
        finally:
            self._took(began)

    def fields(self, device: Device, wanted: tuple[tuple[int, int], ...]) -> Sequence[Value]:
        """As the library."""
        self.current = "nvmlDeviceGetFieldValues"
        began = perf_counter()
        try:
            return self._library.fields(device, wanted)
        finally:
            self._took(began, "fields")

    def gpm(self, device: Device, metrics: tuple[int, ...], instance: int | None = None) -> Sequence[Value] | None:
        """As the library; a sample and its metrics count as one call."""
        self.current = "nvmlGpmSampleGet"
        began = perf_counter()
        try:
            return self._library.gpm(device, metrics, instance)
        finally:
            self._took(began, "gpm")

    def parts(self, device: Device) -> Sequence[Part]:
        """As the library; counts as one call."""
        self.current = "nvmlDeviceGetMigDeviceHandleByIndex"
        began = perf_counter()
        try:
            return self._library.parts(device)
        finally:
            self._took(began)

    def forget(self, device: Device) -> None:
        """As the library."""
        self.current = "nvmlGpmSampleFree"
        self._library.forget(device)
        self.current = ""

    def listen(self) -> None:
        """As the library; comes from another thread and is not timed."""
        self._library.listen()

    def wait(self, seconds: float) -> Noticed | None:
        """As the library; comes from another thread and is not timed."""
        return self._library.wait(seconds)
