"""What the wiring of a machine should be: by its kind, as `rules/topology/` tells it, or as a site learned it.

A profile says only what is true of every machine of its kind. A learned file lists every device of one machine, and
whoever deletes a line of it expects that no longer. What a site says in its settings comes before a profile, and what
it learned before both; of the profile that a learned file names, only what concerns no device by itself still holds.

Shape   rules/topology/*.toml: see the head of hgx.toml there; a learned file explains itself in its first lines
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from gpuguard.errors import ConfigInvalid, NotUnderstood
from gpuguard.model.ids import NODE, SubjectId, kind_of, parse_pci_address
from gpuguard.model.readings import Value
from gpuguard.model.topology import LEVELS, SELF, Device, Level
from gpuguard.topology.tables import load

Rows = Mapping[SubjectId, Mapping[str, Value]]
# A cell of a matrix that says nothing.
NOTHING = "-"
LEARNED = "the learned profile"
UNREADABLE = f"{LEARNED} cannot be read; make it a file of text that the agent's user may read, or delete it"
_CELL = re.compile(rf"(?:NV[1-9][0-9]?|{'|'.join(LEVELS)}|{SELF}|{NOTHING})$", re.ASCII)
T = TypeVar("T")
# No machine has more of anything, and what is written to a person must stay short.
MOST = 4095
Number = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


class Slot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU or a network card that should be there; what is None is not expected.

    `name` is for people. `path` are the root complex and the bridges above it. `pcie_width` and `pcie_generation` are
    what the link can do, not what it does at rest.
    """

    name: str | None = None
    pci: str | None = None
    uuid: str | None = None
    serial: str | None = None
    guid: str | None = None
    numa: Number | None = None
    path: tuple[str, ...] = ()
    pcie_width: Number | None = None
    pcie_generation: Number | None = None
    nvlinks: Number | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a learned file expects of the machine as a whole."""

    profile: str | None = None
    numa_nodes: Number | None = None
    acs: Literal["off"] | None = None
    p2p: Literal["OK"] | None = None


class Matrix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cells of `nvidia-smi topo -m` by the keys of devices, a row of words for each."""

    devices: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()


