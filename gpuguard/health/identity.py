"""Which GPU is at which address: a moved GPU keeps its history, another GPU at the same address is another subject.

Theory. The kernel log names GPUs by PCI address; the driver tells UUID and serial now and then. A subject is named by
its address until they are known and carries all three from then on. When an address shows another UUID, the old
record is put aside under its UUID; when that UUID turns up again, at whatever address, the record comes back.
A board that took the place of an unfit one starts on probation.
"""

import msgspec

from gpuguard.health.machine import begin_anew, unproven
from gpuguard.health.state import Health
from gpuguard.model.events import GpuProbed, LogLine, Sweep
from gpuguard.model.health import Standing, SubjectHealth
from gpuguard.model.ids import GpuSerial, GpuUuid, SubjectId, gpu, pci_of
from gpuguard.model.instants import Instant, seconds_between

# The driver prints the board's serial right after the UUID of the same GPU, without an address.
SERIAL_FOLLOWS_WITHIN = 2.0
# Boards that are plugged in no more; no node sees as many in its life.
RETIRED_KEPT = 128


def learn(health: Health, event: LogLine) -> Health:
    """The memory with what an identity line of the driver tells."""
    detail = event.parsed.detail
    uuid, serial = detail.get("uuid"), detail.get("serial")
    if event.parsed.pci is not None:
        name = gpu(event.parsed.pci)
    elif health.identified is not None and _follows(health.identified[1], event):
        name = health.identified[0]
    else:
        return health
    if isinstance(uuid, str) and event.parsed.pci is not None:
        health = _place(health, name, GpuUuid(uuid))
        health = msgspec.structs.replace(health, identified=(name, event.at))
    if isinstance(serial, str) and serial.strip("0"):
        subject = msgspec.structs.replace(health.subject(name), serial=GpuSerial(serial))
        health = msgspec.structs.replace(health, subjects={**health.subjects, name: subject})
    return health


def probed(health: Health, event: GpuProbed) -> Health:
    """The memory with a GPU that answered on the bus: a subject from now on, and its UUID where the driver told it."""
    name = gpu(event.pci)
    if event.uuid is not None:
        health = _place(health, name, event.uuid)
    if name not in health.subjects or health.subject(name).seen != event.at.boot:
        seen = msgspec.structs.replace(health.subject(name), seen=event.at.boot)
        if seen.state == "returning":
            # Whatever was quiet before this moment, it was not this GPU at work.
            seen = begin_anew(seen, health.now)
        health = msgspec.structs.replace(health, subjects={**health.subjects, name: seen})
    if event.serial is not None and health.subject(name).serial != event.serial:
        subject = msgspec.structs.replace(health.subject(name), serial=event.serial)
        health = msgspec.structs.replace(health, subjects={**health.subjects, name: subject})
    return health


def swept(health: Health, event: Sweep) -> Health:
    """The memory with what the driver's library tells of the GPUs: which one is where, its serial and its index.

    Reads   the columns gpu_uuid, gpu_serial and gpu_index of a sweep
    """
    for name, values in event.rows.items():
        uuid, serial, index = values.get("gpu_uuid"), values.get("gpu_serial"), values.get("gpu_index")
        if uuid is None and serial is None and index is None:
            continue
        if isinstance(uuid, str):
            health = _place(health, name, GpuUuid(uuid))
        here = health.subject(name)
        if isinstance(serial, str) and serial.strip("0") and here.serial != serial:
            here = msgspec.structs.replace(here, serial=GpuSerial(serial))
        if isinstance(index, int) and here.index != index:
            here = msgspec.structs.replace(here, index=index)
        if here is not health.subjects.get(name):
            health = msgspec.structs.replace(health, subjects={**health.subjects, name: here})
    return health


def _follows(identified: Instant, event: LogLine) -> bool:
    between = seconds_between(identified, event.at)
    return between is not None and abs(between) <= SERIAL_FOLLOWS_WITHIN


def _place(health: Health, name: SubjectId, uuid: GpuUuid) -> Health:
    here = health.subject(name)
    if here.uuid == uuid:
        return health
    subjects, retired = dict(health.subjects), dict(health.retired)
    elsewhere = next((s for s in subjects.values() if s.uuid == uuid), None)
    if elsewhere is not None:
        del subjects[elsewhere.id]
        moved = _renamed(elsewhere, name)
    elif uuid in retired:
        moved = _renamed(retired.pop(uuid), name)
    elif here.uuid is None:
        subjects[name] = msgspec.structs.replace(here, uuid=uuid)
        return msgspec.structs.replace(health, subjects=subjects)
    else:
        moved = SubjectHealth(id=name, since=health.now, pci=pci_of(name), uuid=uuid)
    if here.state in ("unfit", "returning") and moved.state != "unfit":
        # Also where a good board took its place: the bad one may turn up elsewhere in this node any moment.
        moved = msgspec.structs.replace(unproven(moved, health.now), state="returning")
    if here.uuid is not None:
        retired[here.uuid] = here
        _forget_oldest(retired, but=here.uuid)
    subjects[name] = moved
    return msgspec.structs.replace(health, subjects=subjects, retired=retired)


def _forget_oldest(retired: dict[GpuUuid, SubjectHealth], *, but: GpuUuid) -> None:
    """At most RETIRED_KEPT are remembered: first those go against which nothing stood, then those that changed last
    longest ago. A library that tells another UUID at each look must not fill the memory."""
    while len(retired) > RETIRED_KEPT:
        others = (uuid for uuid in retired if uuid != but)
        oldest = min(others, key=lambda uuid: (bool(retired[uuid].standing), retired[uuid].since.utc or 0.0))
        del retired[oldest]


def _renamed(subject: SubjectHealth, name: SubjectId) -> SubjectHealth:
    def at_new_place(standing: Standing) -> Standing:
        return msgspec.structs.replace(standing, finding=msgspec.structs.replace(standing.finding, subject=name))

    return msgspec.structs.replace(
        subject, id=name, pci=pci_of(name), standing=tuple(at_new_place(s) for s in subject.standing)
    )
