"""What this machine should have and what its PCI bus shows of it: the expectation that others judge by.

Reads     /sys/bus/pci/devices/<address>/{vendor,device,class,subsystem_device,driver}, /sys/class/dmi/id/{sys_vendor,
          product_name,product_serial,board_serial}, /etc/machine-id; the kernel's own copies, so no device is reached
          and nothing can hang
Emits     one slow sweep: the node's row and one of each GPU
Cursor    none: it looks at the present
Source    Linux drivers/pci/pci-sysfs.c, drivers/firmware/dmi-id.c; PCI Code and ID Assignment: class 0680 is a bridge
          of another kind, as which NVSwitches show

A machine without a profile is no fault: what nobody knows to expect is absent from the rows.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuguard.errors import Absent, ConfigInvalid, NotUnderstood, ReadFailed
from gpuguard.model.ids import NODE, PciAddress, gpu, parse_pci_address
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Quantity, Values
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock, Rules
from gpuguard.sources.machine import serial
from gpuguard.sources.machine.profiles import NOTHING, Device, Profile, Seen, choose, parse, parse_id
from gpuguard.sweeping.files import listed, read_text
from gpuguard.sweeping.gpus import DEVICES, GPU_CLASSES, VENDOR_NVIDIA
from gpuguard.sweeping.rounds import Rounds, Rows

NAME = "machine"
SWITCH_CLASS = "0x0680"
DRIVER = "nvidia"


def _count(name: str, help: str, *, metric: str | None = "", high: float = 1024) -> Quantity:
    return Quantity(name=name, of="node", unit="count", help=help, low=0, high=high, metric=metric)


def _flag(name: str, help: str) -> Quantity:
    return Quantity(name=name, of="node", unit="flag", help=help, low=0, high=1, metric=None)


QUANTITIES = (
    Quantity(
        name="machine_profile", of="node", unit="text", kind="text", metric=None, help="Which profile the machine fits."
    ),
    Quantity(
        name="node_serial", of="node", unit="text", kind="text", metric=None,
        help="By what the machine is known: its maker's serial number, else a hash of its machine-id.",
    ),
    _count("gpus_expected", "GPUs that the machine should have."),
    _count("gpus_on_bus", "GPUs that the kernel lists on the PCI bus."),
    _count("gpus_for_driver", "GPUs on the bus that no other driver has, as vfio-pci would.", metric=None),
    _count("nvswitches_expected", "NVSwitches that the machine should show on the PCI bus.", metric=None),
    _count("nvswitches_on_bus", "NVSwitches that the kernel lists on the PCI bus.", metric=None),
    _count("ib_ports_expected", "RDMA ports that the machine should have for computing, at least."),
    _flag("fabric_manager_expected", "1 where the Fabric Manager belongs to the machine."),
    _flag("peermem_expected", "1 where the module nvidia_peermem belongs to the machine."),
    _flag("imex_expected", "1 where the IMEX service belongs to the machine."),
    Quantity(name="nvlinks_expected", of="gpu", unit="count", low=0, high=72, help="NVLinks that should be up."),
    Quantity(
        name="pcie_link_generation_expected", of="gpu", unit="count", low=1, high=8, metric=None,
        help="PCIe generation that the product and its machine can do.",
    ),
    Quantity(
        name="pcie_link_width_expected", of="gpu", unit="lanes", low=1, high=32,
        help="PCIe lanes that the product and its machine have.",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site knows better than any table. Units: seconds, counts."""

    every: Seconds = Seconds(600.0)  # the bus is looked at this often
    profile: str = ""  # name of a profile in rules/machines/ instead of the one that the PCI ids tell, or "none"
    gpus_expected: int | None = None  # GPUs that this machine should have
    nvswitches_expected: int | None = None  # NVSwitches on its PCI bus
    ib_ports_expected: int | None = None  # RDMA ports for computing
    nvlinks_expected: int | None = None  # NVLinks that should be up, of each GPU
    pcie_link_width_expected: int | None = None  # lanes, of each GPU
    pcie_link_generation_expected: int | None = None  # of each GPU
    fabric_manager_expected: bool | None = None  # whether the fabric manager should run
    peermem_expected: bool | None = None  # whether nvidia_peermem should be loaded
    imex_expected: bool | None = None  # whether nvidia-imex should run

    def __post_init__(self) -> None:
        """Raises ValueError for what no machine has."""
        if self.every <= 0:
            raise ValueError("every: must be above 0")
        for name in (
            "gpus_expected", "nvswitches_expected", "ib_ports_expected", "nvlinks_expected", "pcie_link_width_expected",
            "pcie_link_generation_expected",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1024:
                raise ValueError(f"{name}: must be between 0 and 1024")


class Machine:
    """The machine under a root, by its bus and its profiles."""

    def __init__(self, settings: Settings, root: Path, profiles: Mapping[str, Profile]) -> None:
        """Reads nothing yet.

        Raises  ConfigInvalid when the site names a profile that is none
        """
        self._settings, self._root, self._profiles = settings, root, profiles
        if settings.profile not in ("", "none") and settings.profile not in profiles:
            raise ConfigInvalid(
                [f"[sources.machine] profile: no profile {settings.profile!r}; there are {', '.join(sorted(profiles))}"]
            )

    def rows(self, now: Instant) -> Rows:
        """What is expected and what the bus shows.

        Raises  Absent where the machine has no PCI bus, or neither a GPU nor an expectation of one
        """
        if not (self._root / DEVICES).is_dir():
            raise Absent(f"{self._root / DEVICES} does not exist; this machine has no PCI bus")
        seen = self.look()
        name = self._settings.profile or choose(self._profiles, seen)
        profile = self._profiles.get(name) if name is not None else None
        if not seen.gpus and profile is None and self._settings.gpus_expected is None:
            raise Absent("no NVIDIA GPU on the PCI bus; it is looked for again later")
        # Where a profile knows the count, a card of another kind beside its GPUs (a display) is none of them.
        counted = [
            one for one in seen.gpus
            if profile is None or profile.gpus is None or one.named_by(profile.match.gpu)
        ]  # fmt: skip
        rows: Rows = {NODE: self._node(name if profile is not None else None, profile, seen, len(counted))}
        for one in seen.gpus:
            known = profile if profile is not None and one.named_by(profile.match.gpu) else None
            if values := self._gpu(known):
                rows[gpu(one.pci)] = values
        return rows

    def look(self) -> Seen:
        """All that profiles are matched by.

        Raises  ReadFailed: who cannot be read is not missing
        """
        gpus, switches = [], []
        for name in listed(self._root / DEVICES):
            folder = self._root / DEVICES / name
            try:
                pci = parse_pci_address(name)
                if read_text(folder / "vendor") != VENDOR_NVIDIA:
                    continue
                kind = read_text(folder / "class")
                if kind.startswith(GPU_CLASSES):
                    gpus.append(_device(pci, folder))
                elif kind.startswith(SWITCH_CLASS):
                    switches.append(_device(pci, folder))
            except (Absent, NotUnderstood):
                continue  # unplugged meanwhile, or a bridge of odd firmware
        return Seen(
            gpus=tuple(gpus), switches=tuple(switches), vendor=self._firmware("sys_vendor"),
            product=self._firmware("product_name"),
        )  # fmt: skip

    def _driver_of(self, pci: PciAddress) -> str | None:
        """The kernel driver that has the device; None while no driver has.

        Source  Linux drivers/base/dd.c: the link `driver` in a device's folder
        """
        try:
            return os.path.basename(os.readlink(self._root / DEVICES / pci / "driver"))
        except OSError:
            return None

    def _firmware(self, file: str) -> str | None:
        try:
            return read_text(self._root / serial.DMI / file) or None
        except (Absent, ReadFailed):
            return None

    def _node(self, name: str | None, profile: Profile | None, seen: Seen, gpus: int) -> Values:
        site = self._settings
        ours = sum(self._driver_of(one.pci) in (None, DRIVER) for one in seen.gpus)
        values: Values = {"gpus_on_bus": gpus, "gpus_for_driver": ours, "nvswitches_on_bus": len(seen.switches)}
        known = profile or NOTHING
        if name is not None:
            values["machine_profile"] = name
        serial.fill(values, self._root)
        for column, said, told in (
            ("gpus_expected", site.gpus_expected, known.gpus),
            ("nvswitches_expected", site.nvswitches_expected, known.nvswitches),
            ("ib_ports_expected", site.ib_ports_expected, known.ib_ports),
            ("fabric_manager_expected", site.fabric_manager_expected, known.fabric_manager),
            ("peermem_expected", site.peermem_expected, known.peermem),
            ("imex_expected", site.imex_expected, known.imex),
        ):
            _expect(values, column, said, told)
        return values

    def _gpu(self, profile: Profile | None) -> Values:
        site, known = self._settings, profile or NOTHING
        values: Values = {}
        for column, said, told in (
            ("nvlinks_expected", site.nvlinks_expected, known.nvlinks),
            ("pcie_link_generation_expected", site.pcie_link_generation_expected, known.pcie_generation),
            ("pcie_link_width_expected", site.pcie_link_width_expected, known.pcie_width),
        ):  # fmt: skip
            _expect(values, column, said, told)
        return values


def _expect(values: Values, column: str, said: int | None, known: int | None) -> None:
    """The column holds what the site says, else what the profile knows; it is absent where neither does."""
    value = said if said is not None else known
    if value is not None:
        values[column] = int(value)


def _device(pci: PciAddress, folder: Path) -> Device:
    """Raises  Absent, ReadFailed, NotUnderstood."""
    try:
        subsystem = parse_id(read_text(folder / "subsystem_device"))
    except (Absent, ReadFailed, NotUnderstood):
        subsystem = ""  # of the recorded machines of old, and of devices without one
    return Device(
        pci=pci, id=f"{parse_id(read_text(folder / 'vendor'))}:{parse_id(read_text(folder / 'device'))}",
        subsystem=subsystem,
    )  # fmt: skip


def build(settings: Settings, root: Path, clock: Clock, rules: Rules) -> Rounds:
    """The source for the machine under `root`.

    Raises  ConfigInvalid when a table of rules/machines/ is not understood, or the site names a profile that is none
    """
    machine = Machine(settings, root, parse(rules.texts("machines")))
    return Rounds(NAME, machine.rows, clock, every=settings.every, rate="slow")
