"""What differs between how a node is wired and how it should be, the gravest first, one line each.

What is not known is no difference. One fault is told once: a GPU with fewer NVLinks has fewer in every cell of its row,
and a card that moved is far from its GPU; only what nothing graver explains is told of distances.

Source  NVLinks of a GPU in MIG mode are off (nvml.h, nvmlDeviceSetMigMode); a PCIe link at rest runs at generation 1
        (open-gpu-kernel-modules 1010), so that only of a busy device its speed now is judged
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from gpuguard.model.ids import NODE
from gpuguard.model.topology import LEVELS, Device, Difference, DifferenceKind, Level, Topology
from gpuguard.topology.names import joined
from gpuguard.topology.profiles import Expected, Slot, key_of
from gpuguard.topology.state import does_rdma, guid_of, is_number, links_up, numa_nodes, redirecting, silent

# Gravest first.
ORDER: tuple[DifferenceKind, ...] = (
    "gpu_missing", "nvlinks", "p2p", "pcie_width", "nic_missing", "pcie_speed", "gpu_swapped", "nic_moved", "numa",
    "acs", "distance", "gpu_moved", "unexpected",
)  # fmt: skip
# Not a fault but news: a part was changed, or one is there that nobody listed.
NEWS = ("gpu_moved", "unexpected")
_BOND = re.compile(r"NV(\d+)$", re.ASCII)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The differences, and of which kind and subject nobody can tell now whether there is one; `unseen` are kinds of
    subjects of which none is known at all."""

    differences: tuple[Difference, ...] = ()
    unknown: frozenset[tuple[str, str]] = frozenset()
    unseen: frozenset[str] = frozenset()


def compare(topology: Topology, expected: Expected, busy: Collection[str] = ()) -> tuple[Difference, ...]:
    """What differs, the gravest first. `busy` are the subjects of devices at work: only their speed now is judged."""
    return judge(topology, expected, busy).differences


def judge(topology: Topology, expected: Expected, busy: Collection[str] = ()) -> Verdict:
    """What differs, and what cannot be told."""
    desk = _Desk(topology, expected, busy)
    if expected.slots:
        desk.match_gpus()
        desk.judge_slots()
    else:
        desk.count_gpus()
        desk.judge_each_gpu()
        desk.judge_sockets()
    if expected.cards:
        desk.match_cards()
    else:
        desk.count_cards()
    desk.judge_numa()
    desk.judge_acs()
    desk.judge_p2p()
    desk.judge_distances()
    # A device that is gone, as the graph has it after a GPU moved, may have been looked for in two ways.
    told = sorted(desk.differences, key=lambda one: ORDER.index(one.kind))
    said = {(one.kind, one.subject) for one in told}
    unseen = {kind for kind, looked in (("gpu", topology.gpus), ("nic", desk.looked())) if not looked}
    return Verdict(differences=tuple(told), unknown=frozenset(desk.unknown - said), unseen=frozenset(unseen))


def subject_of(device: Device) -> str:
    """The name that health has for a device; the node's, where it has no address."""
    if device.kind == "nic":
        return f"nic:{device.alias or device.name}"
    return f"gpu:{device.pci}" if device.pci is not None else NODE


