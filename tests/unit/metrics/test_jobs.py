"""What Prometheus sees of jobs: bounded, whoever names them; nothing where nobody knows."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from gpuguard.metrics import jobs, readings
from gpuguard.metrics._rows import JOBS_SHOWN
from gpuguard.model.health import Snapshot
from gpuguard.runtime.exposition import exposition
from tests.support import job_stories
from tests.support.job_stories import GIB, HOSTILE, JOB, PCI, job, snapshot

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def shown(of: Snapshot) -> Samples:
    """Every series of jobs as Prometheus reads it, by name and labels."""
    text = exposition([*jobs.families(of), *readings.families(of)]).decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {})
            assert len(labels) <= 6
            found[sample.name][labels] = sample.value
    return found


def test_a_job_that_hangs() -> None:
    told = shown(job_stories.hung())
    of_job, in_phase = ("job_id", JOB), ("phase", "step")
    assert told["gpuguard_job_progress_seconds"] == {(of_job, in_phase): 95.0}
    assert told["gpuguard_job_progress_limit_seconds"] == {(of_job, in_phase): 38.0}
    assert told["gpuguard_job_verdict"] == {(of_job, ("verdict", "hung")): 1.0}
    assert told["gpuguard_job_step"] == {(of_job,): 120_344.0}
    assert told["gpuguard_job_gpus_held"] == {(of_job,): 8.0}
    assert told["gpuguard_jobs_not_shown"] == {(): 0.0}
    assert told["gpuguard_progress_known_ratio"] == {(): 1.0}
    assert len(told["gpuguard_gpu_allocation_info"]) == 8
    first = dict(min(told["gpuguard_gpu_allocation_info"], key=lambda labels: dict(labels)["gpu"]))
    assert {key: first[key] for key in ("job_id", "user", "name")} == {
        "job_id": JOB,
        "user": "mia",
        "name": "llama-70b",
    }


def test_while_nothing_holds_it_up_there_is_no_verdict_and_zeros_are_told_for_the_node_alone() -> None:
    told = shown(job_stories.trains())
    assert "gpuguard_job_verdict" not in told
    assert (told["gpuguard_orphan_bytes"], told["gpuguard_unowned_processes"]) == ({(): 0.0}, {(): 0.0})
    assert not {"gpuguard_gpu_orphan_bytes", "gpuguard_gpu_unowned_processes"} & told.keys()


def test_what_nobody_owns_is_told_of_its_gpu() -> None:
    told = shown(job_stories.leftovers())
    assert told["gpuguard_orphan_bytes"] == {(): 70.0 * GIB}
    ((labels, value),) = told["gpuguard_gpu_orphan_bytes"].items()
    assert (dict(labels)["gpu"], value) == (PCI[2], 70.0 * GIB)
    ((labels, value),) = told["gpuguard_gpu_unowned_processes"].items()
    assert (dict(labels)["gpu"], value) == (PCI[3], 1.0)
    shared = [
        dict(labels)["job_id"] for labels in told["gpuguard_gpu_allocation_info"] if dict(labels)["gpu"] == PCI[5]
    ]
    assert shared == ["slurm/1", "slurm/2"]


def test_what_is_not_known_has_no_series() -> None:
    told = shown(job_stories.untold())
    assert not {name for name in told if "progress" in name or name == "gpuguard_job_step"} - {
        "gpuguard_progress_known_ratio"
    }
    assert not {name for name in shown(job_stories.unattributed()) if "job" in name or "orphan" in name}


def test_no_more_jobs_have_series_than_may_and_the_rest_is_counted() -> None:
    rows = {}
    for number in range(200):
        held = 1 if number in (7, 150) else 0
        rows |= job(f"claimed/1000-{number}", job_gpus_held=held, job_seen_seconds=1000.0 - number, job_gpus="")
    rows |= job("slurm/over", job_gpus_held=8, job_ended=1)
    told = shown(snapshot(rows))
    names = [dict(labels)["job_id"] for labels in told["gpuguard_job_gpus_held"]]
    assert names[:3] == ["claimed/1000-150", "claimed/1000-7", "claimed/1000-199"]
    assert len(names) == len(told["gpuguard_job_progress_seconds"]) == JOBS_SHOWN
    assert told["gpuguard_jobs_not_shown"] == {(): 200.0 - JOBS_SHOWN}


def test_no_name_breaks_the_page_or_makes_series_without_end() -> None:
    told = shown(job_stories.hostile())
    (labels,) = told["gpuguard_job_progress_seconds"]
    assert dict(labels)["phase"] == "other"
    odd = {**job("a" * 500 + "1"), **job("a" * 500 + "2"), **job(HOSTILE)}
    told = shown(snapshot(odd))
    names = [dict(labels)["job_id"] for labels in told["gpuguard_job_gpus_held"]]
    assert len(names) == 2
    assert all(len(name) <= 112 and name.isascii() and name.isprintable() for name in names)
    assert told["gpuguard_jobs_not_shown"] == {(): 1.0}
    unknown = msgspec.structs.replace(job_stories.hung())
    row = unknown.readings[next(name for name in unknown.readings if name.startswith("job:"))]
    row["jobs/fast"].values["job_verdict"] = "cursed"
    assert "gpuguard_job_verdict" not in shown(unknown)
