"""A process of the GPU stack hangs in the kernel, where no signal reaches it.

It waits for a lock of the driver or for a GPU that does not answer; jobs that come next will wait behind it.

Reads     gpu_stack_dstate_oldest_seconds and gpu_stack_dstate_names of the node
Source    proc_pid_stat(5), state D; Linux kernel/hung_task.c calls a task hung after 120 s
Clears    when it runs again or is gone
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long a wait may last. Units: seconds."""

    longest: Seconds = Seconds(240.0)  # a GPU that is reset, or memory that is pinned, takes up to a minute


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing: the source knows for how long."""


class GpuStackDstate:
    """Reports nodes on which the GPU stack hangs."""

    name = "gpu_stack_dstate"
    of: tuple[SubjectKind, ...] = ("node",)
    reads = ("gpu_stack_dstate_oldest_seconds",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        oldest = row.number("gpu_stack_dstate_oldest_seconds")
        if oldest is None:
            return memory, ()
        return memory, (
            Finding(
                subject=subject, check=self.name, code="gpu_stack_dstate", at=row.at, severity="degraded",
                remedy="reboot", blame="driver", clears=("reboot", "ack"), advice="watch",
                stands=oldest >= self.settings.longest,
                reason=f"hangs in the kernel: {row.text('gpu_stack_dstate_names') or 'a process'}",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> GpuStackDstate:
    """The detector with a site's settings."""
    return GpuStackDstate(settings)