class Expected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the wiring should be; what is None or empty is not expected.

    `gpus` and what is said of each GPU is about those of one kind: a card for a display beside them is none.
    `addresses` name a GPU that is missing, no more. `pairs` is the cell between any two GPUs. `nics` are network cards
    that can do RDMA, at least; `nic_level` how near the nearest of them is to each GPU, or nearer. `slots` are GPUs by
    PCI address and `cards` network cards by name, where a site learned them, with the cells between them in `matrix`.
    """

    title: str = ""
    source: str = ""
    unlike_machines: str = ""
    gpus: int | None = None
    addresses: tuple[str, ...] = ()
    nvlinks: int | None = None
    pairs: str | None = None
    gpus_per_socket: tuple[int, ...] = ()
    nics: int | None = None
    nic_level: Level | None = None
    acs: Literal["off"] | None = None
    p2p: Literal["OK"] | None = None
    pcie_width: int | None = None
    pcie_generation: int | None = None
    numa_nodes: int | None = None
    profile: str | None = None
    slots: dict[str, Slot] = {}
    cards: dict[str, Slot] = {}
    matrix: Matrix = Matrix()

    @property
    def is_empty(self) -> bool:
        """Whether it names a kind of machine and says nothing of it, as of cards that every server has otherwise."""
        named = Expected(title=self.title, source=self.source, unlike_machines=self.unlike_machines)
        return msgspec.structs.replace(self, profile=None) == named


# What only a learned file says; a table of rules/topology/ that has it is mistaken.
_OF_LEARNED = ("numa_nodes", "profile", "slots", "cards", "matrix")


def parse(texts: Mapping[str, str]) -> dict[str, Expected]:
    """The profiles of all tables of rules/topology/, by name; `texts` by file name without `.toml`.

    Raises  ConfigInvalid with every table that is not understood
    """
    found: dict[str, Expected] = {}
    mistakes: list[str] = []
    for file, text in texts.items():
        where = f"rules/topology/{file}.toml"
        for name, table in _tables(text, where, mistakes).items():
            place = f"{where}: [{name}]"
            profile = _convert(table, Expected, place, mistakes)
            if profile is None:
                continue
            mistakes += [
                f"{place}: {key}: only a learned profile has it; delete it" for key in _OF_LEARNED if key in table
            ]
            if profile.pairs is not None and not _CELL.match(profile.pairs):
                mistakes.append(f"{place}: pairs: no cell of a matrix: {profile.pairs[:20]!r}; write NV18 or a level")
            if not profile.source.strip():
                mistakes.append(f"{place}: source: it says nothing; tell where this is known from")
            if name in found:
                mistakes.append(f"{place}: there are two of this name; rename one")
            found[name] = profile
    if mistakes:
        raise ConfigInvalid(mistakes)
    return found


def parse_learned(text: str, where: str = LEARNED) -> Expected:
    """What a site's own file expects; `where` names the file in what is said of mistakes.

    Raises  ConfigInvalid with every mistake
    """
    expected, mistakes = _learned(text, where)
    if mistakes:
        raise ConfigInvalid(list(mistakes))
    return expected


@lru_cache(maxsize=2)  # a check asks for it at each of its looks, and the file is the same for months
def _learned(text: str, where: str) -> tuple[Expected, tuple[str, ...]]:
    """What the file expects, and its mistakes."""
    mistakes: list[str] = []
    tables = _tables(text, where, mistakes)
    for name in tables.keys() - {"machine", "gpu", "nic", "matrix"}:
        mistakes.append(f"{where}: [{name[:40]}]: no such table; there are machine, gpu, nic and matrix: delete it")
    machine = _convert(tables.get("machine", {}), Machine, f"{where}: [machine]", mistakes) or Machine()
    matrix = _convert(tables.get("matrix", {}), Matrix, f"{where}: [matrix]", mistakes) or Matrix()
    slots, cards = (_slots(tables, kind, where, mistakes) for kind in ("gpu", "nic"))
    rows = [row.split() for row in matrix.cells]
    if len(rows) != len(matrix.devices) or any(len(row) != len(rows) for row in rows):
        mistakes.append(
            f"{where}: [matrix]: cells: not one row and one column for each of the {len(matrix.devices)} devices; "
            "learn it again, or delete the table"
        )
    elif odd := [cell for row in rows for cell in row if not _CELL.match(cell)]:
        mistakes.append(f"{where}: [matrix]: cells: {odd[0][:20]!r} is none; write NV and a number, a level or -")
    matrix = msgspec.structs.replace(matrix, devices=tuple(_address(name) or name for name in matrix.devices))
    expected = Expected(
        title=LEARNED, source=where, profile=machine.profile, numa_nodes=machine.numa_nodes, acs=machine.acs,
        p2p=machine.p2p, slots=slots, cards=cards, matrix=matrix,
    )  # fmt: skip
    return expected, tuple(mistakes)


def expect(rows: Rows, profiles: Mapping[str, Expected]) -> Expected | None:
    """What the machine of these rows should be; None where nobody knows.

    Reads   topology_learned, machine_profile, gpus_expected and ib_ports_expected of the node; nvlinks_expected,
            pcie_link_width_expected and pcie_link_generation_expected of each GPU
    Raises  ConfigInvalid when the learned file cannot be read, has mistakes, or names a profile that is none
    """
    node = rows.get(NODE, {})
    learned, name = node.get("topology_learned", ""), node.get("machine_profile")
    if learned is None:
        raise ConfigInvalid([UNREADABLE])
    if isinstance(learned, str) and learned.strip():
        return _over(parse_learned(learned), profiles)
    profile = profiles.get(name) if isinstance(name, str) else None
    return None if profile is None else _settled(profile, rows)


def _over(learned: Expected, profiles: Mapping[str, Expected]) -> Expected:
    """A learned file with what holds of the profile it names."""
    if learned.profile is None:
        return learned
    profile = profiles.get(learned.profile)
    if profile is None:
        known = ", ".join(sorted(profiles))
        what = f"none is called {learned.profile[:40]!r}; delete the line, or use one of {known}"
        raise ConfigInvalid([f"{learned.source}: [machine]: profile: {what}"])
    if learned.slots:
        return msgspec.structs.replace(learned, acs=learned.acs or profile.acs, p2p=learned.p2p or profile.p2p)
    whole = {
        key: value for key in learned.__struct_fields__ if (value := getattr(learned, key)) not in (None, "", (), {})
    }
    return msgspec.structs.replace(profile, **whole)


def _settled(profile: Expected, rows: Rows) -> Expected:
    """The profile with what the site's settings say otherwise."""
    gpus, ports = (_whole(rows.get(NODE, {}), column) for column in ("gpus_expected", "ib_ports_expected"))
    links, width, generation = (
        _of_each(rows, column)
        for column in ("nvlinks_expected", "pcie_link_width_expected", "pcie_link_generation_expected")
    )
    changes: dict[str, Any] = {}  # Any: as the fields are
    if gpus is not None and gpus != profile.gpus:
        changes |= {"gpus": gpus, "addresses": (), "gpus_per_socket": ()}
    if links is not None and links != profile.nvlinks:
        changes |= {"nvlinks": links, "pairs": None}
    if ports is not None and profile.nics is not None:
        changes["nics"] = min(ports, profile.nics)
    # A slot with fewer lanes is a choice where GPUs are cards: only a profile of boards expects a width at all.
    if width is not None and profile.pcie_width is not None:
        changes["pcie_width"] = width
    if generation is not None and profile.pcie_generation is not None:
        changes["pcie_generation"] = generation
    return msgspec.structs.replace(profile, **changes)


