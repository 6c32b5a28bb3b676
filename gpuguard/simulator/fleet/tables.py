"""The figures of a fleet as rows for people; shares in percent, delays in seconds."""

from collections.abc import Callable
from typing import Any

from gpuguard.simulator.fleet.score import FALSE_CAUSES

Row = tuple[str, tuple[str, ...], Callable[[Any], str]]


def _count(value: Any) -> str:
    return f"{value:,}"


def _percent(value: Any) -> str:
    return f"{100 * value:.1f}"


def _seconds(value: Any) -> str:
    return f"{value:,.1f}"


def _hours(value: Any) -> str:
    return f"{value:,.0f}"


FLEET: tuple[Row, ...] = (
    ("faults", ("faults",), _count),
    ("  evident: must be drained", ("evident",), _count),
    ("    missed", ("missed",), _count),
    ("    no agent ran until mended", ("no_agent",), _count),
    ("    held, a person's to decide", ("handed_over",), _count),
    ("  doubtful: a WARNING", ("doubtful", "faults"), _count),
    ("    people were warned", ("doubtful", "watched"), _count),
    ("    drained", ("doubtful", "drained"), _count),
    ("  program: none of the node's", ("program",), _count),
    ("from fault to drain, seconds", (), str),
    ("  median", ("detection_s", "p50"), _seconds),
    ("  99th percentile", ("detection_s", "p99"), _seconds),
    ("  longest", ("detection_s", "max"), _seconds),
    ("drains written", ("drains",), _count),
    ("  false", ("false_drains",), _count),
    *((f"    {name.replace('_', ' ')}", ("false_drains_by_cause", name), _count) for name in FALSE_CAUSES),
    ("  false in 1,000 node-days", ("false_drains_per_1000_node_days",), lambda value: f"{value:.3f}"),
    ("writes over a foreign drain", ("foreign_writes",), _count),
    ("releases", ("releases",), _count),
    ("drains held back", ("held",), _count),
    ("drains lifted by people", ("lifted_by_people",), _count),
    ("drains by hand", ("drains_by_hand",), _count),
    ("work interrupted by faults", ("interruptions",), _count),
    ("  by one seen before", ("shown_again",), _count),
    ("nodes in service and whole, %", ("availability",), lambda value: f"{100 * value:.2f}"),
    ("GPU-hours lost", ("lost_gpu_hours",), _hours),
    ("  drained for nothing", ("lost_gpu_hours_by", "drained for nothing"), _hours),
    ("  broken and in service", ("lost_gpu_hours_by", "spoiled"), _hours),
    ("probation of 7 days", (), str),
    ("  faults that fall into it, %", ("probation", "faults_share"), _percent),
    ("  node time spent on it, %", ("probation", "node_time_share"), _percent),
    ("this run took, seconds", ("wall_s",), _seconds),
    ("  and memory, MiB", ("peak_rss_mib",), _seconds),
)
