"""GPUs that work at a fraction of their clock, and nothing says why.

A GPU was seen to pass every test of the vendor at a third of its speed. Under load and in the fastest state, clocks are
low for a reason that the driver names (power, heat, a setting, a brake); where it names none, the GPU is ill. A GPU at
rest tells nothing, so what stands is taken back only when the clock was seen to be right.

Reads     sm_clock_hertz with sm_application_clock_hertz or sm_clock_limit_hertz, utilization_ratio, performance_state
          and clock_events, of each GPU
Source    NVIDIA/DCGM 122 (the longest test passed a GPU at a third of its speed)
Clears    when the clock was seen to be right, a reset, a reboot, a new part, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How slow under how much load for how long."""

    share: float = 0.5  # of the clock that is to be expected
    busy: float = 0.8  # a GPU below this utilisation tells nothing
    hold: Seconds = Seconds(120.0)  # no look in this time showed more

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError("share must be between 0 and 1")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it has worked slowly without a reason."""

    slow: Held = Held()


class ClocksBelowExpected:
    """Reports GPUs that are slow under load, without a reason."""

    name = "clocks_below_expected"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("sm_clock_hertz",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        clock = row.number("sm_clock_hertz")
        clocks = (row.number("sm_application_clock_hertz"), row.number("sm_clock_limit_hertz"))
        expected = min((top for top in clocks if top is not None and top > 0), default=None)
        if clock is None or expected is None:
            return memory, ()
        if clock >= expected * self.settings.share:
            return Memory(slow=memory.slow.told(False, row.at)), (self._finding(subject, row, False, ""),)
        unexplained = self._is_unexplained(row)
        slow = memory.slow.told(unexplained, row.at)
        if not unexplained or not slow.lasted(self.settings.hold, row.at):
            return Memory(slow=slow), ()
        reason = (
            f"works at {clock / 1e6:.0f} MHz, {expected / 1e6:.0f} are to be expected, and nothing holds its clock down"
        )
        return Memory(slow=slow), (self._finding(subject, row, True, reason),)

    def _is_unexplained(self, row: Row) -> bool | None:
        """Whether it is at work in its fastest state and the driver names nothing that holds its clock down."""
        busy, state, events = row.number("utilization_ratio"), row.number("performance_state"), row.bits("clock_events")
        if busy is None or state is None or events is None:
            return None
        return busy >= self.settings.busy and state == 0 and events == 0

    def _finding(self, subject: SubjectId, row: Row, stands: bool, reason: str) -> Finding:
        return Finding(
            subject=subject, check=self.name, code="clocks_below_expected", at=row.at, stands=stands,
            severity="degraded", blame="hardware", remedy="test", advice="test",
            clears=("reset", "reboot", "replace", "ack"), reason=reason,
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> ClocksBelowExpected:
    """The detector with a site's settings."""
    return ClocksBelowExpected(settings)
