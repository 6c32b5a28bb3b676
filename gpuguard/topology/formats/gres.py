"""The GPUs of the node for Slurm: lines of gres.conf, and in a comment what slurm.conf says of the same node.

`Cores` are Slurm's own numbers of cores: threads do not count, and sockets come one after the other. `Links` are
NVLinks that are up, to each GPU of the file in the order of addresses, which is Slurm's order. What is not known is
left out, and a comment says so; a GPU that the driver does not answer for has no line, so that Slurm gives it to
nobody.

Source    gres.conf(5) and slurm.conf(5) of Slurm 22.05 to 25.11; src/plugins/gpu/nvml/gpu_nvml.c for the order of GPUs,
          the names of types, and what MIG instances need
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gpuguard.errors import Absent, NotUnderstood
from gpuguard.model.numbers import spans
from gpuguard.model.topology import Device, Gpu, Topology
from gpuguard.topology import spelling
from gpuguard.topology.cpus import Numbering, numbering, numbers
from gpuguard.topology.formats import Wish


def render(topology: Topology, wish: Wish) -> str:
    """The lines of gres.conf for this node.

    Raises  Absent when no GPU is known, or the driver answers for none; NotUnderstood on a name that cannot be a
            NodeName
    """
    if wish.node is not None and not spelling.is_node(wish.node):
        raise NotUnderstood(f"{wish.node!r} cannot be a NodeName: give the one of slurm.conf", wish.node)
    if not topology.gpus:
        raise Absent("no GPU is known, so that gres.conf has nothing to list: look at `gpuguard topo` first")
    devices = sorted(topology.gpus, key=_address)
    files = _files(devices)
    if not files:
        raise Absent(
            "the driver's library answers for no GPU, so that nobody knows which is which /dev/nvidiaN: run it again "
            "when `gpuguard gpus` shows them"
        )
    whole = [gpu for gpu in devices if gpu.name in files and not _of(gpu).mig]
    told, why = _numbering(topology)
    host = topology.host if spelling.is_node(topology.host or "") else None
    lines = [f"# GPUs of {wish.node or host or 'this node'} for Slurm's gres.conf, by gpuguard."]
    lines += _slurm_conf(whole, wish, told)
    lines += _lost([gpu for gpu in devices if gpu.name not in files])
    lines += _remarks([gpu for gpu in devices if gpu.name in files], told, why)
    links = _links(topology, whole)
    if whole and links is None:
        lines.append("# Links are left out: the driver does not tell of all NVLinks.")
    for gpu in devices:
        if gpu.name not in files:
            continue
        cores = _cores(gpu, told)
        if _of(gpu).mig:
            lines += _instances(gpu, files[gpu.name], wish, cores)
        else:
            words = [*_start(wish), *_type(_of(gpu).product), f"File={files[gpu.name]}", *cores]
            lines.append(" ".join(words + ([f"Links={links[gpu.name]}"] if links is not None else [])))
    return "\n".join(lines) + "\n"


def _of(gpu: Device) -> Gpu:
    return gpu.gpu or Gpu()


def _files(gpus: Sequence[Device]) -> dict[str, str]:
    """The device file of each GPU that the driver answers for: by minor number, or by index where no minor is told."""
    minors = any(_of(gpu).minor is not None for gpu in gpus)
    numbered = {gpu.name: _of(gpu).minor if minors else _of(gpu).index for gpu in gpus}
    return {name: f"/dev/nvidia{number}" for name, number in numbered.items() if number is not None}


def _address(gpu: Device) -> tuple[bool, str, int]:
    return gpu.pci is None, gpu.pci or "", _of(gpu).index or 0


def _start(wish: Wish) -> list[str]:
    return [*([f"NodeName={wish.node}"] if wish.node else []), "Name=gpu"]


def _type(product: str | None, profile: str = "") -> list[str]:
    kind = _kind(product, profile)
    return [f"Type={kind}"] if kind else []


def _kind(product: str | None, profile: str = "") -> str:
    """The type of a GPU, or of its MIG instances of a profile, as AutoDetect=nvml spells it; '' when not known."""
    short = spelling.short(product)
    return "" if short is None else f"{short}{profile and '_' + re.sub(r'[^A-Za-z0-9.+]', '', profile)}"


# --- comments --------------------------------------------------------------------------------------------------------


def _slurm_conf(whole: Sequence[Device], wish: Wish, told: Numbering | None) -> Iterator[str]:
    """What slurm.conf must say of the node for these lines to be true."""
    words = [f"NodeName={wish.node or '...'}"]
    if told is not None and len({len(socket) for socket in told.sockets}) == 1:
        words.append(f"Sockets={len(told.sockets)} CoresPerSocket={len(told.sockets[0])} ThreadsPerCore={told.threads}")
    words += [f"Gres={_counted(_kind(_of(gpu).product) for gpu in whole)}"] if whole else []
    yield "# slurm.conf needs GresTypes=gpu and, of this node: " + " ".join(words)


def _counted(kinds: Iterable[str]) -> str:
    return ",".join(f"gpu:{kind and kind + ':'}{count}" for kind, count in Counter(kinds).items())


def _lost(lost: Sequence[Device]) -> Iterator[str]:
    for gpu in lost:
        where = f" at {gpu.pci}" if gpu.pci is not None else ""
        yield f"# {gpu.name}{where} is left out: the driver does not answer for it. While slurm.conf counts it, Slurm"
        yield "# drains the node (gres/gpu count reported lower than configured)."


def _remarks(gpus: Sequence[Device], told: Numbering | None, why: str) -> Iterator[str]:
    if all(_of(gpu).minor is None for gpu in gpus):
        yield "# Minor numbers are not known: N of /dev/nvidiaN is the index. See Minor Number in `nvidia-smi -q`."
    if unnamed := [gpu.name for gpu in gpus if spelling.short(_of(gpu).product) is None]:
        yield f"# Type is left out: the product of {', '.join(unnamed)} is not known."
    if told is None:
        yield f"# Cores are left out: {why}."
        return
    free = [gpu.name for gpu in gpus if not _cores(gpu, told)]
    if free:
        yield f"# Cores are left out for {', '.join(free)}: every core is as near, or which ones are near is not known."
    sets = [_near(gpu, told) for gpu in gpus if _cores(gpu, told)]
    if all(_whole(cores, told.sockets) for cores in sets):
        return
    if all(_whole(cores, told.nodes) for cores in sets):
        each = {len(node) for node in told.nodes}
        yield "# These cores are a part of their socket, and Slurm places by socket."
        yield "# SlurmdParameters=numa_node_as_socket in slurm.conf makes each NUMA node one" + (
            f": then Sockets={len(told.nodes)} CoresPerSocket={each.pop()}." if len(each) == 1 else "."
        )
    else:
        yield "# These cores are a part of their NUMA node, and Slurm places by socket."
        yield "# SlurmdParameters=l3cache_as_socket in slurm.conf makes the cores that share an L3 cache one."


def _instances(gpu: Device, file: str, wish: Wish, cores: Sequence[str]) -> Iterator[str]:
    """What to write for the MIG instances of a GPU. The numbers of their files are the driver's to tell."""
    told = _of(gpu)
    if not told.instances:
        yield f"# {gpu.name} is in MIG mode and has no instances: nothing of it can be given away."
        return
    kinds = _counted(_kind(told.product, profile) for profile in told.instances)
    yield f"# {gpu.name} is in MIG mode: Gres= in slurm.conf also has {kinds}, and each instance a line with"
    yield "# the files of its capabilities, whose numbers stand in /proc/driver/nvidia-caps/mig-minors."
    yield "# AutoDetect=nvml finds them by itself."
    for profile in told.instances:
        files = f"MultipleFiles={file},/dev/nvidia-caps/nvidia-cap<gi>,/dev/nvidia-caps/nvidia-cap<ci>"
        yield "# " + " ".join([*_start(wish), *_type(told.product, profile), files, *cores])


