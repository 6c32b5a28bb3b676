"""The life-cycle of a job as instants, and what its GPU time went to: one record a job, from submit to end.

Theory. All GPU time that a job held falls into four parts that do not overlap: idle (before the first progress of that
run, or before the program began where no progress was told), used (what is kept), and what was done in vain after the
last checkpoint, because it failed or because it made room. A run that ends by its own will, or that a person or a limit
ends, is kept whole.
"""

import msgspec

KEPT = frozenset({"completed", "timeout", "cancelled"})


class Stretch(msgspec.Struct, kw_only=True):
    """One time that the job had places; `until` and `how` are open while it has them.

    Shape   gpus: held, in thousandths. network: how far its nodes are from each other. prepared: the program began.
            progressed: its first own sign of progress; None: nothing was told
    """

    allocated: int
    gpus: int
    network: str = "node"
    prepared: int | None = None
    progressed: int | None = None
    until: int | None = None
    how: str = ""


class Record(msgspec.Struct, kw_only=True):
    """Not frozen: the core stamps it while the job lives, and hands it out when it has ended.

    Shape   eligible: when nothing but room was missing. allocated: when it first had its places; prepared, progressed:
            of its first run that told them. stretches: each time that it had places. gpus: what it asked for, in
            thousandths
    Units   instants in seconds; used, idle, the losses and `apart` in thousandths of a GPU times seconds. apart: of
            what was used, by how far its nodes were from each other: what ran slower there is told elsewhere
    """

    job: str
    user: str
    account: str
    queue: str
    tier: str
    gpus: int
    submitted: int
    walltime: int | None = None
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
    apart: dict[str, int] = {}

    @property
    def wait(self) -> int | None:
        """Seconds from submit to its first places."""
        return None if self.allocated is None else self.allocated - self.submitted

    @property
    def started(self) -> int | None:
        """When its program first began; where nobody told, when it had its places."""
        return self.allocated if self.prepared is None else self.prepared

    @property
    def yielded(self) -> tuple[int, ...]:
        """When it made room for others."""
        return tuple(one.until for one in self.stretches if one.how == "preempted" and one.until is not None)

    @property
    def preempted(self) -> int:
        """How often it made room."""
        return len(self.yielded)

    def begins(self, at: int, gpus: int, network: str) -> None:
        """It has places."""
        if self.allocated is None:
            self.allocated = at
        self.stretches.append(Stretch(allocated=at, gpus=gpus, network=network))

    def is_prepared(self, at: int) -> None:
        """Its program begins. Told twice, or of a run before this one: nothing."""
        if (run := self._open()) is None or run.prepared is not None or at < run.allocated:
            return
        run.prepared = at
        if self.prepared is None:
            self.prepared = at

    def progresses(self, at: int) -> None:
        """It showed progress. Only the first sign of a run counts."""
        if (run := self._open()) is None or run.progressed is not None or at < run.allocated:
            return
        run.progressed = at
        if self.progressed is None:
            self.progressed = at

    def ran(self, until: int, how: str, saved: int | None) -> None:
        """The run is over; `saved` is its last complete checkpoint."""
        run = self._open()
        if run is None:
            return
        run.until, run.how = until, how
        told = run.progressed if run.progressed is not None else run.prepared
        began = min(until, run.allocated if told is None else told)
        kept = until if how in KEPT else began if saved is None else max(began, min(saved, until))
        self.idle += (began - run.allocated) * run.gpus
        self.used += (kept - began) * run.gpus
        self.apart[run.network] = self.apart.get(run.network, 0) + (kept - began) * run.gpus
        if how == "preempted":
            self.lost_preemption += (until - kept) * run.gpus
        else:
            self.lost_failure += (until - kept) * run.gpus

    def _open(self) -> Stretch | None:
        return self.stretches[-1] if self.stretches and self.stretches[-1].until is None else None
