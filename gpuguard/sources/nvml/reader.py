"""Turns NVML's answers into rows: one for each GPU, GPU instance and process, and one for the node.

Sweeps come in three classes: fast (what moves), medium (what counts), slow (what identifies, limits and connects). A
GPU is known by its UUID, wherever the list has it now:

    listed, answers          its row says gpu_up 1
    answers lost or reset    its row says gpu_up 0 and NVML's code, nothing else
    answers only errors      the same
    seen before, not listed  its row says gpu_up 0 under its last address, until another GPU sits there
    UUID of another, or none its row has no UUID; its address tells it apart
    moved, listed otherwise  its row goes with it; what identifies is read anew
    held                     it is not touched and has no row

Only what ends NVML as a whole (the driver is gone, or is another version) leaves `sweep`; the rest is in the rows.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from gpuguard.errors import NotUnderstood
from gpuguard.model.ids import NODE, PciAddress, SubjectId, gpu, parse_pci_address
from gpuguard.model.readings import Rate, Values
from gpuguard.sources.nvml import readings
from gpuguard.sources.nvml.gpu import NO_TEXT, Calls, Counts, Fields, Gpu, Metrics, instances
from gpuguard.sources.nvml.library import (
    ABSENT_CODES,
    CORRUPTED_INFOROM,
    FATAL_CODES,
    GPU_NOT_FOUND,
    INVALID_ARGUMENT,
    LOST_CODES,
    NOT_FOUND,
    USUAL_ERRORS,
    WHOLE_GPU,
    Device,
    Library,
    Listed,
    NvmlError,
)
from gpuguard.sources.nvml.links import read_links
from gpuguard.sources.nvml.wiring import read_pairs, read_wiring
from gpuguard.sweeping.files import listed
from gpuguard.sweeping.gpus import DEVICES, is_gpu

Rows = dict[SubjectId, Values]

PROCESS_LISTS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses_v3"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
)
MOST_PROCESSES = 256  # of one GPU that get a row of their own; all are counted
INFOROM_CALL = "nvmlDeviceValidateInforom"
FABRIC_CALLS = (readings.FABRIC_CALL, "nvmlDeviceGetGpuFabricInfo")
MIG_CALL = "nvmlDeviceGetMigMode"
# A handle of a MIG device whose instance is gone answers one of these.
CUT_ANEW = frozenset({INVALID_ARGUMENT, NOT_FOUND, GPU_NOT_FOUND})

_PROCESS_MEMORY = readings.column("process_memory_bytes")
_PROCESS_COUNT = readings.column("process_count")
_FABRIC = {
    name: readings.column(name) for name in ("fabric_state", "fabric_status", "fabric_health", "fabric_health_mask")
}


class Reader:
    """Reads one machine through a library that is open.

    `root` is where /proc is; `known` are GPUs that were seen before this process began, by UUID.
    """

    def __init__(self, library: Library, root: Path, known: Mapping[str, PciAddress] | None = None) -> None:
        self._library = library
        self._proc, self._bus = root / "proc", root / DEVICES
        self._seen: dict[str, PciAddress] = dict(known or {})
        self._gpus: dict[str, Gpu] = {}
        self._listing_error = 0
        self._nameless = 0  # listed, but without a handle or an address
        self._on_bus: tuple[int, list[PciAddress]] = (0, [])  # the kernel's list, as of so many nameless
        self.counts = Counts()
        self.changed = False  # what there is differs from the last sweep: what identifies must be read anew
        self._versions = self._read_versions()

    # --- what there is -----------------------------------------------------------------------------------------------

    def _read_versions(self) -> Values:
        versions: Values = {}
        for name, call in (
            ("driver_version", "nvmlSystemGetDriverVersion"), ("nvml_version", "nvmlSystemGetNVMLVersion"),
        ):  # fmt: skip
            text = self._system(call)
            if text is not None:
                versions[name] = str(text)
        cuda = self._system("nvmlSystemGetCudaDriverVersion_v2")
        if isinstance(cuda, int):
            versions["cuda_version"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
        return versions

    def _system(self, call: str, *arguments: int) -> int | float | str | None:
        try:
            return self._library.system(call, *arguments)
        except NvmlError as error:
            if error.code in FATAL_CODES:
                raise
            if error.code not in ABSENT_CODES | {NOT_FOUND}:  # a process has gone meanwhile
                self.counts.erred(error.code)
            return None

    def _list(self) -> None:
        """`_gpus` are those that are listed now; what moved or was cut up anew is known anew."""
        found: dict[str, Gpu] = {}
        self._listing_error = self._nameless = 0
        listing = self._library.devices()
        for place in listing:
            if place.device is None:
                if place.error in FATAL_CODES:
                    raise NvmlError(place.error)
                self.counts.erred(place.error)
                self._listing_error = place.error
                self._nameless += 1
                continue
            uuid = place.device.uuid
            known = self._gpus.get(uuid)
            if not uuid or uuid in found or (known is not None and _is_of_another(place.device, known, listing)):
                self._list_twin(place.device, place.index, found)
                continue
            if known is not None and known.device is place.device and known.index == place.index:
                found[uuid] = known
                continue
            # Listed elsewhere, or again: it may have been moved, reset or replaced, so its calls are tried anew.
            self.changed = True
            if known is not None:
                self._library.forget(known.device)
            fresh = self._meet(place.device, place.index)
            if fresh is not None:
                found[uuid] = fresh
        for uuid, gone in self._gpus.items():
            if uuid not in found:
                self.changed = True
                self._library.forget(gone.device)
        self._gpus = found
        taken = {one.pci for one in found.values()}
        for uuid, one in found.items():
            if one.named:
                self._seen[uuid] = one.pci
        self._seen = {uuid: pci for uuid, pci in self._seen.items() if uuid in found or pci not in taken}

    def _list_twin(self, device: Device, index: int, found: dict[str, Gpu]) -> None:
        """A GPU without a UUID, or with that of another one, is found by its address: it too is to be watched."""
        known = next((one for one in self._gpus.values() if one.device is device and one.index == index), None)
        if known is None:
            self.changed = True
            known = self._meet(device, index)
            self.counts.reject("gpu_uuid")
        if known is not None:
            known.named = False
            found[f"{device.uuid}@{known.pci}"] = known

    def _meet(self, device: Device, index: int) -> Gpu | None:
        """The GPU behind a handle; None where it does not even tell its address and never did."""
        pci, pci_id, code = self._seen.get(device.uuid), None, 0
        try:
            answer = self._library.call(device, "nvmlDeviceGetPciInfo_v3")
            if isinstance(answer, dict):
                pci = parse_pci_address(str(answer["busId"]))
                numbers = int(answer.get("pciDeviceId", 0))
                pci_id = f"{numbers & 0xFFFF:04x}:{numbers >> 16:04x}" if numbers else None
        except NvmlError as error:
            if error.code in FATAL_CODES:
                raise
            self.counts.erred(error.code)
            code = error.code
        except NotUnderstood:
            self.counts.reject("gpu_pci_id")
        if pci is None:
            self._listing_error = code or self._listing_error
            self._nameless += 1
            return None
        met = Gpu(uuid=device.uuid, device=device, index=index, pci=pci, pci_id=pci_id)
        try:
            self._survey(met)
        except NvmlError as error:
            if error.code in FATAL_CODES:
                raise
        return met

    def _survey(self, one: Gpu) -> None:
        """Whether the GPU is in MIG mode, and how it is cut up, is known anew; a change makes all calls be tried anew.

        Raises  NvmlError when the GPU or the library is lost
        """
        before = one.layout
        if MIG_CALL not in one.off:
            try:
                answer = self._library.call(one.device, MIG_CALL)
                if isinstance(answer, dict):
                    one.mig_mode, one.mig_pending = int(answer["currentMode"]), int(answer["pendingMode"])
            except NvmlError as error:
                if error.code in ABSENT_CODES:
                    one.off.add(MIG_CALL)
                else:
                    self.counts.failed({}, (), error)
                return
        if one.mig_mode == 1:
            parts = instances(self._library.parts(one.device))
            if [(i.number, i.shape) for i in parts] != [(i.number, i.shape) for i in one.instances]:
                one.instances = parts
        else:
            one.instances = []
        if one.layout != before:
            self.changed = True
            self._library.forget(one.device)
            _try_anew(one)

    # --- sweeps ------------------------------------------------------------------------------------------------------

    def sweep(self, rate: Rate, held: Collection[PciAddress] = ()) -> Rows:
        """The rows of one class; GPUs at the addresses in `held` are not touched.

        Raises  NvmlError when nothing can be asked of NVML any more
        """
        self.changed = False
        if not (held and self._gpus):
            self._list()
        rows: Rows = {}
        read: Callable[[Gpu, Values, Rows], None] = {
            "fast": self._read_fast, "medium": self._read_medium, "slow": self._read_slow,
        }[rate]  # fmt: skip
        for one in self._gpus.values():
            if one.pci in held:
                continue
            row: Values = {}
            others: Rows = {}
            try:
                read(one, row, others)
                one.code = 0
            except NvmlError as error:
                if error.code in FATAL_CODES:
                    raise
                self.counts.erred(error.code)
                if error.code in LOST_CODES or rate == "fast":
                    one.code = error.code
                    if rate == "slow":
                        continue  # who it was stays known
                    row, others = _lost(one.uuid if one.named else None, error.code) if rate == "fast" else {}, {}
            rows[gpu(one.pci)] = row
            rows.update(others)
        if rate == "slow":
            told = [one for one in self._gpus.values() if gpu(one.pci) in rows]  # neither lost nor held
            read_pairs(rows, told, self._library, self.counts)
        if rate == "fast":
            self._add_lost(rows, held)
            rows[NODE] = self._node()
        return rows

    def _add_lost(self, rows: Rows, held: Collection[PciAddress]) -> None:
        code = self._listing_error if self._listing_error in LOST_CODES else GPU_NOT_FOUND
        for uuid, pci in self._seen.items():
            if uuid not in self._gpus and pci not in held:
                rows[gpu(pci)] = _lost(uuid, code)
        if self._nameless:
            # NVML gives neither UUID nor address of a GPU that was lost before it was opened. The kernel's list does.
            for pci in self._unlisted():
                if pci not in held:
                    rows.setdefault(gpu(pci), {"gpu_up": 0, "nvml_error": code})

    def _unlisted(self) -> list[PciAddress]:
        """Where the driver has a GPU that NVML does not list by address.

        Reads   /sys/bus/pci/devices/<address>/{vendor,class,driver}: the kernel's copies, no access to the device
        """
        if self._on_bus[0] != self._nameless or self.changed:
            self._on_bus = (self._nameless, gpus_on_bus(self._bus))
        listed = {one.pci for one in self._gpus.values()} | set(self._seen.values())
        return [pci for pci in self._on_bus[1] if pci not in listed]

    def _node(self) -> Values:
        visible = sum(1 for one in self._gpus.values() if one.code == 0)
        missing = max(len(self._seen.keys() - self._gpus.keys()), self._nameless)  # these may be the same GPUs
        return {
            **self._versions,
            "gpus_visible": visible,
            "gpus_lost": missing + sum(1 for one in self._gpus.values() if one.code in LOST_CODES),
            "rejected_samples_total": _by_name(self.counts.columns),
            "collect_errors_total": _by_name({**dict.fromkeys(USUAL_ERRORS, 0), **self.counts.codes}),
        }

    def _read_fast(self, one: Gpu, row: Values, others: Rows) -> None:
        """Raises  NvmlError where the GPU is lost, and where it answered nothing but errors."""
        row["gpu_up"] = 1
        row["nvml_error"] = 0
        row["gpu_uuid"] = one.uuid if one.named else None
        row["gpu_index"] = one.index
        library, counts = self._library, self.counts
        itself, errors = len(row), counts.errors
        one.fast_fields.read(row, library, one.device, counts)
        one.fast.read(row, library, one.device, counts)
        one.metrics.read(row, library, one.device, counts)
        if counts.errors != errors and all(value is None for value in list(row.values())[itself:]):
            raise NvmlError(counts.last)
        if one.mig_mode == 1:
            self._read_instances(one, others)

    def _read_instances(self, one: Gpu, others: Rows) -> None:
        for instance in one.instances:
            row: Values = {"mig_gpu_instance": instance.number}
            errors = self.counts.errors
            # Memory belongs to the GPU instance: each of its compute instances would say the same.
            instance.memory.read(row, self._library, instance.parts[0].device, self.counts)
            instance.metrics.read(row, self._library, one.device, self.counts)
            others[_mig(one, instance.number)] = row
            if self.counts.errors != errors:
                self.changed = True  # it may have been cut up anew: the medium sweep that follows looks

    def _read_medium(self, one: Gpu, row: Values, others: Rows) -> None:
        self._survey(one)
        if one.mig_mode is not None:
            row["mig_mode"], row["mig_mode_pending"] = one.mig_mode, one.mig_pending
        library, counts = self._library, self.counts
        one.medium_fields.read(row, library, one.device, counts)
        one.medium.read(row, library, one.device, counts)
        read_links(row, one, library, counts)
        self._read_fabric(one, row)
        self._read_processes(one, row, others)

    def _read_fabric(self, one: Gpu, row: Values) -> None:
        for call in FABRIC_CALLS:
            if call in one.off:
                continue
            try:
                answer = self._library.call(one.device, call)
            except NvmlError as error:
                if error.code in ABSENT_CODES:
                    one.off.add(call)
                    continue
                self.counts.failed(row, tuple(_FABRIC.values()), error)
                return
            if isinstance(answer, dict) and answer.get("state"):  # 0: this GPU has no fabric
                self.counts.put(row, _FABRIC["fabric_state"], answer["state"])
                if answer["state"] == readings.FABRIC_DONE:
                    self.counts.put(row, _FABRIC["fabric_status"], answer.get("status"))
                for key, name in (("healthSummary", "fabric_health"), ("healthMask", "fabric_health_mask")):
                    if answer.get(key):  # 0: not supported
                        self.counts.put(row, _FABRIC[name], answer[key])
            return

    def _read_processes(self, one: Gpu, row: Values, others: Rows) -> None:
        devices = [part.device for instance in one.instances for part in instance.parts] or [one.device]
        found: dict[int, Values] = {}
        asked = False
        for kind, call in PROCESS_LISTS:
            for device in devices:
                if call in one.off:
                    break
                try:
                    answer = self._library.call(device, call)
                except NvmlError as error:
                    if error.code in ABSENT_CODES:
                        one.off.add(call)
                    elif error.code in CUT_ANEW and one.instances:
                        self.changed = True
                    else:
                        self.counts.failed(row, (_PROCESS_COUNT,), error)
                    continue
                asked = True
                for process in answer if isinstance(answer, list) else ():
                    if isinstance(process, dict):
                        self._add_process(found, kind, process)
        if asked:
            row.setdefault(_PROCESS_COUNT.name, len(found))
        for pid, values in list(found.items())[:MOST_PROCESSES]:
            values["process_name"] = self._name_of(pid)
            others[SubjectId(f"process:{one.pci}/{pid}")] = values

    def _add_process(self, found: dict[int, Values], kind: str, process: Mapping[str, object]) -> None:
        pid = int(str(process["pid"]))
        memory: Values = {}
        if process.get("usedGpuMemory") == 2**64 - 1:  # NVML_VALUE_NOT_AVAILABLE
            memory[_PROCESS_MEMORY.name] = None
        else:
            self.counts.put(memory, _PROCESS_MEMORY, process.get("usedGpuMemory"))
        before = found.get(pid)
        if before is None:
            found[pid] = {"process_kind": kind, **memory}
            if (instance := process.get("gpuInstanceId", WHOLE_GPU)) != WHOLE_GPU:
                found[pid]["process_mig"] = int(str(instance))
        elif before["process_kind"] == kind:  # in another instance of the same GPU
            held, more = before[_PROCESS_MEMORY.name], memory[_PROCESS_MEMORY.name]
            before[_PROCESS_MEMORY.name] = held + more if isinstance(held, int) and isinstance(more, int) else None

    def _name_of(self, pid: int) -> str | None:
        """The name of a process; its command line is not read: that hangs where the process does."""
        try:
            name = (self._proc / str(pid) / "comm").read_bytes().decode(errors="replace").strip()
        except OSError:
            told = self._system("nvmlSystemGetProcessName", pid)
            words = str(told).split() if told is not None else []
            name = os.path.basename(words[0]) if words else ""  # the rest may be secret
        return name if name not in NO_TEXT else None

    def _read_slow(self, one: Gpu, row: Values, others: Rows) -> None:
        row["gpu_uuid"] = one.uuid if one.named else None
        row["gpu_index"] = one.index
        if one.pci_id is not None:
            row["gpu_pci_id"] = one.pci_id
        one.slow.read(row, self._library, one.device, self.counts)
        self._read_inforom(one, row)
        read_wiring(row, one, library=self._library, counts=self.counts, gpus=self._seen.values())
        for instance in one.instances:
            numbers = ",".join(str(part.compute_instance) for part in instance.parts)
            others[_mig(one, instance.number)] = {
                "mig_gpu_instance": instance.number,
                "mig_uuid": instance.parts[0].device.uuid,
                "mig_compute_instances": numbers,
                **self._profile(instance.parts[0].device),
            }

    def _read_inforom(self, one: Gpu, row: Values) -> None:
        if INFOROM_CALL in one.off:
            return
        try:
            self._library.call(one.device, INFOROM_CALL)
            row["inforom_valid"] = 1
        except NvmlError as error:
            if error.code == CORRUPTED_INFOROM:
                row["inforom_valid"] = 0
            elif error.code in ABSENT_CODES:
                one.off.add(INFOROM_CALL)
            else:
                self.counts.failed(row, (readings.column("inforom_valid"),), error)

    def _profile(self, device: Device) -> Values:
        """The profile of a GPU instance, as 1g.10gb: from the name of the MIG device, else from its attributes."""
        try:
            name = str(self._library.call(device, "nvmlDeviceGetName"))
            if " MIG " in name:
                return {"mig_profile": name.rpartition(" MIG ")[2].strip()}
            attributes = self._library.call(device, "nvmlDeviceGetAttributes_v2")
        except NvmlError as error:
            if error.code in LOST_CODES | FATAL_CODES:
                raise
            if error.code not in ABSENT_CODES:
                self.counts.erred(error.code)
            return {}
        if not isinstance(attributes, dict):
            return {}
        gibibytes = round(int(attributes["memorySizeMB"]) / 1024)
        return {"mig_profile": f"{attributes['gpuInstanceSliceCount']}g.{gibibytes}gb"}

    def address_of(self, uuid: str) -> PciAddress | None:
        """Where the GPU with this UUID is, or was."""
        return self._seen.get(uuid)

    @property
    def known(self) -> dict[str, PciAddress]:
        """Every GPU that was seen and not replaced, by UUID."""
        return dict(self._seen)


def gpus_on_bus(bus: Path) -> list[PciAddress]:
    """The addresses of NVIDIA's GPUs, but for those that another driver has, as one that is passed to a guest."""
    found = []
    for name in listed(bus):
        try:
            pci = parse_pci_address(name)
        except NotUnderstood:
            continue  # a bridge of odd firmware
        if not is_gpu(bus / name):
            continue
        try:
            driver = os.path.basename(os.readlink(bus / name / "driver"))
        except FileNotFoundError:
            driver = "nvidia"  # it may have let go of what it lost
        except OSError:
            continue  # gone meanwhile
        if driver == "nvidia":
            found.append(pci)
    return found


