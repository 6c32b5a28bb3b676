"""What a node saw, from its rows and through a file."""

import json

import msgspec
import pytest

from gpuguard.errors import NotUnderstood
from gpuguard.jobs.sights import LARGEST, JobSight, NodeSight, RankSight, read_sight, sight_of
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Values
from tests.support.flights import flight

AT = Instant(boot=BootId("b1"), mono=500.0, utc=1_700_000_000.0)
ROWS: dict[SubjectId, Values] = {
    SubjectId("job:slurm/8123"): {
        "job_name": "llama", "job_world": 16, "job_verdict": "hung", "job_confidence": 0.9, "job_culprit_rank": 3,
        "job_user": "mia", "job_gpu_activity_ratio": 0.5, "job_progress_seconds": 90.0,
        "job_culprit_gpu": "gpu:0000:4e:00.0", "job_why": "rank 3 does nothing", "job_ended": 0,
        "job_signals_for": "7 of 8 spin; gpu:0000:4e:00.0 is idle", "job_signals_against": "",
    },
    SubjectId("rank:slurm/8123/3"): {
        "rank_number": 3, "rank_world": 16, "rank_pid": 77, "rank_host": "node-a", "rank_step": 120,
        "rank_phase": "step", "rank_progress_seconds": 90.0, "rank_limit_seconds": 30.0, "rank_done": 0, "rank_gone": 0,
        "rank_behind_steps": 1, "rank_gpu": "gpu:0000:4e:00.0", "rank_still_seconds": 80.0, "flight_age_seconds": 12.0,
        "flight_groups": msgspec.json.encode(flight(9, 8)).decode(), "flight_waits_in": "all_reduce number 9",
    },
    SubjectId("rank:slurm/8123/2"): {"rank_number": 2, "rank_step": None, "rank_gone": 1},
    SubjectId("task:77"): {"task_state": "S"},
    SubjectId("gpu:0000:4e:00.0"): {"gpu_pattern": "idle", "gpu_pattern_words": "SM 0 %", "utilization_ratio": 0.25},
}  # fmt: skip


def test_the_rows_of_a_node() -> None:
    sight = sight_of(ROWS, node="node-a", at=AT, called={"gpu:0000:4e:00.0": "4"})
    assert (sight.node, sight.at, sight.boot, sight.version) == ("node-a", 1_700_000_000.0, "b1", 1)
    (job,) = sight.jobs
    assert msgspec.structs.replace(job, ranks=()) == JobSight(
        job="slurm/8123", name="llama", user="mia", world=16, activity=0.5, silent=90.0,
        verdict="hung", confidence=0.9, rank=3, gpu="gpu:0000:4e:00.0",
        why="rank 3 does nothing", speaks_for=("7 of 8 spin", "GPU 4 is idle"),
    )  # fmt: skip
    assert job.ranks == (
        RankSight(number=2, gone=True),
        RankSight(
            number=3, host="node-a", pid=77, step=120, behind=1, phase="step", silent=90.0, limit=30.0, state="S",
            still=80.0, gpu="gpu:0000:4e:00.0", called="4", activity=0.25, pattern="idle", words="SM 0 %",
            waits_in="all_reduce number 9", flight=flight(9, 8), flight_age=12.0,
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


def test_jobs_that_are_wanted_are_those_also_without_a_row() -> None:
    gpu = SubjectId("gpu:0000:4e:00.0")
    sight = sight_of(ROWS, node="n", at=AT, called={gpu: "4"}, held={"slurm/9": (gpu,)}, attributed=False)
    assert sight == NodeSight(
        node="n", at=AT.utc or 0.0, boot="b1", jobs=(JobSight(job="slurm/9", gpus=("4",)),), attributed=False
    )
    (one,) = sight_of(ROWS, node="n", at=AT, held={"slurm/8123": ()}).jobs
    assert [rank.number for rank in one.ranks] == [2, 3]


@pytest.mark.parametrize(
    ("silent", "limit", "share"),
    [(90.0, 30.0, 3.0), (0.0, 30.0, 0.0), (None, 30.0, None), (9.0, None, None), (9.0, 0.0, None)],
)
def test_how_much_of_its_limit_a_rank_was_silent(
    silent: float | None, limit: float | None, share: float | None
) -> None:  # fmt: skip
    assert RankSight(number=0, silent=silent, limit=limit).share == share


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
     b'{"node":"a","at":1.0,"version":2}', b'{"node":"a","at":1.0,"jobs":[{"job":"x","world":1' + b"0" * 5000 + b"}]}",
     b'{"node":"a","at":1.0,"jobs":[{"job":"x","verdict":"boom"}]}',
     b'{"a":' * 5000, b"\xff\xfe"],
)  # fmt: skip
def test_a_file_that_is_no_sight_is_named_with_the_next_step(text: bytes) -> None:
    with pytest.raises(NotUnderstood, match=r"(?s)^bad\.json: .*gpuguard hang --json"):
        read_sight("bad.json", text)


def test_a_file_that_is_too_large_is_not_decoded() -> None:
    with pytest.raises(NotUnderstood, match="at most"):
        read_sight("x", b" " * (LARGEST + 1))


def test_keys_of_a_later_version_do_no_harm() -> None:
    text = json.dumps({"node": "a", "at": 1.0, "more": {"x": 1}}).encode()
    assert read_sight("x", text) == NodeSight(node="a", at=1.0)
