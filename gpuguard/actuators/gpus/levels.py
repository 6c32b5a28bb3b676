"""Which level of `dcgmi diag` a kind of GPU gets, and how long that may take.

Reads   rules/ladder/diagnostics.toml
Shape   [limits] level1 to level4 in seconds; any number of [[sku]] with `match`, a part of the GPU's name, `level`, and
        `limit` in seconds where it is another; the first that fits counts
"""

import tomllib
from typing import Final

import msgspec

from gpuguard.errors import ConfigInvalid

RULES: Final = "rules/ladder/diagnostics.toml"


class Sku(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of GPU."""

    match: str
    level: int
    limit: float | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds that each level may take."""

    level1: float = 120.0
    level2: float = 600.0
    level3: float = 2700.0
    level4: float = 10800.0


class Levels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table; `level` is for who fits no row."""

    level: int = 1
    limits: Limits = Limits()
    sku: tuple[Sku, ...] = ()

    def of(self, name: str, wished: int = 0) -> tuple[int, float]:
        """Level and seconds for a GPU of this name; `wished` is the site's own level, 0 for the table's."""
        row = next((row for row in self.sku if row.match.lower() in name.lower()), None)
        level = wished or (row.level if row else self.level)
        own = row.limit if row is not None and row.limit is not None and level == row.level else None
        limits = (self.limits.level1, self.limits.level2, self.limits.level3, self.limits.level4)
        return level, own or limits[level - 1]


def read_levels(text: str) -> Levels:
    """The table of the file.

    Raises  ConfigInvalid
    """
    try:
        levels = msgspec.convert(tomllib.loads(text), Levels)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigInvalid((f"{RULES}: {error}; correct it",)) from error
    if not all(1 <= level <= 4 for level in (levels.level, *(row.level for row in levels.sku))):
        raise ConfigInvalid((f"{RULES}: a level must lie between 1 and 4; correct it",))
    return levels
