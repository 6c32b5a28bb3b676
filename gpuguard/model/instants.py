"""Points in time that survive suspends, clock steps and reboots."""

import msgspec

from gpuguard.model.ids import BootId


class Instant(msgspec.Struct, frozen=True, kw_only=True):
    """One point in time on one boot of one machine.

    `mono` orders and measures within a boot; a new boot id means it started again. `utc` is for people and for
    spans that cross boots; it is None where a log carries no date. `estimated` marks a UTC that was computed from
    boot time rather than read from a clock.

    Units   seconds; `mono` since boot, `utc` since 1970
    """

    boot: BootId
    mono: float
    utc: float | None = None
    estimated: bool = False


def seconds_between(earlier: Instant, later: Instant) -> float | None:
    """How long after `earlier` `later` was; None when nothing ties the two together."""
    if earlier.boot == later.boot:
        return later.mono - earlier.mono
    if earlier.utc is not None and later.utc is not None:
        return later.utc - earlier.utc
    return None
