"""A libnvidia-ml.so.1 that plays a recorded machine and misbehaves on demand, for tests and benchmarks.

The library is C (fake_nvml.c), compiled once for each generation of the driver against the header of nvidia-nvml-dev;
what a generation lacks (symbols.txt) is not exported, so that nvidia-ml-py finds it missing as it would in the field.

    with FakeNvml(machine("h100x8"), driver="570") as nvml:
        agent = subprocess.Popen([...], env=nvml.env())
        nvml.hang("nvmlDeviceGetPowerUsage", device=3)

Faults work at once, also in processes that run. A fault names a function, or one answer: "field/83", "field/138/4",
"gpm/5", "nvmlDeviceGetClockInfo/1", "nvmlDeviceGetRemappedRows.isPending". A device is its place in the recording (its
index as long as nobody reorders), its UUID or its PCI address.

Format of the file that the library reads, one line each; numbers with one of ".ein" are floating point:
    device UUID PCI                         in the order of the recording
    mig PARENT GI CI UUID                   CI -1: an instance without a compute instance
    every SECONDS                           between the passes of a series
    answer OWNER KEY n NUMBER | s NUMBER... | c FROM PER_SECOND | t TEXT | e CODE | d
    event AFTER DEVICE TYPE DATA GI CI
OWNER is -1 for the machine, the number of a device, or 64 and up for MIG instances; d says that a struct exists.
"""

import ctypes
import functools
import hashlib
import importlib.util
import json
import mmap
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).resolve().parent
SYMBOLS = HERE / "symbols.txt"
# Versions of the driver and of CUDA that a generation tells when the recording is of another one.
DRIVERS = {
    "470": ("470.256.02", 11040),
    "535": ("535.183.06", 12020),
    "570": ("570.124.06", 12080),
    "580": ("580.95.05", 13000),
    "615": ("615.71.01", 13050),
}
# A generation knows the fields below this number, and the GPM metrics below that; nvml.h, NVML_FI_MAX and
# NVML_GPM_METRIC_MAX.
KNOWN = {"470": (161, 0), "535": (197, 98), "570": (269, 98), "580": (274, 210), "615": (310, 477)}
# A name that a function had before, or another way to ask for the same: what is recorded of one, both answer.
TWINS = {
    "nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetSupportedClocksEventReasons": "nvmlDeviceGetSupportedClocksThrottleReasons",
    "nvmlDeviceGetTemperatureV": "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPerformanceState": "nvmlDeviceGetPowerState",
}
TWINS |= {new: old for old, new in TWINS.items()}
ALL = 0xFFFFFFFF  # gpuInstanceId and computeInstanceId of an event that is about the whole GPU

# Kinds of faults, and the layout of the control file; both stand in fake_nvml.c too.
_SLOW, _HANG, _HANG_DEEP, _FAIL, _CRASH, _VALUE, _TEXT, _TYPE, _RESET, _WRAP, _WATCH = range(1, 12)
_PRESENT, _LOST, _GONE, _RESET_REQUIRED = range(4)
_DEVICES, _FAULTS, _EVENTS, _MIG0 = 64, 128, 256, 64
_LONGEST_KEY = 96
_HEAD = struct.Struct("<8sddIIQ")
_FAULT = struct.Struct("<Ii96s96sqQdQ")
_EVENT = struct.Struct("<iIIIQQ")
_COUNT_OF_FAULTS, _COUNT_OF_EVENTS, _CALLS = 24, 28, 32
_ORDER = _HEAD.size
_STATE = _ORDER + 4 * _DEVICES
_FIRST_FAULT = _STATE + 4 * _DEVICES
_FIRST_EVENT = _FIRST_FAULT + _FAULTS * _FAULT.size
_SIZE = _FIRST_EVENT + _EVENTS * _EVENT.size
_FUTEX = {"x86_64": 202, "aarch64": 98}  # the number of the system call
_FUTEX_WAKE = 1

Json = Any  # whatever a file holds


def header() -> Path | None:
    """nvml.h of the package nvidia-nvml-dev, if it is installed."""
    try:
        spec = importlib.util.find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return next((path for place in places if (path := Path(place) / "include/nvml.h").exists()), None)


