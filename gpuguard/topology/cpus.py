"""Lists of processors as the kernel prints them, and the numbers that schedulers give to cores.

Source    kernel Documentation/core-api/printk-formats.rst ("%*pbl", "%*pb"); hwloc 2 for the order of cores: sockets,
          what lies within them and cores each by the lowest processor inside
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from gpuguard.errors import Absent, NotUnderstood
from gpuguard.model.topology import NumaNode, Topology

# The kernel's own bound, CONFIG_NR_CPUS, is 8192 at most on any architecture.
MOST_PROCESSORS = 8192
WORD_BITS = 32


def numbers(text: str) -> tuple[int, ...]:
    """The numbers of a list such as "0-3,8", rising and each once; an empty list has none.

    Raises  NotUnderstood on anything else, with the text kept
    """
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        low, dash, high = part.strip().partition("-")
        if not (_plain(low) and (_plain(high) if dash else True)):
            raise NotUnderstood(f"{_short(text)} is no list of processors, such as 0-3,8", text)
        first, last = int(low), int(high) if dash else int(low)
        if not first <= last < MOST_PROCESSORS:
            raise NotUnderstood(f"{_short(text)} has a range that no kernel prints: {_short(part.strip())}", text)
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def mask(values: Iterable[int], highest: int) -> str:
    """These numbers as the kernel's mask: words of 32 bits in hex, the most significant first, comma between.

    `highest` is the highest processor of the machine: it tells how many words there are.
    """
    bits = sum(1 << value for value in set(values))
    words = highest // WORD_BITS + 1
    return ",".join(f"{bits >> (WORD_BITS * word) & 0xFFFFFFFF:08x}" for word in reversed(range(words)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """The cores of a machine by the numbers that Slurm gives them: from 0 over all sockets, threads not counted.

    `core` tells the number of a processor's core; `nodes` which cores each NUMA node has, `sockets` each socket, in
    the order of their numbers. `threads` are those of one core.
    """

    core: dict[int, int]
    nodes: tuple[frozenset[int], ...]
    sockets: tuple[frozenset[int], ...]
    threads: int

    def cores(self, processors: Iterable[int]) -> frozenset[int]:
        """The cores that these processors are threads of.

        Raises  Absent when one of them belongs to no NUMA node
        """
        try:
            return frozenset(self.core[processor] for processor in processors)
        except KeyError as error:
            raise Absent(f"processor {error.args[0]} belongs to no NUMA node that is known") from None


def numbering(topology: Topology) -> Numbering:
    """How the cores of this machine are numbered.

    Raises  Absent when the graph does not tell enough: the reason in a few words
    """
    nodes = [(node, numbers(node.cpus)) for node in topology.numa if node.cpus]
    if not nodes:
        raise Absent("which processors each NUMA node has is not known")
    if len(nodes) > 1 and any(node.socket is None for node, _ in nodes):
        raise Absent("which socket each NUMA node belongs to is not known")
    threads, stride = _threads(topology.processors.siblings)
    core: dict[int, int] = {}
    parts: list[frozenset[int]] = []
    sockets: dict[int, set[int]] = {}
    for node, processors in _in_order(nodes):
        groups: dict[int, list[int]] = {}
        for processor in processors:
            block, place = divmod(processor, threads * stride)
            groups.setdefault(block * stride + place % stride, []).append(processor)
        if any(len(group) != threads for group in groups.values()):
            raise Absent(f"the {threads} threads of each core are not all in one NUMA node, or not all online")
        first = len(core) // threads
        for number, group in enumerate(sorted(groups.values()), start=first):
            core.update(dict.fromkeys(group, number))
        here = range(first, first + len(groups))
        parts.append(frozenset(here))
        sockets.setdefault(node.socket if node.socket is not None else 0, set()).update(here)
    return Numbering(
        core=core, nodes=tuple(parts), sockets=tuple(frozenset(cores) for cores in sockets.values()), threads=threads
    )


def _in_order(nodes: list[tuple[NumaNode, tuple[int, ...]]]) -> list[tuple[NumaNode, tuple[int, ...]]]:
    """NUMA nodes by their sockets' lowest processors, then their own."""
    lowest: dict[int | None, int] = {}
    for node, processors in nodes:
        lowest[node.socket] = min(lowest.get(node.socket, MOST_PROCESSORS), processors[0])
    return sorted(nodes, key=lambda pair: (lowest[pair[0].socket], pair[1][0]))


def _threads(siblings: str | None) -> tuple[int, int]:
    """How many threads a core has, and how far apart their numbers are."""
    if siblings is None:
        raise Absent("which processors are threads of one core is not known")
    found = numbers(siblings)
    steps = {after - before for before, after in pairwise(found)}
    if not found or len(steps) > 1:
        raise Absent(f"the threads of one core are numbered {_short(siblings)}, which follows no rule")
    return len(found), min(steps, default=1)


def _plain(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_PROCESSORS))


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
