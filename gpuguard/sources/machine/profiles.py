"""What a machine should have, told from the PCI ids on its bus; `rules/machines/` holds the tables.

A GPU's name is never looked at: several products share one, and drivers spell them as they like.
"""

import tomllib
from collections.abc import Mapping
from typing import Literal

import msgspec

from gpuguard.errors import ConfigInvalid, NotUnderstood
from gpuguard.model.ids import PciAddress

# What SMBIOS says of the maker, or else of the product, of a virtual machine.
# Source  systemd src/basic/virt.c, detect_vm_dmi_vendor
VIRTUAL_VENDORS = (
    "KVM", "OpenStack", "KubeVirt", "Amazon EC2", "QEMU", "VMware", "VMW", "innotek GmbH", "Oracle Corporation", "Xen",
    "Bochs", "Parallels", "BHYVE", "Google", "Alibaba Cloud", "Tencent Cloud", "Nutanix", "Red Hat", "RDO",
)  # fmt: skip
VIRTUAL_PRODUCTS = ("Virtual Machine", "KVM", "Google Compute Engine", "HVM domU", "Standard PC", "VirtualBox")


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU or NVSwitch as the kernel tells it: `id` is vendor:device, `subsystem` the third part of an id."""

    pci: PciAddress
    id: str
    subsystem: str = ""

    def named_by(self, ids: tuple[str, ...]) -> bool:
        """Whether one of the ids, with or without a subsystem, is this device's."""
        return self.id in ids or f"{self.id}:{self.subsystem}" in ids


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """All that a profile is matched by. `vendor` and `product` are SMBIOS's, None where firmware tells nothing."""

    gpus: tuple[Device, ...]
    switches: tuple[Device, ...] = ()
    vendor: str | None = None
    product: str | None = None

    @property
    def kind(self) -> str | None:
        """`virtual` or `hardware`; None where nothing tells."""
        if self.vendor is None:
            return None
        virtual = self.vendor.startswith(VIRTUAL_VENDORS) or (self.product or "").startswith(VIRTUAL_PRODUCTS)
        return "virtual" if virtual else "hardware"


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a profile holds; see rules/machines/hgx.toml."""

    gpu: tuple[str, ...]
    switch: tuple[str, ...] = ()
    switchless: bool = False
    at_most: int = 0
    on: Literal["hardware", "virtual", "not virtual", ""] = ""
    vendor: tuple[str, ...] = ()
    product: tuple[str, ...] = ()

    def holds(self, seen: Seen) -> bool:
        """Whether every condition is met."""
        count = sum(gpu.named_by(self.gpu) for gpu in seen.gpus)
        return (
            count > 0
            and (not self.switch or any(switch.named_by(self.switch) for switch in seen.switches))
            and not (self.switchless and seen.switches)
            and (not self.at_most or count <= self.at_most)
            and (self.on in ("", seen.kind) or (self.on == "not virtual" and seen.kind != "virtual"))
            and (not self.vendor or (seen.vendor or "").startswith(self.vendor))
            and (not self.product or (seen.product or "").startswith(self.product))
        )

    @property
    def conditions(self) -> int:
        """How many conditions it makes; a subsystem counts as one."""
        exact = any(name.count(":") == 2 for name in self.gpu)
        asked = (self.gpu, exact, self.switch, self.switchless, self.at_most, self.on, self.vendor, self.product)
        return sum(map(bool, asked))


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a kind of machine has; None where that is a site's matter."""

    title: str
    source: str
    match: Match
    gpus: int | None = None
    nvswitches: int | None = None
    ib_ports: int | None = None
    fabric_manager: bool | None = None
    peermem: bool | None = None
    imex: bool | None = None
    nvlinks: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None


NOTHING = Profile(title="nothing is known", source="", match=Match(gpu=()))


def parse(texts: Mapping[str, str]) -> dict[str, Profile]:
    """The profiles of all tables, by name.

    Raises  ConfigInvalid with every table that is not understood
    """
    found: dict[str, Profile] = {}
    mistakes = []
    for file, text in texts.items():
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            mistakes.append(f"rules/machines/{file}.toml: {error}; correct it")
            continue
        for name, table in tables.items():
            try:
                profile = msgspec.convert(table, Profile)
            except msgspec.ValidationError as error:
                mistakes.append(f"rules/machines/{file}.toml: [{name}]: {error}; correct it")
                continue
            if name in found:
                mistakes.append(f"rules/machines/{file}.toml: [{name}]: there are two of this name; rename one")
            found[name] = profile
    if mistakes:
        raise ConfigInvalid(mistakes)
    return found


def choose(profiles: Mapping[str, Profile], seen: Seen) -> str | None:
    """The name of the profile that holds: the one with the most conditions, then the one with the most of the GPUs,
    then the first by name; None where none holds."""
    holding = [name for name, profile in profiles.items() if profile.match.holds(seen)]

    def rank(name: str) -> tuple[int, int, str]:
        match = profiles[name].match
        return -match.conditions, -sum(gpu.named_by(match.gpu) for gpu in seen.gpus), name

    return min(holding, key=rank, default=None)


def parse_id(text: str) -> str:
    """One half of an id, as sysfs prints it, in the form of the tables.

    Shape   `0x` and four digits
    Raises  NotUnderstood with the text kept
    """
    text = text.strip().lower()
    if len(text) != 6 or not text.startswith("0x") or any(digit not in "0123456789abcdef" for digit in text[2:]):
        raise NotUnderstood(f"not a PCI id: {text[:20]!r}", text)
    return text[2:]
