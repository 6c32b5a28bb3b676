"""The driver's own library answers, through nvidia-ml-py: loaded and opened there, called here with kept buffers.

nvidia-ml-py loads libnvidia-ml.so.1, finds its symbols and knows its structs. Its wrappers allocate a struct for each
call, which costs more than the calls; so the calls of a sweep are made here, each into a buffer that is kept. One
thread asks; only `listen` and `wait` are for another, and share no buffer with it.

Traps, and what is done about each (nvidia-ml-py 13.615, nvml.h 13.5):
  UnrepairableMemoryFlag_v1  its struct there has a version that the header's has not: own struct
  GPM structs                their version is the plain number 1; a size-coded one is refused
  IsMigDeviceHandle          gives an object that is always true: not asked, MIG devices come from their parent
  process lists              only _v3 and _v2, which have the same entries; older ones have others
  FieldValues                each entry has a code and a type of its own; both are looked at
  masks of processors        are asked for with room for all that Linux can have, so that nobody need count them
  P2P_CAPS_INDEX_READ        is a tuple there: such numbers are our own
  a symbol that is missing   is FUNCTION_NOT_FOUND of this one call, as a driver that does not know it would answer
"""

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from ctypes import byref, c_uint, c_ulonglong, c_void_p
from typing import Any

import pynvml  # type: ignore[import-untyped] # it has no types

from gpuguard.sources.nvml.library import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    LIBRARY_NOT_FOUND,
    NO_DATA,
    NOT_FOUND,
    NOT_SUPPORTED,
    TIMEOUT,
    UNKNOWN,
    XID_EVENT,
    Answer,
    Device,
    Listed,
    Noticed,
    NvmlError,
    Part,
    Raw,
    Value,
)
from gpuguard.sources.nvml.library import Struct as Fields
from gpuguard.sources.nvml.shapes import (
    LONGS,
    MASKS,
    METRICS_AT,
    PAIRS,
    ROWS,
    TEXTS,
    UINTS,
    VERSIONED,
    Batch,
    Query,
    Unrepairable,
    number_in,
    structs,
)

INSUFFICIENT_SIZE = 7
TEXT_BYTES = 256
MOST_PROCESSES = 16384
MOST_GPUS, MOST_PARTS = 1024, 64  # of a machine, and of a GPU; nvml.h knows of 7 MIG devices at most
SHORTEST_WINDOW, LONGEST_WINDOW = 0.1, 600.0  # seconds that a GPM metric can be over: its counters move every 100 ms
BATCHES_KEPT = 128  # buffers of different lists of fields; each GPU has some three

# What ctypes makes of a foreign function; it has no types for them.
Function = Callable[..., int]


class _Handle:
    """A device: NVML's pointer, and the GPM samples that are kept for it, by GPU instance."""

    __slots__ = ("heard", "pointer", "samples", "uuid")

    def __init__(self, pointer: int, uuid: str) -> None:
        self.pointer = c_void_p(pointer)
        self.uuid = uuid
        self.samples: dict[int | None, _Samples] = {}
        self.heard = False  # its events are collected


class _Samples:
    """Two samples that take turns: the older and the newer."""

    __slots__ = ("at", "last", "newer", "older")

    def __init__(self, older: c_void_p, newer: c_void_p) -> None:
        self.older, self.newer = older, newer
        self.at: float | None = None
        self.last: Sequence[Value] | None = None