def _whole(row: Mapping[str, Value], column: str) -> int | None:
    value = row.get(column)
    return int(value) if isinstance(value, int | float) and value % 1 == 0 else None


def _of_each(rows: Rows, column: str) -> int | None:
    """The number that the GPUs have in this column, where those that have one agree."""
    told = {
        number for name, row in rows.items() if kind_of(name) == "gpu" and (number := _whole(row, column)) is not None
    }
    return told.pop() if len(told) == 1 else None


# --- reading tables --------------------------------------------------------------------------------------------------


def _tables(text: str, where: str, mistakes: list[str]) -> dict[str, Any]:  # Any: as TOML holds
    try:
        return load(text)
    except ValueError as error:
        mistakes.append(f"{where}: {str(error)[:200]}; correct it")
        return {}


def _convert(table: object, kind: type[T], place: str, mistakes: list[str]) -> T | None:
    try:
        return msgspec.convert(table, kind)
    except (msgspec.ValidationError, ValueError) as error:
        mistakes.append(f"{place}: {error}; correct or delete it")
        return None


def _slots(tables: Mapping[str, object], kind: str, where: str, mistakes: list[str]) -> dict[str, Slot]:
    listed = tables.get(kind, {})
    if not isinstance(listed, dict):
        mistakes.append(f"{where}: {kind}: no table; write [{kind}.NAME] for each, or delete it")
        return {}
    found: dict[str, Slot] = {}
    for name, table in listed.items():
        place = f"{where}: [{kind}.{printable(name)[:40]}]"
        key = _address(name) if kind == "gpu" else name
        if key is None:
            mistakes.append(f"{place}: no address on the PCI bus; write it as 0000:1b:00.0, or delete the table")
        elif key in found:
            mistakes.append(f"{place}: there are two of this address; delete one")
        elif (slot := _convert(table, Slot, place, mistakes)) is not None:
            found[key] = slot
    return found


def _address(name: str) -> str | None:
    """A PCI address in gpuguard's spelling, however a person wrote it; None for what is none."""
    try:
        return parse_pci_address(name)
    except NotUnderstood:
        return None


def key_of(device: Device) -> str:
    """What a learned file calls a device: a GPU by its address, a card by its name."""
    if device.kind == "gpu":
        return device.pci or device.name
    return device.alias or device.name


def printable(text: str) -> str:
    """The beginning of a text as it may stand in one line."""
    return "".join(c if c.isprintable() else "?" for c in text)[:80]