def _try_anew(one: Gpu) -> None:
    """Every call is tried again: what a GPU supports depends on its mode. In MIG mode links mean nothing."""
    fresh = Gpu(uuid=one.uuid, device=one.device, index=one.index, pci=one.pci)
    one.fast, one.medium, one.slow = fresh.fast, fresh.medium, fresh.slow
    one.off, one.link_strikes, one.link_kinds, one.link_count = set(), {}, set(), None
    one.medium_fields = fresh.medium_fields
    cut = one.mig_mode == 1
    one.fast_fields = Fields([f for f in readings.FAST_FIELDS if not (cut and f.field in readings.LINK_FIELDS)])
    one.metrics = Metrics({m: c for m, c in readings.GPM.items() if not (cut and c.name.startswith("nvlink_"))})
    for instance in one.instances:
        instance.metrics = Metrics(readings.GPM_OF_PART, instance.number)
        instance.memory = Calls([readings.MEMORY_OF_PART])


def _mig(one: Gpu, number: int) -> SubjectId:
    return SubjectId(f"mig:{one.pci}/{number}")


def _is_of_another(device: Device, known: Gpu, listing: Sequence[Listed]) -> bool:
    """Whether the GPU that had this device's UUID before has it still, so that here it is wrong."""
    return known.device is not device and any(
        other.device is known.device and known.device.uuid == device.uuid for other in listing
    )


def _by_name(counts: Mapping[int, int] | Mapping[str, int]) -> tuple[str | int, ...]:
    """Each name and its count, in turn."""
    return tuple(part for name, count in sorted(counts.items()) for part in (str(name), count))


def _lost(uuid: str | None, code: int) -> Values:
    return {"gpu_up": 0, "nvml_error": code, "gpu_uuid": uuid}
