"""Pictures of a simulated run, PNG or SVG: did the GPUs work, who waited, and what did each of them run.

Matplotlib is an optional part: it is loaded when a picture is asked for. The same run gives the same bytes.
Colours are those of Okabe and Ito, or run from dark to light, so that they differ for eyes that see fewer of them.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpuguard.errors import Absent, UsageError
from gpuguard.runtime.words import many
from gpuguard.scheduler.measures import SLOTS
from gpuguard.scheduler.settings import DAY, HOUR, MINUTE
from gpuguard.simulator.course import Course
from gpuguard.simulator.gpu_time import MOST_ROWS, Colour, gpu_time, node_time
from gpuguard.simulator.series import Waits, series, waits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Form = Literal["png", "svg"]
Kind = Literal["course", "gpus"]
KINDS: tuple[Kind, ...] = ("course", "gpus")

MOST_NAMES = 24
"""Nodes that are named beside their rows; the names of more would run into each other."""
LONGEST_NAME = 16

_DPI = 120
_INK, _FAINT = "#222222", "#8a8a8a"
_BLUE, _ORANGE, _RED, _PINK, _SKY, _YELLOW = (
    "#0072b2", "#e69f00", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442",
)  # fmt: skip
_FREE, _OUT = "#ffffff", "#4d4d4d"
# By what the colours tell: sizes run from light to dark, since they have an order.
_CLASSES: Mapping[Colour, tuple[str, ...]] = {
    "size": (_PINK, "#fde725", "#5ec962", "#21918c", "#3b2f72"),
    "tier": (_ORANGE, _BLUE, _SKY, _PINK),
    "end": (_SKY, _RED, _PINK, _ORANGE, _BLUE, _YELLOW),
}
_SLOTS = ("#9fda3a", "#4ac16d", "#1fa187", "#365c8d", "#46085c")
_ASKED: Mapping[Colour, str] = {"size": "GPUs of the job", "tier": "tier", "end": "how it left the GPU"}

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans", "font.size": 9, "axes.edgecolor": _FAINT, "axes.labelcolor": _INK, "text.color": _INK,
    "xtick.color": _INK, "ytick.color": _INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False, "legend.fontsize": 8,
    "svg.hashsalt": "gpuguard", "text.parse_math": False,
}  # fmt: skip


def form_of(path: str) -> Form:
    """The form that the name of a picture's file asks for.

    Raises  UsageError for another ending than .png or .svg
    """
    match PurePath(path).suffix.lower():
        case ".png":
            return "png"
        case ".svg":
            return "svg"
        case other:
            raise UsageError(f"{path}: a picture is .png or .svg, not {other or 'a name without an ending'}")


def picture(course: Course, kind: Kind, form: Form, colour: Colour = "size") -> bytes:
    """The file of a picture: `course` is the run over time, `gpus` what each GPU ran.

    Raises  Absent when matplotlib is not installed, or the cluster has no GPUs
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise Absent(f"pictures need matplotlib ({error}): pip install 'gpuguard[pictures]'") from error
    style: Any = _STYLE  # matplotlib lists every key there is as a type, and each version another list
    with mpl.rc_context(style):
        layout = ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08)
        figure = Figure(figsize=(10, 9.5 if kind == "course" else _height(course)), dpi=_DPI, layout=layout)
        if kind == "course":
            _draw_course(figure, course)
        else:
            _draw_gpus(figure, course, colour)
        file = io.BytesIO()
        # No date and no version inside: the same run gives the same bytes.
        nameless: dict[str, Any] = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
        figure.savefig(file, format=form, metadata=nameless)
    return file.getvalue()


def _height(course: Course) -> float:
    """Inches that give each GPU a point of its own, as far as a screen reaches."""
    return min(11.0, max(4.0, course.capacity / _DPI + 1.7))


