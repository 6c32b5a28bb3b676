"""The course of what was measured of one GPU over a stretch of time."""

from typing import Literal

import msgspec

Grain = Literal["full", "minute"]
# Beside the mean of a minute, which has the quantity's own name.
LOWEST, HIGHEST = ".low", ".high"


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one GPU, as they were read (`full`) or one mean a minute (`minute`, with `<name>.low` and `.high`).

    `gpu` is the UUID, or the subject where that is not known. What was absent or unknown is NaN.
    Shape   `columns`: for each name as many values as there are `offsets`
    Units   `start` in seconds since 1970, `offsets` in seconds after it; the values' own
    """

    gpu: str
    grain: Grain
    start: float
    offsets: tuple[float, ...]
    columns: dict[str, tuple[float, ...]]