class _Desk:
    """The working copy of one comparison."""

    def __init__(self, topology: Topology, expected: Expected, busy: Collection[str]) -> None:
        self.topology, self.expected, self.busy = topology, expected, busy
        self.differences: list[Difference] = []
        self.unknown: set[tuple[str, str]] = set()
        # Places of devices that something graver than a distance is already told of.
        self.linkless: set[int] = set()
        self.displaced: set[int] = set()
        # What a learned file lists, by its key, at the place where it is now.
        self.now_at: dict[str, int] = {}

    def say(
        self, kind: DifferenceKind, device: Device | None, expected: object, found: object, words: str, **more: str
    ) -> None:
        """One difference; `subject` and `name` of what is no device of the graph come with `more`."""
        subject = more.get("subject") or (NODE if device is None else subject_of(device))
        name = more.get("name") or ("node" if device is None else _name(device))
        self.differences.append(
            Difference(
                kind=kind, subject=subject, device=name, expected=str(expected), found=str(found), words=words,
            )
        )  # fmt: skip

    def cannot_tell(self, kind: DifferenceKind, subject: str) -> None:
        self.unknown.add((kind, subject))

    # --- GPUs by their kind -----------------------------------------------------------------------------------------

    def of_kind(self) -> list[int]:
        """Places of the GPUs that are alike, the most of them: a card for a display beside them is none."""
        kinds = Counter(gpu.gpu.pci_id for gpu in self.topology.gpus if gpu.gpu is not None and gpu.gpu.pci_id)
        alike = (None, kinds.most_common(1)[0][0] if kinds else None)
        return [
            place for place, device in enumerate(self.topology.devices)
            if device.gpu is not None and device.gpu.pci_id in alike
        ]  # fmt: skip

    def count_gpus(self) -> None:
        expected = self.expected.gpus
        if expected is None:
            return
        places = self.of_kind()
        if not places:
            self.cannot_tell("gpu_missing", NODE)
            for address in self.expected.addresses:
                self.cannot_tell("gpu_missing", f"gpu:{address}")
            return
        self.tell_silent(places)
        there = {self.topology.devices[place].pci or "" for place in places}
        gone = [address for address in self.expected.addresses if address not in there]
        short = expected - len(places)
        if short > 0 and len(gone) == short:
            for address in gone:
                words = f"the GPU at {address} is gone: {len(places)} of {expected} are there"
                self.say(
                    "gpu_missing", None, "there", "gone", words,
                    subject=f"gpu:{address}", name=address,
                )  # fmt: skip
        elif short > 0:
            self.say(
                "gpu_missing", None, expected, len(places),
                f"{_many(short, 'GPU')} missing: {len(places)} of {expected} are there", name="GPU",
            )  # fmt: skip

    def tell_silent(self, places: Collection[int]) -> None:
        answered = any(gpu.gpu is not None and gpu.gpu.index is not None for gpu in self.topology.gpus)
        for place in places:
            device = self.topology.devices[place]
            if not answered:
                self.cannot_tell("gpu_missing", subject_of(device))
            elif silent(self.topology, device):
                self.say(
                    "gpu_missing", device, "there", "silent",
                    f"{_name(device)} at {device.pci} is on the bus, but the driver does not answer for it",
                )  # fmt: skip

    def judge_each_gpu(self) -> None:
        """What is expected of every GPU alike."""
        want, devices = self.expected, self.topology.devices
        each = Slot(nvlinks=want.nvlinks, pcie_width=want.pcie_width, pcie_generation=want.pcie_generation)
        for place in self.of_kind():
            self.judge_links(place, each)
            self.judge_pcie(devices[place], each)

    def judge_sockets(self) -> None:
        want = self.expected.gpus_per_socket
        if not want:
            return
        sockets = {node.number: node.socket for node in self.topology.numa}
        gpus = [self.topology.devices[place] for place in self.of_kind()]
        on = [None if gpu.node is None else sockets.get(gpu.node) for gpu in gpus]
        if len(gpus) != sum(want) or None in on:
            self.cannot_tell("numa", NODE)
            return
        found = sorted(Counter(on).values(), reverse=True)
        if found != sorted(want, reverse=True):
            words = f"the GPUs of the sockets are {joined(found)}; {joined(want)} expected"
            self.say("numa", None, joined(want), joined(found), words, name="GPU")

    # --- GPUs one by one ---------------------------------------------------------------------------------------------

    def match_gpus(self) -> None:
        """Which GPU of the graph is which of the file: by its address, else by its UUID, where it moved."""
        by_key = {key_of(gpu): place for place, gpu in enumerate(self.topology.devices) if gpu.kind == "gpu"}
        by_uuid = {uuid: key for key, place in by_key.items() if (uuid := self.uuid_at(place)) is not None}
        slots = self.expected.slots
        swapped: set[str] = set()
        for key, slot in slots.items():
            here, moved_to = by_key.get(key), by_uuid.get(slot.uuid or "")
            if here is None:
                if moved_to is None:
                    self.say_gone(key, slot, bool(by_key))
                    continue
                if moved_to not in slots:  # else it is judged as what is expected there
                    self.now_at[key] = by_key[moved_to]
                self.say_moved(key, slot, by_key[moved_to])
                continue
            self.now_at[key] = here
            uuid = self.uuid_at(here)
            if uuid is None:
                for kind in ("gpu_swapped", "gpu_moved"):
                    self.cannot_tell(kind, f"gpu:{key}")
            if slot.uuid is None or uuid is None or uuid == slot.uuid or key in swapped:
                continue
            other = slots.get(moved_to) if moved_to is not None else None
            if moved_to is not None and other is not None and other.uuid == uuid:
                swapped |= {key, moved_to}
                self.say_swapped(here, by_key[moved_to], slot)
            elif moved_to is not None:
                self.say_moved(key, slot, by_key[moved_to])
            else:
                device = self.topology.devices[here]
                words = f"{_name(device)} at {key} is another GPU than before: {uuid}, not {slot.uuid}"
                self.say("gpu_moved", device, slot.uuid, uuid, words)
        self.tell_silent(sorted(self.now_at.values()))
        for key, place in by_key.items():
            if self.is_new(key) and place not in self.now_at.values():
                device = self.topology.devices[place]
                words = f"{_name(device)} at {key} is not in the learned profile"
                self.say("unexpected", device, "nothing", "a GPU", words)

    def is_new(self, key: str) -> bool:
        """Whether a device was not there when the machine was learned. One whose table was deleted may come and go: it
        still stands in the matrix."""
        listed = self.expected.matrix.devices
        return bool(listed) and key not in listed and key not in self.expected.slots

    def uuid_at(self, place: int) -> str | None:
        gpu = self.topology.devices[place].gpu
        return None if gpu is None else gpu.uuid

    def say_gone(self, key: str, slot: Slot, some: bool) -> None:
        """A GPU is not there; where no GPU is known at all, nobody could look."""
        if not some:
            self.cannot_tell("gpu_missing", f"gpu:{key}")
            return
        name = slot.name or key
        at = f" ({key})" if name != key else ""
        self.say("gpu_missing", None, "there", "gone", f"{name}{at} is gone", subject=f"gpu:{key}", name=name)

    def say_moved(self, key: str, slot: Slot, place: int) -> None:
        device = self.topology.devices[place]
        where = key_of(device)
        words = f"{slot.name or slot.uuid} was expected at {key} and is at {where}, called {_name(device)}"
        self.displaced.add(place)
        self.say("gpu_moved", device, key, where, words)

    def say_swapped(self, here: int, there: int, slot: Slot) -> None:
        one, other = (self.topology.devices[place] for place in (here, there))
        words = (
            f"{_name(one)} and {_name(other)} changed places: {slot.uuid} is at {key_of(other)}, "
            f"expected at {key_of(one)}"
        )
        self.say("gpu_swapped", one, key_of(one), key_of(other), words)

    def judge_slots(self) -> None:
        for key, slot in self.expected.slots.items():
            place = self.now_at.get(key)
            if place is None:
                continue
            device = self.topology.devices[place]
            self.judge_links(place, slot)
            self.judge_pcie(device, slot)
            elsewhere = device.pci != key or place in self.displaced  # that is told already
            if slot.path and device.path and device.path != slot.path and not elsewhere:
                self.displaced.add(place)
                was, now = _hang(slot.path), _hang(device.path)
                self.say("distance", device, was, now, f"{_name(device)} hangs below {now}, {was} expected")

    def judge_links(self, place: int, slot: Slot) -> None:
        device, want = self.topology.devices[place], slot.nvlinks
        if want is None or (device.gpu is not None and device.gpu.mig):
            return
        up = links_up(self.topology, place)
        if up is None or silent(self.topology, device):
            self.cannot_tell("nvlinks", subject_of(device))
            return
        sure, unsure = up
        if sure + unsure >= want:
            if sure < want:
                self.cannot_tell("nvlinks", subject_of(device))
            return
        self.linkless.add(place)
        down = [str(link.number) for link in (device.gpu.links if device.gpu else ()) if link.up is False]
        which = f"; down: link{'s' if len(down) > 1 else ''} {', '.join(down)}" if down else ""
        words = f"{_name(device)} has {sure} of {want} NVLinks up{which}"
        self.say("nvlinks", device, want, sure, words)

    def judge_pcie(self, device: Device, slot: Slot) -> None:
        link, subject, name = device.link, subject_of(device), _name(device)
        if slot.pcie_width is not None:
            known = [lanes for lanes in (link.lanes, link.most_lanes) if is_number(lanes)]
            if not known:
                self.cannot_tell("pcie_width", subject)
            elif min(known) < slot.pcie_width:
                found = min(known)
                can = link.most_lanes is not None and link.most_lanes == found
                words = (
                    f"{name} and its slot can do {found} PCIe lanes together"
                    if can
                    else f"{name} runs on {found} PCIe lanes"
                )
                self.say("pcie_width", device, slot.pcie_width, found, f"{words}, {slot.pcie_width} expected")
        want = slot.pcie_generation
        if want is None:
            return
        if is_number(link.most_generation) and link.most_generation < want:
            words = f"{name} and its slot can do PCIe generation {link.most_generation} together, {want} expected"
            self.say("pcie_speed", device, want, link.most_generation, words)
        elif subject not in self.busy or not is_number(link.generation):
            self.cannot_tell("pcie_speed", subject)
        elif link.generation < want:
            words = f"{name} runs at PCIe generation {link.generation} under load, {want} expected"
            self.say("pcie_speed", device, want, link.generation, words)

    # --- network cards -----------------------------------------------------------------------------------------------

    def looked(self) -> bool:
        """Whether somebody looked for network cards at all: the kernel's tree was read, or one is there."""
        return any(device.kind == "nic" or device.path for device in self.topology.devices)

    def count_cards(self) -> None:
        want = self.expected.nics
        rdma = [does_rdma(nic) for nic in self.topology.nics]
        sure, unsure = rdma.count(True), rdma.count(None)
        if want is not None and (not self.looked() or sure < want <= sure + unsure):
            self.cannot_tell("nic_missing", NODE)
        elif want is not None and sure < want:
            lonely = [_name(gpu) for gpu in self.lonely()]
            near = f"; {joined(lonely)} {'has' if len(lonely) == 1 else 'have'} none near" if lonely else ""
            words = f"{_many(want - sure, 'network card')} missing: {sure} of {want} that can do RDMA are there{near}"
            self.say("nic_missing", None, want, sure, words, name="NIC")
            return
        for gpu in self.lonely():
            level = self.expected.nic_level
            words = f"{_name(gpu)} has no network card at {level} or nearer"
            self.say("distance", gpu, level, "farther", words)

    def lonely(self) -> Iterator[Device]:
        """GPUs that have no card as near as they should; of one whose distances are not all known nobody can tell."""
        level = self.expected.nic_level
        if level is None:
            return
        near = LEVELS[: LEVELS.index(level) + 1]
        cards = [place for place, device in enumerate(self.topology.devices) if does_rdma(device) is not False]
        for place in self.of_kind():
            levels = [self.topology.levels[place][card] for card in cards]
            if not any(told in near for told in levels):
                if None in levels or not self.topology.nics:
                    self.cannot_tell("distance", subject_of(self.topology.devices[place]))
                else:
                    yield self.topology.devices[place]

    def match_cards(self) -> None:
        """Which card of the graph is which of the file: by its GUID, else by its address, else by its name."""
        cards = {key_of(nic): place for place, nic in enumerate(self.topology.devices) if nic.kind == "nic"}
        free = dict(cards)
        rounds: tuple[Callable[[str, Slot, int], bool], ...] = (self.same_guid, self.same_place, self.same_name)
        for alike in rounds:
            for name, slot in self.expected.cards.items():
                if name in self.now_at:
                    continue
                match = next((key for key, place in free.items() if alike(name, slot, place)), None)
                if match is not None:
                    self.now_at[name] = free.pop(match)
        for name, slot in self.expected.cards.items():
            if name not in self.now_at:
                self.card_gone(name, slot)
            else:
                self.judge_card(name, slot, self.now_at[name])
        for name, place in free.items():
            if self.is_new(name) and does_rdma(device := self.topology.devices[place]):
                self.say("unexpected", device, "nothing", "a card", f"{name} is not in the learned profile")

    def same_guid(self, name: str, slot: Slot, place: int) -> bool:
        guid = guid_of(self.topology.devices[place])
        return guid is not None and guid == slot.guid

    def same_place(self, name: str, slot: Slot, place: int) -> bool:
        return slot.pci is not None and self.topology.devices[place].pci == slot.pci

    def same_name(self, name: str, slot: Slot, place: int) -> bool:
        """A card of the same name, unless it is known to be another: it sits elsewhere and has another GUID."""
        device = self.topology.devices[place]
        another = slot.guid is not None and guid_of(device) not in (None, slot.guid)
        return key_of(device) == name and not another

    def card_gone(self, name: str, slot: Slot) -> None:
        if not self.looked():
            self.cannot_tell("nic_missing", f"nic:{name}")
            return
        at = f" ({slot.pci})" if slot.pci else ""
        self.say("nic_missing", None, "there", "gone", f"{name}{at} is gone", subject=f"nic:{name}", name=name)

    def judge_card(self, name: str, slot: Slot, place: int) -> None:
        device = self.topology.devices[place]
        guid = guid_of(device)
        if slot.pci is not None and device.pci is not None and device.pci != slot.pci:
            self.displaced.add(place)
            words = f"{name} is at {device.pci}, expected at {slot.pci}{self.nearest(name, place)}"
            self.say("nic_moved", device, slot.pci, device.pci, words)
        elif slot.path and device.path and slot.path != device.path:
            self.displaced.add(place)
            was, now = _hang(slot.path), _hang(device.path)
            words = f"{name} hangs below {now}, {was} expected{self.nearest(name, place)}"
            self.say("nic_moved", device, was, now, words)
        elif key_of(device) != name:
            words = f"the card at {device.pci} is called {key_of(device)}, {name} expected"
            self.say("unexpected", device, name, key_of(device), words)
        elif slot.guid is not None and guid is not None and guid != slot.guid:
            words = f"{name} is another card than before: GUID {guid}, not {slot.guid}"
            self.say("unexpected", device, slot.guid, guid, words)
        self.judge_pcie(device, slot)

    def nearest(self, name: str, place: int) -> str:
        """Which GPU the card is nearest to, where that is another than it was."""
        devices, levels = self.topology.devices, self.topology.levels[place]
        ranks = [
            (LEVELS.index(level), other) for other, level in enumerate(levels) if level and devices[other].kind == "gpu"
        ]
        known = self.expected.matrix.devices
        if not ranks or name not in known:
            return ""
        row = self.expected.matrix.cells[known.index(name)].split()
        was = [(LEVELS.index(cell), key) for cell, key in zip(row, known, strict=True)
               if cell in LEVELS and key in self.expected.slots]  # fmt: skip
        if not was:
            return ""
        key, now = min(was)[1], devices[min(ranks)[1]]
        slot = self.expected.slots[key]
        return f": nearest to {_name(now)} now, to {slot.name or key} before" if key_of(now) != key else ""

    # --- what lies between -------------------------------------------------------------------------------------------

    def judge_numa(self) -> None:
        """NUMA nodes of the devices that a file lists; one line where the machine has other nodes altogether."""
        want = {**self.expected.slots, **self.expected.cards}
        nodes, count = self.expected.numa_nodes, numa_nodes(self.topology)
        if nodes is not None and count and count != nodes:
            words = (
                f"the machine has {_many(count, 'NUMA node')}, {nodes} expected: a setting of the firmware (NPS, SNC)"
            )
            self.say("numa", None, nodes, count, words)
            return
        if nodes is not None and not count:
            self.cannot_tell("numa", NODE)
        for key, slot in want.items():
            place = self.now_at.get(key)
            if slot.numa is None or place is None:
                continue
            device = self.topology.devices[place]
            if device.node is None:
                self.cannot_tell("numa", subject_of(device))
            elif device.node != slot.numa and place not in self.displaced:
                self.displaced.add(place)
                words = f"{_name(device)} is on NUMA node {device.node}, {slot.numa} expected"
                self.say("numa", device, slot.numa, device.node, words)

    def judge_acs(self) -> None:
        if self.expected.acs is None:
            return
        found = redirecting(self.topology)
        if found is None:
            self.cannot_tell("acs", NODE)
        elif found:
            port, one, other = found[0]
            more = f" (and at {_many(len(found) - 1, 'more port')})" if len(found) > 1 else ""
            words = (
                f"ACS is on at {port}{more}: what {one} and {other} write to each other goes up to the root first; "
                "GPUDirect needs it off"
            )
            self.say("acs", None, "off", "on", words, name="ACS")

    def judge_p2p(self) -> None:
        if self.expected.p2p is None:
            return
        bad: dict[tuple[int, int], str] = {}
        for i, j in self.gpu_pairs():
            told = self.topology.p2p[i][j] if self.topology.p2p else None
            if told in (None, "U"):
                self.cannot_tell("p2p", subject_of(self.topology.devices[i]))
                self.cannot_tell("p2p", subject_of(self.topology.devices[j]))
            elif told != "OK" and not {i, j} & self.linkless:
                bad[i, j] = told or ""
        for place, others in _grouped(bad):
            device, peer = self.topology.devices[place], self.topology.devices[others[0]]
            status = bad[min(place, others[0]), max(place, others[0])]
            words = f"{_name(device)} cannot reach the memory of {_name(peer)}{_and(others)}: {status}, OK expected"
            self.say("p2p", device, "OK", status, words)

    def gpu_pairs(self) -> Iterator[tuple[int, int]]:
        """Pairs of GPUs of which links can be expected: none of both cut into instances, or silent."""
        places = [
            place for place in self.of_kind()
            if (gpu := self.topology.devices[place].gpu) is not None and not gpu.mig
            and not silent(self.topology, self.topology.devices[place])
        ]  # fmt: skip
        return ((i, j) for n, i in enumerate(places) for j in places[n + 1 :])

    def judge_distances(self) -> None:
        worse: dict[tuple[int, int], str] = {}
        for (i, j), want in self.wanted_cells():
            found = self.topology.cell(i, j)
            if found is None or self.is_unsure(i, j, want):
                for place in (i, j):
                    self.cannot_tell("distance", subject_of(self.topology.devices[place]))
            elif _is_worse(found, want) and not self.is_explained(i, j, want):
                worse[min(i, j), max(i, j)] = want
        for place, others in _grouped(worse):
            device, peer = self.topology.devices[place], self.topology.devices[others[0]]
            want = worse[min(place, others[0]), max(place, others[0])]
            found = self.topology.cell(place, others[0])
            words = f"{found} between {_name(device)} and {_name(peer)}{_and(others)}, {want} expected"
            self.say("distance", device, want, found, words)

    def wanted_cells(self) -> Iterator[tuple[tuple[int, int], str]]:
        if self.expected.pairs is not None and not self.expected.slots:
            for pair in self.gpu_pairs():
                yield pair, self.expected.pairs
        keys = self.expected.matrix.devices
        for one, row in zip(keys, self.expected.matrix.cells, strict=True):
            for other, cell in zip(keys, row.split(), strict=True):
                i, j = self.now_at.get(one), self.now_at.get(other)
                if i is not None and j is not None and i < j and (cell in LEVELS or _BOND.match(cell)):
                    yield (i, j), cell

    def is_unsure(self, i: int, j: int, want: str) -> bool:
        """Whether nobody knows of links between them, where links are expected."""
        if not _BOND.match(want):
            return False
        return self.topology.bonds[i][j] is None or any(links_up(self.topology, place) is None for place in (i, j))

    def is_explained(self, i: int, j: int, want: str) -> bool:
        if _BOND.match(want):
            return bool({i, j} & self.linkless)
        return bool({i, j} & self.displaced)


