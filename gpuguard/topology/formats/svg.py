"""The node as people draw it, as an SVG that stands alone: no script, no font and no picture from elsewhere.

For a browser, a page of docs, or a ticket. Each state has its colour, its dashes and its words, so that nobody needs to
tell colours apart; where the browser is dark, so is the drawing. Whoever points at a plate or a wire is told the rest.

Source    W3C SVG 2; colours of Okabe and Ito, https://jfly.uni-koeln.de/color/
"""

import html
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gpuguard.errors import NotUnderstood
from gpuguard.model.topology import Topology
from gpuguard.topology.captions import cut, extent, headline, inventory, plain, wrap
from gpuguard.topology.formats import Wish
from gpuguard.topology.layout import MARGIN, Group, Label, Plate, Sheet, State, Wire, lay_out
from gpuguard.topology.picture import Picture, nvlink_words, picture

# More than four times what the largest node has; NVLinks between all pairs of more are no picture.
MOST_GPUS = 64
LEGEND: dict[tuple[Group, State], str] = {
    ("nvlink", "up"): "NVLinks up",
    ("nvlink", "some"): "NVLinks: some down, or fewer than the others have",
    ("nvlink", "down"): "NVLinks all down",
    ("nvlink", "unknown"): "NVLinks: state not known",
    ("nvlink", "open"): "NVLinks with nothing at their other end",
    ("pcie", "full"): "PCIe as wide and fast as both ends can",
    ("pcie", "narrow"): "PCIe narrower than it could be",
    ("pcie", "slow"): "PCIe below its generation, usual at rest",
    ("pcie", "unknown"): "PCIe: width or limit not known",
}
ROUND = 7.0
# The drawing's own class stands before each selector, so that nothing else changes in a page that the SVG is put into.
OWN = "gpuguard-wiring"
STYLE = (
    ("", "background: #ffffff"),
    ("text", 'font: 10px "Segoe UI", "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24;'
             " text-anchor: middle"),
    (".title", "font-size: 18px; font-weight: bold; text-anchor: start"),
    (".line", "font-size: 12px; text-anchor: start"),
    (".name", "font-size: 13px; font-weight: bold"),
    (".box .name, .nvswitch .name", "font-size: 11px"),
    (".name.small", "font-size: 10px"),
    (".quiet", "fill: #57606a"),
    (".paper", "fill: #ffffff"),
    ("rect", "stroke-width: 1.2"),
    (".side rect", "fill: #eceff3; stroke: #6e7781"),
    (".box rect", "fill: #f7f1df; stroke: #8f7420"),
    (".gpu rect", "fill: #e4f1df; stroke: #47763a"),
    (".nic rect", "fill: #e1edf9; stroke: #3b6ea5"),
    (".fabric rect", "fill: #f3edf9; stroke: #7d5ba6"),
    (".nvswitch rect", "fill: #ffffff; stroke: #7d5ba6"),
    (".redirects rect, .some rect", "stroke: #b26a00; stroke-width: 2; stroke-dasharray: 9 4"),
    (".silent rect, .unknown rect", "stroke: #6e7781; stroke-width: 2; stroke-dasharray: 2 4"),
    (".down rect", "stroke: #c2341d; stroke-width: 2.5; stroke-dasharray: 4 3"),
    (".wire", "fill: none; stroke: #6e7781; stroke-width: 2"),
    (".wire.smp", "stroke-width: 1.5"),
    (".label", "fill: #ffffff; stroke: #6e7781; stroke-width: 1"),
    (".nvlink.up", "stroke: #0072b2"),
    (".wire.nvlink.up", "stroke-width: 2.5"),
    (".pcie.full", "stroke: #00805d"),
    (".label.some, .label.narrow, .wire.some, .wire.narrow", "stroke: #b26a00; stroke-width: 2"),
    (".wire.some, .wire.narrow", "stroke-width: 3; stroke-dasharray: 9 4"),
    (".label.down, .wire.down", "stroke: #c2341d; stroke-width: 2"),
    (".wire.down", "stroke-width: 3; stroke-dasharray: 4 3"),
    (".wire.unknown", "stroke-dasharray: 2 4"),
    (".wire.open", "stroke-dasharray: 6 3 1 3"),
    (".wire.nvlink.thick", "stroke-width: 5"),
)  # fmt: skip
DARK = (
    ("", "background: #12161b"),
    ("text", "fill: #e6edf3"),
    (".quiet", "fill: #9aa4af"),
    (".paper, .label", "fill: #12161b"),
    (".side rect", "fill: #262d36; stroke: #8b949e"),
    (".box rect", "fill: #2f2a17; stroke: #b79a3e"),
    (".gpu rect", "fill: #1c301a; stroke: #74ad64"),
    (".nic rect", "fill: #172a3f; stroke: #6ca6e0"),
    (".fabric rect", "fill: #291f36; stroke: #b08fdb"),
    (".nvswitch rect", "fill: #12161b; stroke: #b08fdb"),
    (".redirects rect, .some rect", "stroke: #f0a830"),
    (".silent rect, .unknown rect", "stroke: #9aa4af"),
    (".down rect", "stroke: #ff7b5c"),
    (".wire, .label", "stroke: #9aa4af"),
    (".nvlink.up", "stroke: #56b4e9"),
    (".pcie.full", "stroke: #2fc495"),
    (".label.some, .label.narrow, .wire.some, .wire.narrow", "stroke: #f0a830"),
    (".label.down, .wire.down", "stroke: #ff7b5c"),
)


