"""Processes of the GPU stack that died and are not gone.

A few are a program that forgets its children, and only told. Many fill the table of processes; then no job can start.

Reads     gpu_stack_zombies, gpu_stack_zombies_oldest_seconds and gpu_stack_zombie_names of the node
Source    proc_pid_stat(5), state Z; wait(2)
Clears    when they are gone
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
    """How many, and for how long."""

    longest: Seconds = Seconds(600.0)  # a parent that is busy takes its time
    many: int = 1000  # so many are worth a warning; fewer are told and no more


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing: the source knows for how long."""


class Zombies:
    """Reports dead processes that are not gone."""

    name = "zombies"
    of: tuple[SubjectKind, ...] = ("node",)
    reads = ("gpu_stack_zombies", "gpu_stack_zombies_oldest_seconds")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        count, oldest = row.number("gpu_stack_zombies"), row.number("gpu_stack_zombies_oldest_seconds")
        if count is None or oldest is None:
            return memory, ()
        many = count >= self.settings.many
        return memory, (
            Finding(
                subject=subject, check=self.name, code="gpu_stack_zombies", at=row.at,
                severity="degraded" if many else "info", blame="program", clears=("reboot", "ack"),
                advice="watch" if many else "none", stands=count > 0 and oldest >= self.settings.longest,
                reason=f"{count:g} dead and not gone: {row.text('gpu_stack_zombie_names') or 'of unknown name'}",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> Zombies:
    """The detector with a site's settings."""
    return Zombies(settings)
