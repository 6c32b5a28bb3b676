"""Figures of runs as tables for people, at most 80 columns wide.

Units   waits in minutes, the makespan in days, shares in percent: runs are compared, so each row has one unit
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuguard.scheduler.measures import SLOTS
from gpuguard.scheduler.settings import DAY, MINUTE

WIDTH = 80
_LABEL = 31
_PER_TABLE = 5
"""As many policies ship; a column of 9 still holds two years' wait in minutes."""

Summary = Mapping[str, Any]  # Any: what `summary` prints
_ABSENT = "-"

# What a row says, where its figure stands, and how it is written; no place: a heading.
_Row = tuple[str, tuple[str, ...], Callable[[Any], str]]


def _count(value: Any) -> str:
    return f"{value:,}"


def _minutes(value: Any) -> str:
    minutes = value / MINUTE
    return f"{minutes:,.1f}" if 0 < minutes < 10 else f"{minutes:,.0f}"


def _days(value: Any) -> str:
    return f"{value / DAY:,.1f}"


def _percent(value: Any) -> str:
    return f"{100 * value:.1f}"


def _hundredths(value: Any) -> str:
    return f"{100 * value:.2f}"


def _tenths(value: Any) -> str:
    return f"{value:,.1f}"


def _waits(label: str, *place: str) -> tuple[_Row, ...]:
    return (
        (label, (), str),
        *((f"  {name}", (*place, key), _minutes) for name, key in (
            ("mean", "mean"), ("median", "median"), ("95th percentile", "p95"), ("longest", "max"),
        )),
    )  # fmt: skip


_COST: tuple[_Row, ...] = (
    ("cycles of the core", ("cycles", "count"), _count),
    ("  median, ms", ("cycles", "p50_ms"), _tenths),
    ("  99th percentile, ms", ("cycles", "p99_ms"), _tenths),
    ("  longest, ms", ("cycles", "max_ms"), _tenths),
    ("this run took, seconds", ("wall_s",), _tenths),
    ("  and memory, MiB", ("peak_rss_mib",), _tenths),
)

_LOST: tuple[tuple[str, str], ...] = (
    ("work lost to failures", "failure"), ("work lost to preemption", "preemption"), ("held and idle", "idling"),
    ("slowed by far placement", "far"), ("slowed by sharing", "sharing"), ("spent on saving", "saving"),
    ("waiting for data", "data"),
)  # fmt: skip

ROWS: tuple[_Row, ...] = (
    ("jobs", ("jobs",), _count),
    ("  finished", ("finished",), _count),
    ("  refused", ("refused",), _count),
    ("  given up", ("given_up",), _count),
    ("  crashes, out of GPU memory", ("out_of_memory",), _count),
    *_waits("wait, minutes", "wait_s"),
    *_waits("wait of 1 to 8 GPUs, minutes", "wait_s_by_gpus", "1-8"),
    *_waits("wait of 9 GPUs and more, minutes", "wait_s_by_gpus", "9+"),
    *_waits("wait of 64 GPUs and more, min", "wait_s_by_gpus", "64+"),
    ("GPUs in use while jobs come, %", ("utilisation",), _percent),
    ("where GPU time went, %", (), str),
    ("  used", ("goodput", "used"), _percent),
    *((f"  {label}", ("goodput", "lost", way), _percent) for label, way in _LOST),
    ("  free", ("goodput", "free"), _percent),
    ("  out of service", ("goodput", "out"), _percent),
    ("  effective power, GPUs", ("goodput", "effective", "power_gpus"), _tenths),
    ("makespan, days", ("makespan_s",), _days),
    ("jobs queued, % of all present", ("queued_share",), _percent),
    ("jobs preempted, %", ("preempted_share",), _percent),
    ("jobs that would start at once", (), str),
    *((f"  of {size} GPUs", ("fragmentation", "slots", str(size)), _tenths) for size in SLOTS),
    ("where jobs started", (), str),
    ("  on several nodes", ("placement", "multi_node_jobs"), _count),
    ("  in one rack, % if it fits one", ("placement", "one_rack_share"), _percent),
    ("  2 GPUs, across sockets", ("placement", "pairs_across_sockets"), _count),
    ("  and nearer ones were free", ("placement", "pairs_across_sockets_avoidable"), _count),
    *_COST,
)

INFLATION: tuple[_Row, ...] = (
    ("jobs", ("jobs",), _count),
    ("  placed", ("placed",), _count),
    ("  passed over: no room", ("passed_over",), _count),
    ("  refused", ("refused",), _count),
    ("GPUs", ("gpus",), _count),
    ("  asked for, % of all", ("asked_share",), _percent),
    ("  unallocated", ("unallocated_gpus",), _tenths),
    ("  unallocated, % of all", ("unallocated_share",), _hundredths),
    *_COST,
)


def table(runs: Mapping[str, Summary], rows: Sequence[_Row] = ROWS) -> str:
    """The runs side by side, one a column under its name; as many tables below each other as 80 columns need.

    Shape   each line ends in a newline and in no space. What was not measured is -; a group for which no run had a
            figure is left out, and so is a loss that no run had. A name goes on below itself after a hyphen, and a part
            too long for its column is cut
    """
    names = list(runs)
    blocks = [names[at : at + _PER_TABLE] for at in range(0, len(names), _PER_TABLE)]
    return "\n".join(_block({name: runs[name] for name in block}, rows) for block in blocks)


def _block(runs: Mapping[str, Summary], rows: Sequence[_Row]) -> str:
    width = min(16, (WIDTH - _LABEL) // len(runs))
    headings = [_heading(name, width - 1) for name in runs]
    height = max(len(heading) for heading in headings)
    lines = [
        _line("", [([""] * (height - len(heading)) + heading)[at] for heading in headings], width)
        for at in range(height)
    ]
    lines.extend(_line(label, cells, width) for label, cells in _rows(list(runs.values()), rows))
    return "".join(f"{line}\n" for line in lines)


def _heading(name: str, most: int) -> list[str]:
    """The name in as few lines as its hyphens allow."""
    lines = [""]
    for part in name.replace("-", "-\0").split("\0"):
        if lines[-1] and len(lines[-1] + part) > most:
            lines.append("")
        lines[-1] += part
    return [_cut(line, most) for line in lines]


def _rows(runs: Sequence[Summary], rows: Sequence[_Row]) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    heading: str | None = None
    for label, place, written in rows:
        if not place:
            heading = label
            continue
        values = [_at(run, place) for run in runs]
        if not label.startswith(" "):
            heading = None
        elif all(value is None or (value == 0 and "lost" in place) for value in values):
            continue
        elif heading is not None:
            found.append((heading, []))
            heading = None
        found.append((label, [_ABSENT if value is None else written(value) for value in values]))
    return found


def _at(run: Summary, place: Sequence[str]) -> Any:
    value: Any = run
    for key in place:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _line(label: str, cells: Sequence[str], width: int) -> str:
    return (label.ljust(_LABEL) + "".join(cell.rjust(width) for cell in cells)).rstrip()


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "~"
