"""How faulty boards and the machine were of late.

A machine that never was faulty has no series of these, and one that was loses them when it is as good as forgotten.

Reads     what is remembered of the subjects of a Snapshot
Units     faults; each counts half as much after each half-life
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from gpuguard.metrics._rows import gpu_labels
from gpuguard.model.health import Snapshot
from gpuguard.model.past import Record

# One fault, 66 days later, with a half-life of ten.
FORGOTTEN = 0.01


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """The score of each board of which something is remembered, and of the machine."""
    boards = GaugeMetricFamily(
        "gpuguard_fault_score", "Faults of the GPU's board, each halved for every half-life that has gone by."
    )
    machine = GaugeMetricFamily(
        "gpuguard_node_fault_score", "Faults of anything in the machine, each halved as those of its boards."
    )
    for view in snapshot.subjects:
        _put(boards, gpu_labels(view), view.past, snapshot)
    _put(machine, {}, snapshot.past, snapshot)
    yield from (family for family in (boards, machine) if family.samples)


def _put(family: Metric, labels: dict[str, str], past: Record | None, snapshot: Snapshot) -> None:
    if past is None:
        return
    score = past.score if snapshot.at.utc is None else past.score_at(snapshot.at.utc)
    if score >= FORGOTTEN:
        family.samples.append(Sample(family.name, labels, score))