def render(topology: Topology, wish: Wish) -> str:
    """The whole file.

    Raises  NotUnderstood for more GPUs than a node has
    """
    if len(topology.gpus) > MOST_GPUS:
        raise NotUnderstood(
            f"{len(topology.gpus)} GPUs are not one node, and no picture that anybody reads; "
            "`gpuguard topo --format matrix` prints them"
        )
    drawn = picture(topology)
    sheet = lay_out(topology, drawn)
    body = [*_wires(sheet), *_labels(sheet), *_plates(sheet), *_words(sheet)]
    y, legend = _legend(sheet, drawn)
    height, notes = _notes(topology, drawn, sheet.width, y)
    title = headline(topology)
    told = [inventory(topology), *nvlink_words(topology, drawn), *drawn.remarks]
    size = f'width="{_n(sheet.width)}" height="{_n(height)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(sheet.width)} {_n(height)}" {size} class="{OWN}"'
        ' role="img" aria-labelledby="gpuguard-title gpuguard-told">',
        f'<title id="gpuguard-title">{_e(f"Wiring of {title}")}</title>',
        f'<desc id="gpuguard-told">{_e("; ".join(told))}</desc>',
        f"<style>{_style()}</style>",
        f'<rect class="paper" {size} stroke="none"/>',
        f'<text class="title" x="{_n(MARGIN)}" y="30">{_e(_within(title, sheet.width, 18, bold=True))}</text>',
        f'<text class="line quiet" x="{_n(MARGIN)}" y="50">{_e(_within(inventory(topology), sheet.width, 12))}</text>',
        *body, *legend, *notes, "</svg>",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _style() -> str:
    dark = "\n".join(_rules(DARK))
    return "\n".join(["", *_rules(STYLE), "@media (prefers-color-scheme: dark) {", dark, "}", ""])


def _rules(table: Sequence[tuple[str, str]]) -> Iterator[str]:
    for selectors, declarations in table:
        own = ", ".join(f".{OWN} {selector}".rstrip() for selector in selectors.split(", "))
        yield f"{own} {{ {declarations} }}"


def _e(text: str) -> str:
    return html.escape("\n".join(plain(line) for line in text.split("\n")))


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _within(text: str, width: float, size: float, *, bold: bool = False) -> str:
    return cut(text, width - 2 * MARGIN, lambda part: extent(part, size, bold))


def _tip(text: str) -> str:
    return f"<title>{_e(text)}</title>" if text else ""


def _plates(sheet: Sheet) -> Iterator[str]:
    for plate in sheet.plates:
        kinds = f"{plate.kind} {plate.mark}".rstrip()
        shape = {"nic": 12, "gpu": 4, "nvswitch": 8}.get(plate.kind, 3)
        first = plate.tip.split("\n", maxsplit=1)[0]
        yield f'<g class="{kinds}" role="img" aria-label="{_e(first)}">{_tip(plate.tip)}'
        yield (
            f'<rect x="{_n(plate.x)}" y="{_n(plate.y)}" width="{_n(plate.width)}" height="{_n(plate.height)}"'
            f' rx="{shape}"/>'
        )
        yield from _text(plate)
        yield "</g>"