class Live:
    """NVML of this machine."""

    def __init__(self) -> None:
        self._symbols: dict[str, Function | None] = {}
        self._calls: dict[str, Callable[[c_void_p, tuple[int, ...]], Answer]] = {}
        self._handles: dict[int, _Handle] = {}
        self._parts: dict[int, _Handle] = {}
        self._batches: dict[tuple[tuple[int, int], ...], Batch] = {}
        self._queries: dict[tuple[int, ...], Query] = {}
        self._uint, self._long = c_uint(), c_ulonglong()
        self._pointer = c_void_p()
        self._text = ctypes.create_string_buffer(TEXT_BYTES)
        self._processes = (pynvml.c_nvmlProcessInfo_v2_t * 64)()
        self._fabrics: list[tuple[ctypes.Structure, int]] = []
        self._events: c_void_p | None = None
        self._noticed = pynvml.c_nvmlEventData_t()

    # --- opening and closing -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """NVML is initialised, once for the life of this process."""
        try:
            pynvml.nvmlInitWithFlags(0)
        except pynvml.NVMLError as error:
            raise NvmlError(error.value) from error
        except OSError as error:  # a library of that name which cannot be loaded
            raise NvmlError(LIBRARY_NOT_FOUND) from error
        self._calls = self._make_calls()
        self._fabrics = [
            (pynvml.c_nvmlGpuFabricInfo_v3_t(), pynvml.nvmlGpuFabricInfo_v3),
            (pynvml.c_nvmlGpuFabricInfo_v2_t(), pynvml.nvmlGpuFabricInfo_v2),
        ]

    def close(self) -> None:
        """Samples and events are given back and NVML is shut down; errors change nothing about that it ends."""
        for handle in (*self._handles.values(), *self._parts.values()):
            self.forget(handle)
        if self._events is not None and (free := self._symbol("nvmlEventSetFree")) is not None:
            free(self._events)
            self._events = None
        shutdown = self._symbol("nvmlShutdown")
        if shutdown is not None:
            shutdown()

    def hush(self) -> None:
        """Nothing: a wait in NVML cannot be cut short."""

    def _symbol(self, name: str) -> Function | None:
        try:
            return self._symbols[name]
        except KeyError:
            pass
        try:
            found: Function | None = pynvml._nvmlGetFunctionPointer(name)
        except pynvml.NVMLError:
            found = None
        self._symbols[name] = found
        return found

    def _ask(self, name: str, *arguments: object) -> None:
        """The call was made and succeeded.

        Raises  NvmlError
        """
        function = self._symbol(name)
        if function is None:
            raise NvmlError(FUNCTION_NOT_FOUND)
        code = function(*arguments)
        if code:
            raise NvmlError(code)

    # --- what there is -----------------------------------------------------------------------------------------------

    def system(self, call: str, *arguments: int) -> Raw:
        """A version, or the name of a process."""
        if call == "nvmlSystemGetCudaDriverVersion_v2":
            if self._symbol(call) is None:
                call = "nvmlSystemGetCudaDriverVersion"
            self._ask(call, byref(self._uint))
            return self._uint.value
        self._ask(call, *(c_uint(number) for number in arguments), self._text, c_uint(TEXT_BYTES))
        return self._text.value.decode(errors="replace")

    def devices(self) -> Sequence[Listed]:
        """Every GPU of the list; a pointer that was seen before is the same device as long as its UUID is."""
        self._ask("nvmlDeviceGetCount_v2", byref(self._uint))
        if self._uint.value > MOST_GPUS:
            raise NvmlError(UNKNOWN)  # to go through four billion of them would take the memory of the node
        found = []
        pointers: dict[int, _Handle] = {}
        for index in range(self._uint.value):
            try:
                self._ask("nvmlDeviceGetHandleByIndex_v2", index, byref(self._pointer))
            except NvmlError as error:
                found.append(Listed(index, None, error.code))
                continue
            pointer = self._pointer.value or 0
            handle = self._handles.get(pointer)
            try:
                uuid = self._text_of("nvmlDeviceGetUUID", self._pointer)
            except NvmlError as error:
                if handle is None:
                    found.append(Listed(index, None, error.code))
                    continue
                uuid = handle.uuid  # lost, and told so by its other calls
            if handle is None or handle.uuid != uuid:
                handle = _Handle(pointer, uuid)
            pointers[pointer] = handle
            found.append(Listed(index, handle))
        # Those that went stay known to the thread that waits for events: their last event may be on its way.
        self._handles = {**self._handles, **pointers} if len(self._handles) < BATCHES_KEPT else pointers
        return found

    def parts(self, device: Device) -> Sequence[Part]:
        """The MIG devices of a GPU; there are holes in their list."""
        assert isinstance(device, _Handle)
        self._ask("nvmlDeviceGetMaxMigDeviceCount", device.pointer, byref(self._uint))
        found = []
        for index in range(min(self._uint.value, MOST_PARTS)):
            try:
                self._ask("nvmlDeviceGetMigDeviceHandleByIndex", device.pointer, c_uint(index), byref(self._pointer))
                pointer = c_void_p(self._pointer.value)
                uuid = self._text_of("nvmlDeviceGetUUID", pointer)
                self._ask("nvmlDeviceGetGpuInstanceId", pointer, byref(self._uint))
                gpu_instance = self._uint.value
                self._ask("nvmlDeviceGetComputeInstanceId", pointer, byref(self._uint))
            except NvmlError as error:
                if error.code in (NOT_FOUND, INVALID_ARGUMENT):
                    continue
                raise
            handle = self._parts.get(pointer.value or 0)
            if handle is None or handle.uuid != uuid:
                handle = self._parts[pointer.value or 0] = _Handle(pointer.value or 0, uuid)
            found.append(Part(gpu_instance, self._uint.value, handle))
        return found

    # --- calls about a device ----------------------------------------------------------------------------------------

    def call(self, device: Device, call: str, *arguments: int) -> Answer:
        """The answer of one call; one that this file does not know is not supported."""
        assert isinstance(device, _Handle)
        asked = self._calls.get(call)
        if asked is None:
            raise NvmlError(NOT_SUPPORTED)
        return asked(device.pointer, arguments)

    def pair(self, device: Device, peer: Device, call: str, *arguments: int) -> Raw:
        """The answer of one call about two GPUs; one that this file does not know is not supported."""
        assert isinstance(device, _Handle)
        assert isinstance(peer, _Handle)
        if call not in PAIRS:
            raise NvmlError(NOT_SUPPORTED)
        self._ask(call, device.pointer, peer.pointer, *arguments, byref(self._uint))
        return self._uint.value

    def _make_calls(self) -> dict[str, Callable[[c_void_p, tuple[int, ...]], Answer]]:
        calls: dict[str, Callable[[c_void_p, tuple[int, ...]], Answer]] = {}
        for name in UINTS:
            calls[name] = self._number(name, self._uint)
        for name in LONGS:
            calls[name] = self._number(name, self._long)
        for name in TEXTS:
            calls[name] = lambda pointer, _, name=name: self._text_of(name, pointer)  # type: ignore[misc]
        for name, keys in ROWS.items():
            calls[name] = self._several(name, keys)
        for name, words in MASKS.items():
            calls[name] = self._mask(name, words)
        for name, (kind, version, keys) in structs().items():
            calls[name] = self._struct(name, kind, version, keys)
        for name, (kind_name, version_name, key) in VERSIONED.items():
            calls[name] = self._versioned(name, getattr(pynvml, kind_name), getattr(pynvml, version_name), key)
        for name in (
            "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
            "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        ):  # fmt: skip
            calls[name] = lambda pointer, _, name=name: self._process_list(name, pointer)  # type: ignore[misc]
        calls["nvmlDeviceGetGpuFabricInfoV"] = lambda pointer, _: self._fabric(pointer)
        calls["nvmlDeviceValidateInforom"] = lambda pointer, _: self._validated(pointer)
        calls["nvmlDeviceGetUnrepairableMemoryFlag_v1"] = lambda pointer, _: self._unrepairable(pointer)
        return calls

    def _number(self, name: str, where: c_uint | c_ulonglong) -> Callable[[c_void_p, tuple[int, ...]], Answer]:
        function, reference = self._symbol(name), byref(where)

        def ask(pointer: c_void_p, arguments: tuple[int, ...]) -> Answer:
            if function is None:
                raise NvmlError(FUNCTION_NOT_FOUND)
            code = function(pointer, *arguments, reference)
            if code:
                raise NvmlError(code)
            return where.value

        return ask

    def _several(self, name: str, keys: tuple[str, ...]) -> Callable[[c_void_p, tuple[int, ...]], Answer]:
        function, places = self._symbol(name), [c_uint() for _ in keys]
        references = [byref(place) for place in places]

        def ask(pointer: c_void_p, arguments: tuple[int, ...]) -> Answer:
            if function is None:
                raise NvmlError(FUNCTION_NOT_FOUND)
            code = function(pointer, *references)
            if code:
                raise NvmlError(code)
            return {key: place.value for key, place in zip(keys, places, strict=True)}

        return ask

    def _mask(self, name: str, words: int) -> Callable[[c_void_p, tuple[int, ...]], Answer]:
        """The words of a bit mask, less the last ones that are 0."""
        function, place = self._symbol(name), (c_ulonglong * words)()

        def ask(pointer: c_void_p, arguments: tuple[int, ...]) -> Answer:
            if function is None:
                raise NvmlError(FUNCTION_NOT_FOUND)
            ctypes.memset(place, 0, ctypes.sizeof(place))
            code = function(pointer, words, place, *arguments)
            if code:
                raise NvmlError(code)
            found = list(place)
            while found and not found[-1]:
                found.pop()
            return found

        return ask

    def _struct(
        self, name: str, kind: type[ctypes.Structure], version: int | None, keys: tuple[str, ...]
    ) -> Callable[[c_void_p, tuple[int, ...]], Answer]:
        function, place = self._symbol(name), kind()
        reference = byref(place)

        def ask(pointer: c_void_p, arguments: tuple[int, ...]) -> Answer:
            if function is None:
                raise NvmlError(FUNCTION_NOT_FOUND)
            if version is not None:
                place.version = version
            code = function(pointer, *arguments, reference)
            if code:
                raise NvmlError(code)
            return {key: _plain(getattr(place, key)) for key in keys}

        return ask

    def _versioned(
        self, name: str, kind: type[ctypes.Structure], version: int, key: str
    ) -> Callable[[c_void_p, tuple[int, ...]], Answer]:
        function, place = self._symbol(name), kind()
        reference = byref(place)

        def ask(pointer: c_void_p, arguments: tuple[int, ...]) -> Answer:
            if function is None:
                raise NvmlError(FUNCTION_NOT_FOUND)
            place.version = version
            if arguments:
                place.sensorType = arguments[0]
            code = function(pointer, reference)
            if code:
                raise NvmlError(code)
            number: int = getattr(place, key)
            return number

        return ask

    def _text_of(self, name: str, pointer: c_void_p) -> str:
        self._ask(name, pointer, self._text, c_uint(TEXT_BYTES))
        return self._text.value.decode(errors="replace")

    def _process_list(self, name: str, pointer: c_void_p) -> list[Fields]:
        if self._symbol(name) is None:
            name = name.replace("_v3", "_v2")  # its entries are the same
        while True:
            self._uint.value = len(self._processes)
            try:
                self._ask(name, pointer, byref(self._uint), self._processes)
            except NvmlError as error:
                if error.code != INSUFFICIENT_SIZE or len(self._processes) >= MOST_PROCESSES:
                    raise
                # Some more than there are now: others may start in between.
                room = min(MOST_PROCESSES, max(2 * len(self._processes), self._uint.value + 16))
                self._processes = (pynvml.c_nvmlProcessInfo_v2_t * room)()
                continue
            return [
                {
                    "pid": one.pid, "usedGpuMemory": one.usedGpuMemory, "gpuInstanceId": one.gpuInstanceId,
                    "computeInstanceId": one.computeInstanceId,
                }
                for one in self._processes[: self._uint.value]
            ]  # fmt: skip

    def _fabric(self, pointer: c_void_p) -> Fields:
        """State and health in the fabric; the second version of the struct, without a summary, on older drivers."""
        while True:
            place: Any  # a struct of nvidia-ml-py, which has no types
            place, version = self._fabrics[0]
            place.version = version
            try:
                self._ask("nvmlDeviceGetGpuFabricInfoV", pointer, byref(place))
            except NvmlError as error:
                if error.code not in (ARGUMENT_VERSION_MISMATCH, INVALID_ARGUMENT) or len(self._fabrics) == 1:
                    raise
                self._fabrics.pop(0)
                continue
            names = ("state", "status", "cliqueId", "healthMask", "healthSummary")
            told: Fields = {name: int(getattr(place, name)) for name in names if hasattr(place, name)}
            text = bytes(place.clusterUuid).hex()
            return {**told, "clusterUuid": "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))}

    def _validated(self, pointer: c_void_p) -> int:
        self._ask("nvmlDeviceValidateInforom", pointer)
        return 0

    def _unrepairable(self, pointer: c_void_p) -> int:
        place = Unrepairable()
        self._ask("nvmlDeviceGetUnrepairableMemoryFlag_v1", pointer, byref(place))
        return int(place.bUnrepairableMemory)

    # --- fields and metrics ------------------------------------------------------------------------------------------

    def fields(self, device: Device, wanted: tuple[tuple[int, int], ...]) -> Sequence[Value]:
        """The values of all fields, in one call."""
        assert isinstance(device, _Handle)
        batch = self._batches.get(wanted)
        if batch is None:
            if len(self._batches) >= BATCHES_KEPT:
                self._batches.clear()
            batch = self._batches[wanted] = Batch(wanted)
        ctypes.memmove(batch.buffer, batch.pristine, len(batch.pristine))
        self._ask("nvmlDeviceGetFieldValues", device.pointer, batch.count, batch.buffer)
        read = batch.reads.unpack_from(batch.buffer)
        return [
            NvmlError(read[place + 1])
            if read[place + 1]
            else (read[place + 2] if read[place] in (2, 3) else number_in(read[place], read[place + 2]))
            for place in range(0, len(read), 3)
        ]

    def gpm(self, device: Device, metrics: tuple[int, ...], instance: int | None = None) -> Sequence[Value] | None:
        """The metrics over the time since the last sample; two samples are kept and take turns."""
        assert isinstance(device, _Handle)
        samples = device.samples.get(instance)
        if samples is None:
            if instance is None:
                self._check_gpm(device)
            samples = device.samples[instance] = _Samples(self._sample(), self._sample())
        now = time.monotonic()
        if samples.at is not None and now - samples.at < SHORTEST_WINDOW:
            return samples.last if samples.last is not None and len(samples.last) == len(metrics) else None
        if instance is None:
            self._ask("nvmlGpmSampleGet", device.pointer, samples.older)
        else:
            self._ask("nvmlGpmMigSampleGet", device.pointer, c_uint(instance), samples.older)
        samples.older, samples.newer = samples.newer, samples.older
        since, samples.at, samples.last = samples.at, now, None
        if since is None or now - since > LONGEST_WINDOW:
            return None
        samples.last = self._metrics(samples, metrics)
        return samples.last

    def _check_gpm(self, device: _Handle) -> None:
        """Raises NvmlError where the GPU has no such metrics."""
        support = pynvml.c_nvmlGpmSupport_t()
        support.version = pynvml.NVML_GPM_SUPPORT_VERSION
        self._ask("nvmlGpmQueryDeviceSupport", device.pointer, byref(support))
        if not support.isSupportedDevice:
            raise NvmlError(NOT_SUPPORTED)

    def _sample(self) -> c_void_p:
        sample = c_void_p()
        self._ask("nvmlGpmSampleAlloc", byref(sample))
        return sample

    def _metrics(self, samples: _Samples, metrics: tuple[int, ...]) -> Sequence[Value]:
        query = self._queries.get(metrics)
        if query is None:
            if len(self._queries) >= BATCHES_KEPT:
                self._queries.clear()
            query = self._queries[metrics] = Query(metrics)
        ctypes.memmove(ctypes.addressof(query.buffer) + METRICS_AT, query.pristine, len(query.pristine))
        query.buffer.sample1, query.buffer.sample2 = (
            ctypes.cast(samples.older, pynvml.c_nvmlGpmSample_t), ctypes.cast(samples.newer, pynvml.c_nvmlGpmSample_t),
        )  # fmt: skip
        self._ask("nvmlGpmMetricsGet", byref(query.buffer))
        read = query.reads.unpack_from(query.buffer, METRICS_AT)
        return [
            NvmlError(read[place])
            if read[place]
            else (NvmlError(NO_DATA) if math.isnan(read[place + 1]) else read[place + 1])
            for place in range(0, len(read), 2)
        ]

    def forget(self, device: Device) -> None:
        """The samples of this device are freed."""
        assert isinstance(device, _Handle)
        free = self._symbol("nvmlGpmSampleFree")
        for samples in device.samples.values():
            if free is not None:
                free(samples.older)
                free(samples.newer)
        device.samples = {}
        device.heard = False  # after a reset NVML tells no event of it

    # --- events: for a thread of its own -----------------------------------------------------------------------------

    def listen(self) -> None:
        """Xids of every GPU that can tell them are collected, also of those that came since the last time."""
        if self._events is None:
            events = c_void_p()
            self._ask("nvmlEventSetCreate", byref(events))
            self._events = events
        types = c_ulonglong()
        for handle in tuple(self._handles.values()):
            if handle.heard:
                continue
            try:
                self._ask("nvmlDeviceGetSupportedEventTypes", handle.pointer, byref(types))
                if types.value & XID_EVENT:
                    self._ask("nvmlDeviceRegisterEvents", handle.pointer, c_ulonglong(XID_EVENT), self._events)
            except NvmlError:
                continue  # the kernel log tells its Xids as well; this is only the second witness
            handle.heard = True

    def wait(self, seconds: float) -> Noticed | None:
        """The next event; the interpreter's lock is not held meanwhile."""
        try:
            self._ask("nvmlEventSetWait_v2", self._events, byref(self._noticed), c_uint(int(seconds * 1000)))
        except NvmlError as error:
            if error.code == TIMEOUT:
                return None
            raise
        event = self._noticed
        handle = self._handles.get(ctypes.cast(event.device, c_void_p).value or 0)
        if handle is None:
            return None
        return Noticed(handle.uuid, int(event.eventType), int(event.eventData), int(event.gpuInstanceId))


def _plain(value: Any) -> Raw:
    """A field of a struct as a number or a text. Any: ctypes tells only when it runs."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else int(value)
