"""What each GPU ran and when, as an image of one byte a point: rows are GPUs, columns moments.

A point shows what the GPU ran at the middle of its stretch of time. So a job shorter than a stretch may be seen or not,
and the share of coloured points is right; drawn as at least one point each, short jobs would fill an idle cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from gpuguard.errors import Absent
from gpuguard.scheduler.plan import Share
from gpuguard.scheduler.request import TIERS, WHOLE
from gpuguard.simulator.course import Course, JobRecord, Segment
from gpuguard.topology.subsets import places_in

Colour = Literal["size", "tier", "end"]
COLOURS: tuple[Colour, ...] = ("size", "tier", "end")

MOST_ROWS = 2048
"""A row for each GPU up to here; beyond, rows are nodes, since less than half a point of a screen is left for each."""

FREE, OUT = 0, 1

_SIZES = ("a part of one", "1 GPU", "2 to 8", "9 to 63", "64 and more")
_ENDS: Mapping[str, str] = {
    "ended": "ended by itself", "preempted": "preempted", "failed": "failed", "killed": "ended at a limit",
    "lost": "lost with its node", "running": "still running",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTime:
    """Points by GPU and moment: FREE, OUT (could not be given), or 2 and more: `classes` from the first on.

    Shape   start, end: of the columns, in seconds
    """

    points: NDArray[np.uint8]
    classes: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime:
    """Share of GPUs in use, by row of `per_row` nodes each and moment. NaN: none of them could be given."""

    shares: NDArray[np.float32]
    per_row: int
    start: int
    end: int


def gpu_time(course: Course, colour: Colour = "size", columns: int = 1400) -> GpuTime:
    """A row for each GPU, in the order of the nodes.

    Raises  Absent when the cluster has no GPUs
    """
    first = _first_rows(course)
    end = max(course.last, course.start + 1)
    points = np.zeros((course.capacity, columns), dtype=np.uint8)
    middles = _middles(course.start, end, columns)
    rows: dict[tuple[str, int], slice | NDArray[np.intp]] = {}

    def paint(node: str, mask: int, start: int, stop: int, value: int) -> None:
        left, right = np.searchsorted(middles, (start, stop))
        if left < right and node in first:
            where = rows.get((node, mask))
            if where is None:
                where = rows[node, mask] = _rows_of(first[node], mask)
            points[where, left:right] = value

    classes = _classes(colour)
    for job, segment, _ in course.held():
        value = 2 + _class(colour, job, segment)
        for share in segment.shares:
            paint(share.node, share.mask, segment.start, segment.end, value)
    for outage in course.outages:
        paint(outage.node, outage.mask, outage.start, outage.end, OUT)
    return GpuTime(points=points, classes=classes, start=course.start, end=end)


def node_time(course: Course, columns: int = 1400, most_rows: int = 640) -> NodeTime:
    """A row for each node with GPUs, or for several in a row where there are more than `most_rows`.

    Raises  Absent when the cluster has no GPUs
    """
    _first_rows(course)
    nodes = [(name, gpus) for name, gpus in course.nodes if gpus]
    per_row = -(-len(nodes) // most_rows)
    row = {name: at // per_row for at, (name, _) in enumerate(nodes)}
    capacity = np.zeros((-(-len(nodes) // per_row), columns), dtype=np.float32)
    for name, gpus in nodes:
        capacity[row[name]] += gpus
    end = max(course.last, course.start + 1)
    middles = _middles(course.start, end, columns)
    held = np.zeros_like(capacity)
    for _, segment, _ in course.held():
        left, right = np.searchsorted(middles, (segment.start, segment.end))
        if left < right:
            for share in segment.shares:
                if share.node in row:
                    held[row[share.node], left:right] += _gpus(share)
    for outage in course.outages:
        left, right = np.searchsorted(middles, (outage.start, outage.end))
        if outage.node in row:
            capacity[row[outage.node], left:right] -= outage.mask.bit_count()
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(capacity > 0, np.minimum(held / capacity, 1.0), np.nan).astype(np.float32)
    return NodeTime(shares=shares, per_row=per_row, start=course.start, end=end)


def _first_rows(course: Course) -> dict[str, int]:
    """The row of each node's first GPU."""
    found: dict[str, int] = {}
    row = 0
    for name, gpus in course.nodes:
        found[name] = row
        row += gpus
    if not row:
        raise Absent("the cluster has no GPUs, so there is nothing to draw by GPU: give nodes with GPUs")
    return found


def _middles(start: int, end: int, columns: int) -> NDArray[np.float64]:
    return start + (np.arange(columns, dtype=np.float64) + 0.5) * (end - start) / columns


def _rows_of(first: int, mask: int) -> "slice | NDArray[np.intp]":
    bits = places_in(mask)
    if bits and bits[-1] - bits[0] + 1 == len(bits):
        return slice(first + bits[0], first + bits[-1] + 1)  # several times faster than a list of rows
    return np.array(bits, dtype=np.intp) + first


def _gpus(share: Share) -> float:
    return share.mask.bit_count() * share.milli / WHOLE


def _classes(colour: Colour) -> tuple[str, ...]:
    match colour:
        case "size":
            return _SIZES
        case "tier":
            return TIERS
        case "end":
            return tuple(_ENDS.values())
        case _:
            assert_never(colour)


def _class(colour: Colour, job: JobRecord, segment: Segment) -> int:
    match colour:
        case "size":
            if job.milli < WHOLE:
                return 0
            return 1 + (job.gpus > 1) + (job.gpus > 8) + (job.gpus > 63)
        case "tier":
            return TIERS.index(job.tier)
        case "end":
            return tuple(_ENDS).index(segment.how)
        case _:
            assert_never(colour)
