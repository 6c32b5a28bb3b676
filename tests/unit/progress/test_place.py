"""Which rank of which job: the environments that launchers and schedulers make."""

import os

import pytest

from gpuguard.progress.place import Place, find
from gpuguard.progress.wire import SOCKET, decode, encode

TORCHRUN = {
    "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "GROUP_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "n01", "MASTER_PORT": "29500",
}  # fmt: skip
STEP = {
    "SLURM_JOB_ID": "8123", "SLURM_ARRAY_JOB_ID": "8100", "SLURM_ARRAY_TASK_ID": "4", "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "4", "SLURMD_NODENAME": "n07",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "job", "rank", "world", "restart"),
    [
        pytest.param({}, None, 0, None, 0, id="nothing"),
        pytest.param(TORCHRUN, "n01-29500", 9, 16, 2, id="torchrun"),
        pytest.param({**TORCHRUN, "TORCHELASTIC_RUN_ID": "big"}, "big", 9, 16, 2, id="torchrun-named"),
        pytest.param(STEP, "slurm/8123", 1, 2, 0, id="srun"),
        pytest.param({**STEP, "SLURM_RESTART_COUNT": "1"}, "slurm/8123", 1, 2, 1, id="requeued"),
        pytest.param(
            {**STEP, **TORCHRUN, "SLURM_RESTART_COUNT": "1"}, "slurm/8123", 9, 16, 3, id="torchrun-within-srun"
        ),
        pytest.param(
            {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, "slurm/7", 0, None, 0, id="batch-script"
        ),
        pytest.param(
            {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "8"}, None, 0, 8, 0, id="step-of-old-slurm"
        ),
        pytest.param({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, None, 3, 4, 0, id="open-mpi"),
        pytest.param({**STEP, "PMI_RANK": "5", "PMI_SIZE": "6"}, "slurm/8123", 5, 6, 0, id="mpich"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "0"}, None, 0, None, 0, id="no-world"),
        pytest.param({"LOCAL_RANK": "2"}, None, 2, None, 0, id="only-local"),
        pytest.param({"POD_UID": "aa-bb", "RANK": "1", "WORLD_SIZE": "2"}, "kubernetes/aa-bb", 1, 2, 0, id="pod"),
        pytest.param(
            {**STEP, "GPUGUARD_JOB": "mine", "GPUGUARD_RANK": "7", "GPUGUARD_WORLD": "9"}, "mine", 7, 9, 0, id="said"
        ),
        pytest.param({"RANK": "", "WORLD_SIZE": "x", "OMPI_COMM_WORLD_RANK": "1"}, None, 1, None, 0, id="empty"),
        pytest.param({"RANK": "-1", "SLURM_RESTART_COUNT": "9" * 40}, None, 0, None, 0, id="no-numbers"),
    ],
)
def test_what_launchers_say(
    environ: dict[str, str], job: str | None, rank: int, world: int | None, restart: int
) -> None:
    place = find(environ)
    assert (place.job, place.rank, place.world, place.restart) == (job, rank, world, restart)


def test_what_is_given_goes_before_what_is_found() -> None:
    place = find({**STEP, **TORCHRUN}, job="own", rank=0, restart=5, socket="/run/other")
    assert (place.job, place.rank, place.restart, place.socket) == ("own", 0, 5, "/run/other")
    assert place.world is None  # sixteen was the other rank's world
    assert find(TORCHRUN, world=4).world == 4


def test_the_node_the_devices_and_the_flight_recorder() -> None:
    place = find({**STEP, "CUDA_VISIBLE_DEVICES": "", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/tmp/old_"})
    assert (place.host, place.devices, place.flight) == ("n07", "", "/tmp/old_")
    assert find({"TORCH_FR_DUMP_TEMP_FILE": "/tmp/new_", **dict.fromkeys(("x",), "")}).flight == "/tmp/new_"
    bare = find({})
    assert (bare.host, bare.devices, bare.flight, bare.socket) == (os.uname().nodename, None, None, SOCKET)


@pytest.mark.parametrize("path", ["relative_", "/" + "d" * 300])
def test_a_path_that_leads_the_agent_nowhere_is_not_told(path: str) -> None:
    assert find({"TORCH_FR_DUMP_TEMP_FILE": path}).flight is None


def test_the_socket_may_be_named_or_none_at_all() -> None:
    assert find({"GPUGUARD_SOCKET": "/run/a"}).socket == "/run/a"
    assert find({"GPUGUARD_SOCKET": ""}).socket == ""


def test_hostile_names_are_bounded_and_make_a_message() -> None:
    place = find({"GPUGUARD_JOB": "a\nb\x00" + "é" * 500, "NODE_NAME": "\x1b[2J" + "h" * 500})
    assert place.job is not None
    assert place.job.startswith("a_b_")
    assert len(place.job) == 96
    assert "\x1b" not in place.host
    assert decode(encode(place.told()))["rank"] == 0


def test_what_it_tells_names_this_process() -> None:
    told = Place(rank=1, world=2).told()
    assert told["pid"] == os.getpid()
    assert told["via"] == "library"
