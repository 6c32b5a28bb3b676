"""How the machine is wired, as the kernel shows it: the PCI tree, network cards, NUMA nodes, processors.

Reads     /sys/bus/pci, /sys/class/{infiniband,net}, /sys/devices/system/{node,cpu}, /proc/cpuinfo, and topology.toml in
          the agent's folder, which holds what the site had learned
Emits     one slow sweep: a row for each GPU, NVSwitch, card and bridge above them, and the node's
Cursor    none: it looks at the present
Source    Linux Documentation/ABI/testing/sysfs-bus-pci; see the parts for each fact

Nothing is started, and no GPU is touched: what is said of them are the kernel's copies. Links, registers and rates of
bridges and cards are asked of the devices: that may hang, so it is done in threads with a deadline (`sweeping/apart`),
and of none that sleeps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.ids import NODE, PciAddress, SubjectId, gpu, nvswitch
from gpuguard.model.instants import Instant
from gpuguard.model.quantities import COUNTER_TOP
from gpuguard.model.readings import Quantity, SubjectKind, Unit, Values
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sources.topology import bridges, cards, processors, tree
from gpuguard.sweeping.apart import Apart
from gpuguard.sweeping.files import listed, read_bytes, take
from gpuguard.sweeping.gpus import DEVICES, is_asleep
from gpuguard.sweeping.links import Links
from gpuguard.sweeping.rounds import Rounds, Rows

NAME = "topology"
LEARNED = "topology.toml"
MOST_LEARNED = 256 * 1024
GONE_LOOKS = 3
# What makes two looks differ: where things hang and what they are, not how they do.
WIRING = (
    "gpu_pci_path", "gpu_numa_node", "nvswitch_pci_path", "nvswitch_numa_node", "nic_pci", "nic_pci_path",
    "nic_numa_node", "nic_pci_id", "nic_guid", "bridge_pci_path", "bridge_pci_id",
)  # fmt: skip


def _text(name: str, of: SubjectKind, help: str, *, keyed: bool = False) -> Quantity:
    return Quantity(name=name, of=of, unit="text", kind="text", metric=None, help=help, keyed=keyed)


def _number(name: str, of: SubjectKind, help: str, *, unit: Unit = "code", high: float = 4095) -> Quantity:
    return Quantity(name=name, of=of, unit=unit, low=0, high=high, metric=None, help=help)


def _link(of: SubjectKind) -> tuple[Quantity, ...]:
    return (
        _number(f"{of}_link_width", of, "PCIe lanes in use now.", unit="lanes", high=32),
        _number(f"{of}_link_generation", of, "PCIe generation now.", unit="count", high=8),
        _number(f"{of}_link_width_limit", of, "The most lanes that both ends can do.", unit="lanes", high=32),
        _number(
            f"{of}_link_generation_limit", of, "The highest generation that both ends can do.", unit="count", high=8
        ),
    )  # fmt: skip


_PATH = "Root complex and bridges above it, from the root down."

QUANTITIES: tuple[Quantity, ...] = (
    _text("gpu_pci_path", "gpu", _PATH),
    _text("gpu_local_cpus", "gpu", "Processors that are near, as the kernel lists them."),
    _text("gpu_driver", "gpu", "The kernel driver that has it."),
    _text("nvswitch_pci_path", "nvswitch", _PATH),
    _number("nvswitch_numa_node", "nvswitch", "The NUMA node that it hangs on."),
    _text("nic_pci", "nic", "Its address on the PCI bus."),
    _text("nic_pci_path", "nic", _PATH),
    _number("nic_numa_node", "nic", "The NUMA node that it hangs on."),
    _text("nic_local_cpus", "nic", "Processors that are near, as the kernel lists them."),
    _text("nic_rdma", "nic", "Its name in RDMA, as mlx5_0."),
    _text("nic_netdevs", "nic", "Its network interfaces."),
    _text("nic_driver", "nic", "The kernel driver that has it."),
    _text("nic_guid", "nic", "The GUID of its node in the fabric."),
    _text("nic_pci_id", "nic", "Vendor and device, as 15b3:1021."),
    _number("nic_ports", "nic", "Ports of the function.", unit="count", high=255),
    _number("nic_rate_bits_per_second", "nic", "Rate of its fastest port.", unit="bits_per_second", high=1e13),
    *_link("nic"),
    _text("bridge_kind", "bridge", "root_port, upstream, downstream, or bridge for anything else."),
    _text("bridge_pci_path", "bridge", _PATH),
    _text("bridge_pci_id", "bridge", "Vendor and device, as 1000:c030."),
    *_link("bridge"),
    Quantity(
        name="bridge_p2p_redirect", of="bridge", unit="flag", low=0, high=1, metric=None,
        help="1 where ACS sends what one device below the port writes to another up to the root first.",
    ),
    _text("numa_cpus", "node", "Processors of each NUMA node; empty for one of memory alone.", keyed=True),
    Quantity(
        name="numa_sockets", of="node", unit="code", low=0, high=4095, keyed=True, metric=None,
        help="The socket of each NUMA node that has processors.",
    ),
    Quantity(
        name="numa_distances", of="node", unit="count", low=0, high=255, keyed=True, metric=None,
        help="How far NUMA nodes are from each other, 10 to themselves.",
    ),
    _text("cpu_architecture", "node", "Architecture of the processors, as x86_64."),
    _text("cpu_vendor", "node", "Their maker, as they name it."),
    _number("cpu_family", "node", "Their family.", high=1e6),
    _number("cpu_model", "node", "Their model.", high=1e6),
    _text("cpu_siblings", "node", "Threads of the first core."),
    _text("topology_learned", "node", "The wiring as the site had it learned."),
    Quantity(
        name="topology_changed_total", of="node", unit="count", kind="counter", low=0, high=COUNTER_TOP,
        help="Times that the wiring differed from the look before.",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds."""

    every: Seconds = Seconds(600.0)  # the wiring is looked at this often
    again: Seconds = Seconds(60.0)  # and so soon after a look that showed another one: a card may just be reset
    deadline: Seconds = Seconds(2.0)  # for all bridges and cards together: a read takes microseconds

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin."""
        if min(self.every, self.again, self.deadline) <= 0:
            raise ValueError("every, again and deadline must be above 0")


def read_learned(path: Path) -> Values:
    """What the site had learned: absent without a file, unknown where it cannot be read or is no file of text."""
    try:
        if path.exists() and not path.is_file():  # a pipe would read as an empty file
            return {"topology_learned": None}
        text = read_bytes(path, MOST_LEARNED + 1)
        return {"topology_learned": text.decode() if len(text) <= MOST_LEARNED else None}
    except Absent:
        return {}
    except (OSError, ReadFailed, UnicodeDecodeError):
        return {"topology_learned": None}


class Wiring:
    """The wiring of the machine under a root. `learned` is the file with what the site had learned."""

    def __init__(self, settings: Settings, root: Path, learned: Path) -> None:
        """Reads nothing yet."""
        self._settings, self._root, self._learned = settings, root, learned
        self._apart: Apart[Values] = Apart(NAME, settings.deadline)
        self._processors: Values = {}  # they do not change, and the kernel takes its time to print them
        self._before: int | None = None
        self._changed = 0
        self._settled = False
        self._shown: dict[SubjectId, int] = {}  # by how many more looks tell that it is gone, once it is

    def rest(self) -> float:
        """How long to wait for the next look: what is there now may be on its way out, or in."""
        return self._settings.every if self._settled else min(self._settings.again, self._settings.every)

    def sweep(self, now: Instant) -> Rows:
        """What is known of the wiring.

        Raises  Absent where the machine has no PCI bus, or never had a GPU or a network card on it; ReadFailed where
                the bus cannot be read
        """
        root = self._root
        if not (root / DEVICES).is_dir():
            raise Absent(f"{root / DEVICES} does not exist; this machine has no PCI bus")
        seen, links = tree.look(root), Links(root)
        found = cards.find(root, links, seen.networks)
        if not (seen.gpus or found) and self._before is None:
            raise Absent("neither an NVIDIA GPU nor a network card on the PCI bus; they are looked for again later")
        rows = self._devices(links, seen, found)
        self._compare(rows)
        # What was here and is not has an empty row now; without one its last would hold for half an hour.
        gone: Rows = {subject: {} for subject in self._shown if subject not in rows}
        left = {subject: self._shown[subject] - 1 for subject in gone}
        self._shown = {subject: looks for subject, looks in left.items() if looks} | dict.fromkeys(rows, GONE_LOOKS)
        return {**gone, **rows, NODE: self._node()}

    def _devices(self, links: Links, seen: tree.Listed, found: list[cards.Card]) -> Rows:
        root = self._root
        rows: Rows = {}
        for pci in seen.gpus:
            rows[gpu(pci)] = tree.place(root, links, pci, "gpu")
            take(rows[gpu(pci)], "gpu_local_cpus", root / DEVICES / pci / "local_cpulist", lambda text: text or None)
            if (driver := tree.driver_of(links, pci)) is not None:
                rows[gpu(pci)]["gpu_driver"] = driver
        rows |= {nvswitch(pci): tree.place(root, links, pci, "nvswitch") for pci in seen.switches}
        paths = {pci: tree.path_of(links, pci) or () for pci in (*seen.gpus, *seen.switches)}
        paths |= {card.pci: tree.path_of(links, card.pci) or () for card in found}
        above = bridges.find(paths)
        read = self._ask(above, found)
        for card in found:
            values = cards.describe(root, links, card)
            if card.pci in read:
                own = read[card.pci]
                port = next(reversed(tree.bridges_of(paths[card.pci])), None)
                values |= bridges.link("nic", own, None if port is None else read.get(port))
                values |= {column: value for column, value in (own or {}).items() if column.startswith("nic_")}
            rows[card.subject] = values
        rows |= bridges.rows(root, links, above, read)
        still = set(listed(root / DEVICES))  # what vanished while it was read is left out
        return {
            subject: values for subject, values in rows.items()
            if str(values.get("nic_pci") or subject.partition(":")[2]) in still
        }  # fmt: skip

    def _ask(self, above: dict[PciAddress, bridges.Bridge], found: list[cards.Card]) -> dict[PciAddress, Values | None]:
        """What bridges and cards told of themselves, None where one did not answer in time; of those that are awake."""
        jobs: dict[str, Callable[[], Values]] = {
            **{pci: partial(bridges.read, self._root / DEVICES / pci) for pci in above},
            **{card.pci: partial(cards.read, self._root, card) for card in found},
        }
        jobs = {pci: job for pci, job in jobs.items() if not is_asleep(self._root / DEVICES / pci)}
        read = self._apart.read(jobs)
        return {PciAddress(pci): read.get(pci) for pci in jobs}

    def _compare(self, rows: Rows) -> None:
        """The look was counted where it shows another wiring than the one before."""
        wiring = frozenset(
            (subject, column, values.get(column)) for subject, values in rows.items() for column in WIRING
        )  # fmt: skip
        before, self._before = self._before, hash(wiring)
        self._settled = before == self._before
        if not self._settled and before is not None:
            self._changed += 1

    def _node(self) -> Values:
        self._processors = self._processors or processors.model(self._root)
        values = {**processors.nodes(self._root), **self._processors, "topology_changed_total": self._changed}
        return {**values, **read_learned(self._learned)}


def build(settings: Settings, root: Path, clock: Clock, state_dir: Path) -> Rounds:
    """The source for the machine under `root`; a recorded one carries what was learned of it itself."""
    wiring = Wiring(settings, root, (state_dir if root == Path("/") else root) / LEARNED)
    return Rounds(NAME, wiring.sweep, clock, every=settings.every, rate="slow", rest=wiring.rest)
