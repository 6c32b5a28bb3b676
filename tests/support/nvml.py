"""A library that a test holds in its hands, and a child that hangs, refuses or answers as told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpuguard.child.process import Ended
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.nvml.library import (
    NOT_SUPPORTED,
    Answer,
    Device,
    Listed,
    Noticed,
    NvmlError,
    Part,
    Raw,
    Value,
)
from gpuguard.sources.nvml.protocol import (
    Begin,
    Begun,
    Doing,
    InCall,
    Look,
    Report,
    Request,
    Seen,
    decode_request,
    encode,
)


@dataclass(eq=False)
class FakeDevice:
    """A GPU or a MIG device; `calls` by name, or by name/arguments; an int with a minus is an error."""

    uuid: str
    calls: dict[str, Any] = field(default_factory=dict)
    fields: dict[tuple[int, int], Any] = field(default_factory=dict)
    gpm: dict[int, float] | None = None
    gpm_of: dict[int, dict[int, float]] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    listing_error: int = 0
    place: int = 0  # in the recording it was made of


def error(code: int) -> NvmlError:
    """An answer that is an error."""
    return NvmlError(code)


@dataclass
class FakeLibrary:
    """Answers from its devices, and remembers what it was asked."""

    gpus: list[FakeDevice]
    versions: dict[str, Raw] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def hush(self) -> None:
        pass

    def system(self, call: str, *arguments: int) -> Raw:
        found = self.versions.get("/".join([call, *map(str, arguments)]))
        if found is None:
            raise NvmlError(NOT_SUPPORTED)
        return found

    def devices(self) -> Sequence[Listed]:
        return [
            Listed(place, None, gpu.listing_error) if gpu.listing_error else Listed(place, gpu)
            for place, gpu in enumerate(self.gpus)
        ]

    def call(self, device: Device, call: str, *arguments: int) -> Answer:
        assert isinstance(device, FakeDevice)
        self.asked.append((device.uuid, call))
        found = device.calls.get("/".join([call, *map(str, arguments)]), NvmlError(NOT_SUPPORTED))
        if isinstance(found, NvmlError):
            raise found
        answer: Answer = found
        return answer

    def pair(self, device: Device, peer: Device, call: str, *arguments: int) -> Raw:
        assert isinstance(device, FakeDevice)
        assert isinstance(peer, FakeDevice)
        self.asked.append((device.uuid, call))
        for one, other in ((device, peer), (peer, device)):
            for key in ("/".join([call, *map(str, (other.place, *arguments))]), call):
                found = one.calls.get(key)
                if isinstance(found, NvmlError):
                    raise found
                if found is not None:
                    answer: Raw = found
                    return answer
        raise NvmlError(NOT_SUPPORTED)

    def fields(self, device: Device, wanted: tuple[tuple[int, int], ...]) -> Sequence[Value]:
        assert isinstance(device, FakeDevice)
        self.asked += [(device.uuid, f"field/{number}") for number, _ in wanted]
        return [device.fields.get(key, NvmlError(NOT_SUPPORTED)) for key in wanted]

    def gpm(self, device: Device, metrics: tuple[int, ...], instance: int | None = None) -> Sequence[Value] | None:
        assert isinstance(device, FakeDevice)
        self.asked.append((device.uuid, "gpm"))
        known = device.gpm if instance is None else device.gpm_of.get(instance)
        if known is None:
            raise NvmlError(NOT_SUPPORTED)
        return [known.get(metric, NvmlError(NOT_SUPPORTED)) for metric in metrics]

    def parts(self, device: Device) -> Sequence[Part]:
        assert isinstance(device, FakeDevice)
        return device.parts

    def forget(self, device: Device) -> None:
        self.forgotten.append(device.uuid)

    def listen(self) -> None:
        pass

    def wait(self, seconds: float) -> Noticed | None:
        return None


def library_of(recording: Mapping[str, Any]) -> FakeLibrary:
    """The same machine as a recording says, in a test's hands."""

    def device(recorded: Mapping[str, Any], pci: str) -> FakeDevice:
        found = FakeDevice(str(recorded["uuid"]))
        for call, answer in recorded.get("calls", {}).items():
            if isinstance(answer, Mapping) and all(key.replace("/", "").isdigit() for key in answer):
                found.calls.update({f"{call}/{key}": _answer(value) for key, value in answer.items()})
            else:
                found.calls[call] = _answer(answer)
        found.calls["nvmlDeviceGetPciInfo_v3"] = {"busId": pci, **found.calls.get("nvmlDeviceGetPciInfo_v3", {})}
        for key, value in recorded.get("fields", {}).items():
            number, _, scope = key.partition("/")
            found.fields[int(number), int(scope or 0)] = _answer(value)
        if "gpm" in recorded:
            found.gpm = {int(key): value for key, value in recorded["gpm"].items()}
        return found

    gpus = []
    for place, recorded in enumerate(recording["devices"]):
        gpu = device(recorded, recorded["pci"])
        gpu.place = place
        for part in recorded.get("mig", ()):
            handle = device(part, recorded["pci"])
            gpu.parts += [Part(part["gi"], ci, handle) for ci in part["ci"]]
            if handle.gpm is not None:
                gpu.gpm_of[part["gi"]] = handle.gpm
        gpus.append(gpu)
    return FakeLibrary(gpus, {key: value for key, value in recording["system"].items() if not isinstance(value, dict)})


