"""Nodes as a scheduler sees them from outside: each agent's word of life, and what its absence means.

Theory. An agent that lives says so with a beat: its node, its boot, when, what it thinks of the node, which jobs it
sees. Whoever gets beats judges them by their age alone. `late` is a node to give nothing new to; `lost` is one whose
jobs must be asked after and which wants a second look (a lost beat proves that the node, its agent or the network
between is gone, not which). A beat from the future has no age: its clock is wrong, and it is `unknown`, never lost. So
is a node that nobody ever heard. Of two beats of a node the later counts, whatever order they came in.

A beat is a JSON object: {"node": "gpu17", "boot": "5f3c...", "at": 1764456789.5, "level": "OK", "jobs":
["slurm/8123"]}, with `every`, in how many seconds the next is due, where it is not the default. `at` is in seconds
since 1970.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from gpuguard.errors import NotUnderstood
from gpuguard.model.ids import BootId, JobId
from gpuguard.model.units import Seconds

Level = Literal["OK", "WARNING", "CRITICAL", "UNKNOWN"]
Presence = Literal["alive", "late", "lost", "unknown"]

BEAT_LIMIT = 64 * 1024  # bytes: the names of some six hundred jobs


class Beat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent lived at that moment, and this is what it saw. Units: seconds."""

    node: str
    boot: BootId
    at: float
    level: Level = "UNKNOWN"
    jobs: tuple[JobId, ...] = ()
    every: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many beats may be missing."""

    late: int = 3  # beats; two that are lost on the way are nothing
    lost: int = 12  # beats: 180 s where one comes every 15
    ahead: Seconds = Seconds(30.0)  # how far clocks of a cluster may be apart
    longest: Seconds = Seconds(300.0)  # no agent may promise less than a beat in this time

    def __post_init__(self) -> None:
        if not 1 <= self.late < self.lost:
            raise ValueError("late must be at least 1, and lost more than late")


def read(document: bytes) -> Beat:
    """The beat that somebody sent.

    Raises  NotUnderstood for one that is too long, or is none
    """
    if len(document) > BEAT_LIMIT:
        raise NotUnderstood(f"a beat of {len(document)} bytes; the most is {BEAT_LIMIT}", "")
    try:
        beat = msgspec.json.decode(document, type=Beat)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = document[:200].decode(errors="replace")
        raise NotUnderstood(f"not a beat: {error}", text) from error
    if not beat.node or beat.every <= 0:
        text = document[:200].decode(errors="replace")
        raise NotUnderstood("a beat needs the name of its node, and a next one", text)
    return beat


def write(beat: Beat) -> bytes:
    """The beat as it is sent."""
    return msgspec.json.encode(beat)


def newest(beats: Iterable[Beat]) -> dict[str, Beat]:
    """The latest beat of each node, in whatever order they came."""
    found: dict[str, Beat] = {}
    for beat in beats:
        known = found.get(beat.node)
        if known is None or beat.at > known.at:
            found[beat.node] = beat
    return found


def judge(
    beats: Mapping[str, Beat], now: float, expected: Iterable[str] = (), limits: Limits | None = None
) -> dict[str, Presence]:
    """What each node is that sent a beat, or should have.

    Units   seconds since 1970
    """
    limits = limits or Limits()
    found: dict[str, Presence] = dict.fromkeys(expected, "unknown")
    for node, beat in beats.items():
        found[node] = _presence(now - beat.at, min(beat.every, limits.longest), limits)
    return found


def _presence(age: float, every: float, limits: Limits) -> Presence:
    if age < -limits.ahead:
        return "unknown"
    if age > limits.lost * every:
        return "lost"
    return "late" if age > limits.late * every else "alive"
