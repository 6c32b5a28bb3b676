"""The player: a recorded machine answers in place of the driver's library.

Reads   <root>/nvml.json
Shape   `system`, `all` (what every device answers unless it says otherwise), `devices` with `calls`, `fields`, `gpm`
        and `mig`, and `events`; a call with arguments has an answer for each ("0/1"), and one about two GPUs begins
        them with the place of the other one in `devices`, told of either. A value is what the C function gives,
        {"error": code}, {"series": [...]} with one value a pass, or {"from", "per_second"} for a counter that runs.
        What is not recorded is not supported.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from gpuguard.errors import Absent, NotUnderstood
from gpuguard.sources.nvml.library import (
    NOT_SUPPORTED,
    WHOLE_GPU,
    Answer,
    Device,
    Listed,
    Noticed,
    NvmlError,
    Part,
    Raw,
    Value,
)

FILE = "nvml.json"

# Any: values of a recording are nested JSON.
Tree = dict[str, Any]


class Unit(msgspec.Struct, frozen=True):
    """A recorded device or part of one, with everything that it answers."""

    uuid: str
    pci: str
    calls: Tree
    fields: Tree
    gpm: Tree | None
    place: int = 0
    parts: tuple[tuple[int, int, "Unit"], ...] = ()


class Machine(msgspec.Struct, forbid_unknown_fields=False):
    """A recording as its file holds it."""

    system: Tree
    devices: list[Tree]
    all: Tree = {}
    events: list[Tree] = []
    every: float = 5.0


def load(path: Path) -> Machine:
    """The recording in a file.

    Raises  Absent where there is none; NotUnderstood where it is no recording
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Machine)
    except FileNotFoundError as error:
        raise Absent(f"{path} does not exist; NVML of this machine was not recorded") from error
    except OSError as error:
        raise Absent(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise NotUnderstood(f"{path} is no recording of NVML: {error}") from error


class Player:
    """Answers as the recorded machine does. `clock` gives seconds; a recording begins when it is opened."""

    def __init__(self, machine: Machine, clock: Callable[[], float]) -> None:
        self._machine = machine
        self._clock = clock
        self._began = 0.0
        self._units = tuple(_unit(device, machine.all, place) for place, device in enumerate(machine.devices))
        self._waiting: list[Tree] = []
        self._rest = threading.Event()

    def open(self) -> None:
        """The recording begins.

        Raises  NvmlError where the machine was recorded without a driver
        """
        self._began = self._clock()
        self._waiting = sorted(self._machine.events, key=lambda event: float(event["after"]))
        code = self._machine.system.get("nvmlInitWithFlags", 0)
        if isinstance(code, Mapping):
            raise NvmlError(int(code["error"]))

    def close(self) -> None:
        """Nothing is kept."""

    def hush(self) -> None:
        """Whoever waits for an event waits no more."""
        self._rest.set()

    def system(self, call: str, *arguments: int) -> Raw:
        """As recorded."""
        return cast(Raw, self._answer(self._machine.system, call, arguments))

    def devices(self) -> Sequence[Listed]:
        """Every recorded device, but those that answer no handle."""
        found = []
        for index, unit in enumerate(self._units):
            refused = unit.calls.get("nvmlDeviceGetHandleByIndex_v2")
            if isinstance(refused, Mapping) and "error" in refused:
                found.append(Listed(index, None, int(refused["error"])))
            else:
                found.append(Listed(index, unit))
        return found

    def call(self, device: Device, call: str, *arguments: int) -> Answer:
        """As recorded; an address is that of the device."""
        unit = cast(Unit, device)
        if call == "nvmlDeviceGetPciInfo_v3":
            # NVML keeps addresses from when it was opened, so one that is lost tells it still.
            recorded = {k: v for k, v in unit.calls.get(call, {}).items() if k != "error"}
            return {"busId": unit.pci, **cast(dict[str, Raw], self._now(recorded))}
        return self._answer(unit.calls, call, arguments)

    def pair(self, device: Device, peer: Device, call: str, *arguments: int) -> Raw:
        """As recorded of either of the two, by the place of the other one in the recording."""
        one, other = cast(Unit, device), cast(Unit, peer)
        answers = []
        for unit, second in ((one, other), (other, one)):
            found = unit.calls.get(call)
            if isinstance(found, Mapping):
                if "error" in found:
                    raise NvmlError(int(found["error"]))
                answers.append(found.get("/".join(map(str, (second.place, *arguments)))))
        told = next((answer for answer in answers if answer is not None), None)
        if told is None:
            raise NvmlError(NOT_SUPPORTED)
        return cast(Raw, self._now(told))

    def fields(self, device: Device, wanted: tuple[tuple[int, int], ...]) -> Sequence[Value]:
        """As recorded; a scope of 0 may be left out there."""
        recorded = cast(Unit, device).fields
        values: list[Value] = []
        for field, scope in wanted:
            found = recorded.get(f"{field}/{scope}")
            if found is None and scope == 0:
                found = recorded.get(str(field))
            values.append(self._number(found))
        return values

    def gpm(self, device: Device, metrics: tuple[int, ...], instance: int | None = None) -> Sequence[Value] | None:
        """As recorded; there is no first time without an answer."""
        unit = cast(Unit, device)
        if instance is not None:
            unit = next((part for gi, _, part in unit.parts if gi == instance), unit)
        if unit.gpm is None:
            raise NvmlError(NOT_SUPPORTED)
        return [self._number(unit.gpm.get(str(metric))) for metric in metrics]

    def parts(self, device: Device) -> Sequence[Part]:
        """As recorded."""
        return [Part(gi, ci, part) for gi, ci, part in cast(Unit, device).parts]

    def forget(self, device: Device) -> None:
        """Nothing is kept here."""

    def listen(self) -> None:
        """Events come by themselves."""

    def wait(self, seconds: float) -> Noticed | None:
        """The next recorded event that is due by then."""
        due = float(self._waiting[0]["after"]) - (self._clock() - self._began) if self._waiting else None
        if due is None or due > seconds:
            self._rest.wait(seconds)
            return None
        if due > 0:
            self._rest.wait(due)
        event = self._waiting.pop(0)
        return Noticed(
            str(event["uuid"]), int(event.get("type", 8)), int(event["data"]),
            int(event.get("gpuInstanceId", WHOLE_GPU)),
        )  # fmt: skip

    def _answer(self, recorded: Tree, call: str, arguments: tuple[int, ...]) -> Answer:
        found = recorded.get(call)
        if arguments and isinstance(found, Mapping) and "error" not in found:
            found = found.get("/".join(map(str, arguments)))
        if found is None:
            raise NvmlError(NOT_SUPPORTED)
        return cast(Answer, self._now(found))

    def _number(self, recorded: Any) -> Value:
        if recorded is None:
            return NvmlError(NOT_SUPPORTED)
        try:
            value = self._now(recorded)
        except NvmlError as error:
            return error
        return value if isinstance(value, int | float) else NvmlError(NOT_SUPPORTED)

    def _now(self, recorded: Any) -> Any:
        """What a recorded value is at this moment. Any: it has the shape of what was recorded."""
        if isinstance(recorded, list):
            return [self._now(part) for part in recorded]
        if not isinstance(recorded, dict):
            return recorded
        if "error" in recorded:
            raise NvmlError(int(recorded["error"]))
        passed = self._clock() - self._began
        if "series" in recorded:
            series = recorded["series"]
            return self._now(series[int(passed / self._machine.every) % len(series)])
        if "per_second" in recorded:
            value = recorded["from"] + recorded["per_second"] * passed
            return int(value) if isinstance(recorded["from"], int) else value
        return {name: self._now(part) for name, part in recorded.items()}


def _unit(device: Tree, all_devices: Tree, place: int, pci: str | None = None) -> Unit:
    """A device with what all devices answer filled in."""
    calls = {**all_devices.get("calls", {}), **device.get("calls", {})}
    uuid = str(device["uuid"])
    gpm = device.get("gpm")
    if gpm is not None or "gpm" in all_devices:
        gpm = {**all_devices.get("gpm", {}), **(gpm or {})}
    parts = []
    for recorded in device.get("mig", ()):
        part = _unit(recorded, {}, place, str(device["pci"]))
        parts += [(int(recorded["gi"]), int(ci), part) for ci in recorded.get("ci", (0,))]
    fields = {**all_devices.get("fields", {}), **device.get("fields", {})}
    return Unit(uuid, pci or str(device["pci"]), calls, fields, gpm, place, tuple(parts))
