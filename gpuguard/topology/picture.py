"""What any drawing of a node shows, before it has a form: who hangs below whom, and in which state each link is.

Sides are NUMA nodes; below them boxes (root complexes, PCIe switches) and devices. Where the kernel's tree is known the
boxes are its root complexes and switches; where only a matrix is, they are what its cells say: PIX, PXB and PHB. A
device whose NUMA node nobody told stands on a side without a name, and no socket is made up for it.

Source    the words of `nvidia-smi topo -m`: NODE stays within one NUMA node, PHB within one host bridge, PXB and PIX
          below it. nvml.h 13.5: NVML_NVLINK_MAX_LINKS 36
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, assert_never

from gpuguard.model.numbers import spans
from gpuguard.model.topology import (
    ANY_SWITCH,
    LEVELS,
    Bridge,
    Device,
    Level,
    NumaNode,
    NvLink,
    PcieLink,
    Topology,
)
from gpuguard.topology.captions import clean, gigabytes, pcie_state, pcie_words, short
from gpuguard.topology.names import joined
from gpuguard.topology.state import silent

# up: all of them; some: some are down, or fewer than its peers have; down: none; unknown: nobody told; open: none is
# up, and none shows another end.
LinkState = Literal["up", "some", "down", "unknown", "open"]
BoxKind = Literal["root", "switch", "bridge", "PIX", "PXB", "PHB"]
# More NVLinks than any GPU has: pairs that would need more go through switches.
MOST_NVLINKS = 36


# --- what is drawn ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A root complex, a PCIe switch, or what a cell of the matrix says lies above its members.

    `root` is the root complex that a switch hangs at; `link` the one above the box; `redirects` that ACS sends traffic
    between its devices up to the root, None where nobody knows. `places` are the devices right below it.
    """

    kind: BoxKind
    pci: str | None = None
    root: str | None = None
    link: PcieLink | None = None
    redirects: bool | None = None
    boxes: tuple["Box", ...] = ()
    places: tuple[int, ...] = ()

    def all(self) -> tuple[int, ...]:
        """The places of all devices below it."""
        return (*self.places, *(place for box in self.boxes for place in box.all()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A NUMA node with what hangs there; without a name for those whose node is not known."""

    name: str | None = None
    socket: int | None = None
    cpus: str | None = None
    boxes: tuple[Box, ...] = ()
    places: tuple[int, ...] = ()

    def all(self) -> tuple[int, ...]:
        """The places of all its devices."""
        return (*self.places, *(place for box in self.boxes for place in box.all()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Some NVLinks that go the same way.

    `total` is None where only the number of those up is known; `others` is what the peers have, where that is more.
    Units: bytes per second, each way, of those up
    """

    up: int
    total: int | None = None
    down: tuple[int, ...] = ()
    unknown: int = 0
    others: int | None = None
    bytes_per_second: float | None = None

    @property
    def state(self) -> LinkState:
        """Whether they are up."""
        if self.total is None:
            return "up" if self.others is None else "some"
        if self.down:
            return "down" if len(self.down) == self.total else "some"
        return "unknown" if self.unknown or not self.total else "up"

    @property
    def word(self) -> str:
        """Their number and state in a word or two: NV18, 17 of 18, NV18?"""
        if self.total is None:
            return f"NV{self.up}"
        if self.state == "unknown":
            return f"NV{self.total}?" if self.total else "?"
        return f"{self.up} of {self.total}" if self.down else f"NV{self.up}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bond:
    """NVLinks straight between two GPUs."""

    one: int
    other: int
    links: Links


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """NVLinks of one GPU that do not end at a GPU: at switches, at a processor, or where nobody told; `open` are all
    that a GPU has where none is up and none has an end, as without a bridge."""

    place: int
    end: Literal["switch", "npu", "unknown", "open"]
    links: Links

    @property
    def state(self) -> LinkState:
        """As of its links; whether open ones should be up is not known."""
        return "open" if self.end == "open" else self.links.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """An NVSwitch, and the links that end there; None where no GPU says which those are."""

    pci: str
    node: int | None = None
    links: Links | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that is drawn. `fabric` says in words what the uplinks to switches go through; None without any.
    `silent` are GPUs of which the driver does not tell, `mig` those whose NVLinks are off for MIG. `remarks` are
    sentences on what a colour shows; what is not known is told in the notes of the graph."""

    sides: tuple[Side, ...]
    bonds: tuple[Bond, ...] = ()
    uplinks: tuple[Uplink, ...] = ()
    switches: tuple[Switch, ...] = ()
    fabric: str | None = None
    silent: frozenset[int] = field(default_factory=frozenset)
    mig: frozenset[int] = field(default_factory=frozenset)
    remarks: tuple[str, ...] = ()


def picture(topology: Topology) -> Picture:
    """What to draw of this node."""
    bonds, uplinks = _bonds(topology), _uplinks(topology)
    switches = _switches(topology)
    sides = _sides(topology)
    mute = frozenset(place for place, device in _gpus(topology) if silent(topology, device))
    mig = frozenset(place for place, device in _gpus(topology) if device.gpu is not None and device.gpu.mig)
    return Picture(
        sides=sides, bonds=bonds, uplinks=uplinks, switches=switches, fabric=_fabric(topology, uplinks, switches),
        silent=mute, mig=mig, remarks=tuple(_remarks(topology, sides, bonds, uplinks)),
    )  # fmt: skip


def _gpus(topology: Topology) -> Iterator[tuple[int, Device]]:
    return ((place, device) for place, device in enumerate(topology.devices) if device.kind == "gpu")


# --- sides -----------------------------------------------------------------------------------------------------------


def _sides(topology: Topology) -> tuple[Side, ...]:
    keys = _keys(topology)
    bridges: dict[str, Bridge] = {bridge.pci: bridge for bridge in topology.bridges}
    nodes = {str(node.number): node for node in topology.numa}
    found = []
    for key in dict.fromkeys(keys):
        places = [place for place, own in enumerate(keys) if own == key]
        pathless = [place for place in places if not topology.devices[place].path]
        boxes, direct = _tree(topology, [place for place in places if place not in pathless], 0, bridges)
        more, alone = _clusters(topology, pathless, ("PHB", "PXB", "PIX"))
        node = nodes.get(key.partition(" ")[2]) if key and key.startswith("NUMA") else None
        found.append(
            Side(
                name=key, socket=None if node is None else node.socket,
                cpus=_processors_of(topology, places, node) if key and not key.startswith("CPUs") else None,
                boxes=_in_order(topology, (*boxes, *more)), places=tuple(sorted((*direct, *alone))),
            )
        )  # fmt: skip
    return tuple(sorted(found, key=_rank))


def _rank(side: Side) -> tuple[bool, bool, int, int, str]:
    number = re.search(r"\d+", side.name or "")
    return (
        side.name is None, side.socket is None, side.socket or 0, int(number[0][:9]) if number else 0, side.name or "",
    )  # fmt: skip


def _keys(topology: Topology) -> list[str | None]:
    """The name of each device's side. What a matrix does not tell of a network card follows from its cells: with NODE
    or less to a GPU, it is in that GPU's NUMA node."""
    keys = [None if device.nodes is None else f"NUMA {device.nodes}" for device in topology.devices]
    by_address = any(device.pci is not None for device in topology.devices)
    if not by_address and not topology.numa:
        sides = {device.cpus: key for device, key in zip(topology.devices, keys, strict=True) if key}
        for place, device in enumerate(topology.devices):
            if keys[place] is None and device.cpus is not None:
                keys[place] = sides.get(device.cpus) or f"CPUs {device.cpus}"
    told = tuple(keys)
    for place, key in enumerate(told):
        if key is None:
            near = {told[other] for other, level in enumerate(topology.levels[place]) if level and level != "SYS"}
            near.discard(None)
            keys[place] = near.pop() if len(near) == 1 else None
    return keys


def _processors_of(topology: Topology, places: Sequence[int], node: NumaNode | None) -> str | None:
    if node is not None and node.cpus is not None:
        return node.cpus
    told = {topology.devices[place].cpus for place in places} - {None}
    return told.pop() if len(told) == 1 else None


def _tree(
    topology: Topology, places: Sequence[int], depth: int, bridges: Mapping[str, Bridge]
) -> tuple[list[Box], list[int]]:
    """The boxes of the kernel's tree from this depth down, and the devices that hang in none."""
    boxes: list[Box] = []
    direct: list[int] = []
    steps: dict[str, list[int]] = {}
    for place in places:
        path = topology.devices[place].path
        if len(path) > depth:
            steps.setdefault(path[depth], []).append(place)
        else:
            direct.append(place)
    for step, below in steps.items():
        inner, hanging = _tree(topology, below, depth + 1, bridges)
        bridge = bridges.get(step)
        parted = len(inner) + len({_card(topology.devices[place]) for place in hanging}) > 1
        if depth == 0:
            boxes.append(_root(step, inner, hanging, topology))
        elif bridge is not None and bridge.kind == "upstream":
            boxes.append(_boxed("switch", step, inner, hanging, topology, bridges))
        elif parted:
            boxes.append(_boxed("bridge", step, inner, hanging, topology, bridges))
        else:
            boxes += inner
            direct += hanging
    return boxes, direct


def _card(device: Device) -> str:
    """The functions of one card hang at one port, and part nothing."""
    return device.name if device.pci is None else device.pci.rpartition(".")[0]


def _root(name: str, inner: Sequence[Box], hanging: Sequence[int], topology: Topology) -> Box:
    if len(inner) == 1 and not hanging:
        only = inner[0]
        return Box(
            kind=only.kind, pci=only.pci, root=name, link=only.link, redirects=only.redirects, boxes=only.boxes,
            places=only.places,
        )  # fmt: skip
    return Box(kind="root", root=name, boxes=_in_order(topology, inner), places=tuple(sorted(hanging)))


def _boxed(
    kind: BoxKind, step: str, inner: Sequence[Box], hanging: Sequence[int], topology: Topology,
    bridges: Mapping[str, Bridge],
) -> Box:  # fmt: skip
    bridge = bridges.get(step)
    # The ports of a switch are the bridges right below it, and those say whether ACS redirects.
    ports = [one for one in bridges.values() if kind == "switch" and one.path and one.path[-1] == step]
    told = [one.redirects for one in ports if one.redirects is not None]
    return Box(
        kind=kind, pci=step, link=None if bridge is None else bridge.link, redirects=any(told) if told else None,
        boxes=_in_order(topology, inner), places=tuple(sorted(hanging)),
    )  # fmt: skip


def _clusters(
    topology: Topology, places: Sequence[int], levels: tuple[Literal["PIX", "PXB", "PHB"], ...]
) -> tuple[list[Box], list[int]]:
    """The same of devices without a path, from the cells between them."""
    if not levels:
        return [], list(places)
    near: tuple[Level, ...] = LEVELS[: LEVELS.index(levels[0]) + 1]
    boxes: list[Box] = []
    alone: list[int] = []
    left = list(places)
    while left:
        group, new = {left[0]}, [left[0]]
        while new:
            row = topology.levels[new.pop()]
            reached = [place for place in left if place not in group and row[place] in near]
            group.update(reached)
            new += reached
        left = [place for place in left if place not in group]
        if len(group) == 1:
            alone += group
            continue
        inner, hanging = _clusters(topology, sorted(group), levels[1:])
        if len(inner) == 1 and not hanging:
            boxes += inner
        else:
            boxes.append(Box(kind=levels[0], boxes=_in_order(topology, inner), places=tuple(sorted(hanging))))
    return boxes, alone


def _in_order(topology: Topology, boxes: Iterable[Box]) -> tuple[Box, ...]:
    return tuple(sorted(boxes, key=lambda box: _first(topology, box.all())))


def _first(topology: Topology, places: Iterable[int]) -> tuple[bool, int]:
    """By their first GPU; those without one after the others."""
    return min((topology.devices[place].kind != "gpu", place) for place in places)


def ordered(topology: Topology, boxes: Sequence[Box], places: Sequence[int]) -> list[Box | int]:
    """Boxes and devices as they stand beside each other: by their first GPU, and those without one at the end."""
    items: list[Box | int] = [*boxes, *places]
    return sorted(items, key=lambda item: _first(topology, (item,) if isinstance(item, int) else item.all()))


# --- links -----------------------------------------------------------------------------------------------------------


def _own(device: Device) -> tuple[NvLink, ...]:
    return () if device.gpu is None else device.gpu.links


def _count(links: Sequence[NvLink]) -> Links:
    up = [link for link in links if link.up]
    speeds = [link.bytes_per_second for link in up]
    return Links(
        up=len(up), total=len(links), down=tuple(link.number for link in links if link.up is False),
        unknown=sum(link.up is None for link in links),
        bytes_per_second=None if not speeds or None in speeds else sum(speed for speed in speeds if speed is not None),
    )  # fmt: skip


def _bonds(topology: Topology) -> tuple[Bond, ...]:
    switched = _switched(topology)
    found = []
    for place, device in _gpus(topology):
        for other, peer in _gpus(topology):
            if other <= place:
                continue
            ends = [
                [link for link in _own(one) if two.pci is not None and link.peer == f"gpu:{two.pci}"]
                for one, two in ((device, peer), (peer, device))
            ]
            straight = max(ends, key=len)
            bond = topology.bonds[place][other]
            if straight:
                found.append(Bond(one=place, other=other, links=_count(straight)))
            elif bond and not (place in switched and other in switched):
                found.append(Bond(one=place, other=other, links=Links(up=bond)))
    return tuple(found)


def _switched(topology: Topology) -> dict[int, int]:
    """The GPUs at switches, each with the most links that it shares with a peer. Where no link tells its other end,
    cells do: each GPU reaches every other with its own number, or the peer's where that is less, and more links than a
    GPU can have would be needed without a switch."""
    gpus = [place for place, _ in _gpus(topology)]
    most = {place: max((topology.bonds[place][other] or 0 for other in gpus), default=0) for place in gpus}
    told = {
        place for place in gpus
        if any(link.peer is not None and link.peer.startswith(ANY_SWITCH) for link in _own(topology.devices[place]))
    }  # fmt: skip
    bonded = [place for place in gpus if most[place]]
    even = all(
        topology.bonds[one][other] in (None, min(most[one], most[other]))
        for one in bonded for other in bonded if one != other
    )  # fmt: skip
    straight = any(link.peer is not None and link.peer.startswith("gpu:") for _, gpu in _gpus(topology)
                   for link in _own(gpu))  # fmt: skip
    if even and not straight and bonded and max(most.values()) * (len(bonded) - 1) > MOST_NVLINKS:
        told.update(bonded)
    return {place: most[place] for place in sorted(told)}


def _uplinks(topology: Topology) -> tuple[Uplink, ...]:
    switched = _switched(topology)
    usual = Counter(switched.values()).most_common(1)[0][0] if switched else 0
    found = []
    for place, device in _gpus(topology):
        own = _own(device)
        away = [link for link in own if link.peer is not None and link.peer.startswith(ANY_SWITCH)]
        processor = [link for link in own if link.peer is not None and link.peer.startswith("npu:")]
        nowhere = [link for link in own if link.peer is None]
        if place in switched and not processor:
            away, nowhere = sorted((*away, *nowhere), key=lambda link: link.number), []
        if away:
            found.append(Uplink(place=place, end="switch", links=_count(away)))
        elif place in switched:
            number = switched[place]
            found.append(
                Uplink(
                    place=place, end="switch", links=Links(up=number, others=usual if number < usual else None),
                )
            )  # fmt: skip
        if processor:
            found.append(Uplink(place=place, end="npu", links=_count(processor)))
        if nowhere:
            idle = len(nowhere) == len(own) and all(link.up is False for link in nowhere)
            found.append(Uplink(place=place, end="open" if idle else "unknown", links=_count(nowhere)))
        elif not own and _is_untold(topology, place, device):
            found.append(Uplink(place=place, end="unknown", links=Links(up=0, total=0)))
    return tuple(found)


def _is_untold(topology: Topology, place: int, device: Device) -> bool:
    """Whether nobody told if this GPU has NVLinks."""
    others = [topology.bonds[place][other] for other, _ in _gpus(topology) if other != place]
    if others:
        return all(bond is None for bond in others)
    return device.pci is not None and device.gpu is not None and device.gpu.index is None


def _switches(topology: Topology) -> tuple[Switch, ...]:
    nodes: dict[str, int | None] = {switch.pci: switch.node for switch in topology.switches}
    ending: dict[str, list[NvLink]] = {}
    for _, device in _gpus(topology):
        for link in _own(device):
            kind, _, pci = (link.peer or "").partition(":")
            if kind == ANY_SWITCH and pci:
                ending.setdefault(pci, []).append(link)
    return tuple(
        Switch(pci=pci, node=nodes.get(pci), links=_count(ending[pci]) if pci in ending else None)
        for pci in sorted({*nodes, *ending})
    )


def _fabric(topology: Topology, uplinks: Sequence[Uplink], switches: Sequence[Switch]) -> str | None:
    if switches:
        return "1 NVSwitch" if len(switches) == 1 else f"{len(switches)} NVSwitches"
    if any(link.end == "switch" for link in uplinks):
        addressed = any(_own(topology.devices[link.place]) for link in uplinks)
        return "NVSwitches that show no address" if addressed else "NVSwitches"
    return None


# --- words -----------------------------------------------------------------------------------------------------------


def side_words(side: Side) -> str:
    """The name of a NUMA node with its socket: socket 0, NUMA 0."""
    name = clean(side.name or "NUMA node not known")
    return name if side.socket is None else f"socket {side.socket}, {name}"


def state_words(links: Links) -> str:
    """How many links are up, and which are not: 17 of 18 NVLinks up, down: link 6."""
    if links.total is None:
        return f"NV{links.up}" + ("" if links.others is None else f", where the others have NV{links.others}")
    if not links.total:
        return "whether it has NVLinks is not known"
    numbers = spans(links.down).replace(",", ", ")
    down = f", down: link{'s' if len(links.down) > 1 else ''} {numbers}" if numbers else ""
    unknown = f", not known: {links.unknown}" if links.unknown else ""
    return f"{links.up} of {links.total} NVLinks up{down}{unknown}"


def nvlink_words(topology: Topology, drawn: Picture) -> list[str]:
    """The NVLinks in a few lines: who reaches whom with how many. Those that are not all up are in the remarks."""
    names = [clean(device.name) for device in topology.devices]
    lines = []
    ways: dict[str, list[int]] = {}
    for uplink in drawn.uplinks:
        if uplink.state in ("some", "down"):
            continue
        if uplink.end == "switch":
            ways.setdefault(uplink.links.word + gigabytes(uplink.links.bytes_per_second), []).append(uplink.place)
        elif uplink.end == "npu":
            ways.setdefault(f"{uplink.links.word} to the processor", []).append(uplink.place)
    many = len(topology.gpus)

    def whom(places: Sequence[int]) -> str:
        return f"all {many} GPUs" if len(places) == many > 1 else joined([names[place] for place in places])

    for way, places in ways.items():
        word, comma, speed = way.partition(",")
        through = "" if "processor" in way or drawn.fabric is None else f" through {drawn.fabric}"
        lines.append(f"{whom(places)}: {word}{through}{comma}{speed}")
    pairs: dict[str, list[str]] = {}
    for bond in sorted(drawn.bonds, key=lambda bond: -bond.links.up):
        if bond.links.state not in ("some", "down"):
            word = bond.links.word + gigabytes(bond.links.bytes_per_second)
            pairs.setdefault(word, []).append(f"{names[bond.one]}-{names[bond.other]}")
    for word, who in pairs.items():
        whole = many > 2 and len(who) == many * (many - 1) // 2
        lines.append(f"all {many} GPUs: {word} between any two" if whole else f"{word}: {', '.join(who)}")
    untold = [uplink.place for uplink in drawn.uplinks if uplink.end == "unknown" and not uplink.links.total]
    if untold:
        lines.append(f"not known: {whom(untold)}")
    if drawn.mig:
        lines.append(f"off in MIG mode: {whom(sorted(drawn.mig))}")
    if not lines and many > 1 and not drawn.uplinks and not drawn.bonds:
        lines.append("none between these GPUs")
    return lines


def _remarks(
    topology: Topology, sides: Sequence[Side], bonds: Sequence[Bond], uplinks: Sequence[Uplink]
) -> Iterator[str]:
    names = [clean(device.name) for device in topology.devices]
    said: dict[str, list[str]] = {}
    for uplink in uplinks:
        words = state_words(uplink.links)
        if uplink.end == "open":
            said.setdefault(f"{words}, and no other end shows, as without a bridge", []).append(names[uplink.place])
        elif uplink.end == "unknown" and uplink.links.total:
            said.setdefault(f"{words}, where they end is not known", []).append(names[uplink.place])
        elif uplink.state in ("some", "down"):
            said.setdefault(words, []).append(names[uplink.place])
    for bond in bonds:
        if bond.links.state in ("some", "down"):
            said.setdefault(state_words(bond.links), []).append(f"{names[bond.one]}-{names[bond.other]}")
    for name, device in zip(names, topology.devices, strict=True):
        if pcie_state(device.link) == "narrow":
            said.setdefault(f"PCIe {pcie_words(device.link)[0]}", []).append(name)
        elif pcie_state(device.link) == "slow":
            said.setdefault(f"PCIe {pcie_words(device.link)[-1]}, as is usual at rest", []).append(name)
    for box in (found for side in sides for top in side.boxes for found in walk(top)):
        name = f"PCIe switch {short(box.pci or '')}"
        if pcie_state(box.link) == "narrow":
            said.setdefault(f"PCIe {pcie_words(box.link)[0]} to the root", []).append(name)
        if box.redirects:
            said.setdefault("ACS sends traffic between its devices up to the root first", []).append(name)
    for words, whom in sorted(said.items(), key=lambda item: item[0].endswith("rest")):
        yield f"{joined(whom)}: {words}"
    if topology.devices and all(device.node is not None for device in topology.devices):
        used = {device.node for device in topology.devices}
        idle = [str(node.number) for node in topology.numa if node.number not in used and node.cpus]
        if idle:
            yield f"no GPU and no network card at NUMA {joined(idle)}"


def box_words(box: Box) -> tuple[str, str]:
    """What a box is, and its address or its cell in the matrix."""
    match box.kind:
        case "root":
            return "root complex", short(box.root or "")
        case "switch":
            return "PCIe switch", short(box.pci or "")
        case "bridge":
            return "PCIe bridge", short(box.pci or "")
        case "PIX":
            return "one PCIe bridge", "PIX"
        case "PXB":
            return "PCIe bridges", "PXB"
        case "PHB":
            return "host bridge", "PHB"
        case _:
            assert_never(box.kind)


def walk(box: Box) -> Iterator[Box]:
    """A box and all that are in it."""
    yield box
    for inner in box.boxes:
        yield from walk(inner)
