"""What is concluded from rows before a check judges, and what becomes of subjects that end."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpuguard.health.decide import decide
from gpuguard.health.policy import Settings
from gpuguard.health.state import Health, difference, restore
from gpuguard.model.events import Booted, Sweep, Tick
from gpuguard.model.findings import Finding
from gpuguard.model.ids import BootId, EventId, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Row, SubjectKind, Values
from gpuguard.ports import RowsOf

JOB = SubjectId("job:slurm/7")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    asked: int = 0


class Sum:
    name = "sum"
    reads = ("rank_step",)
    yields = ("job_step",)
    valid_for = 60.0
    memory = Memory

    def start(self) -> Memory:
        return Memory()

    def derive(
        self, memory: Memory, rows: RowsOf, at: Instant, brought: Mapping[SubjectId, Values]
    ) -> tuple[Memory, Mapping[SubjectId, Values]]:
        steps = [row.number("rank_step") or 0.0 for row in rows("rank").values()]
        assert all("rank_step" in row for row in brought.values())
        return Memory(asked=memory.asked + 1), {JOB: {"job_step": min(steps)}} if steps else {}


class Slow:
    name = "slow"
    of: tuple[SubjectKind, ...] = ("job",)
    reads = ("job_step",)
    memory = Memory

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        stands = (row.number("job_step") or 0.0) < 5
        return memory, [
            Finding(subject=subject, check="slow", code="slow", at=row.at, stands=stands, severity="degraded")
        ]


CHECKS = (Sum(), Slow())


def instant(mono: float) -> Instant:
    return Instant(boot=BootId("A"), mono=mono, utc=1e9 + mono)


def swept(mono: float, **steps: Any) -> Sweep:
    rows = {SubjectId(f"rank:slurm/7/{name[1:]}"): {"rank_step": step} for name, step in steps.items()}
    return Sweep(id=EventId(f"s{mono}"), at=instant(mono), source="heartbeats", rate="fast", valid_for=10.0, rows=rows)


def after(*events: Sweep | Tick | Booted, health: Health | None = None) -> Health:
    health = health or Health(now=instant(0.0))
    for event in events:
        health, _ = decide(health, event, CHECKS, Settings())
    return health


def tick(mono: float) -> Tick:
    return Tick(id=EventId(f"t{mono}"), at=instant(mono))


def codes(health: Health) -> list[str]:
    return [s.finding.code for subject in health.subjects.values() for s in subject.standing]


def test_a_check_judges_what_was_concluded_from_the_same_sweep() -> None:
    health = after(swept(1.0, r0=3, r1=9))
    assert health.readings[JOB]["sum/fast"].values == {"job_step": 3}
    assert codes(health) == ["slow"]
    assert codes(after(swept(2.0, r0=8, r1=9), health=health)) == []


def test_what_a_deriver_remembers_survives_a_restart() -> None:
    health = after(swept(1.0, r0=3), swept(2.0, r0=4))
    puts, _ = difference(Health(now=instant(0.0)), health)
    assert restore(puts, CHECKS, instant(9.0)).folds == {"sum": Memory(asked=2)}
    assert restore(puts, CHECKS[1:], instant(9.0)).folds == {}, "a deriver that is gone leaves nothing behind"


def test_a_sweep_without_its_columns_is_not_shown() -> None:
    other = Sweep(
        id=EventId("x"), at=instant(1.0), source="disk", rate="slow", valid_for=10.0,
        rows={SubjectId("disk:state"): {"disk_free_bytes": 1}},
    )  # fmt: skip
    assert after(other).folds == {}


def test_what_stood_on_a_job_is_over_when_nobody_has_heard_of_it_for_long() -> None:
    health = after(swept(1.0, r0=3))
    assert codes(after(tick(800.0), health=health)) == ["slow"]
    assert codes(after(tick(1000.0), health=health)) == []


def test_a_job_is_given_the_same_time_after_a_restart() -> None:
    health = after(swept(1.0, r0=3))
    again = after(Booted(id=EventId("b"), at=instant(5000.0), previous=BootId("A")), tick(5001.0), health=health)
    assert codes(again) == ["slow"]
    assert codes(after(tick(6000.0), health=again)) == []


def test_jobs_that_are_over_are_forgotten() -> None:
    health = after(swept(1.0, r0=3), swept(2.0, r0=9), tick(500.0))
    assert JOB in health.subjects
    assert JOB not in after(tick(1000.0), health=health).subjects
