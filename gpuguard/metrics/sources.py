"""What each source sees: its state, its last success, what it lost.

Of every source each node pays for, so what says nothing has no series: the states a source is not in, restarts before
the first, lines lost by what reads none.

Reads     the sources of a Snapshot
Units     seconds since 1970; lines; restarts
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpuguard.model.health import Snapshot

# The sources that read lines, some of which may be lost before they are read: for them 0 says something.
LOGS = ("kmsg", "journal", "logfile")


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """How well gpuguard sees."""
    up = GaugeMetricFamily("gpuguard_source_up", "1 while a source sees anything.", labels=("source",))
    state = GaugeMetricFamily(
        "gpuguard_source_state",
        "1 for the state a source is in.",
        labels=("source", "state"),
    )
    success = GaugeMetricFamily(
        "gpuguard_source_last_success_timestamp_seconds", "When a source was last heard.", labels=("source",)
    )
    lost = CounterMetricFamily("gpuguard_source_lost", "Lines a source knows it lost.", labels=("source",))
    restarts = CounterMetricFamily("gpuguard_source_restarts", "Times a source was started again.", labels=("source",))
    for source in snapshot.shell.sources:
        up.add_metric((source.name,), float(source.level != "blind"))
        state.add_metric((source.name, source.level), 1.0)
        if source.last_success_utc is not None:
            success.add_metric((source.name,), source.last_success_utc)
        if source.lost or source.name in LOGS:
            lost.add_metric((source.name,), source.lost)
        if source.restarts:
            restarts.add_metric((source.name,), source.restarts)
    yield from (up, state, success, lost)
    if restarts.samples:
        yield restarts