def _answer(value: Any) -> Any:
    """Any: it has the shape of what was recorded."""
    return NvmlError(value["error"]) if isinstance(value, Mapping) and "error" in value else value


class FakeChild:
    """The child as the source sees it. `answer(request)` gives the reports that follow a request, at once.

    No answer is a child that hangs; waiting for it moves the clock. `killable` is false for one in the kernel.
    """

    def __init__(
        self,
        clock: ManualClock,
        answer: Callable[[Request], Sequence[Report]],
        *,
        killable: bool = True,
        call: str = "nvmlDeviceGetPowerUsage",
    ) -> None:
        self.clock, self.answer, self.killable, self.call = clock, answer, killable, call
        self.requests: list[Request] = []
        self.waiting: list[Report] = []
        self.abandoned = self.stopped = self.closed = False
        self.at: list[tuple[float, Report]] = []  # reports that come by themselves, when
        self.until: Callable[[], None] = lambda: None  # looked at before each wait

    def send(self, message: bytes) -> None:
        request = decode_request(message)
        self.requests.append(request)
        reports = self.answer(request)
        self.waiting += reports or ([InCall(self.call)] if isinstance(request, Doing) else [])

    def receive(self, timeout: float, *wakes: int) -> bytes | None:
        if self.closed:
            raise Ended("the child ended with exit code 1")
        if self.waiting:
            return encode(self.waiting.pop(0))
        now = self.clock.now().mono
        due = [entry for entry in self.at if entry[0] <= now + timeout]
        if due:
            self.at.remove(due[0])
            self.clock.advance(max(0.0, due[0][0] - now))
            return encode(due[0][1])
        self.clock.advance(timeout)
        self.until()
        return None

    def gone(self) -> bool:
        return self.stopped or (self.abandoned and self.killable)

    def stop(self, within: float) -> bool:
        self.stopped = True
        return True

    def abandon(self) -> None:
        self.abandoned = True

    @property
    def looks(self) -> list[Look]:
        """The sweeps that were asked for."""
        return [request for request in self.requests if isinstance(request, Look)]


def seen(rate: Any, rows: Mapping[str, Any] | None = None, **more: Any) -> Seen:
    """The report of a sweep. Any: what a test writes down is checked by the struct."""
    fields = {"rate": rate, "rows": dict(rows or {}), "seconds": 0.001, "calls": (1, 1, 0.001), **more}
    return msgspec.convert(fields, Seen)


def answers(request: Request) -> Sequence[Report]:
    """A healthy child of a machine with one GPU."""
    if isinstance(request, Begin):
        return [Begun(0.1)]
    if isinstance(request, Look):
        return [seen(request.rate, {"gpu:0000:1b:00.0": {"gpu_up": 1}, "node": {"gpus_visible": 1}})]
    return []
