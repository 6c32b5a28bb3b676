"""What one rank's collectives did, from the dump of its NCCL flight recorder: which are done, and which one waits.

Numbers count the collectives of one group from 1 and mean the same on every rank of it: two ranks whose numbers differ
are not at the same place.
"""

from typing import Literal

import msgspec

from gpuguard.model.numbers import numbers_in
from gpuguard.model.units import Int64


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The oldest call of a group that is not completed.

    `call` is what was called, less the library: all_reduce, or `recv 1<-0` by numbers within the group, for which
    `p2p` is true. `state` started says that its kernel runs; scheduled that it does not yet, or that nobody recorded
    it. `shape` are the sizes of what goes in and comes out, and their type; `where` the line of the program.

    Units   since: seconds since 1970
    """

    number: Int64
    call: str
    state: Literal["scheduled", "started"] = "scheduled"
    shape: str = ""
    where: str = ""
    since: float | None = None
    p2p: bool = False


class GroupFlight(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process group as its rank saw it. `about` is its description; `ranks` its members as `spans`, '' where the
    dump does not tell. `enqueued` is the newest collective that was called, `completed` the newest that is done."""

    name: str
    about: str = ""
    ranks: str = ""
    enqueued: Int64 = 0
    completed: Int64 = 0
    waiting: Waiting | None = None


class FlightSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All groups of one rank. `entries` is how many calls the dump held, `strange` how many of them said nothing."""

    version: str = ""
    entries: int = 0
    strange: int = 0
    groups: tuple[GroupFlight, ...] = ()


def whole_group(summary: FlightSummary) -> GroupFlight | None:
    """The group that most ranks are in, whose numbers can be compared over all ranks of a job; None without groups."""
    by_size = sorted(summary.groups, key=lambda group: (group.about != "default_pg", -count(group.ranks), group.name))
    return by_size[0] if by_size else None


def held_up(summary: FlightSummary) -> tuple[GroupFlight, Waiting] | None:
    """The call that waits longest over all groups, and its group; None where nothing waits."""
    waits = [(group, group.waiting) for group in summary.groups if group.waiting is not None]
    if not waits:
        return None
    return min(waits, key=lambda wait: (wait[1].since is None, wait[1].since or 0.0, wait[0].name))


def waits_in(summary: FlightSummary) -> str:
    """What the rank waits in, in words; '' where in nothing."""
    found = held_up(summary)
    if found is None:
        return ""
    group, waiting = found
    return f"{waiting.call} number {waiting.number} of group {group.about or group.name or 'default'}"


def count(text: str) -> int:
    """How many numbers those are."""
    return len(numbers_in(text))
