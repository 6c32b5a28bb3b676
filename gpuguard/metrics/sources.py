"""What each source sees: its state, its last success, what it lost.

Reads     the sources of a Snapshot
Units     seconds since 1970; lines; restarts
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpuguard.model.health import Snapshot

LEVELS = ("watching", "degraded", "blind")


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """How well gpuguard sees."""
    up = GaugeMetricFamily("gpuguard_source_up", "1 while a source sees anything.", labels=("source",))
    state = GaugeMetricFamily(
        "gpuguard_source_state", "1 for the state a source is in, 0 for the others.", labels=("source", "state")
    )
    success = GaugeMetricFamily(
        "gpuguard_source_last_success_timestamp_seconds", "When a source was last heard.", labels=("source",)
    )
    lost = CounterMetricFamily("gpuguard_source_lost", "Lines a source knows it lost.", labels=("source",))
    restarts = CounterMetricFamily("gpuguard_source_restarts", "Times a source was started again.", labels=("source",))
    for source in snapshot.shell.sources:
        up.add_metric((source.name,), float(source.level != "blind"))
        for level in LEVELS:
            state.add_metric((source.name, level), float(source.level == level))
        if source.last_success_utc is not None:
            success.add_metric((source.name,), source.last_success_utc)
        lost.add_metric((source.name,), source.lost)
        restarts.add_metric((source.name,), source.restarts)
    yield from (up, state, success, lost, restarts)