# --- small things ----------------------------------------------------------------------------------------------------


def _name(device: Device) -> str:
    return device.name if device.kind == "gpu" else device.alias or device.name


def _is_worse(found: str, want: str) -> bool:
    """Whether one cell is farther than another; NVLinks are nearer than any level."""
    links, wanted = _BOND.match(found), _BOND.match(want)
    if wanted is not None:
        return links is None or int(links[1]) < int(wanted[1])
    return links is None and _rank(found) > _rank(want)


def _rank(cell: str) -> int:
    levels: tuple[Level, ...] = LEVELS
    return levels.index(cell) if cell in levels else -1


def _grouped(pairs: Mapping[tuple[int, int], str]) -> Iterator[tuple[int, list[int]]]:
    """The pairs by the devices that have most of them: one that went away from all others is told once."""
    left = dict(pairs)
    while left:
        counts = Counter(place for pair in left for place in pair)
        most = max(counts.values())
        place = min(place for place, number in counts.items() if number == most)
        mine = [pair for pair in left if place in pair]
        yield place, sorted(i + j - place for i, j in mine)
        for pair in mine:
            del left[pair]


def _and(others: Collection[int]) -> str:
    return f" and {_many(len(others) - 1, 'more')}" if len(others) > 1 else ""


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 or what == "more" else f"{count} {what}s"


def _hang(path: tuple[str, ...]) -> str:
    return path[-1] if path else "nothing"
