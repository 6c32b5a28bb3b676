"""What is refused at submit: each rule alone, all at once, and jobs that name each other."""

import math

import pytest

from gpuguard.scheduler.admission import Admission, allowed, refusals
from gpuguard.scheduler.capacity import Kind
from gpuguard.scheduler.request import Dependency, Job
from gpuguard.scheduler.settings import HOUR, Queue, Settings

NODES = (Kind(gpus=8, gpu_type="A100", cpus=64, memory=1000, count=4),)
SITE = Settings(queues={"training": Queue(limit=10 * HOUR, gpus=24), "trial": Queue(limit=HOUR), "free": Queue()})
GOOD = Job(id="1", walltime=HOUR)


def ok(name: str) -> Dependency:
    return Dependency(relation="afterok", name=name)


def job(name: str, *parents: str) -> Job:
    return Job(id=name, walltime=HOUR, after=tuple(ok(parent) for parent in parents))


def rules(asked: Job, known: tuple[str, ...] = ()) -> list[str]:
    return [refusal.rule for refusal in refusals(asked, SITE, NODES, known)]


@pytest.mark.parametrize(
    "asked",
    [
        GOOD,
        Job(id="2", tier="batch"),
        Job(id="2", gpus=24, nodes=3, walltime=10 * HOUR),
        Job(id="2", gpus=32, queue="free", walltime=100 * HOUR),
        Job(id="2", gpus=0, tier="background", cpus=4),
        Job(id="2", gpus=0, nodes=4, walltime=1),
        Job(id="2", gpu_milli=250, tier="interactive"),
        Job(id="2", preemptible=True, checkpoints=True, extends=True, walltime=1),
        Job(id="2", preemptible=False, walltime=1),
        Job(id="2", gpus=8, least_gpus=1, walltime=1),
        Job(id="2", walltime=1, after=(ok("before"), Dependency(relation="condition", name="model here"))),
        Job(id="2", walltime=1, name="n", after=(Dependency(relation="singleton", name=""),)),
        Job(id="2", walltime=1, name="n", after=(Dependency(relation="singleton", name="n"),)),
        Job(id="ä" * 200, walltime=1),
    ],
)
def test_what_is_right_is_taken(asked: Job) -> None:
    assert refusals(asked, SITE, NODES, ("before",)) == ()


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        (Job(id="1", gpus=40, queue="free", walltime=1), "never_satisfiable"),
        (Job(id="1", gpus=10_000, queue="free", walltime=1), "never_satisfiable"),
        (Job(id="1", walltime=10 * HOUR + 1), "over_limit"),
        (Job(id="1", gpus=25, walltime=1), "over_limit"),
        (Job(id="1", walltime=1, queue="nightly"), "unknown_queue"),
        (Job(id="1", walltime=1, tier="urgent"), "unknown_tier"),  # type: ignore[arg-type]
        (Job(id="1", walltime=1, level="top"), "unknown_level"),  # type: ignore[arg-type]
        (Job(id="1", walltime=1, pool="gpu"), "unknown_pool"),
        (Job(id="1"), "no_walltime"),
        (Job(id="1", walltime=1, preemptible=True), "no_checkpoints"),
        (Job(id="1", walltime=1, extends=True), "no_checkpoints"),
        (Job(id="1", tier="background"), "no_gpus"),
        (Job(id="1", gpus=0, walltime=1, gpu_types=("A100",)), "no_gpus"),
        (Job(id="1", gpus=0, walltime=1, per="gpu"), "no_gpus"),
        (Job(id="1", walltime=1, gpu_milli=500), "whole_gpus"),
        (Job(id="1", tier="batch", gpu_milli=0), "number"),
        (Job(id="1", tier="batch", gpu_milli=1001), "number"),
        (Job(id="1", tier="batch", gpus=2, gpu_milli=500), "share"),
        (Job(id="1", tier="batch", gpus=0, gpu_milli=500), "share"),
        (Job(id="1", gpus=8, nodes=3, walltime=1), "unequal"),
        (Job(id="1", gpus=1, nodes=2, walltime=1), "unequal"),
        (Job(id="1", gpus=-1, walltime=1), "number"),
        (Job(id="1", gpus=2**63, queue="free", walltime=1), "number"),
        (Job(id="1", nodes=0, walltime=1), "number"),
        (Job(id="1", nodes=-8, walltime=1), "number"),
        (Job(id="1", nodes=2**63, walltime=1), "number"),
        (Job(id="1", walltime=0), "number"),
        (Job(id="1", walltime=2**63, queue="free"), "number"),
        (Job(id="1", gpus=4, least_gpus=5, walltime=1), "number"),
        (Job(id="1", gpus=4, least_gpus=0, walltime=1), "number"),
        (Job(id="1", walltime=1, cpus=-1), "number"),
        (Job(id="1", walltime=1, cpus=math.nan), "number"),
        (Job(id="1", walltime=1, memory=math.inf), "number"),
        (Job(id="1", walltime=1, gpu_memory=-1), "number"),
        (Job(id="1", walltime=1, memory_bandwidth=1e300), "number"),
        (Job(id="1", walltime=1, network_bandwidth=-0.5), "number"),
        (Job(id="1", walltime=1, requeues=-1), "number"),
        (Job(id="", walltime=1), "text"),
        (Job(id="a\nb", walltime=1), "text"),
        (Job(id="a\u202eb", walltime=1), "text"),
        (Job(id="x" * 201, walltime=1), "text"),
        (Job(id="1", walltime=1, user=""), "text"),
        (Job(id="1", walltime=1, name="\x1b[31m"), "text"),
        (Job(id="known", walltime=1), "duplicate"),
        (job("1", "1"), "self"),
        (job("1", "nobody"), "unknown_job"),
        (Job(id="1", walltime=1, after=(Dependency(relation="singleton", name=""),)), "singleton"),
        (Job(id="1", walltime=1, name="a", after=(Dependency(relation="singleton", name="b"),)), "singleton"),
        (Job(id="1", walltime=1, after=(Dependency(relation="condition", name=""),)), "text"),
    ],
)
def test_each_mistake_has_its_rule_a_sentence_and_a_next_step(asked: Job, rule: str) -> None:
    assert rules(asked, ("known",)) == [rule]
    (refusal,) = refusals(asked, SITE, NODES, ("known",))
    assert refusal.why.isprintable()
    assert refusal.why.endswith(".")
    assert refusal.step.endswith(".")
    assert len(refusal.why) < 500


