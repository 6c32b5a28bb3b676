"""The life-cycle of a job as instants, and what its GPU time went to: one record a job, from submit to end."""

import msgspec

Stretch = tuple[int, int, str]
"""From, until, and how it ended."""


class Record(msgspec.Struct, kw_only=True):
    """Not frozen: the core stamps it while the job lives, and hands it out when it has ended.

    Shape   eligible: when nothing but room was missing. allocated: when it first had its places; prepared, progressed:
            of its first run. stretches: each time that it had places. gpus: what it asked for, in thousandths
    Units   instants in seconds; used and the losses in thousandths of a GPU times seconds: used counts what is kept,
            lost_failure and lost_preemption what was done since the last checkpoint, idle what passed before its first
            progress
    """

    job: str
    user: str
    account: str
    queue: str
    tier: str
    gpus: int
    submitted: int
    eligible: int | None = None
    allocated: int | None = None
    prepared: int | None = None
    progressed: int | None = None
    ended: int | None = None
    outcome: str = ""
    stretches: list[Stretch] = []
    used: int = 0
    lost_failure: int = 0
    lost_preemption: int = 0
    idle: int = 0

    @property
    def wait(self) -> int | None:
        """Seconds from submit to its first places."""
        return None if self.allocated is None else self.allocated - self.submitted

    @property
    def preempted(self) -> int:
        """How often it made room."""
        return sum(1 for _, _, how in self.stretches if how == "preempted")

    def ran(self, began: int, until: int, how: str, saved: int | None, gpus: int) -> None:
        """One stretch is over; `saved` is its last complete checkpoint."""
        self.stretches.append((began, until, how))
        if how == "preempted":
            kept = max(began, min(saved, until)) if saved is not None else began
            self.lost_preemption += (until - kept) * gpus
        elif how in {"completed", "timeout", "cancelled"}:
            kept = until
        else:
            kept = max(began, min(saved, until)) if saved is not None else began
            self.lost_failure += (until - kept) * gpus
        self.used += (kept - began) * gpus
