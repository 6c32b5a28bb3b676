"""A library whose answers are kept: what was asked of a machine becomes its recording.

Shape   the form that `played` reads; a value that stayed the same is itself, a counter runs, anything else is a series

The reader asks, so a recording holds what gpuguard asks of such a machine, and the player answers the same questions.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from gpuguard.sources.nvml.library import (
    ABSENT_CODES,
    Answer,
    Device,
    Library,
    Listed,
    Noticed,
    NvmlError,
    Part,
    Raw,
    Value,
)

Tree = dict[str, Any]  # Any: values of a recording are nested JSON
Sample = tuple[int, float, Any]  # pass, seconds since the first, answer

# What only goes up until a reset, so that a recording of seconds may run for days.
COUNTER_CALLS = frozenset({"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPcieReplayCounter"})
COUNTER_FIELDS = frozenset({*range(74, 82), 83, 94, 95, 138, 139, 140, 141, 197, 198, *range(201, 205), 269, 270, 271})
# Asked once for the recording's sake: what identifies. Those that a machine does not know are left out.
ONCE: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("nvmlDeviceGetIndex", ()),
    ("nvmlDeviceGetMinorNumber", ()),
    ("nvmlDeviceGetBoardId", ()),
    ("nvmlDeviceGetGspFirmwareVersion", ()),
    ("nvmlDeviceGetGpuMaxPcieLinkGeneration", ()),
    ("nvmlDeviceGetPowerManagementLimit", ()),
)


class Noted:
    """Hands every call on to a library, and keeps what came back. `clock` gives seconds.

    `current` names the call under way, '' for none; `seconds` how long each kind of call took.
    """

    def __init__(self, library: Library, clock: Callable[[], float]) -> None:
        self._library, self._clock = library, clock
        self._began = 0.0
        self._pass = 0
        self._system: Tree = {}
        self._order: list[tuple[str, int]] = []  # UUID, or '' with the error that its place in the list gave
        self._calls: dict[str, dict[str, dict[str, list[Sample]]]] = {}
        self._pairs: dict[str, dict[str, dict[str, list[Sample]]]] = {}  # keys begin with the UUID of the other one
        self._fields: dict[str, dict[str, list[Sample]]] = {}
        self._gpm: dict[str, dict[str, list[Sample]]] = {}
        self._parts: dict[str, list[Part]] = {}
        self.seconds: dict[str, list[float]] = {}
        self.current = ""

    def next_pass(self) -> None:
        """What is answered from now on belongs to the next pass."""
        self._pass += 1

    def _timed(self, call: str, asked: Callable[[], Any]) -> Any:  # Any: whatever the call answers
        self.current = call
        began = perf_counter()
        try:
            return asked()
        finally:
            self.seconds.setdefault(call, []).append(perf_counter() - began)
            self.current = ""

    def _keep(self, samples: dict[str, list[Sample]], key: str, answer: Any) -> None:  # Any: as the library's
        samples.setdefault(key, []).append((self._pass, self._clock() - self._began, answer))

    @property
    def gpus(self) -> int:
        """How many GPUs the list has."""
        return len(self._order)

    # --- the library -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """As the library; the recording begins."""
        self._timed("nvmlInitWithFlags", self._library.open)
        self._began = self._clock()

    def close(self) -> None:
        """As the library."""
        self._timed("nvmlShutdown", self._library.close)

    def system(self, call: str, *arguments: int) -> Raw:
        """As the library."""
        answer: Raw = self._timed(call, lambda: self._library.system(call, *arguments))
        if arguments:
            self._system.setdefault(call, {})["/".join(map(str, arguments))] = answer
        else:
            self._system[call] = answer
        return answer

    def devices(self) -> Sequence[Listed]:
        """As the library."""
        found: Sequence[Listed] = self._timed("nvmlDeviceGetHandleByIndex_v2", self._library.devices)
        self._order = [(one.device.uuid if one.device is not None else "", one.error) for one in found]
        return found

    def call(self, device: Device, call: str, *arguments: int) -> Answer:
        """As the library."""
        kept = self._calls.setdefault(device.uuid, {}).setdefault(call, {})
        answer: Answer = self._kept(
            kept, "/".join(map(str, arguments)), call, lambda: self._library.call(device, call, *arguments)
        )
        return answer

    def pair(self, device: Device, peer: Device, call: str, *arguments: int) -> Raw:
        """As the library."""
        kept = self._pairs.setdefault(device.uuid, {}).setdefault(call, {})
        key = "/".join(map(str, (peer.uuid, *arguments)))
        answer: Raw = self._kept(kept, key, call, lambda: self._library.pair(device, peer, call, *arguments))
        return answer

    def _kept(self, kept: dict[str, list[Sample]], key: str, call: str, asked: Callable[[], Any]) -> Any:
        """What was asked, which is noted. Any: whatever the call answers."""
        try:
            answer = self._timed(call, asked)
        except NvmlError as error:
            self._keep(kept, key, {"error": error.code})
            raise
        self._keep(kept, key, answer)
        return answer

    def fields(self, device: Device, wanted: tuple[tuple[int, int], ...]) -> Sequence[Value]:
        """As the library."""
        values: Sequence[Value] = self._timed("nvmlDeviceGetFieldValues", lambda: self._library.fields(device, wanted))
        kept = self._fields.setdefault(device.uuid, {})
        for (field, scope), value in zip(wanted, values, strict=True):
            self._keep(kept, f"{field}/{scope}", {"error": value.code} if isinstance(value, NvmlError) else value)
        return values

    def gpm(self, device: Device, metrics: tuple[int, ...], instance: int | None = None) -> Sequence[Value] | None:
        """As the library."""
        values: Sequence[Value] | None = self._timed(
            "nvmlGpmMetricsGet", lambda: self._library.gpm(device, metrics, instance)
        )
        kept = self._gpm.setdefault(device.uuid if instance is None else f"{device.uuid}/{instance}", {})
        for metric, value in zip(metrics, values or (), strict=values is not None):
            self._keep(kept, str(metric), {"error": value.code} if isinstance(value, NvmlError) else value)
        return values

    def parts(self, device: Device) -> Sequence[Part]:
        """As the library."""
        parts: Sequence[Part] = self._timed("nvmlDeviceGetMigDeviceHandleByIndex", lambda: self._library.parts(device))
        self._parts[device.uuid] = list(parts)
        return parts

    def forget(self, device: Device) -> None:
        """As the library."""
        self._library.forget(device)

    def listen(self) -> None:
        """As the library."""
        self._library.listen()

    def hush(self) -> None:
        """As the library."""
        self._library.hush()

    def wait(self, seconds: float) -> Noticed | None:
        """As the library."""
        return self._library.wait(seconds)

    def ask_once(self) -> None:
        """What the reader does not ask, but a recording should hold, was asked of every GPU."""
        for listed in self._library.devices():
            if listed.device is None:
                continue
            for call, arguments in ONCE:
                try:
                    self.call(listed.device, call, *arguments)
                except NvmlError:
                    continue  # it is noted

    # --- what was kept -----------------------------------------------------------------------------------------------

    def recording(self, origin: str, every: float, lost: dict[int, tuple[str, str]] | None = None) -> Tree:
        """All that was answered. `lost` gives UUID and address of a GPU whose place in the list gave no handle."""
        passes = self._pass + 1
        devices: list[Tree] = []
        lost = lost or {}
        told = [uuid or lost[index][0] for index, (uuid, _) in enumerate(self._order) if uuid or index in lost]
        for index, (uuid, error) in enumerate(self._order):
            if uuid:
                devices.append(self._device(uuid, passes, told))
            elif index in lost:
                known, address = lost[index]
                failed = {"error": error}
                calls = dict.fromkeys(("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3"), failed)
                devices.append({"uuid": known, "pci": address, "calls": calls, "fields": {}})
        return {"origin": origin, "every": every, "system": self._system, "all": {}, "devices": devices, "events": []}

    def _device(self, uuid: str, passes: int, order: Sequence[str]) -> Tree:
        calls = self._calls_of(uuid, passes) | self._pairs_of(uuid, passes, order)
        identity = calls.pop("nvmlDeviceGetPciInfo_v3", {})
        device: Tree = {"uuid": uuid, "pci": str(identity.get("busId", "")) if isinstance(identity, dict) else ""}
        if isinstance(identity, dict):
            calls["nvmlDeviceGetPciInfo_v3"] = {
                key: value for key, value in identity.items() if key in ("pciDeviceId", "pciSubSystemId")
            }
        fields = {
            _field(key): _folded(samples, passes, int(key.partition("/")[0]) in COUNTER_FIELDS)
            for key, samples in self._fields.get(uuid, {}).items()
        }
        device |= {"calls": calls, "fields": {key: value for key, value in fields.items() if not _unsupported(value)}}
        if uuid in self._gpm:
            device["gpm"] = self._metrics(uuid, passes)
        if self._parts.get(uuid):
            device["mig"] = self._instances(uuid, passes)
        return device

    def _calls_of(self, uuid: str, passes: int) -> Tree:
        calls: Tree = {}
        for call, answers in self._calls.get(uuid, {}).items():
            told = {key: _folded(samples, passes, call in COUNTER_CALLS) for key, samples in answers.items()}
            told = {key: value for key, value in told.items() if not _unsupported(value)}
            if told:
                calls[call] = told.get("", told)
        return calls

    def _pairs_of(self, uuid: str, passes: int, order: Sequence[str]) -> Tree:
        """What was answered about this GPU and another one, by the place of that one in the recording."""
        calls: Tree = {}
        for call, answers in self._pairs.get(uuid, {}).items():
            for key, samples in answers.items():
                peer, _, arguments = key.partition("/")
                value = _folded(samples, passes, False)
                if peer in order and not _unsupported(value):
                    place = str(order.index(peer))
                    calls.setdefault(call, {})[f"{place}/{arguments}" if arguments else place] = value
        return calls

    def _metrics(self, key: str, passes: int) -> Tree:
        metrics = {metric: _folded(samples, passes, False) for metric, samples in self._gpm[key].items()}
        return {metric: value for metric, value in metrics.items() if not _unsupported(value)}

    def _instances(self, uuid: str, passes: int) -> list[Tree]:
        """Each GPU instance by its first compute instance, as the reader looks at it."""
        found: dict[int, Tree] = {}
        for part in self._parts[uuid]:
            known = found.get(part.gpu_instance)
            if known is not None:
                known["ci"].append(part.compute_instance)
                continue
            calls = self._calls_of(part.device.uuid, passes)
            made: Tree = {
                "gi": part.gpu_instance,
                "ci": [part.compute_instance],
                "uuid": part.device.uuid,
                "calls": calls,
            }
            if (key := f"{uuid}/{part.gpu_instance}") in self._gpm:
                made["gpm"] = self._metrics(key, passes)
            found[part.gpu_instance] = made
        return list(found.values())


def _field(key: str) -> str:
    field, _, scope = key.partition("/")
    return field if scope == "0" and int(field) not in LINK_SCOPED else f"{field}/{scope}"


# Of these the scope 0 is link 0, not "no scope".
LINK_SCOPED = frozenset({138, 139, 140, 141, *range(161, 169), *range(201, 223)})


def _unsupported(value: Any) -> bool:
    return isinstance(value, dict) and value.get("error") in ABSENT_CODES


def _folded(samples: list[Sample], passes: int, counter: bool) -> Any:
    """One recorded value for all samples. Any: it has the shape of what was answered."""
    answers = [answer for _, _, answer in samples]
    if all(answer == answers[0] for answer in answers):
        return answers[0]
    if counter and all(isinstance(answer, int | float) for answer in answers) and answers == sorted(answers):
        (_, began, first), (_, ended, last) = samples[0], samples[-1]
        pace = (last - first) / (ended - began) if ended > began else 0.0
        start = first - pace * began
        return {"from": int(start) if isinstance(first, int) else start, "per_second": round(pace, 6)}
    if all(
        isinstance(answer, dict) and "error" not in answer and answer.keys() == answers[0].keys() for answer in answers
    ):
        return {
            key: _folded([(n, at, answer[key]) for n, at, answer in samples], passes, counter) for key in answers[0]
        }
    by_pass = {n: answer for n, _, answer in samples}
    series, newest = [], answers[0]
    for n in range(passes):
        newest = by_pass.get(n, newest)
        series.append(newest)
    return {"series": series}