def test_all_mistakes_are_told_at_once() -> None:
    asked = Job(id="known", queue="nightly", pool="gpu", preemptible=True, gpus=9, nodes=2, gpu_milli=1, cpus=-1)
    assert rules(asked, ("known",)) == [
        "duplicate", "unequal", "share", "number", "unknown_queue", "unknown_pool", "no_walltime", "whole_gpus",
        "no_checkpoints",
    ]  # fmt: skip


def test_parts_that_would_be_equal_are_named() -> None:
    (refusal,) = refusals(Job(id="1", gpus=8, nodes=3, walltime=1), SITE, NODES, ())
    assert refusal.step == "Ask 9 GPUs, or 2 nodes, or name no nodes."


def test_a_pool_that_only_the_tier_names_has_to_exist_too() -> None:
    site = Settings(pools={})
    assert [refusal.rule for refusal in refusals(GOOD, site, NODES, ())] == ["unknown_pool"]


def test_jobs_of_one_instant_may_name_each_other_in_any_order() -> None:
    jobs = [job("c", "b"), job("b", "a", "old"), job("a"), job("d")]
    admitted = Admission(SITE, NODES).admit(jobs, ("old",))
    assert [taken.id for taken in admitted.taken] == ["a", "b", "c", "d"]
    assert admitted.refused == ()


def refused(*jobs: Job, known: tuple[str, ...] = ()) -> tuple[list[str], dict[str, list[str]]]:
    admitted = Admission(SITE, NODES).admit(jobs, known)
    told = {asked.id: [refusal.rule for refusal in why] for asked, why in admitted.refused}
    return [taken.id for taken in admitted.taken], told


def test_a_cycle_is_refused_with_all_that_wait_for_it() -> None:
    jobs = (job("a", "c"), job("b", "a"), job("c", "b"), job("after", "b"), job("fine"), job("too", "fine"))
    assert refused(*jobs) == (["fine", "too"], {name: ["cycle"] for name in ("a", "b", "c", "after")})
    why = Admission(SITE, NODES).admit(jobs, ()).refused[0][1][0].why
    assert "a -> c -> b -> a" in why


def test_who_waits_for_itself_takes_its_children_along() -> None:
    assert refused(job("a", "a"), job("b", "a")) == ([], {"a": ["self"], "b": ["cycle"]})


def test_a_refused_parent_takes_its_children_along() -> None:
    bad = Job(id="bad", walltime=1, queue="nightly")
    assert refused(job("c", "b"), job("b", "bad"), bad, job("d")) == (
        ["d"], {"c": ["parent_refused"], "b": ["parent_refused"], "bad": ["unknown_queue"]},
    )  # fmt: skip


def test_the_first_of_two_with_one_id_is_the_one() -> None:
    assert refused(job("a"), Job(id="a", walltime=2), job("b", "a")) == (["a", "b"], {"a": ["duplicate"]})


def test_an_id_that_was_known_before_is_the_job_that_had_it() -> None:
    assert refused(job("x", "y"), job("y", "x"), known=("x",)) == (["y"], {"x": ["duplicate"]})


def test_a_job_without_an_id_takes_its_children_along() -> None:
    assert refused(job(""), job("b", "")) == ([], {"": ["text"], "b": ["parent_refused"]})


def test_a_long_ring_is_refused_in_few_words() -> None:
    """Longer than Python's stack is deep."""
    ring = [job(str(number), str((number + 1) % 1500)) for number in range(1500)]
    admitted = Admission(SITE, NODES).admit(ring, ())
    assert not admitted.taken
    assert len(admitted.refused) == 1500
    assert all(len(why[0].why) < 200 for _, why in admitted.refused)


def test_the_longest_run_is_the_least_of_walltime_queue_and_session() -> None:
    assert allowed(Job(id="1", walltime=5), SITE) == 5
    assert allowed(Job(id="1", tier="batch"), SITE) == 10 * HOUR
    assert allowed(Job(id="1", tier="batch", queue="free"), SITE) is None
    assert allowed(Job(id="1", tier="interactive", queue="free", walltime=9 * HOUR), SITE) == HOUR
