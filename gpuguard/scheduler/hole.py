"""Room that is kept for one job while others leave it: one hole, one owner, three ways to end.

Theory. From the moment jobs are told to leave until the one they leave for has started, the freed GPUs belong to it:
else a smaller job, or the victim itself, slips in and the next pass preempts again. A hole names who still has to
leave, so no pass asks them twice, and their room counts as on its way. It ends when its owner starts, when it has
lasted too long, or when the owner is cancelled; then the GPUs that are free go back to all.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from gpuguard.scheduler.plan import Share
from gpuguard.scheduler.settings import Preemption

Standing = Literal["waiting", "ready", "timeout", "cancel"]


class Hole(msgspec.Struct, frozen=True, kw_only=True):
    """A hold as it stands. `leaving`: who has yet to go, asked by this hole or by an earlier one."""

    preemptor: str
    shares: tuple[Share, ...]
    leaving: tuple[str, ...]
    until: int

    def without(self, job: str) -> "Hole":
        """After the job is gone; the same for one that it never waited for, or a second time."""
        if job not in self.leaving:
            return self
        return msgspec.structs.replace(self, leaving=tuple(name for name in self.leaving if name != job))

    def standing(self, now: int, *, cancelled: bool = False) -> Standing:
        """What the cycle does: wait, start the owner, or give the room back. Ready at the last instant still starts."""
        if cancelled:
            return "cancel"
        if now > self.until or (self.leaving and now == self.until):
            return "timeout"
        return "waiting" if self.leaving else "ready"


def opened(preemptor: str, shares: tuple[Share, ...], leaving: Iterable[str], now: int, rules: Preemption) -> Hole:
    """A new hole: the hold's time begins when the grace of the last victim is over."""
    return Hole(
        preemptor=preemptor,
        shares=shares,
        leaving=tuple(dict.fromkeys(sorted(leaving))),
        until=now + rules.grace + rules.hold,
    )


def going(holes: Iterable[Hole]) -> dict[str, str]:
    """Every job that has been told to leave, with the first job it leaves for: never to be asked again."""
    asked: dict[str, str] = {}
    for hole in holes:
        for name in hole.leaving:
            asked.setdefault(name, hole.preemptor)
    return asked
