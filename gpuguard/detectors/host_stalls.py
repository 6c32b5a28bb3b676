"""The host itself stalls: tasks blocked on the GPU driver, soft lockups, out of memory.

A blocked driver makes every NVML call hang; that is worth a look before jobs are sent here. Memory that ran out and
tasks blocked on storage are no fault of a GPU and are only kept in the history.

Reads     LogLine of kinds hung_task, soft_lockup, rcu_stall, oom, driver_mismatch, driver_probe_failed, watchdog
Source    kernel/hung_task.c, kernel/watchdog.c; field reports of processes stuck behind the driver's lock
Clears    an hour after the last one, a reboot
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.events import AnyEvent, LogLine, subject_of
from gpuguard.model.findings import Blame, Finding, Severity
from gpuguard.model.ids import SubjectId
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules

REASONS: dict[str, tuple[Severity, Blame, str]] = {
    "hung_task": ("info", "host", "a task is blocked"),
    "soft_lockup": ("degraded", "host", "a CPU was stuck in the kernel"),
    "rcu_stall": ("degraded", "host", "a CPU stalled"),
    "oom": ("info", "program", "memory ran out"),
    "driver_mismatch": ("degraded", "configuration", "the driver's library and kernel module have different versions"),
    "driver_probe_failed": ("degraded", "driver", "the driver could not take over a device"),
    "watchdog": ("degraded", "driver", "the driver's watchdog finds the GPU locked up"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Whose stalls point at the GPU driver."""

    # Beginnings of task names that wait for the driver's lock when they hang.
    driver_tasks: tuple[str, ...] = ("nvidia", "Nvml", "nv-", "nvc:", "dcgm", "nvidia-smi", "nv_queue", "irq/")
    quiet_after: Seconds = Seconds(3600.0)  # forgotten after this long without another


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing: counts are kept with the standing finding."""


class HostStalls:
    """Reports stalls of the host that matter to its GPUs."""

    name = "host_stalls"
    reads = (LogLine,)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def subjects(self, event: AnyEvent) -> Sequence[SubjectId]:
        wanted = isinstance(event, LogLine) and event.parsed.kind in REASONS
        return (subject_of(event.parsed),) if wanted and isinstance(event, LogLine) else ()

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, event: AnyEvent) -> tuple[Memory, Sequence[Finding]]:
        if not isinstance(event, LogLine):
            return memory, ()
        parsed = event.parsed
        severity, blame, what = REASONS[parsed.kind]
        if parsed.kind == "hung_task" and (parsed.process or "").startswith(self.settings.driver_tasks):
            severity, blame, what = "degraded", "driver", "a task of the GPU stack is blocked: NVML calls may hang"
        who = f" ({parsed.process[:32]}, pid {parsed.pid})" if parsed.process else ""
        return memory, (
            Finding(
                subject=subject, check=self.name, code=parsed.kind, at=event.at, severity=severity, blame=blame,
                source=event.source, because=(event.id,), count=event.repeated,
                clears=("quiet", "reboot", "ack"), quiet_after=self.settings.quiet_after,
                advice="watch" if severity == "degraded" else "none", reason=what + who,
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> HostStalls:
    """The detector with a site's settings."""
    return HostStalls(settings)
