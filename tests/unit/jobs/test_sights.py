"""What a node saw, from its rows and through a file."""

import json

import msgspec
import pytest

from gpuguard.errors import NotUnderstood
from gpuguard.jobs.sights import LARGEST, JobSight, NodeSight, RankSight, read_sight, read_sights, sight_of
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Values
from tests.support.flights import flight

AT = Instant(boot=BootId("b1"), mono=500.0, utc=1_700_000_000.0)
ROWS: dict[SubjectId, Values] = {
    SubjectId("job:slurm/8123"): {
        "job_name": "llama", "job_world": 16, "job_verdict": "hung", "job_confidence": 0.9, "job_culprit_rank": 3,
        "job_culprit_gpu": "gpu:0000:4e:00.0", "job_why": "rank 3 does nothing", "job_ended": 0,
        "job_signals_for": "7 of 8 spin; rank 3 is idle", "job_signals_against": "",
    },
    SubjectId("rank:slurm/8123/3"): {
        "rank_number": 3, "rank_world": 16, "rank_pid": 77, "rank_host": "node-a", "rank_step": 120,
        "rank_phase": "step", "rank_progress_seconds": 90.0, "rank_limit_seconds": 30.0, "rank_done": 0, "rank_gone": 0,
        "rank_gpu": "gpu:0000:4e:00.0", "rank_still_seconds": 80.0, "flight_age_seconds": 12.0,
        "flight_groups": msgspec.json.encode(flight(9, 8)).decode(), "flight_waits_in": "all_reduce number 9",
    },
    SubjectId("rank:slurm/8123/2"): {"rank_number": 2, "rank_step": None, "rank_gone": 1},
    SubjectId("task:77"): {"task_state": "S"},
    SubjectId("gpu:0000:4e:00.0"): {"gpu_pattern": "idle", "gpu_pattern_words": "SM 0 %"},
}  # fmt: skip


def test_the_rows_of_a_node() -> None:
    sight = sight_of(ROWS, node="node-a", at=AT)
    assert (sight.node, sight.at, sight.boot, sight.version) == ("node-a", 1_700_000_000.0, "b1", 1)
    (job,) = sight.jobs
    assert msgspec.structs.replace(job, ranks=()) == JobSight(
        job="slurm/8123", name="llama", world=16, verdict="hung", confidence=0.9, rank=3, gpu="gpu:0000:4e:00.0",
        why="rank 3 does nothing", speaks_for=("7 of 8 spin", "rank 3 is idle"),
    )  # fmt: skip
    assert job.ranks == (
        RankSight(number=2, gone=True),
        RankSight(
            number=3, host="node-a", pid=77, step=120, phase="step", silent=90.0, limit=30.0, state="S", still=80.0,
            gpu="gpu:0000:4e:00.0", pattern="idle", words="SM 0 %", waits_in="all_reduce number 9", flight=flight(9, 8),
            flight_age=12.0,
        ),
    )  # fmt: skip


def test_it_survives_its_file() -> None:
    sight = sight_of(ROWS, node="node-a", at=AT)
    assert read_sight("a.json", msgspec.json.encode(sight)) == sight
    assert sight_of(dict(reversed(ROWS.items())), node="node-a", at=AT) == sight


def test_ranks_without_a_row_of_their_job_and_a_job_without_ranks() -> None:
    rows: dict[SubjectId, Values] = {
        SubjectId("rank:claimed/1000-x/0"): {"rank_number": 0, "rank_world": 2},
        SubjectId("rank:claimed/1000-x/1"): {"rank_number": None}, SubjectId("job:slurm/9"): {"job_verdict": ""},
        SubjectId("node"): {"jobs_here": 2},
    }  # fmt: skip
    assert sight_of(rows, node="n", at=AT).jobs == (
        JobSight(job="claimed/1000-x", world=2, ranks=(RankSight(number=0),)), JobSight(job="slurm/9"),
    )  # fmt: skip


@pytest.mark.parametrize(("column", "state"), [("task_state", "Z"), ("task_state", "X"), ("task_gone", 1)])
def test_a_process_that_is_dead_is_gone(column: str, state: str | int) -> None:
    rows: dict[SubjectId, Values] = {
        SubjectId("rank:slurm/1/0"): {"rank_number": 0, "rank_pid": 5}, SubjectId("task:5"): {column: state},
    }  # fmt: skip
    assert sight_of(rows, node="n", at=AT).jobs[0].ranks[0].gone


def test_groups_of_another_version_are_left_out() -> None:
    rows: dict[SubjectId, Values] = {SubjectId("rank:slurm/1/0"): {"rank_number": 0, "flight_groups": "{"}}
    assert sight_of(rows, node="n", at=AT).jobs[0].ranks[0].flight is None


def test_a_moment_without_a_date_makes_no_sight() -> None:
    with pytest.raises(NotUnderstood, match="clock"):
        sight_of({}, node="n", at=Instant(boot=BootId("b"), mono=1.0))


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"node":"a"}', b'{"node":"a","at":"x"}', b'{"node":"","at":1.0}',
     b'{"node":"a","at":1.0,"version":2}', b'{"node":"a","at":1.0,"jobs":[{"job":"x","verdict":"boom"}]}',
     b'{"a":' * 5000, b"\xff\xfe"],
)  # fmt: skip
def test_files_that_are_no_sight_name_the_next_step_and_the_rest_is_read(text: bytes) -> None:
    good = NodeSight(node="b", at=1.0)
    sights, wrong = read_sights({"bad.json": text, "good.json": msgspec.json.encode(good)})
    assert sights == (good,)
    assert len(wrong) == 1
    assert wrong[0].startswith("bad.json: ")
    assert "gpuguard hang --json" in wrong[0]


def test_a_file_that_is_too_large_is_not_decoded() -> None:
    with pytest.raises(NotUnderstood, match="at most"):
        read_sight("x", b" " * (LARGEST + 1))


def test_keys_of_a_later_version_do_no_harm() -> None:
    text = json.dumps({"node": "a", "at": 1.0, "more": {"x": 1}}).encode()
    assert read_sight("x", text) == NodeSight(node="a", at=1.0)
