"""More jobs than the cluster holds, one after the other, and nothing ends: how much of it stays unused?

Each job is one pass of the real core. One that does not start at once has left before the next one comes, so nobody is
kept waiting, nothing is reserved, and a pass costs the same however many came before.

Source  the method of Weng et al., USENIX ATC 2023: arrivals beyond capacity, without departures
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from gpuguard.scheduler.admission import LONGEST
from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import AnyEvent, Cancelled, NodeJoined, Submitted
from gpuguard.scheduler.plan import Refuse, Start
from gpuguard.scheduler.request import WHOLE, Job
from gpuguard.scheduler.settings import Settings
from gpuguard.scheduler.state import State


class Inflation:
    """One run. All of it is one instant, so no walltime, session or patience ever ends.

    Shape   placed, passed_over: how many jobs. refused: those that the cluster could never hold. asked, used:
            thousandths of GPUs. cycles: milliseconds of each pass
    """

    def __init__(
        self,
        nodes: Sequence[NodeJoined],
        jobs: Sequence[Job],
        settings: Settings,
        *,
        stopwatch: Callable[[], float] | None = None,
    ) -> None:
        self.gpus = sum(node.gpus for node in nodes)
        self.jobs = len(jobs)
        self.placed = 0
        self.passed_over = 0
        self.refused: list[Refuse] = []
        self.asked = 0
        self.cycles: list[float] = []
        self._nodes = nodes
        self._jobs = jobs
        self._stopwatch = stopwatch
        self._state = State(_without_ends(settings))

    @property
    def used(self) -> int:
        """Thousandths of GPUs that are held now."""
        return self._state.allocated

    @property
    def unallocated_share(self) -> float | None:
        """Of all GPUs, the part that nobody holds; None where there are none."""
        return 1.0 - self.used / (self.gpus * WHOLE) if self.gpus else None

    def run(self) -> Iterator[tuple[int, int]]:
        """Submits them all; tells now and then how many of how many."""
        self._pass(list(self._nodes))
        step = max(1, self.jobs // 200)
        left: list[AnyEvent] = []
        for at, job in enumerate(self._jobs):
            self.asked += job.gpus * job.gpu_milli
            endless = msgspec.structs.replace(job, walltime=LONGEST, after=())
            started, refused = self._pass([*left, Submitted(at=0, job=endless)])
            left = []
            if started:
                self.placed += 1
            elif not refused:
                self.passed_over += 1
                left = [Cancelled(at=0, job=job.id)]
            if at % step == 0:
                yield at + 1, self.jobs
        yield self.jobs, self.jobs

    def _pass(self, events: Sequence[AnyEvent]) -> tuple[bool, bool]:
        """Whether a job was started, and whether one was refused."""
        watch = self._stopwatch
        began = watch() if watch is not None else 0.0
        self._state, plan = cycle(self._state, events, 0)
        if watch is not None:
            self.cycles.append((watch() - began) * 1000.0)
        refused = [decision for decision in plan.decisions if isinstance(decision, Refuse)]
        self.refused.extend(refused)
        self._state.ended.clear()
        return any(isinstance(decision, Start) for decision in plan.decisions), bool(refused)


def _without_ends(settings: Settings) -> Settings:
    """The same choice of places; what plans with ends has nothing to plan with."""
    return msgspec.structs.replace(
        settings, reservations=0, backfill=True,
        preemption=msgspec.structs.replace(settings.preemption, enabled=False),
    )  # fmt: skip
