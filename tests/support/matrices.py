"""Matrices of machines that nobody has, in every form in which people give them."""

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from gpuguard.model.topology import LEVELS

Form = Callable[["Made"], str]
MODERN, LEGACY, OLDEST = 3, 2, 1
HEADINGS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")


@dataclass(frozen=True)
class Made:
    """What a matrix says. `headings` is how many of the last columns there are; cells are symmetric."""

    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    cpus: tuple[str, ...]
    nodes: tuple[str, ...]
    headings: int = MODERN

    @property
    def affinity(self) -> dict[str, dict[str, str | None]]:
        """The affinities as JSON has them."""
        gpus = [name for name in self.names if name.startswith("GPU")]
        told = self.headings >= LEGACY
        return {
            gpu: {"cpus": cpus, "numa": node if told else None}
            for gpu, cpus, node in zip(gpus, self.cpus, self.nodes, strict=True)
        }

    def turned(self, order: tuple[int, ...]) -> "Made":
        """The same machine with its devices in another order."""
        gpus = [place for place in order if self.names[place].startswith("GPU")]
        return Made(
            names=tuple(self.names[i] for i in order),
            cells=tuple(tuple(self.cells[i][j] for j in order) for i in order),
            cpus=tuple(self.cpus[i] for i in gpus), nodes=tuple(self.nodes[i] for i in gpus), headings=self.headings,
        )  # fmt: skip


@st.composite
def machines(draw: st.DrawFn, most: int = 9) -> Made:
    """Any machine of up to so many GPUs and as many network cards."""
    gpus, nics = draw(st.integers(1, most)), draw(st.integers(0, most))
    headings = draw(st.sampled_from((MODERN, LEGACY, OLDEST)))
    word = "NIC{}" if headings == MODERN else "mlx5_{}"
    names = (*(f"GPU{n}" for n in range(gpus)), *(word.format(n) for n in range(nics)))
    levels, bonds = st.sampled_from(LEVELS), st.integers(1, 36).map("NV{}".format)
    grid = [["X"] * len(names) for _ in names]
    for i in range(len(names)):
        for j in range(i):
            grid[i][j] = grid[j][i] = draw(st.one_of(levels, bonds) if i < gpus else levels)
    cpus = st.sampled_from(("0", "0-7", "0-63,128-191", "64-127,192-255", "0,2,4,6,8,10"))
    return Made(
        names=names, cells=tuple(map(tuple, grid)), headings=headings,
        cpus=tuple(draw(st.lists(cpus, min_size=gpus, max_size=gpus))),
        nodes=tuple(draw(st.lists(st.integers(0, 9).map(str), min_size=gpus, max_size=gpus))),
    )  # fmt: skip


# --- forms -----------------------------------------------------------------------------------------------------------


def tabs(made: Made) -> str:
    """As nvidia-smi prints it."""
    lines = ["\t".join(["", *made.names, *HEADINGS[: made.headings]])]
    for place, name in enumerate(made.names):
        cells = [" X " if cell == "X" else cell for cell in made.cells[place]]
        if not name.startswith("GPU"):
            tail = [""] * (made.headings + (made.headings == MODERN))
        elif made.headings == MODERN:
            tail = [made.cpus[place], made.nodes[place], "", "N/A"]
        else:
            tail = [made.cpus[place], made.nodes[place]][: made.headings]
        lines.append("\t".join([name, *cells, *tail]))
    return "\n".join(lines) + "\n"


def terminal(made: Made) -> str:
    """As a terminal shows it."""
    return "\n".join(line.expandtabs(8).rstrip() for line in tabs(made).split("\n"))


def squeezed(made: Made) -> str:
    """With each run of blanks made one."""
    return "\n".join(re.sub(r"[ \t]+", " ", line).rstrip() for line in tabs(made).split("\n"))


def stripped(made: Made) -> str:
    """As a program gives it that strips what it reads: the header loses its TAB."""
    return "\n".join(line.rstrip() for line in tabs(made).strip().split("\n"))


def underlined(made: Made) -> str:
    """With the header underlined, as some drivers print it on a terminal."""
    header, rows = tabs(made).split("\n", 1)
    return f"\t\x1b[4m{header[1:]}\x1b[0m\n{rows}"


def table(made: Made) -> str:
    """As a table of a document."""
    lines = [f"|  | {' | '.join([*made.names, *HEADINGS[: made.headings]])} |"]
    lines.append("|---" * (1 + len(made.names) + made.headings) + "|")
    for place, name in enumerate(made.names):
        gpu = name.startswith("GPU")
        tail = [made.cpus[place], made.nodes[place], "N/A"][: made.headings] if gpu else [""] * made.headings
        lines.append(f"| {' | '.join([name, *made.cells[place], *tail])} |")
    return "\n".join(lines) + "\n"


def blocks(made: Made) -> str:
    """With the last half of the columns below the first."""
    rows = [line.split("\t") for line in tabs(made).rstrip("\n").split("\n")]
    half = 1 + (len(made.names) + 1) // 2
    upper, lower = (["\t".join(row[:half]) for row in rows], ["\t".join([row[0], *row[half:]]) for row in rows])
    return "\n".join(upper) + "\n\n" + "\n".join(lower) + "\n"


WHOLE: tuple[Form, ...] = (tabs, terminal, squeezed, stripped, underlined, table, blocks)
# --- what is done to the lines of one --------------------------------------------------------------------------------


def broken(text: str, width: int, *, trimmed: bool = False) -> str:
    """Broken by a terminal, also in the middle of words."""
    lines: list[str] = []
    for line in text.split("\n"):
        parts = [line[at : at + width] for at in range(0, len(line), width)] or [""]
        lines += [part.rstrip() for part in parts] if trimmed else parts
    return "\n".join(lines)


def folded(text: str, width: int) -> str:
    """Broken by a mail program, between words."""
    fold = textwrap.TextWrapper(
        width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False, expand_tabs=False
    )
    return "\n".join(part for line in text.split("\n") for part in fold.wrap(line) or [""])


def marked(text: str, mark: str) -> str:
    """With a mark before each line."""
    return "\n".join(mark + line for line in text.split("\n"))