def _draw_course(figure: "Figure", course: Course) -> None:
    figure.suptitle(f"Did the GPUs work, and who waited?  {_named(course)}", x=0.01, ha="left", fontsize=12)
    busy_axes, queue_axes, wait_axes, slot_axes = figure.subplots(4, 1, sharex=True)
    told, waited = series(course), waits(course)
    scale, unit = _time_unit(told.edges[-1] - told.edges[0])

    def at(instants: Any) -> Any:  # Any: an array or a number
        return (np.asarray(instants, dtype=np.float64) - course.start) / scale

    edges = at(told.edges)
    busy_axes.stairs(100 * told.busy, edges, fill=True, color=_SKY, alpha=0.6)
    busy_axes.stairs(100 * told.busy, edges, color=_BLUE, linewidth=1, baseline=None)
    _finish(busy_axes, "GPUs in use", "% of all GPUs", top=105)

    queue_axes.stairs(told.queued, edges, fill=True, color=_ORANGE, alpha=0.6)
    queue_axes.stairs(told.queued, edges, color=_RED, linewidth=1, baseline=None)
    _finish(queue_axes, "Jobs that wait", "jobs", least=1.05)

    _draw_waits(wait_axes, waited, at)

    for size, colour, line in zip(SLOTS, _SLOTS, told.slots, strict=True):
        slot_axes.stairs(line, edges, color=colour, linewidth=1.4, baseline=None, label=f"of {size} GPUs")
    slot_axes.set_yscale("symlog", linthresh=1)
    _finish(slot_axes, "Jobs that would start at once, by size", "jobs", least=1.5)
    for axes, values in ((wait_axes, np.concatenate((waited.median, waited.wide))), (slot_axes, told.slots)):
        _plain_decades(axes)
        if np.isfinite(values).any():
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _mark_end((busy_axes, queue_axes, wait_axes, slot_axes), course, at(course.end))
    slot_axes.set_xlim(edges[0], edges[-1])
    slot_axes.set_xlabel(f"{unit} since the start of the run")
    _say_if_empty(queue_axes, told.queued, "the run kept no samples")
    _say_if_empty(slot_axes, told.slots, "the run counted no slots")
    _say_if_empty(wait_axes, np.concatenate((waited.median, waited.wide)), "no job with GPUs started")


def _draw_waits(axes: "Axes", waited: Waits, at: Callable[[Any], Any]) -> None:
    told = np.concatenate((waited.p95, waited.wide))
    longest = float(np.nanmax(told)) if np.isfinite(told).any() else 0.0
    scale, unit = (HOUR, "hours") if longest >= 3 * HOUR else (MINUTE, "minutes")
    if waited.wide.size:
        axes.scatter(
            at(waited.wide_at), waited.wide / scale, s=7, color=_ORANGE, linewidths=0, alpha=0.8, zorder=2,
            label="each job of 9 GPUs or more",
        )  # fmt: skip
    edges = at(waited.edges)
    for values, colour, width, label in (
        (waited.p95, _SKY, 1.4, "95th percentile, 1 to 8 GPUs"), (waited.median, _BLUE, 1.8, "median, 1 to 8 GPUs"),
    ):  # fmt: skip
        axes.stairs(values / scale, edges, color=colour, linewidth=width, baseline=None, zorder=3, label=label)
    # From nothing to a tenth of an hour in a line, then by powers of ten: most jobs wait not at all, some for weeks.
    axes.set_yscale("symlog", linthresh=0.1 if unit == "hours" else 1.0)
    _finish(axes, "Wait, by when the job was submitted", unit, least=1.2)


def _draw_gpus(figure: "Figure", course: Course, colour: Colour) -> None:
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(True)
    if course.capacity <= MOST_ROWS:
        figure.suptitle(f"What did each GPU run, and when?  {_named(course)}", x=0.01, ha="left", fontsize=12)
        start, end = _paint_gpus(figure, axes, course, colour)
    else:
        figure.suptitle(f"Which nodes worked, and when?  {_named(course)}", x=0.01, ha="left", fontsize=12)
        start, end = _paint_nodes(figure, axes, course)
    scale, unit = _time_unit(end - start)
    axes.set_xlabel(f"{unit} since the start of the run")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / scale:g}")
    axes.xaxis.set_major_locator(_locator(scale))
    _mark_end((axes,), course, course.end - start)


