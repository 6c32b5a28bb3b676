"""The course of measured values in a line of text each: lowest, mean, highest and how it went."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpuguard.model.quantities import BY_NAME
from gpuguard.model.readings import Unit
from gpuguard.model.samples import HIGHEST, LOWEST, Stretch
from gpuguard.runtime.words import date

DAY = 86400.0
WIDTH = 32
BARS = "▁▂▃▄▅▆▇█"
# How people read each unit: a factor, and the unit's sign.
SIGNS: dict[Unit, tuple[float, str]] = {
    "ratio": (100.0, "%"), "hertz": (1e-6, "MHz"), "bytes": (2.0**-30, "GiB"), "bytes_per_second": (1e-9, "GB/s"),
    "celsius": (1.0, "C"), "watts": (1.0, "W"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Course:
    """What was measured of one GPU between two moments, in seconds since 1970."""

    start: float
    end: float
    stretches: Sequence[Stretch]

    def facts(self) -> dict[str, Any]:  # Any: the answer is JSON
        """By quantity: when (seconds since 1970), and the value; what was not known is None."""
        courses: dict[str, list[list[float | None]]] = {}
        for stretch in self.stretches:
            for name, values in stretch.columns.items():
                rows = courses.setdefault(name, [])
                for offset, value in zip(stretch.offsets, values, strict=True):
                    rows.append([round(stretch.start + offset, 3), None if math.isnan(value) else value])
        return {"from": self.start, "to": self.end, "values": courses}

    def lines(self) -> Iterator[str]:
        """One line a quantity, and a head; nothing where nothing was measured."""
        names = sorted({name for stretch in self.stretches for name in stretch.columns if name in BY_NAME})
        if not names:
            return
        yield ""
        yield f"Measured from {date(self.start)} to {date(self.end)}"
        yield f"{'':<23} {'low':>6} {'mean':>6} {'high':>6}"
        for name in names:
            yield self._line(name)

    def _line(self, name: str) -> str:
        lows, sums, highs = math.inf, [0.0] * WIDTH, -math.inf
        counts = [0] * WIDTH
        for stretch in self.stretches:
            values = stretch.columns.get(name, ())
            low, high = (stretch.columns.get(name + end, values) for end in (LOWEST, HIGHEST))
            for offset, value, bottom, top in zip(stretch.offsets, values, low, high, strict=False):
                place = int((stretch.start + offset - self.start) / max(self.end - self.start, 1.0) * WIDTH)
                if math.isnan(value) or not 0 <= place < WIDTH:
                    continue
                sums[place] += value
                counts[place] += 1
                lows, highs = min(lows, bottom), max(highs, top)
        factor, sign = SIGNS.get(BY_NAME[name].unit, (1.0, ""))
        label = f"{name.removesuffix('_' + BY_NAME[name].unit)} {sign}".replace("_", " ")
        if not sum(counts):
            return f"{label:<23.23} {'?':>6} {'?':>6} {'?':>6}"
        mean = sum(sums) / sum(counts)
        shown = " ".join(f"{value * factor:>6.4g}" for value in (lows, mean, highs))
        means = [total / count if count else None for total, count in zip(sums, counts, strict=True)]
        return f"{label:<23.23} {shown}  {_bars(means, lows, highs)}".rstrip()


def _bars(means: Sequence[float | None], low: float, high: float) -> str:
    """One bar for each mean, between the lowest and the highest value; a blank where nothing is known."""
    room = high - low
    return "".join(
        " " if mean is None else BARS[min(len(BARS) - 1, int((mean - low) / room * len(BARS)))] if room else BARS[0]
        for mean in means
    )
