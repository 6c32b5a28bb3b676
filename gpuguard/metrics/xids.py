"""The Xids of each GPU: how many, and when the last of each.

Dates are what alerts look at: a counter that begins with its first event has no increase that a query could see.

Reads     the shell's Xids of a Snapshot
Units     events; seconds since 1970
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from gpuguard.metrics._rows import gpu_labels
from gpuguard.model.health import Snapshot
from gpuguard.model.ids import gpu


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """Each Xid that was seen since the agent began; `gpu` and `uuid` are empty where the driver named no GPU."""
    count = CounterMetricFamily("gpuguard_xid_errors", "Xids that the kernel log told, by GPU and number.")
    date = GaugeMetricFamily(
        "gpuguard_xid_last_timestamp_seconds", "When the newest Xid of this number was told, by GPU and number."
    )
    views = {view.id: view for view in snapshot.subjects}
    for seen in snapshot.shell.xids:
        view = None if seen.pci is None else views.get(gpu(seen.pci))
        labels = gpu_labels(view) if view is not None else {"gpu": seen.pci or "", "uuid": ""}
        labels["xid"] = str(seen.xid)
        count.samples.append(Sample("gpuguard_xid_errors_total", labels, seen.count))
        if seen.last_utc is not None:
            date.samples.append(Sample(date.name, labels, seen.last_utc))
    yield from (family for family in (count, date) if family.samples)
