"""Health of each subject, what stands against it, and the drain.

Reads     the subjects and the drain of a Snapshot; names that the driver's library told of GPUs
Units     1 for what is so; identities are labels
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from gpuguard.metrics._rows import gpu_labels, rows
from gpuguard.model.health import STATES, Snapshot


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """What is true of the node's parts now."""
    health = GaugeMetricFamily(
        "gpuguard_subject_health", "1 for the state a subject is in, 0 for the others.", labels=("subject", "state")
    )
    findings = GaugeMetricFamily(
        "gpuguard_findings", "1 for each finding that stands.", labels=("subject", "code", "severity")
    )
    identity = GaugeMetricFamily("gpuguard_gpu_info", "Which GPU is which; empty where not known.")
    told = {measured.subject: measured.values for measured in rows(snapshot, "gpu")}
    for subject in snapshot.subjects:
        for state in STATES:
            health.add_metric((subject.id, state), float(subject.state == state))
        for finding in subject.findings:
            findings.add_metric((subject.id, finding.code, finding.severity), 1.0)
        kind, _, pci = subject.id.partition(":")
        if kind == "gpu":
            values = told.get(subject.id, {})
            labels = {
                **gpu_labels(subject), "pci": pci, "serial": subject.serial or "",
                "model": str(values.get("gpu_name") or ""), "vbios": str(values.get("gpu_vbios") or ""),
            }  # fmt: skip
            identity.samples.append(Sample(identity.name, labels, 1.0))
    drain = GaugeMetricFamily(
        "gpuguard_drain_active", "1 while the node is out of service, by whose drain it is.", labels=("owner",)
    )
    how = snapshot.drain.state if snapshot.drain and not snapshot.drain.dry_run else None
    drain.add_metric(("gpuguard",), float(how in ("standing", "releasing")))
    drain.add_metric(("foreign",), float(how == "foreign"))
    held = GaugeMetricFamily(
        "gpuguard_drain_held", "1 while the fleet's budget or a common cause holds back this node's drain."
    )
    held.add_metric((), float(how == "held"))
    yield from (health, findings, identity, drain, held)
