"""The child process that speaks with nv-hostengine through NVIDIA's own bindings.

python -m gpuguard.sources.dcgm.child ORDER, with a socket as standard input

Native code that may hang or crash runs here and nowhere else. It connects to a host engine that runs already and never
starts one in its own process: two engines on one node can lock up the driver. What goes wrong with DCGM is told and
ends the process; the parent decides when there is to be another one.
Source  DCGM's testing/python3 (DcgmHandle, DcgmGroup, DcgmReader), 3.3 to 4.6
"""

import importlib
import os
import socket
import sys
import time
from typing import Any, NamedTuple

import msgspec

from gpuguard.child.frames import Unframer, framed, receive
from gpuguard.sources.dcgm.fields import is_blank
from gpuguard.sources.dcgm.talk import Answer, EntityAnswer, Order

# How long the engine keeps what it measured for us: two sweeps would do.
KEEP_SECONDS = 60.0
KEEP_SAMPLES = 2
# DCGM's kinds of things that fields belong to.
GPU, INSTANCE = 1, 4


class Bindings:
    """NVIDIA's modules, which have no types.

    Raises  ImportError, OSError where they or the library behind them cannot be loaded
    """

    def __init__(self, folder: str) -> None:
        sys.path.insert(0, folder)
        # Any: modules without types, of whatever version is installed.
        self.pydcgm: Any = importlib.import_module("pydcgm")
        self.structs: Any = importlib.import_module("dcgm_structs")
        self.fields: Any = importlib.import_module("dcgm_fields")
        self.agent: Any = importlib.import_module("dcgm_agent")
        self.errors: tuple[type[Exception], ...] = (
            self.structs.DCGMError, getattr(self.pydcgm, "DcgmException", OSError), OSError, AttributeError,
        )  # fmt: skip


class Entity(NamedTuple):
    """A GPU, or one of its instances, in DCGM's numbers; `instance` is NVML's number of that."""

    kind: int
    number: int
    gpu: int
    instance: int | None = None


class Engine:
    """A connection to the host engine, and what is watched through it."""

    def __init__(self, bindings: Bindings, order: Order) -> None:
        self._bindings, self._order = bindings, order
        where = {"unixSocketPath": order.address} if order.unix else {"ipAddress": order.address}
        self._handle = bindings.pydcgm.DcgmHandle(timeoutMs=int(order.connect_within * 1000), **where)
        self._system = self._handle.GetSystem()
        self._watching: tuple[Entity, ...] = ()
        self._addresses: dict[int, str] = {}
        self._group: Any = None
        self._field_groups: list[Any] = []
        self._number = 0
        self.unprofiled = ""

    def read(self) -> Answer:
        """The newest values of all GPUs and instances that the engine knows now."""
        entities = self._entities()
        if entities != self._watching:
            self._watch(entities)
        now = time.time()
        values: dict[tuple[int, int], dict[int, tuple[int | float | str, float]]] = {}
        for place, field_group in enumerate(self._field_groups):
            try:
                latest = self._group.samples.GetLatest_v2(field_group).values
            except self._bindings.structs.DCGMError as error:
                if place == 0:
                    raise
                self.unprofiled = str(error)  # without its profiling module the engine tells the rest
                continue
            for entity in entities:
                told = values.setdefault(entity[:2], {})
                for field, series in latest.get(entity.kind, {}).get(entity.number, {}).items():
                    newest = series[-1]
                    if newest.isBlank or not isinstance(newest.value, int | float | str):
                        continue
                    if not is_blank(newest.value):
                        told[field] = (newest.value, max(0.0, now - newest.ts / 1e6))
        return Answer(
            entities=tuple(
                EntityAnswer(pci=self._addresses[entity.gpu], instance=entity.instance, values=values[entity[:2]])
                for entity in entities
            ),
            unprofiled=self.unprofiled,
        )

    def _entities(self) -> tuple[Entity, ...]:
        """Every GPU that DCGM supports, and the instances that GPUs are cut into now."""
        gpus = [Entity(GPU, number, number) for number in self._system.discovery.GetAllSupportedGpuIds()]
        try:
            tree = self._bindings.agent.dcgmGetGpuInstanceHierarchy(self._handle.handle)
        except self._bindings.structs.DCGMError:
            return tuple(gpus)  # an engine that knows of no instances; one that has ended says so at the next call
        numbers = {gpu.number for gpu in gpus}
        instances = [
            Entity(INSTANCE, one.entity.entityId, one.parent.entityId, one.info.nvmlInstanceId)
            for one in tree.entityList[: tree.count]
            if one.entity.entityGroupId == INSTANCE and one.parent.entityId in numbers
        ]
        return (*gpus, *instances)

    def _watch(self, entities: tuple[Entity, ...]) -> None:
        """The engine watches our fields on these; what it watched for us before ends with its group."""
        self._number += 1
        name = f"gpuguard-{os.getpid()}-{self._number}"
        gpus = [entity.number for entity in entities if entity.kind == GPU]
        self._addresses = {number: self._address(number) for number in gpus}
        self._group = self._system.GetGroupWithGpuIds(name, gpus)
        for entity in entities:
            if entity.kind == INSTANCE:
                self._group.AddEntity(INSTANCE, entity.number)
        self._field_groups = [self._watched(f"{name}-device", self._order.device)]
        self.unprofiled = ""
        for place, numbers in enumerate((self._order.profiling, self._order.core)):
            if not numbers:
                continue
            try:
                self._field_groups.append(self._watched(f"{name}-profiling-{place}", numbers))
                self.unprofiled = ""
                break
            except self._bindings.structs.DCGMError as error:
                # No profiling on these GPUs, its module is not installed, or somebody else profiles.
                self.unprofiled = str(error)
        self._system.UpdateAllFields(True)
        self._watching = entities

    def _watched(self, name: str, numbers: tuple[int, ...]) -> Any:  # Any: a DcgmFieldGroup
        known = [number for number in numbers if self._bindings.fields.DcgmFieldGetById(number) is not None]
        field_group = self._bindings.pydcgm.DcgmFieldGroup(self._handle, name, known)
        self._group.samples.WatchFields(field_group, int(self._order.every * 1e6), KEEP_SECONDS, KEEP_SAMPLES)
        return field_group

    def _address(self, number: int) -> str:
        return _text(self._system.discovery.GetGpuAttributes(number).identifiers.pciBusId)


def _text(value: str | bytes) -> str:
    return value.decode("ascii", errors="replace") if isinstance(value, bytes) else str(value)


def main() -> int:
    """Exit code: 0 once the parent has closed the socket, 1 after something went wrong and was told."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    stream = socket.socket(fileno=0)
    unframer = Unframer()

    def say(answer: Answer) -> None:
        stream.sendall(framed(msgspec.json.encode(answer)))

    try:
        bindings = Bindings(order.bindings)
    except (ImportError, OSError, AttributeError) as error:
        say(Answer(error=f"DCGM's bindings in {order.bindings} cannot be loaded: {error}"))
        return 1
    engine: Engine | None = None
    try:
        while receive(stream, unframer) is not None:
            engine = engine or Engine(bindings, order)
            say(engine.read())
    except bindings.errors as error:
        say(Answer(error=f"{type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
