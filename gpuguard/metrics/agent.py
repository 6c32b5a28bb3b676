"""The agent itself: what it counted, decided, owes and costs.

Reads     the shell's facts of a Snapshot
Units     seconds, bytes, events
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gpuguard.model.health import Snapshot
from gpuguard.model.story import OWED_STATES


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """What the agent did, owes and costs."""
    shell = snapshot.shell
    build = GaugeMetricFamily(
        "gpuguard_build_info", "The version that runs, and how it is set.", labels=("version", "mode", "policy")
    )
    build.add_metric((shell.version, shell.mode, shell.policy), 1.0)
    events = CounterMetricFamily("gpuguard_events", "Facts read, by kind and code.", labels=("kind", "code"))
    for key, count in sorted(shell.events.items()):
        kind, _, code = key.partition(" ")
        events.add_metric((kind, code), count)
    actions = GaugeMetricFamily(
        "gpuguard_actions",
        "Actions on record, by what became of them; waiting: the target said not yet.",
        labels=("state",),
    )
    for state in (*OWED_STATES, "waiting"):
        actions.add_metric((state,), shell.actions.get(state, 0))
    results = CounterMetricFamily("gpuguard_action_results", "Answers of targets.", labels=("verb", "result"))
    for key, count in sorted(shell.results.items()):
        verb, _, result = key.partition(" ")
        results.add_metric((verb, result), count)
    crashes = CounterMetricFamily("gpuguard_check_errors", "Crashes of a check.", labels=("check",))
    for check, count in sorted(shell.check_errors.items()):
        crashes.add_metric((check,), count)
    yield from (build, events, actions, results, crashes)
    yield HistogramMetricFamily(
        "gpuguard_decision_seconds", "From the reading of a line to its verdict on disk.",
        buckets=[*((f"{bound}", count) for bound, count in shell.latency), ("+Inf", shell.latency_count)],
        sum_value=shell.latency_sum,
    )  # fmt: skip
    yield CounterMetricFamily("gpuguard_store_errors", "Writes that the disk refused.", value=shell.store_errors)
    yield GaugeMetricFamily("gpuguard_mailbox_depth", "Events waiting to be decided.", value=shell.mailbox_depth)
    yield CounterMetricFamily("gpuguard_agent_cpu_seconds", "CPU time of the agent.", value=shell.cpu_seconds)
    yield GaugeMetricFamily("gpuguard_agent_resident_bytes", "Memory of the agent.", value=shell.resident_bytes)
    if shell.notices:
        told = CounterMetricFamily(
            "gpuguard_notices", "What people were to be told, by form and what became of it.", labels=("form", "fate")
        )
        for key, count in sorted(shell.notices.items()):
            form, _, fate = key.partition(" ")
            told.add_metric((form, fate), count)
        yield told
    if shell.actuator_ok is not None:
        yield GaugeMetricFamily(
            "gpuguard_actuator_ok", "1 when the target of actions answered last time.", value=float(shell.actuator_ok)
        )
