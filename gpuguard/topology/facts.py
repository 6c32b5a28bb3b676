"""What the matrix says, as plain values for JSON: devices, cells, affinities and the names of network cards."""

from gpuguard.model.topology import SELF, Topology
from gpuguard.topology.matrix import Layout


def facts(topology: Topology, layout: Layout | None = None) -> dict[str, object]:
    """The part of `topo --json` that a matrix tells, for any graph.

    Shape   devices: names, as the header has them. matrix: a row for each, cells as nvidia-smi prints them, X on the
            diagonal; with the layout of the text that was read, in the words of that text (SOC). affinity: cpus and
            numa of each GPU. nic_names: what each network card is called in /sys/class/infiniband, where that is told.
            None for all that is not known
    """
    spelled = None if layout is None else layout.spelling()
    size = range(len(topology.devices))
    matrix: list[list[str | None]] = []
    for one in size:
        cells = [SELF if one == other else topology.cell(one, other) for other in size]
        matrix.append(cells if spelled is None else [spelled(one, other, cell) for other, cell in enumerate(cells)])
    return {
        "devices": [device.name for device in topology.devices],
        "matrix": matrix,
        "affinity": {gpu.name: {"cpus": gpu.cpus, "numa": gpu.nodes} for gpu in topology.gpus},
        "nic_names": {nic.name: nic.alias for nic in topology.nics if nic.alias is not None},
    }