def lacking() -> str:
    """What this machine lacks to build the library; empty if nothing."""
    return "gcc" if shutil.which("gcc") is None else "nvidia-nvml-dev" if header() is None else ""


@functools.cache
def exported(driver: str) -> tuple[str, ...]:
    """The functions that a generation of the driver has."""
    rows = [line.split() for line in SYMBOLS.read_text().splitlines() if line and not line.startswith("#")]
    return tuple(symbol for since, symbol in rows if int(since) <= int(driver))


@functools.cache
def built(driver: str) -> Path:
    """The folder with a generation's libnvidia-ml.so.1, compiled if nobody has compiled the same before.

    Raises  RuntimeError with the compiler's words
    """
    nvml_h = header()
    if (missing := lacking()) or nvml_h is None:
        raise RuntimeError(f"the fake NVML library cannot be compiled: {missing} is missing")
    source = HERE / "fake_nvml.c"
    script = "{ global: " + " ".join(f"{symbol};" for symbol in exported(driver)) + " local: *; };\n"
    compiler = subprocess.run(["gcc", "--version"], capture_output=True, check=True).stdout
    content = b"\0".join((source.read_bytes(), nvml_h.read_bytes(), script.encode(), compiler))
    cache = Path(tempfile.gettempdir()) / f"gpuguard-fake-nvml-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    folder = cache / f"{driver}-{hashlib.sha256(content).hexdigest()[:16]}"
    if (folder / "libnvidia-ml.so.1").exists():
        return folder
    with tempfile.TemporaryDirectory(dir=cache) as name:
        fresh = Path(name) / "fresh"
        fresh.mkdir()
        (fresh / "exported.map").write_text(script)
        done = subprocess.run(
            [
                "gcc", "-shared", "-fPIC", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-parentheses",
                f"-I{nvml_h.parent}", "-Wl,-soname,libnvidia-ml.so.1", f"-Wl,--version-script={fresh}/exported.map",
                "-o", str(fresh / "libnvidia-ml.so.1"), str(source), "-lm",
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"gcc: {done.stderr}")
        try:
            fresh.rename(folder)
        except OSError:  # another process was quicker; its library is the same
            if not (folder / "libnvidia-ml.so.1").exists():
                raise
    return folder


class FakeNvml:
    """A recorded machine behind a library; its counters run from the moment it was made, in all processes alike."""

    def __init__(self, recording: Path | Mapping[str, Json], driver: str | None = None, *, speed: float = 1.0) -> None:
        said = recording if isinstance(recording, Mapping) else json.loads(_file_of(recording).read_text())
        self.recording: Mapping[str, Json] = said
        self.driver = driver or _generation(said)
        self.library = built(self.driver)
        self.devices = [(str(device["uuid"]), str(device["pci"])) for device in said["devices"]]
        self._folder = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
        self._file = self._folder / "answers.txt"
        self._file.write_text("".join(f"{line}\n" for line in lines(said, self.driver)))
        self._control = self._folder / "control"
        self._control.write_bytes(
            _HEAD.pack(b"fakenv1", time.monotonic(), speed, 0, 0, 0) + bytes(_SIZE - _HEAD.size)
        )  # fmt: skip
        with self._control.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SIZE)
        self.reorder(range(len(self.devices)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """The files are gone; processes that run keep what they have mapped."""
        self._memory.close()
        shutil.rmtree(self._folder)

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """An environment in which libnvidia-ml.so.1 is this one."""
        inherited = dict(os.environ if base is None else base)
        others = inherited.get("LD_LIBRARY_PATH")
        return inherited | {
            "LD_LIBRARY_PATH": f"{self.library}:{others}" if others else str(self.library),
            "FAKE_NVML_FILE": str(self._file),
            "FAKE_NVML_CONTROL": str(self._control),
        }

    # What goes wrong. Each returns the number of the fault, for `hits` and `heal`. `after` calls are left in peace.

    def slow(self, function: str, seconds: float, device: int | str | None = None, after: int = 0) -> int:
        """The function takes so much longer."""
        return self._fault(_SLOW, function, device, after, code=round(seconds * 1000))

    def hang(self, function: str, device: int | str | None = None, after: int = 0, *, deep: bool = False) -> int:
        """The function never returns, and nothing but SIGKILL ends the process; `heal` helps only later calls.

        deep    the process waits uninterruptibly, as in a driver: its state is D
        """
        return self._fault(_HANG_DEEP if deep else _HANG, function, device, after)

    def fail(self, key: str, code: int, device: int | str | None = None, after: int = 0) -> int:
        """The function, or one of its answers, gives an error."""
        return self._fault(_FAIL, key, device, after, code=code)

    def crash(self, function: str, device: int | str | None = None, after: int = 0) -> int:
        """The function ends the process with SIGSEGV."""
        return self._fault(_CRASH, function, device, after)

    def answer(self, key: str, value: float | str, device: int | str | None = None, after: int = 0) -> int:
        """The answer is another one: NaN, 2**47, 2**63 - 6, another name."""
        return self._fault(_TEXT if isinstance(value, str) else _VALUE, key, device, after, text=_written(value))

    def wrong_type(self, key: str, value_type: int, device: int | str | None = None, after: int = 0) -> int:
        """A field value says that it is of another type, and is written as one."""
        return self._fault(_TYPE, key, device, after, code=value_type)

    def reset_counter(self, key: str, device: int | str | None = None) -> int:
        """A counter starts again from 0 now."""
        return self._fault(_RESET, key, device, 0, at=time.monotonic())

    def wrap(self, key: str, modulus: int, device: int | str | None = None) -> int:
        """A counter is told modulo this."""
        return self._fault(_WRAP, key, device, 0, code=modulus)

    def watch(self, function: str, device: int | str | None = None) -> int:
        """No fault: `hits` tells how often the function is called."""
        return self._fault(_WATCH, function, device, 0)

    def hits(self, fault: int) -> int:
        """How often a fault was met, the calls left in peace among them."""
        return int(_FAULT.unpack_from(self._memory, _FIRST_FAULT + fault * _FAULT.size)[-1])

    def calls(self) -> int:
        """Calls of any function, by all processes, since the machine was made."""
        return int(struct.unpack_from("<Q", self._memory, _CALLS)[0])

    def heal(self, fault: int | None = None) -> None:
        """One fault, or all, and all lost GPUs are back in their old order."""
        for number in range(self._faults) if fault is None else (fault,):
            struct.pack_into("<I", self._memory, _FIRST_FAULT + number * _FAULT.size, 0)
        if fault is None:
            for place in range(len(self.devices)):
                self._set_state(place, _PRESENT)
            self.reorder(range(len(self.devices)))

    def cut_link(self, device: int | str, link: int, code: int = 3) -> None:
        """The link is down, and who is at its other end is answered with an error."""
        for key in (f"field/165/{link}", f"nvmlDeviceGetNvLinkState/{link}"):
            self.answer(key, 0, device)
        for call in ("nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemoteDeviceType"):
            self.fail(f"{call}/{link}", code, device)

    def join_link(self, device: int | str, link: int, peer: int | str) -> None:
        """The link ends at another GPU of the machine."""
        self.answer(f"nvmlDeviceGetNvLinkRemotePciInfo_v2/{link}.busId", self.devices[self.place(peer)][1], device)
        self.answer(f"nvmlDeviceGetNvLinkRemoteDeviceType/{link}", 0, device)

    def lose(self, device: int | str, *, gone: bool = False) -> None:
        """The GPU answers GPU_IS_LOST; if `gone` it is not counted any more and those behind it move up."""
        self._set_state(self.place(device), _GONE if gone else _LOST)

    def want_reset(self, device: int | str) -> None:
        """The GPU answers RESET_REQUIRED."""
        self._set_state(self.place(device), _RESET_REQUIRED)

    def give_back(self, device: int | str) -> None:
        """The GPU answers as before."""
        self._set_state(self.place(device), _PRESENT)

    def swap(self, device: int | str, uuid: str, serial: str = "") -> None:
        """Another board stands in the slot."""
        place = self.place(device)
        self.answer("nvmlDeviceGetUUID", uuid, place)
        if serial:
            self.answer("nvmlDeviceGetSerial", serial, place)

    def reorder(self, places: Sequence[int | str]) -> None:
        """Index 0, 1, ... belong to these devices now."""
        order = [self.place(device) for device in places]
        assert sorted(order) == list(range(len(self.devices))), "each device once"
        struct.pack_into(f"<{len(order)}i", self._memory, _ORDER, *order)

    def event(self, device: int | str, kind: int, value: int, gi: int = ALL, ci: int = ALL) -> None:
        """Who waits for events of this kind on this GPU gets one."""
        sent = int(struct.unpack_from("<I", self._memory, _COUNT_OF_EVENTS)[0])
        place = _FIRST_EVENT + sent % _EVENTS * _EVENT.size
        _EVENT.pack_into(self._memory, place, self.place(device), gi, ci, 0, kind, value)
        struct.pack_into("<I", self._memory, _COUNT_OF_EVENTS, (sent + 1) & 0xFFFFFFFF)
        word = ctypes.c_uint32.from_buffer(self._memory, _COUNT_OF_EVENTS)
        ctypes.CDLL(None).syscall(_FUTEX[platform.machine()], ctypes.byref(word), _FUTEX_WAKE, 2**31 - 1, None, None, 0)
        del word  # a mapping that is pointed into cannot be closed

    def place(self, device: int | str) -> int:
        """A device's place in the recording, by UUID or PCI address."""
        if isinstance(device, int):
            return device
        return next(
            n for n, names in enumerate(self.devices) if device.lower() in (names[0].lower(), *_forms(names[1]))
        )

    @property
    def _faults(self) -> int:
        return int(struct.unpack_from("<I", self._memory, _COUNT_OF_FAULTS)[0])

    def _set_state(self, place: int, state: int) -> None:
        struct.pack_into("<i", self._memory, _STATE + 4 * place, state)

    def _fault(
        self,
        kind: int,
        key: str,
        device: int | str | None,
        after: int,
        *,
        code: int = 0,
        text: str = "",
        at: float = 0.0,
    ) -> int:
        self._check(key)
        name, mark, rest = re.fullmatch(r"(\w+)([/.#]?)(.*)", key, re.ASCII).groups()  # type: ignore[union-attr]
        if kind in (_FAIL, _VALUE, _RESET, _WRAP) and name in TWINS and (mark or kind != _FAIL):
            self._write(kind, TWINS[name] + mark + rest, device, after, code, text, at)
        return self._write(kind, key, device, after, code, text, at)

    def _check(self, key: str) -> None:
        name = re.split(r"[/.#]", key)[0]
        assert name in ("field", "gpm") or name in exported(max(DRIVERS)), f"no function {name}"

    def _write(self, kind: int, key: str, device: int | str | None, after: int, code: int, text: str, at: float) -> int:
        states = [self._memory[_FIRST_FAULT + n * _FAULT.size] for n in range(self._faults)]
        number = states.index(0) if 0 in states else len(states)
        assert number < _FAULTS, "too many faults at once"
        place = -1 if device is None else self.place(device)
        at_byte = _FIRST_FAULT + number * _FAULT.size
        # The kind last: a process that looks now sees a whole fault or none.
        _FAULT.pack_into(self._memory, at_byte, 0, place, key.encode(), text.encode(), code, after, at, 0)
        struct.pack_into("<I", self._memory, at_byte, kind)
        struct.pack_into("<I", self._memory, _COUNT_OF_FAULTS, max(self._faults, number + 1))
        return number


def lines(recording: Mapping[str, Json], driver: str) -> Iterator[str]:
    """The recording as the library reads it."""
    version, cuda = DRIVERS[driver]
    system = dict(recording.get("system", {}))
    if _generation(recording) != driver:
        system |= {
            "nvmlSystemGetDriverVersion": version,
            "nvmlSystemGetNVMLVersion": f"{cuda // 1000}.{version}",
            "nvmlSystemGetCudaDriverVersion_v2": cuda,
        }
    yield f"every {float(recording.get('every', 5.0))}"
    yield from _answers(-1, system)
    migs = 0
    common = recording.get("all", {})
    for number, own in enumerate(recording["devices"]):
        device = _merged(common, own)
        yield f"device {own['uuid']} {own['pci']}"
        yield from _of_owner(number, device, driver)
        for instance in own.get("mig", ()):
            for ci in instance["ci"] or (-1,):
                uuid = instance["uuid"] if len(instance["ci"]) < 2 else f"{instance['uuid']}-{ci}"
                yield f"mig {number} {instance['gi']} {ci} {uuid}"
                calls = dict(instance.get("calls", {}))
                calls.setdefault(
                    "nvmlDeviceGetName", f"{device['calls']['nvmlDeviceGetName']} MIG {instance['profile']}"
                )
                yield from _of_owner(_MIG0 + migs, {**instance, "calls": calls}, driver)
                migs += 1
    places = {str(device["uuid"]): number for number, device in enumerate(recording["devices"])}
    for event in sorted(recording.get("events", ()), key=lambda event: float(event["after"])):
        gi, ci = event.get("gpuInstanceId", ALL), event.get("computeInstanceId", ALL)
        yield f"event {event['after']} {places[event['uuid']]} {event['type']} {event['data']} {gi} {ci}"


def _of_owner(owner: int, said: Mapping[str, Json], driver: str) -> Iterator[str]:
    fields, metrics = KNOWN[driver]
    calls = dict(said.get("calls", {}))
    for name, twin in TWINS.items():
        if name in calls:
            calls.setdefault(twin, calls[name])
    yield from _answers(owner, calls)
    for key, value in said.get("fields", {}).items():
        if int(key.partition("/")[0]) < fields:
            yield from _flat(owner, f"field/{key}", value)
    if "gpm" in said and metrics:
        yield f"answer {owner} gpm d"
        for key, value in said["gpm"].items():
            if int(key) < metrics:
                yield from _flat(owner, f"gpm/{key}", value)


def _answers(owner: int, calls: Mapping[str, Json]) -> Iterator[str]:
    for name, value in calls.items():
        if name == "nvmlDeviceGetCudaComputeCapability" and isinstance(value, list):
            yield from _flat(owner, name, dict(zip(("major", "minor"), value, strict=True)))
        else:
            yield from _flat(owner, name, value)


def _flat(owner: int, key: str, value: Json) -> Iterator[str]:
    """One answer, however deep its JSON, as lines; an answer of null is none."""
    assert len(key.encode()) < _LONGEST_KEY, key
    assert " " not in key, key
    start = f"answer {owner} {key}"
    match value:
        case None:
            return
        case str():
            yield f"{start} t {value}"
        case int() | float():
            yield f"{start} n {_written(value)}"
        case {"error": code}:
            yield f"{start} e {code}"
        case {"series": series}:
            yield f"{start} s {' '.join(map(_written, series))}"
        case {"from": start_value, "per_second": rate}:
            yield f"{start} c {_written(start_value)} {_written(rate)}"
        case list():
            yield f"{start} d"
            yield f"{start}# n {len(value)}"
            for index, one in enumerate(value):
                yield from _flat(owner, f"{key}#{index}", one)
        case dict() if all(re.fullmatch(r"\d+(/\d+)*", name) for name in value) and value:
            for argument, one in value.items():
                yield from _flat(owner, f"{key}/{argument}", one)
        case dict():
            yield f"{start} d"
            for name, one in value.items():
                yield from _flat(owner, f"{key}.{name}", one)
        case _:
            raise AssertionError(f"{key}: {value!r} is no answer")


def _written(value: float | str) -> str:
    return value if isinstance(value, str) else str(int(value)) if isinstance(value, int) else repr(float(value))


def _merged(common: Json, own: Json) -> Json:
    """What a device says over what all say, key by key."""
    number = {"series", "from", "error"}
    if not isinstance(common, dict) or not isinstance(own, dict) or number & (common.keys() | own.keys()):
        return own
    return common | {key: _merged(common[key], value) if key in common else value for key, value in own.items()}


def _file_of(recording: Path) -> Path:
    return recording / "nvml.json" if recording.is_dir() else recording


def _generation(recording: Mapping[str, Json]) -> str:
    """The newest of our generations that is not newer than the recording's driver."""
    major = int(str(recording.get("system", {}).get("nvmlSystemGetDriverVersion", "570")).split(".")[0])
    return max((driver for driver in DRIVERS if int(driver) <= major), key=int, default=min(DRIVERS, key=int))


def _forms(pci: str) -> tuple[str, str]:
    """NVML's spelling of an address, and the kernel's."""
    return pci.lower(), pci.lower()[4:]
