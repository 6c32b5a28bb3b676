"""What the shell counts about itself: events, outcomes, decision latency, its own CPU and memory."""

import itertools
import os
import resource
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from gpuguard.health.machine import WITNESS
from gpuguard.model.actions import Result
from gpuguard.model.events import AnyEvent, LinesLost, LogLine, Sweep
from gpuguard.model.health import PolicyName, ShellFacts, SourceView, XidSeen
from gpuguard.model.ids import PciAddress, SubjectId

# Seconds from the reading of a line to the committed verdict; to the drain itself it may take 0.05 at the median.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
# Codes come from the kernel log, so a hostile one could make a series each; real drivers print some tens.
CODES_KEPT = 400
# Pairs of GPU and Xid; of more, the one that was seen longest ago goes.
XIDS_KEPT = 256


class Tally:
    """Counters of one agent's life."""

    def __init__(self, *, version: str, mode: str, policy: PolicyName) -> None:
        self.version, self.mode, self.policy = version, mode, policy
        self.events: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self.check_errors: Counter[str] = Counter()
        self.store_errors = 0
        self.listen = ""
        self.notices: Counter[str] = Counter()  # all keys are there before the threads that count are
        self.actuator_ok: bool | None = None
        self.gpu_success: dict[SubjectId, float] = {}
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._latency_sum = 0.0
        self._xids: dict[tuple[PciAddress | None, int], XidSeen] = {}  # the one seen last comes last

    def saw(self, event: AnyEvent) -> None:
        """The event is counted by kind and code."""
        if isinstance(event, LogLine) and event.parsed.xid is not None and event.parsed.kind == "xid":
            self._saw_xid(event, event.parsed.xid)
        if isinstance(event, LogLine) and event.source != WITNESS:
            code = "" if event.parsed.xid is None else str(event.parsed.xid)
            key = f"{event.parsed.kind} {code}"
            if key not in self.events and len(self.events) >= CODES_KEPT:
                key = f"{event.parsed.kind} other"
            self.events[key] += event.repeated
        elif isinstance(event, LinesLost):
            self.events["lines_lost "] += event.count
        elif isinstance(event, Sweep) and event.at.utc is not None:
            for name, values in event.rows.items():
                if values.get("gpu_up") == 1:
                    self.gpu_success[name] = event.at.utc

    def _saw_xid(self, line: LogLine, xid: int) -> None:
        key = (line.parsed.pci, xid)
        before = self._xids.pop(key, None)
        dates = [utc for utc in (line.at.utc, before.last_utc if before else None) if utc is not None]
        more = 0 if line.source == WITNESS else line.repeated
        self._xids[key] = XidSeen(
            pci=line.parsed.pci,
            xid=xid,
            count=(before.count if before else 0) + more,
            last_utc=max(dates, default=None),
        )
        if len(self._xids) > XIDS_KEPT:
            del self._xids[next(iter(self._xids))]

    def decided(self, seconds: float) -> None:
        """One live line led to a committed decision this long after it was read."""
        self._buckets[bisect_left(BOUNDS, seconds)] += 1
        self._latency_sum += seconds

    def answered(self, verb: str, result: Result) -> None:
        """A target answered."""
        self.results[f"{verb} {result}"] += 1
        self.actuator_ok = result in ("done", "foreign", "held", "failed")

    def facts(self, sources: Sequence[SourceView], actions: dict[str, int], mailbox_depth: int) -> ShellFacts:
        """Everything counted, as a value."""
        totals = list(itertools.accumulate(self._buckets))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return ShellFacts(
            version=self.version, mode=self.mode, policy=self.policy, sources=tuple(sources),
            events=dict(self.events), xids=tuple(self._xids.values()), results=dict(self.results), actions=actions,
            latency=tuple(zip(BOUNDS, totals[:-1], strict=True)), latency_sum=self._latency_sum,
            latency_count=totals[-1], store_errors=self.store_errors, mailbox_depth=mailbox_depth,
            cpu_seconds=usage.ru_utime + usage.ru_stime, resident_bytes=_resident_bytes(),
            actuator_ok=self.actuator_ok, check_errors=dict(self.check_errors),
            gpu_success=dict(self.gpu_success),
            listen=self.listen, notices=dict(self.notices),
        )  # fmt: skip


def _resident_bytes() -> int:
    """Memory that is resident now.

    Reads   /proc/self/statm
    Source  proc(5)
    """
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
