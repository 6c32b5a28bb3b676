"""Jobs that run out of memory and come again."""

from gpuguard.scheduler.plan import AnyDecision, Start
from gpuguard.simulator.engine import Model, World
from gpuguard.simulator.models.retries import Retries, Settings
from tests.support.worlds import ran, record, traced


def test_a_job_crashes_twice_and_then_runs() -> None:
    model = Retries(Settings(share=1.0, after=0.0, pause=0.0), 1)
    engine = ran([traced("job", 2, 500)], [model])
    assert [(job.id, job.first_start, job.end, job.outcome) for job in engine.course.jobs] == [
        ("job", 0, 1, "failed"), ("job~1", 2, 3, "failed"), ("job~2", 4, 504, "completed"),
    ]  # fmt: skip
    assert model.crashes == [("job", 1), ("job~1", 3)]
    assert record(engine, "job").segments[0].kept == 0.0


def test_one_that_checkpoints_is_started_again_by_the_scheduler() -> None:
    engine = ran([traced("job", 2, 500, checkpoints=True)], [Retries(Settings(share=1.0, after=0.0), 1)])
    (job,) = engine.course.jobs
    assert [segment.how for segment in job.segments] == ["failed", "failed", "ended"]


def test_so_many_do() -> None:
    model = Retries(Settings(share=0.2, times=1), 2)
    ran([traced(f"j{at}", 1, 10_000, at=at) for at in range(60)], [model])
    assert 6 <= len(model.crashes) <= 20


def test_a_trace_may_have_such_ids_itself() -> None:
    model = Retries(Settings(share=1.0, times=1, after=0.0, pause=0.0), 1)
    engine = ran([traced("job", 2, 500), traced("job~1", 2, 500)], [model])
    assert [(job.id, job.outcome) for job in engine.course.jobs] == [
        ("job", "failed"), ("job~1", "failed"), ("job~1~", "completed"), ("job~1~1", "completed"),
    ]  # fmt: skip
    assert not engine.refused


def test_who_fails_for_another_reason_does_not_come_again() -> None:
    class Wrecks(Model):
        name = "wrecks"

        def decided(self, world: World, decision: AnyDecision, now: int) -> None:
            if isinstance(decision, Start) and decision.job == "job~1":
                world.call(now + 100, lambda at: world.end("job~1", at, 1))

    engine = ran([traced("job", 2, 500)], [Retries(Settings(share=1.0, times=1, after=0.0, pause=0.0), 1), Wrecks()])
    assert [(job.id, job.outcome) for job in engine.course.jobs] == [("job", "failed"), ("job~1", "failed")]
    assert not engine.refused
