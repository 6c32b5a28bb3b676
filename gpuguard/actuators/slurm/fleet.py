"""How the whole fleet stands, as Slurm tells it: how many nodes with GPUs take part, and which drains are gpuguard's.

One question for all nodes, asked only when a drain is: slurmctld answers it from memory under its read lock, as it does
each `sinfo`.

Reads   `scontrol -o show node`: one record a line, as node.py reads one. At 1,250 nodes 0.7 MB and 26 ms,
        47 at most, with the program's start; `sinfo --json` takes 0.15 to 0.6 s for 1.7 MB, and `sinfo -o` gives a
        node one state of its several and one line for each of its partitions
Source  Slurm 22.05.8 as observed; SLURM_TIME_FORMAT takes the words of strftime (man scontrol), %s tells no time zone
"""

import re
from typing import Final

from gpuguard.actuators.slurm.node import TARGET, parse_node
from gpuguard.actuators.slurm.scontrol import Answer
from gpuguard.custody.ownership import Condition, condition_of
from gpuguard.ports import FleetDrain, FleetReport, NodeReport

# 20,000 nodes have some 11 MB; the process may have 96 MiB (systemd/gpuguard-actuator.service).
FLEET_LIMIT: Final = 24 * 2**20
TIME_FORMAT: Final = "%s"

# Nobody's work is on these, nor can be soon: they would make a share of the fleet larger than it is.
ABSENT: Final[frozenset[Condition]] = frozenset({"unregistered", "powered", "strange", "unreadable"})
# Words of a reason that say that a person wanted the drain (health/drain.py); who that was stands behind them.
PERSONS: Final = frozenset({"operator", "adopted"})

_LINE = re.compile(r"[^\n]+\n?")
_NAME = re.compile(r"NodeName=(\S{1,64}) ", re.ASCII)
_GRES = re.compile(r" Gres=(\S*) ", re.ASCII)


def parse_fleet(text: str, own: str) -> FleetReport:
    """The fleet as Slurm has it; `error` is set when the answer does not hold this node.

    A site that tells Slurm nothing of its GPUs has all its nodes counted: then this node has no GPU there either.
    Shape   one record a line; what is not a whole record takes no part
    Units   since_utc: seconds since 1970 by slurmctld's clock, when the reason was last written
    """
    count = nodes = with_gpus = 0
    mine: str | None = None
    drains: list[FleetDrain] = []
    # One after the other: with 20,000 nodes all of them at once would take more memory than the process may have.
    for match in _LINE.finditer(text):
        count += 1
        record = match[0]
        name = _NAME.match(record)
        if name is None:
            continue
        report = parse_node(record, name[1])
        mine = record if report.node == own else mine
        if report.ours:
            drains.append(_drain(record, report))
        if condition_of(report) not in ABSENT:
            nodes += 1
            with_gpus += _has_gpus(record)
    if mine is None:
        return FleetReport(target=TARGET, error=f"scontrol shows {count} nodes, and {own} is not among them")
    return FleetReport(target=TARGET, nodes=with_gpus if _has_gpus(mine) else nodes, drains=tuple(drains))


def failed(answer: Answer) -> FleetReport:
    """The report where scontrol said no."""
    return FleetReport(
        target=TARGET, error=f"scontrol show node failed with exit code {answer.code} and said: {answer.said}"
    )


def _has_gpus(record: str) -> bool:
    gres = _GRES.search(record)
    return gres is not None and any(part == "gpu" or part.startswith("gpu:") for part in gres[1].split(","))


def _drain(record: str, report: NodeReport) -> FleetDrain:
    """The drain that a reason of gpuguard's tells of; its form is strict, so its words are where they should be."""
    _, _, verdict, code, *_ = report.reason.split()
    tail = re.search(re.escape(f" Reason={report.reason} ") + r"\[[^\s\[\]@]+@(\d{1,12})\]", record)
    person = verdict in PERSONS
    return FleetDrain(
        node=report.node, token=str(report.ours), code="" if person else code, by=code if person else "gpuguard",
        since_utc=float(tail[1]) if tail is not None else None,
    )  # fmt: skip
