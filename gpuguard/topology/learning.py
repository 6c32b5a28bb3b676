"""What this very machine is now, as a file that says what it should be from now on; and what speaks against it.

Shape   TOML that `profiles.parse_learned` reads
"""

from collections.abc import Iterator, Mapping

from gpuguard.model.topology import Device, Topology
from gpuguard.topology.drift import compare
from gpuguard.topology.profiles import MOST, NOTHING, Expected, key_of, printable
from gpuguard.topology.state import is_number, links_up, numa_nodes, redirecting, silent

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
    parts = [HEAD.format(date=printable(date), host=f" on {printable(topology.host)}" if topology.host else "")]
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
            up = links_up(topology, place) if device.gpu.links else None  # cells tell of the rest
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


def doubts(topology: Topology, expected: Expected | None = None) -> tuple[str, ...]:
    """What should be mended, or known, before this machine is learned; one sentence each, none where all is well. What
    is not known is not learned.

    `expected` is the profile of its kind, where there is one: what differs from it now would be learned as it is.
    """
    found = list(topology.notes)
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


def _statuses(topology: Topology) -> set[str]:
    return {status for row in topology.p2p for status in row if status is not None}
