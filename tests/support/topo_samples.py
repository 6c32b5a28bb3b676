"""Published matrices of `nvidia-smi topo -m` as graphs: cells and NUMA nodes, read for tests of what asks a graph.

A reader of matrices is gpuguard/topology/matrix.py; this one knows these files only, so that a fault of that one cannot
hide a fault of what is tested.
"""

import re
from functools import cache

from gpuguard.model.topology import LEVELS, Device, Gpu, Level, Nic, Topology
from tests.support.shared_data import shared

_SAMPLE = re.compile(r"^### SAMPLE (\d+)\n.*?^--- BEGIN MATRIX\n(.*?)^--- END MATRIX", re.MULTILINE | re.DOTALL)
NUMBERS = (
    "02", "03", "05", "06", "07", "08", "09", "12", "13", "14", "15", "16", "17", "19", "20", "21", "24", "26", "27",
    "28", "30", "33", "35", "37", "39", "40",
)  # fmt: skip
_NAME = re.compile(r"(GPU|NIC|mlx\d+_)\d+")
_LEVELS: dict[str, Level] = {level: level for level in LEVELS} | {"SOC": "SYS"}


@cache
def samples() -> dict[str, Topology]:
    """Each sample by its number; rows that are cut off are filled from the other side, or not known."""
    text = shared("reference", "topo-samples.txt").read_text()
    return {number: _graph(body) for number, body in _SAMPLE.findall(text)}


def _graph(text: str) -> Topology:
    header, *lines = (line for line in text.splitlines() if line.strip())
    names = [word for word in header.split() if _NAME.fullmatch(word)]
    size = len(names)
    rows: dict[str, list[str]] = {}
    for line in lines:
        fields = line.split("\t") if "\t" in line else re.split(r" {2,}", line.strip())
        fields = [field.strip() for field in fields] + [""] * (size + 3)
        if fields[0] in names and fields[0] not in rows:
            rows[fields[0]] = fields[1 : size + 3]
    numa = "NUMA" in header
    devices = tuple(_device(name, rows.get(name, [""] * (size + 2))[size:], numa) for name in names)
    cells = [
        [rows[one][j] if one in rows else rows[other][i] if other in rows else "" for j, other in enumerate(names)]
        for i, one in enumerate(names)
    ]
    levels = tuple(tuple(_LEVELS.get(cell) for cell in row) for row in cells)
    bonds = tuple(
        tuple(
            0 if "nic" in (one.kind, other.kind) else _bond(cells[i][j]) for j, other in enumerate(devices)
        )
        for i, one in enumerate(devices)
    )  # fmt: skip
    return Topology(devices=devices, levels=levels, bonds=bonds)


def _device(name: str, rest: list[str], numa: bool) -> Device:
    kind = name.startswith("GPU")
    nodes = rest[1] if numa and rest[1] not in ("", "N/A") else None
    return Device(
        name=name, kind="gpu" if kind else "nic", cpus=rest[0] or None, nodes=nodes,
        gpu=Gpu(index=int(name[3:])) if kind else None, nic=None if kind else Nic(),
    )  # fmt: skip


def _bond(cell: str) -> int | None:
    return int(cell[2:]) if cell.startswith("NV") else 0 if cell else None