def _paint_gpus(figure: "Figure", axes: "Axes", course: Course, colour: Colour) -> tuple[int, int]:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    drawn = gpu_time(course, colour)
    colours = (_FREE, _OUT, *_CLASSES[colour])
    lookup = (255 * np.array([to_rgb(name) for name in colours])).round().astype(np.uint8)
    rows = drawn.points.shape[0]
    axes.imshow(
        lookup[drawn.points], aspect="auto", interpolation="nearest", extent=(0, drawn.end - drawn.start, rows, 0)
    )
    axes.set_ylabel(f"GPUs, node by node ({many(len(course.nodes), 'node')})")
    named = [(name, gpus) for name, gpus in course.nodes if gpus]
    if len(named) <= MOST_NAMES and all(name.isascii() for name, _ in named):
        ends = np.cumsum([gpus for _, gpus in named], dtype=np.int64)
        axes.set_yticks(
            [float(end) - gpus / 2 for end, (_, gpus) in zip(ends, named, strict=True)],
            labels=[name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}~" for name, _ in named],
        )
        axes.tick_params(axis="y", length=0)
        for end in ends[:-1]:
            axes.axhline(float(end), color=_INK, linewidth=0.4)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    present = set(np.unique(drawn.points).tolist())
    legend = [
        Patch(facecolor=colours[value], edgecolor=_FAINT, linewidth=0.5, label=label)
        for value, label in enumerate(("free", "out of service", *drawn.classes)) if value in present
    ]  # fmt: skip
    figure.legend(
        handles=legend, loc="outside lower left", ncols=len(legend), title=_ASKED[colour], alignment="left",
        title_fontsize=9,
    )  # fmt: skip
    return drawn.start, drawn.end


def _paint_nodes(figure: "Figure", axes: "Axes", course: Course) -> tuple[int, int]:
    import matplotlib as mpl

    drawn = node_time(course)
    colours = mpl.colormaps["Blues"].with_extremes(bad=_ORANGE)
    rows = drawn.shares.shape[0]
    image = axes.imshow(
        np.ma.masked_invalid(100 * drawn.shares), aspect="auto", interpolation="nearest", cmap=colours, vmin=0,
        vmax=100, extent=(0, drawn.end - drawn.start, rows * drawn.per_row, 0),
    )  # fmt: skip
    each = "" if drawn.per_row == 1 else f", {drawn.per_row} in a row"
    axes.set_ylabel(f"nodes with GPUs{each}")
    figure.colorbar(image, ax=axes, label="% of the GPUs in use (orange: all out of service)", pad=0.02)
    return drawn.start, drawn.end


def _named(course: Course) -> str:
    return f"{course.policy}, {many(len(course.jobs), 'job')} on {many(course.capacity, 'GPU')}"


def _time_unit(length: float) -> tuple[int, str]:
    if length >= 3 * DAY:
        return DAY, "days"
    return (HOUR, "hours") if length >= 3 * HOUR else (MINUTE, "minutes")


def _locator(scale: int) -> Any:
    """Marks at round numbers of the unit, not of seconds."""
    from matplotlib.ticker import MaxNLocator

    class Scaled(MaxNLocator):
        def tick_values(self, vmin: float, vmax: float) -> Any:
            return np.asarray(super().tick_values(vmin / scale, vmax / scale)) * scale

    return Scaled(nbins=10, steps=[1, 2, 5, 10])


def _mark_end(panels: "Sequence[Axes]", course: Course, end: float) -> None:
    """A line where the submit window ends, and what it means beside the first panel's title."""
    if course.start < course.end < course.last:
        for axes in panels:
            axes.axvline(end, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        panels[0].set_title("dashed: from here on no more jobs come", loc="right", fontsize=8)


def _finish(axes: "Axes", title: str, unit: str, top: float | None = None, least: float = 0.0) -> None:
    """`top`: of the axis, None: as its values ask for, but not below `least`."""
    axes.set_title(title)
    axes.set_ylabel(unit)
    axes.set_ylim(0, top)
    axes.set_ylim(0, max(least, axes.get_ylim()[1]))
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _plain_decades(axes: "Axes") -> None:
    def written(value: float, _: float) -> str:
        return f"{value:g}"

    axes.yaxis.set_major_formatter(written)


def _say_if_empty(axes: "Axes", values: Any, what: str) -> None:
    if not np.isfinite(values).any():
        axes.text(0.5, 0.5, what, transform=axes.transAxes, ha="center", va="center", color=_FAINT)