def _text(plate: Plate) -> Iterator[str]:
    """Name and lines around the middle of the plate; at the top of one that holds others."""
    x = plate.x + plate.width / 2
    bold = 10.0 if plate.small else 11.0 if plate.kind in ("box", "nvswitch") else 13.0
    block = bold + 12.5 * len(plate.lines)
    top = plate.y + (plate.height - block) / 2
    if plate.kind == "fabric" and plate.height > 40:
        top = plate.y + 6
    if plate.name:
        kind = "name small" if plate.small else "name"
        yield f'<text class="{kind}" x="{_n(x)}" y="{_n(top + bold - 2)}">{_e(plate.name)}</text>'
    for number, line in enumerate(plate.lines):
        yield f'<text x="{_n(x)}" y="{_n(top + bold + 12.5 * (number + 1) - 2.5)}">{_e(line)}</text>'


def _words(sheet: Sheet) -> Iterator[str]:
    for words in sheet.words:
        yield f'<text class="quiet" x="{_n(words.x)}" y="{_n(words.y)}">{_e(words.text)}</text>'


def _wires(sheet: Sheet) -> Iterator[str]:
    for wire in sheet.wires:
        kind = f"wire {wire.group} {wire.state}{' thick' if wire.thick else ''}"
        yield f'<path class="{kind}" d="{_path(wire)}">{_tip(wire.tip)}</path>'


def _path(wire: Wire) -> str:
    """From point to point, around the corners with a small radius."""
    points = wire.points
    parts = [f"M{_n(points[0][0])} {_n(points[0][1])}"]
    for (before, corner), (_, after) in pairwise(pairwise(points)):
        for end, verb in ((before, "L"), (after, f"Q{_n(corner[0])} {_n(corner[1])} ")):
            length = abs(end[0] - corner[0]) + abs(end[1] - corner[1])
            share = min(ROUND, length / 2) / length if length else 0.0
            x, y = (corner[axis] + (end[axis] - corner[axis]) * share for axis in (0, 1))
            parts.append(f"{verb}{_n(x)} {_n(y)}")
    return "".join([*parts, f"L{_n(points[-1][0])} {_n(points[-1][1])}"])


def _labels(sheet: Sheet) -> Iterator[str]:
    for label in sheet.labels:
        x, y = label.x - label.width / 2, label.y - label.height / 2
        yield f"<g>{_tip(label.tip)}"
        yield (
            f'<rect class="label {label.group} {label.state}" x="{_n(x)}" y="{_n(y)}" width="{_n(label.width)}"'
            f' height="{_n(label.height)}" rx="5"/>'
        )
        yield from _label_text(label, y)
        yield "</g>"


def _label_text(label: Label, top: float) -> Iterator[str]:
    for number, line in enumerate(label.lines):
        yield f'<text x="{_n(label.x)}" y="{_n(top + 11.5 + 12 * number)}">{_e(line)}</text>'


def _legend(sheet: Sheet, drawn: Picture) -> tuple[float, list[str]]:
    """What the colours and dashes say that occur here; and where it ends."""
    seen = {(wire.group, wire.state) for wire in sheet.wires}
    entries = [(f"wire {group} {state}", text) for (group, state), text in LEGEND.items() if (group, state) in seen]
    x, y, lines = MARGIN, sheet.height + 34, []
    for kind, text in entries:
        width = 38 + extent(text, 12) + 18
        if x > MARGIN and x + width > sheet.width - MARGIN:
            x, y = MARGIN, y + 20
        lines.append(f'<path class="{kind}" d="M{_n(x)} {_n(y - 4)}h30"/>')
        lines.append(f'<text class="line" x="{_n(x + 38)}" y="{_n(y)}">{_e(text)}</text>')
        x += width
    return (y if entries else sheet.height + 8), lines


def _notes(topology: Topology, drawn: Picture, width: float, y: float) -> tuple[float, list[str]]:
    """Remarks and notes in lines below each other, and the height of the whole."""
    y += 12
    lines: list[str] = []
    links = [] if drawn.bonds else [f"NVLink: {line}" for line in nvlink_words(topology, drawn)]
    for kind, texts in (("line", (*links, *drawn.remarks)), ("line quiet", topology.notes)):
        for text in texts:
            for number, line in enumerate(_wrapped(plain(text), width)):
                y += 20 if number == 0 else 16
                bullet = "• " if number == 0 else ""
                x = MARGIN if number == 0 else MARGIN + 11
                lines.append(f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}">{bullet}{_e(line)}</text>')
    return y + MARGIN, lines


def _wrapped(text: str, width: float) -> Sequence[str]:
    return wrap(text, width - 2 * MARGIN - 16, lambda part: extent(part, 12))
