"""Whose a GPU is, who was left over on it, and who should not be there."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from gpuguard.jobs.patrol import Holder, gpu_columns
from gpuguard.model.ids import JobId
from gpuguard.model.jobs import JOB_QUANTITIES
from gpuguard.model.readings import Value, Values, plausible

GIB = 2**30
A, B, SHELL = JobId("slurm/8123"), JobId("slurm/8124"), JobId("systemd/session-4.scope")


def columns(
    *processes: Holder,
    gpu: Mapping[str, Value] | None = None,
    alive: Mapping[JobId, bool | None] | None = None,
    given: Mapping[JobId, Collection[int] | None] | None = None,
    **more: Any,  # Any: the settings of the function under test
) -> Values:
    row = {"gpu_index": 3, "gpu_minor": 3, "mig_mode": 0, "process_count": len(processes), **(gpu or {})}
    asked = {"scheduler_known": True, "sees_all": True, **more}
    return gpu_columns(row, processes, {A: True, B: True} if alive is None else alive, given or {}, **asked)


def holder(pid: int = 4711, job: JobId | None = A, **more: Any) -> Holder:  # Any: fields of Holder
    return Holder(pid=pid, started=812.5, job=job, name="python3", uid=1000, **{"bytes": 20 * GIB, **more})


def test_a_job_at_work_is_neither_orphan_nor_stranger() -> None:
    told = columns(holder(), holder(4712), given={A: (3,)})
    assert told == {
        "gpu_job": "slurm/8123", "gpu_jobs": 1, "gpu_mps": 0, "gpu_orphan_bytes": 0, "gpu_orphans": "",
        "gpu_strangers": "", "gpu_unowned_processes": 0,
    }  # fmt: skip


def test_a_gpu_without_processes_is_nobodys() -> None:
    told = columns(gpu={"memory_used_bytes": 3 * 2**20, "utilization_ratio": 0.0})
    assert (told["gpu_job"], told["gpu_jobs"], told["gpu_orphan_bytes"]) == ("", 0, 0)


def test_where_processes_cannot_be_listed_nothing_is_known() -> None:
    told = gpu_columns({}, None, {}, {}, scheduler_known=True, sees_all=True)
    assert set(told.values()) == {None}
    assert "gpu_unowned_processes" in told
    assert "gpu_unowned_processes" not in gpu_columns({}, None, {}, {}, scheduler_known=False, sees_all=True)


# --- orphans ---------------------------------------------------------------------------------------------------------


def test_the_dead_leave_orphans() -> None:
    told = columns(holder(gone=True), holder(4712, gone=True, bytes=None), holder(4713))
    assert (told["gpu_orphan_bytes"], told["gpu_orphans"]) == (20 * GIB, "4711/812.50,4712/812.50")
    assert told["gpu_jobs"] == 1


def test_a_process_of_a_job_that_is_over_is_an_orphan_and_no_job() -> None:
    told = columns(holder(), holder(9, B), alive={A: False, B: True})
    assert (told["gpu_orphans"], told["gpu_job"], told["gpu_unowned_processes"]) == ("4711/812.50", "slurm/8124", 0)


@pytest.mark.parametrize("alive", [{}, {A: None}, {A: True}])
def test_of_a_job_that_may_live_nothing_is_an_orphan(alive: dict[JobId, bool | None]) -> None:
    assert columns(holder(), alive=alive)["gpu_orphan_bytes"] == 0


def test_only_a_scheduler_knows_that_a_job_is_over() -> None:
    claimed = JobId("claimed/1000-run")
    assert columns(holder(job=claimed), alive={claimed: False})["gpu_orphan_bytes"] == 0


def test_in_a_container_the_processes_of_others_are_not_dead() -> None:
    told = columns(holder(gone=True, known=False, job=None), sees_all=False)
    assert (told["gpu_orphan_bytes"], told["gpu_orphans"]) == (0, "")
    assert (told["gpu_job"], told["gpu_jobs"], told["gpu_unowned_processes"]) == (None, None, None)


def test_an_orphan_without_a_size_makes_the_size_unknown_and_not_zero() -> None:
    assert columns(holder(gone=True, bytes=None))["gpu_orphan_bytes"] is None


def test_an_orphan_that_was_never_seen_alive_has_no_start() -> None:
    assert columns(Holder(pid=5, gone=True, bytes=1.0))["gpu_orphans"] == "5/?"


IDLE: dict[str, Value] = {"memory_used_bytes": 20 * GIB, "utilization_ratio": 0.0, "process_count": 0}


def test_memory_that_no_process_holds_is_an_orphan_without_a_pid() -> None:
    told = columns(gpu=IDLE)
    assert (told["gpu_orphan_bytes"], told["gpu_orphans"]) == (20 * GIB, "")


@pytest.mark.parametrize(
    ("changed", "sees_all"),
    [
        ({}, False),  # the processes of other containers are not listed
        ({"utilization_ratio": 0.3}, True),  # somebody works
        ({"utilization_ratio": None}, True),
        ({"process_count": 1}, True),  # listed, and not shown to us
        ({"process_count": None}, True),
        ({"mig_mode": 1}, True),  # instances have processes of their own
        ({"memory_used_bytes": GIB // 2}, True),  # what the driver takes
        ({"memory_used_bytes": None}, True),
    ],
)
def test_memory_of_which_nobody_can_tell_is_no_orphan(changed: dict[str, Value], sees_all: bool) -> None:
    assert columns(gpu={**IDLE, **changed}, sees_all=sees_all)["gpu_orphan_bytes"] == 0


# --- strangers -------------------------------------------------------------------------------------------------------


def test_whoever_has_no_job_is_a_stranger() -> None:
    told = columns(holder(job=None), holder(4712, SHELL))
    assert told["gpu_unowned_processes"] == 2
    assert told["gpu_strangers"] == (
        "4711 (python3) of uid 1000, of no job; "
        "4712 (python3) of uid 1000, of systemd/session-4.scope, which no scheduler started"
    )


def test_without_a_scheduler_nobody_is_a_stranger() -> None:
    told = columns(holder(job=None), scheduler_known=False)
    assert "gpu_unowned_processes" not in told
    assert "gpu_strangers" not in told


def test_a_process_that_nobody_could_look_at_is_no_stranger() -> None:
    told = columns(holder(job=None, known=False))
    assert (told["gpu_unowned_processes"], told["gpu_strangers"], told["gpu_jobs"]) == (None, "", None)
    assert columns(holder(job=None, known=False), holder(9, None))["gpu_unowned_processes"] == 1


def test_a_job_on_the_gpu_of_another_is_a_stranger() -> None:
    told = columns(holder(), holder(9, B), given={A: (3,), B: (0, 1)})
    assert told["gpu_strangers"] == "9 (python3) of uid 1000, of slurm/8124, which was given GPU 0 1"
    assert told["gpu_unowned_processes"] == 1
    assert "no GPU" in str(columns(holder(), given={A: ()})["gpu_strangers"])


@pytest.mark.parametrize(
    ("gpu", "given"),
    [
        ({}, {}), ({}, {A: None}),  # nobody told
        ({"gpu_index": 5}, {A: (3,)}), ({"gpu_minor": 5}, {A: (3,)}),  # one of the two numbers fits
        ({"gpu_index": None, "gpu_minor": None}, {A: (0,)}),
        ({"mig_mode": 1}, {A: (0,)}),  # instances are counted
    ],
)  # fmt: skip
def test_a_job_that_may_have_been_given_it_is_no_stranger(
    gpu: dict[str, Value], given: dict[JobId, Collection[int] | None]
) -> None:
    assert columns(holder(), gpu=gpu, given=given)["gpu_unowned_processes"] == 0


@pytest.mark.parametrize(
    "service",
    [
        Holder(pid=1, name="nv-hostengine", uid=0), Holder(pid=1, name="nvidia-persiste", uid=997),
        Holder(pid=1, name="Xorg", uid=1000, kind="graphics"), Holder(pid=1, name="dcgm-exporter", uid=None),
        Holder(pid=1, name="nvidia-cuda-mps", uid=1000), Holder(pid=1, name="triton", uid=1000),
        Holder(pid=1, name="python3", uid=1000, job=JobId("systemd/embedder.service")),
    ],
)  # fmt: skip
def test_services_are_no_strangers(service: Holder) -> None:
    told = columns(service, services=("triton", "embedder.service"))
    assert (told["gpu_unowned_processes"], told["gpu_jobs"], told["gpu_job"]) == (0, 0, "")


def test_a_name_that_anybody_can_take_makes_no_service() -> None:
    assert columns(Holder(pid=1, name="nv-hostengine", uid=1000))["gpu_unowned_processes"] == 1


# --- sharing, and all of it ------------------------------------------------------------------------------------------


def test_two_jobs_are_two_and_mps_is_told() -> None:
    told = columns(holder(), holder(9, B), Holder(pid=2, name="nvidia-cuda-mps-server", uid=1000))
    assert (told["gpu_job"], told["gpu_jobs"], told["gpu_mps"]) == ("slurm/8123,slurm/8124", 2, 1)
    assert columns(holder(kind="mps"))["gpu_mps"] == 1


def test_names_cannot_break_the_line_nor_grow_it() -> None:
    evil = [Holder(pid=pid, name="a\n; gpu\x00" * 9, uid=1000, bytes=1.0) for pid in range(500)]
    told = columns(*evil)
    assert told["gpu_unowned_processes"] == 500
    assert str(told["gpu_strangers"]).isprintable()
    assert len(str(told["gpu_strangers"])) < 2000
    assert str(told["gpu_strangers"]).endswith("; and 484 more")


def test_every_column_is_declared_and_can_be() -> None:
    known = {quantity.name: quantity for quantity in JOB_QUANTITIES}
    for told in (columns(holder(gone=True), holder(9, B), holder(10, None)), columns(gpu=IDLE)):
        for name, value in told.items():
            assert known[name].of == "gpu"
            assert plausible(known[name], value)


@pytest.mark.parametrize("name", ["all_reduce_perf", "nvvs"])
def test_a_test_that_slurms_own_prolog_runs_is_no_stranger(name: str) -> None:
    unit = JobId("systemd/slurmd.service")
    tests = Holder(pid=9, started=1.0, job=unit, name=name, uid=0, bytes=GIB)
    assert columns(tests)["gpu_unowned_processes"] == 0
    mine = Holder(pid=9, started=1.0, job=unit, name=name, uid=1000, bytes=GIB)
    assert columns(mine)["gpu_unowned_processes"] == 1