# --- cores and links -------------------------------------------------------------------------------------------------


def _numbering(topology: Topology) -> tuple[Numbering | None, str]:
    try:
        return numbering(topology), ""
    except (Absent, NotUnderstood) as error:
        return None, str(error)


def _near(gpu: Device, told: Numbering) -> frozenset[int]:
    """The cores near a GPU; none where that is not known."""
    try:
        return told.cores(numbers(gpu.cpus or ""))
    except (Absent, NotUnderstood):
        return frozenset()


def _cores(gpu: Device, told: Numbering | None) -> list[str]:
    """Cores=, but where it would name none or all: gres.conf(5) wants it left out when any core will do."""
    near = frozenset() if told is None else _near(gpu, told)
    return [f"Cores={spans(near)}"] if told is not None and near and near != frozenset().union(*told.nodes) else []


def _whole(cores: frozenset[int], parts: Sequence[frozenset[int]]) -> bool:
    return all(part <= cores or not part & cores for part in parts)


def _links(topology: Topology, gpus: Sequence[Device]) -> dict[str, str] | None:
    """For each of these GPUs its NVLinks to each of them, -1 to itself; None where one is not known."""
    places = [topology.place(gpu.name) for gpu in gpus]
    found: dict[str, str] = {}
    for place, gpu in zip(places, gpus, strict=True):
        bonds = [-1 if other == place else topology.bonds[place][other] for other in places]
        if None in bonds:
            return None
        found[gpu.name] = ",".join(str(bond) for bond in bonds)
    return found
