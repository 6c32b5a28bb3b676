"""Which GPUs of a node a job can be given whole, and why not the others."""

from collections.abc import Iterable

from gpuguard.model.topology import Topology
from gpuguard.topology.state import silent

SILENT = "the driver does not answer for it"
CUT = "it is in MIG mode"


def withheld(topology: Topology, free: Iterable[str] | None = None) -> dict[str, str]:
    """The GPUs that are not to be chosen, each with the reason.

    One that does not answer the driver, or is unfit, serves no job, whoever calls it free. One in MIG mode gives a job
    an instance and has no NVLink: it is chosen only where it is named in `free`, or where all are in that mode.
    """
    named = frozenset(free or ())
    cut = {gpu.name for gpu in topology.gpus if gpu.gpu is not None and gpu.gpu.mig}
    spared = len(cut) < len(topology.gpus)
    found: dict[str, str] = {}
    for gpu in topology.gpus:
        if free is not None and gpu.name not in named:
            continue
        if silent(topology, gpu):
            found[gpu.name] = SILENT
        elif gpu.gpu is not None and gpu.gpu.unfit is not None:
            found[gpu.name] = f"it is unfit: {gpu.gpu.unfit}"
        elif free is None and spared and gpu.name in cut:
            found[gpu.name] = CUT
    return found


def offered(topology: Topology, free: Iterable[str] | None = None) -> tuple[str, ...]:
    """The GPUs to choose among, in their order: the free ones, all of them without `free`, less those withheld."""
    named = None if free is None else frozenset(free)
    less = withheld(topology, named)
    return tuple(gpu.name for gpu in topology.gpus if gpu.name not in less and (named is None or gpu.name in named))
