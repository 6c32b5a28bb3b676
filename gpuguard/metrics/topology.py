"""How much of the wiring is not as it should be.

The wiring itself is asked of `gpuguard topo --json`: a matrix would be a series for each pair.

Reads     findings of the check topology_drift; whether the node has a profile or a learned expectation
Units     differences
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from gpuguard.metrics._rows import rows
from gpuguard.model.health import Snapshot

CHECK = "topology_drift"
# The check's word that what should be cannot be read: then nothing is compared.
UNREADABLE = "topology_profile"
# Columns of the node of which one says that something is expected of its wiring: a kind of machine without a count, as
# cards in anybody's server, is compared with nothing.
EXPECTED = ("topology_learned", "gpus_expected", "ib_ports_expected")


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """How many differences stand; no series where nobody knows what the machine should be, or can read it."""
    node = next((measured.values for measured in rows(snapshot, "node")), {})
    if all(node.get(column) is None for column in EXPECTED):
        return
    told = [finding for subject in snapshot.subjects for finding in subject.findings if finding.check == CHECK]
    if any(finding.code == UNREADABLE for finding in told):
        return
    drift = GaugeMetricFamily("gpuguard_topology_drift", "Differences between the wiring as it is and as it should be.")
    drift.add_metric((), sum(finding.severity != "info" for finding in told))
    yield drift
