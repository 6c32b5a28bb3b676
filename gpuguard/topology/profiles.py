"""What the wiring of a machine should be: by its kind, as `rules/topology/` tells it, or as a site learned it.

A profile says only what is true of every machine of its kind. A learned file lists every device of one machine, and
whoever deletes a line of it expects that no longer. What a site says in its settings comes before a profile, and what
it learned before both; of the profile that a learned file names, only what concerns no device by itself still holds.

Shape   rules/topology/*.toml: see the head of hgx.toml there; a learned file explains itself in its first lines
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeGuard, TypeVar

import msgspec

from gpuguard.errors import ConfigInvalid, NotUnderstood
from gpuguard.model.ids import NODE, SubjectId, kind_of, parse_pci_address
from gpuguard.model.readings import Value
from gpuguard.model.topology import LEVELS, SELF, Device, Level, Topology
from gpuguard.topology.tables import load

Rows = Mapping[SubjectId, Mapping[str, Value]]
# A cell of a matrix that says nothing.
NOTHING = "-"
LEARNED = "the learned profile"
UNREADABLE = f"{LEARNED} cannot be read; make it a file of text that the agent's user may read, or delete it"
# NVIDIA's own driver, as the kernel calls it.
DRIVER = "nvidia"
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
        place = f"{where}: [{kind}.{_line(name)[:40]}]"
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


# --- learning --------------------------------------------------------------------------------------------------------


HEAD = """\
# How this machine is wired, learned by gpuguard on {date}{host}.
#
# `gpuguard topo --diff` and the check topology_drift tell what differs from it. It was written once and is yours now:
# learn it again after GPUs or cards were changed on purpose, or edit it. What is deleted is not expected any more: one
# line, or a whole table for a device that may come and go. In the matrix, - stands for a cell that is not expected.
# Widths and generations are those that a link can do, not those it has at rest.
"""


def learn(topology: Topology, date: str) -> str:
    """A profile of this very machine, to be kept as a file. What is not known is left out.

    Shape   TOML that `parse_learned` reads; a machine has no differences to its own, while nothing changes
    """
    parts = [HEAD.format(date=_line(date), host=f" on {_line(topology.host)}" if topology.host else "")]
    whole = {
        "profile": topology.machine, "numa_nodes": numa_nodes(topology),
        "acs": "off" if redirecting(topology) == () else None,
        "p2p": "OK" if _statuses(topology) == {"OK"} else None,
    }  # fmt: skip
    parts.append(_table("[machine]", whole))
    for place, device in enumerate(topology.devices):
        lanes, link = device.link.most_lanes or device.link.lanes, device.link
        common = {
            "numa": device.node,
            "path": device.path,
            "pcie_width": lanes,
            "pcie_generation": link.most_generation,
        }
        if device.gpu is not None:
            up = links_up(topology, place)
            mine: dict[str, object] = {"name": device.name, "uuid": device.gpu.uuid, "serial": device.gpu.serial}
            common["nvlinks"] = (sum(up) or None) if up is not None else None
        else:
            mine = {"pci": device.pci, "guid": None if device.nic is None else device.nic.guid}
        parts.append(_table(f"[{device.kind}.{_quoted(key_of(device))}]", {**mine, **common}))
    if topology.devices:
        parts.append(_matrix(topology))
    return "\n".join(parts)


def _matrix(topology: Topology) -> str:
    size = range(len(topology.devices))
    rows = [[topology.cell(i, j) or NOTHING for j in size] for i in size]
    widest = max(len(cell) for row in rows for cell in row)
    lines = ["[matrix]", "devices = ["]
    lines += [f"    {_quoted(key_of(device))}," for device in topology.devices]
    lines += ["]", "cells = ["]
    lines += [f'    "{" ".join(cell.ljust(widest) for cell in row).rstrip()}",' for row in rows]
    return "\n".join([*lines, "]", ""])


def key_of(device: Device) -> str:
    """What a learned file calls a device: a GPU by its address, a card by its name."""
    if device.kind == "gpu":
        return device.pci or device.name
    return device.alias or device.name


def _table(head: str, values: Mapping[str, object]) -> str:
    said = {key: value for key, value in values.items() if value is not None and value != () and _can_be(value)}
    return "\n".join([head, *(f"{key} = {_value(value)}" for key, value in said.items()), ""])


def _can_be(value: object) -> bool:
    return not isinstance(value, int) or 0 <= value <= MOST


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_quoted(str(part)) for part in value)}]"
    return str(value) if isinstance(value, int) else _quoted(str(value))


def _quoted(text: str) -> str:
    """A TOML string; what cannot stand in one, half of a surrogate pair, becomes a question mark."""
    return f'"{"".join(_escaped(c) for c in text)}"'


def _escaped(c: str) -> str:
    if "\ud800" <= c <= "\udfff":
        return "?"
    return c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}"


def _line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:80]


def doubts(topology: Topology, expected: Expected | None = None) -> tuple[str, ...]:
    """What should be mended, or known, before this machine is learned; one sentence each, none where all is well.

    `expected` is the profile of its kind, where there is one: what differs from it now would be learned as it is.
    """
    from gpuguard.topology.drift import compare

    found = [f"{note}; what is not known is not learned" for note in topology.notes]
    for place, device in enumerate(topology.devices):
        found += _doubts_of(topology, place, device)
    if expected is not None:
        kind = expected.title or "its kind"
        found += [f"it is not as {kind} should be: {one.words}" for one in compare(topology, expected)]
    return tuple(dict.fromkeys(found))


def _doubts_of(topology: Topology, place: int, device: Device) -> Iterator[str]:
    name = device.alias or device.name
    links = () if device.gpu is None or links_up(topology, place) is None else device.gpu.links
    down = [str(link.number) for link in links if link.up is False]
    if down and len(down) < len(links):
        yield f"{name}: NVLink {', '.join(down)} is down: it would be learned as if it belonged so"
    if silent(topology, device):
        yield f"{name} does not answer the driver: its NVLinks and its identity would not be learned"
    lanes, most = device.link.lanes, device.link.most_lanes
    if is_number(lanes) and is_number(most) and lanes < most:
        yield f"{name}: its PCIe link runs on {lanes} lanes of {most}: mend it, or what follows is a difference at once"


# --- what learning and comparing both ask of the graph ---------------------------------------------------------------


def is_number(value: int | None) -> TypeGuard[int]:
    """Whether lanes or a generation are known: a link that is there has one at least."""
    return value is not None and value > 0


def numa_nodes(topology: Topology) -> int | None:
    """How many NUMA nodes have processors; None where nobody knows. Those of memory alone come and go: a GPU's own
    comes with its driver, and with each of its instances in MIG mode."""
    known = [node.cpus for node in topology.numa]
    return None if None in known else sum(cpus != "" for cpus in known) or None


def silent(topology: Topology, device: Device) -> bool:
    """Whether a GPU is on the bus and does not answer the driver, which answers for others. One that another driver
    has, as vfio-pci where it is passed to a guest, has nothing to answer."""
    if device.gpu is None or device.gpu.index is not None or device.pci is None:
        return False
    if device.gpu.driver not in (None, DRIVER):
        return False
    return any(gpu.gpu is not None and gpu.gpu.index is not None for gpu in topology.gpus)


def links_up(topology: Topology, place: int) -> tuple[int, int] | None:
    """How many NVLinks of a GPU are up, and of how many more nobody knows; None where its links are not known, or off
    because it is cut into instances."""
    device = topology.devices[place]
    if device.gpu is None or device.gpu.mig:
        return None
    links = device.gpu.links
    if links:
        return sum(link.up is True for link in links), sum(link.up is None for link in links)
    bonds = [bond for other, bond in enumerate(topology.bonds[place]) if other != place and bond is not None]
    most = max(bonds, default=0)
    # A matrix shows all there is; the driver may not have told of links yet.
    return (most, 0) if most or (device.pci is None and bonds) else None


def redirecting(topology: Topology) -> tuple[tuple[str, str, str], ...] | None:
    """Bridges at which ACS sends up to the root what one device below a switch writes to another: for each its address
    and the two devices it parts; None where that cannot be told, as nothing is below a switch or nobody knows.

    Source  PCI Express Base Specification, Access Control Services: P2P Request Redirect acts at downstream ports
    """
    flags = {bridge.pci: bridge.redirects for bridge in topology.bridges if bridge.kind != "root_port"}
    found: dict[str, tuple[str, str, str]] = {}
    known = False
    for i, one in enumerate(topology.devices):
        for other in topology.devices[i + 1 :]:
            if one.kind == other.kind == "nic":
                continue
            for port in _apart(one, other):
                flag = flags.get(port)  # type: ignore[call-overload]  # an address is text
                known = known or flag is not None
                if flag:
                    found.setdefault(port, (port, one.alias or one.name, other.alias or other.name))
    return tuple(found[port] for port in sorted(found)) if known else None


def _apart(one: Device, other: Device) -> tuple[str, ...]:
    """The bridges between two devices below the switch they share; none where they share no bridge."""
    shared = one.shared(other)
    return (*one.path[shared:], *other.path[shared:]) if shared > 1 else ()


def _statuses(topology: Topology) -> set[str]:
    return {status for row in topology.p2p for status in row if status is not None}
