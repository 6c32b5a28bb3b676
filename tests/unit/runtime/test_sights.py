"""Several nodes' sights of one job: the rank that holds it up is on one of them."""

import random
from pathlib import Path

import msgspec
import pytest

from gpuguard.errors import NotUnderstood, ReadFailed
from gpuguard.model.readings import Values
from gpuguard.runtime.sights import JobSight, RankSight, Sight, joined, read, sight_of
from gpuguard.runtime.tenants import tenants
from tests.support import job_stories

JOB = "slurm/8123"


def node(name: str, *ranks: RankSight, **readings: object) -> Sight:
    values: Values = {"job_verdict": "", **readings}  # type: ignore[dict-item]
    return Sight(node=name, at=1.0, jobs=(JobSight(job=JOB, readings=values, ranks=ranks, known=True),))


def rank(number: int, **more: object) -> RankSight:
    values: Values = {"rank_progress_seconds": 90.0, "rank_limit_seconds": 38.0, "rank_step": 100, **more}  # type: ignore[dict-item]
    return RankSight(rank=number, readings=values)


def test_the_node_that_names_a_cause_is_heard_whatever_the_others_wait_for() -> None:
    sights = [
        node("n1", rank(0), rank(1), job_verdict="waiting", job_confidence=0.99),
        node("n2", rank(2), rank(3), job_verdict="hung", job_confidence=0.7, job_culprit_rank=3),
        node("n3", rank(4), job_verdict="hung", job_confidence=0.65, job_culprit_rank=4),
        node("n4", rank(5)),
    ]
    for seed in range(10):
        random.Random(seed).shuffle(sights)
        (one,) = joined(sights)
        assert (one.cause[0], one.verdict, one.culprit) == ("n2", "hung", ("n2", 3))
        assert one.ranks[0][1].rank == 3
        assert len(one.ranks) == 6


def test_where_all_wait_it_is_who_completed_fewest_collectives_then_fewest_steps() -> None:
    def waiting(*first: RankSight) -> tuple[str, int] | None:
        (one,) = joined(
            [node("n1", *first, job_verdict="waiting"), node("n2", rank(2), rank(3), job_verdict="waiting")]
        )
        return one.culprit

    assert waiting(rank(0), rank(1)) is None
    assert waiting(rank(0), rank(1, rank_step=99)) == ("n1", 1)
    counts = (rank(0, flight_completed=7, rank_step=99), rank(1, flight_completed=6))
    assert waiting(*counts) == ("n1", 1)


def test_one_node_alone_does_not_guess_who_is_behind_elsewhere() -> None:
    (one,) = joined([node("n1", rank(0), rank(1, rank_step=99), job_verdict="waiting")])
    assert one.culprit is None


def test_nothing_holds_it_up() -> None:
    (one,) = joined([node("n1", rank(0, rank_step=1)), node("n2", rank(1))])
    assert (one.verdict, one.culprit) == ("", None)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = tenants(job_stories.hung())
    sight = sight_of(found, found.jobs, node="n07", at=5.0)
    (tmp_path / "n07.json").write_bytes(msgspec.json.encode(sight))
    (tmp_path / "notes.txt").write_text("not of us")
    assert read(tmp_path) == (sight,)
    assert sight.jobs[0].ranks[3].gpu == "3"
    assert sight.attributed


@pytest.mark.parametrize("text", ["", "[]", '{"node": 1}', '{"jobs": []}', "x" * 100])
def test_a_file_that_is_something_else_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(NotUnderstood, match=r"a\.json is not what"):
        read(tmp_path)


def test_two_files_of_one_node_and_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReadFailed, match="hang --json"):
        read(tmp_path)
    with pytest.raises(ReadFailed, match="hang --json"):
        read(tmp_path / "nowhere")
    for name in "ab":
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(node("n1")))
    with pytest.raises(NotUnderstood, match=r"b\.json is of node 'n1'"):
        read(tmp_path)
