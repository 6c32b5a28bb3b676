"""What is near a GPU: its network cards, nearest first, and its processors."""

from collections.abc import Iterable, Iterator

from gpuguard.model.topology import Device, Topology
from gpuguard.topology.distance import NOT_KNOWN, places_of_gpus, rank_of
from gpuguard.topology.names import places_of

# Distance, no RDMA, the rate below zero, GPUs that are nearer, GPUs as near, place: less is better.
Preference = tuple[int, bool, float, int, int, int]


def nics_of(topology: Topology, gpu: str) -> tuple[str, ...]:
    """The names of the network cards, nearest first.

    Of cards that are equally near, one with RDMA comes first, then the faster one (a rate that is not known is the
    slowest), then that to which fewer other GPUs are nearer, or as near, then the lower one.
    Raises  UsageError where this is no GPU's name
    """
    return tuple(name for _, name in _preferred(topology, _place(topology, gpu)))


def spread(topology: Topology, gpus: Iterable[str] | None = None) -> dict[str, str | None]:
    """A card for each GPU, of its equally near ones, so that as few GPUs as can be share one; None where no distance is
    known.

    Equally near are the cards of the same distance as the best one, with RDMA as that has it, and as fast.
    Raises  UsageError for a name that is no GPU's, or comes twice
    """
    devices = topology.gpus
    names = [gpu.name for gpu in devices] if gpus is None else [*gpus]
    asking = [devices[place].name for place in places_of(devices, names)]
    choices = {name: _equally_near(topology, name) for name in asking}
    # Each GPU takes a card that has room, or has another one moved to make room; all get in when there is room enough.
    for room in range(1, len(asking) + 1):
        taken: dict[str, list[str]] = {}
        if all(_seat(name, choices, taken, room, set()) for name in asking if choices[name]):
            holders = {gpu: nic for nic, holding in taken.items() for gpu in holding}
            return {name: holders.get(name) for name in asking}
    return dict.fromkeys(asking)


def _seat(
    gpu: str, choices: dict[str, tuple[str, ...]], taken: dict[str, list[str]], room: int, tried: set[str]
) -> bool:
    free = [nic for nic in choices[gpu] if len(taken.setdefault(nic, [])) < room]
    if free:
        taken[min(free, key=lambda nic: len(taken[nic]))].append(gpu)
        return True
    for nic in choices[gpu]:
        if nic not in tried:
            tried.add(nic)
            holding = taken[nic]
            for place, other in enumerate(holding):
                if _seat(other, choices, taken, room, tried):
                    holding[place] = gpu
                    return True
    return False


def cpus_of(topology: Topology, gpu: str) -> str | None:
    """The processors near the GPU as the kernel lists them; None where nobody knows, never those of node 0.

    Raises  UsageError where this is no GPU's name
    """
    device = topology.devices[_place(topology, gpu)]
    if device.cpus is not None:
        return device.cpus
    return next((node.cpus for node in topology.numa if node.number == device.node), None)


def _place(topology: Topology, gpu: str) -> int:
    return places_of_gpus(topology)[places_of(topology.gpus, [gpu])[0]]


def _is_known(preference: Preference) -> bool:
    return preference[0] != NOT_KNOWN


def _preferred(topology: Topology, gpu: int) -> list[tuple[Preference, str]]:
    """The cards with what they are preferred by, the best first."""
    gpus = places_of_gpus(topology)
    found = []
    for place, device in _nics(topology):
        rank = rank_of(topology, gpu, place)
        others = [rank_of(topology, other, place) for other in gpus if other != gpu]
        nearer = sum(other < rank for other in others)
        found.append(((rank, *_worth(device), nearer, others.count(rank), place), device.name))
    return sorted(found)


def _nics(topology: Topology) -> Iterator[tuple[int, Device]]:
    return ((place, device) for place, device in enumerate(topology.devices) if device.kind == "nic")


def _worth(device: Device) -> tuple[bool, float]:
    """Whether it lacks RDMA, and its rate below zero: less is better."""
    nic = device.nic
    return nic is None or nic.rdma is None, -((nic and nic.bits_per_second) or 0.0)


def _equally_near(topology: Topology, gpu: str) -> tuple[str, ...]:
    known = [pair for pair in _preferred(topology, _place(topology, gpu)) if _is_known(pair[0])]
    return tuple(name for preference, name in known if preference[:3] == known[0][0][:3])
