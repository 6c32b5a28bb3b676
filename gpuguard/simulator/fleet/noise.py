"""What happens on healthy nodes too, and must lead to nothing: drawn as events, each with its instant.

    burst        a broken program: 1 to 30 lines of Xid 13, 31, 43, 45
    slow_call    a call of NVML that takes more than five seconds and comes back
    hung_call    one that never does: a person reboots the node
    flap         a link that is down for less than a second
    rotation     the log is rotated, and what stands in it is read a second time
    clock_step   the wall clock is set by up to some minutes
    blind        the kernel's ring cannot be read for a while: the journal stands in
    crash        the agent is killed, and started again a few seconds later
    config_error the agent does not start: somebody must mend its settings first
    maintenance  an administrator drains the node by hand, reboots it, and gives it back

    restart      slurmctld is started anew: the whole fleet has no scheduler for a minute
    outage       the same for hours

Source   rates per 1,000 node-days: bursts 50, NVML over 5 s 5, flaps 20, NVML that never returns 1; log rotation daily,
         slurmctld restarts weekly, clock steps monthly
Assumes  per 1,000 node-days 20 crashes, 2 wrong configurations (ten minutes to twelve hours), 2 blind spells (a minute
         to two hours), 2 maintenances (one to eight hours); an outage of the scheduler a month, one to six hours long
Units    seconds since the first day began
"""

import math
from typing import Literal

import msgspec

from gpuguard.simulator.chance import Stream, stream
from gpuguard.simulator.fleet.faults import DAY, HOUR

Kind = Literal[
    "burst", "slow_call", "hung_call", "flap", "rotation", "clock_step", "blind", "crash", "config_error",
    "maintenance",
]  # fmt: skip
RATES: dict[Kind, float] = {
    "burst": 50.0, "slow_call": 5.0, "hung_call": 1.0, "flap": 20.0, "rotation": 1000.0, "clock_step": 1000.0 / 30,
    "blind": 2.0, "crash": 20.0, "config_error": 2.0, "maintenance": 2.0,
}  # fmt: skip


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """One event on one node. `lasts` is how long what it begins goes on; `seed` gives its details."""

    node: int
    at: float
    kind: Kind
    lasts: float
    seed: int


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """A time without a scheduler, for all nodes."""

    at: float
    lasts: float


def noise(seed: int, nodes: int, end: float, rates: dict[Kind, float] | None = None) -> tuple[Noise, ...]:
    """Every event up to `end`, in order."""
    found = [
        event
        for node in range(nodes)
        for kind, rate in (RATES if rates is None else rates).items()
        for event in _of(stream(seed, "noise", node, kind), node, kind, rate, end)
    ]
    return tuple(sorted(found, key=lambda event: (event.at, event.node, event.kind)))


def _of(dice: Stream, node: int, kind: Kind, rate: float, end: float) -> list[Noise]:
    found: list[Noise] = []
    if rate <= 0:
        return found
    daily = kind == "rotation"
    at = dice.between(0.0, DAY) if daily else dice.exponential(1000.0 * DAY / rate)
    while at < end:
        found.append(Noise(node=node, at=at, kind=kind, lasts=_lasts(kind, dice), seed=int(dice.random() * 2**53)))
        at += 1000.0 * DAY / rate if daily else dice.exponential(1000.0 * DAY / rate)
    return found


def _lasts(kind: Kind, dice: Stream) -> float:
    match kind:
        case "slow_call":
            return dice.between(5.0, 60.0)
        case "flap":
            return dice.between(0.05, 1.0)
        case "blind":
            return _spread(dice, 60.0, 2 * HOUR)
        case "crash":
            return dice.between(1.0, 10.0)
        case "config_error":
            return _spread(dice, 600.0, 12 * HOUR)
        case "maintenance":
            return dice.between(HOUR, 8 * HOUR)
    return 0.0


def _spread(dice: Stream, low: float, high: float) -> float:
    """Even on the scale of orders of magnitude: most are short."""
    return math.exp(dice.between(math.log(low), math.log(high)))


def silences(seed: int, end: float) -> tuple[Silence, ...]:
    """When no scheduler answers: each week for a moment, each month for hours."""
    found: list[Silence] = []
    for name, every, low, high in (("restart", 7.0, 20.0, 120.0), ("outage", 30.0, HOUR, 6 * HOUR)):
        dice = stream(seed, "scheduler", name)
        at = dice.between(0.0, every) * DAY
        while at < end:
            found.append(Silence(at=at, lasts=dice.between(low, high)))
            at += every * DAY
    return tuple(sorted(found, key=lambda silence: silence.at))
