"""Which rank of which job this process is, as its launcher and its scheduler wrote into the environment.

    job      GPUGUARD_JOB, SLURM_JOB_ID (of an array's task its own), POD_UID, TORCHELASTIC_RUN_ID, MASTER_ADDR with
             MASTER_PORT; the agent asks the process's cgroup first and needs none of them where a keeper started it
    rank     the first pair that is there: GPUGUARD_RANK and GPUGUARD_WORLD, RANK and WORLD_SIZE (torchrun, Kubernetes'
             operators), OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), PMI_RANK and PMI_SIZE (MPICH and what descends from
             it), SLURM_PROCID and SLURM_STEP_NUM_TASKS; LOCAL_RANK; else 0
    restart  how often torchrun and Slurm together started it anew: TORCHELASTIC_RESTART_COUNT + SLURM_RESTART_COUNT

Source  torch/distributed/elastic/agent/server/local_elastic_agent.py; srun(1) and sbatch(1), output environment
        variables; docs of PyTorch, torch_nccl_environment_variables, and FlightRecorder for the dump's place
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .wire import SOCKET, SOCKET_VARIABLE, VERSION

# The launcher that is nearest to the process comes first: within a Slurm step torchrun may start eight of them.
RANKS = (
    ("GPUGUARD_RANK", "GPUGUARD_WORLD"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
# The newer name first; PyTorch appends the rank's number.
FLIGHT = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
NODES = ("SLURMD_NODENAME", "NODE_NAME")
JOB_LIMIT, HOST_LIMIT, PATH_LIMIT = 96, 64, 200  # characters


@dataclass(frozen=True)
class Place:
    """What does not change while this process reports. `socket` is empty where it is to report to nobody."""

    rank: int
    world: int | None = None
    restart: int = 0
    job: str | None = None
    host: str = ""
    devices: str | None = None
    flight: str | None = None
    socket: str = SOCKET

    def told(self) -> dict[str, object]:
        """The part of a message that is always the same."""
        return {
            "v": VERSION, "rank": self.rank, "world": self.world, "restart": self.restart, "job": self.job,
            "host": self.host, "pid": os.getpid(), "devices": self.devices, "flight": self.flight, "via": "library",
        }  # fmt: skip


def find(
    environ: Mapping[str, str],
    *,
    job: str | None = None,
    rank: int | None = None,
    world: int | None = None,
    restart: int | None = None,
    socket: str | None = None,
) -> Place:
    """Where this process stands; what is given goes before what is found."""
    found_rank, found_world = _rank(environ)
    if restart is None:
        restart = sum(_number(environ, name) or 0 for name in RESTARTS)
    flight = next((environ[name] for name in FLIGHT if environ.get(name)), None)
    return Place(
        # The size of somebody else's world says nothing of a rank that was given.
        rank=found_rank if rank is None else rank,
        world=(world if world is not None or rank is not None else found_world) or None,
        restart=restart,
        job=_clean(job or _job(environ), JOB_LIMIT) or None,
        host=_clean(next((environ[name] for name in NODES if environ.get(name)), os.uname().nodename), HOST_LIMIT),
        devices=environ.get("CUDA_VISIBLE_DEVICES"),
        # A path that was cut off leads elsewhere; one that depends on the working directory leads the agent nowhere.
        flight=flight if flight is not None and flight.startswith("/") and len(flight) <= PATH_LIMIT else None,
        socket=environ.get(SOCKET_VARIABLE, SOCKET) if socket is None else socket,
    )


def _rank(environ: Mapping[str, str]) -> tuple[int, int | None]:
    for name, size in RANKS:
        rank = _number(environ, name)
        if rank is not None:
            world = _number(environ, size)
            if world is None and name == "SLURM_PROCID" and "SLURM_STEP_ID" in environ:
                # Beyond a step, in a batch script, this counts what the script may start, not what runs.
                world = _number(environ, "SLURM_NTASKS")
            return rank, world
    return _number(environ, "LOCAL_RANK") or 0, None


def _job(environ: Mapping[str, str]) -> str:
    if environ.get("GPUGUARD_JOB"):
        return environ["GPUGUARD_JOB"]
    if environ.get("SLURM_JOB_ID"):
        return f"slurm/{environ['SLURM_JOB_ID']}"
    if environ.get("POD_UID"):
        return f"kubernetes/{environ['POD_UID']}"
    run = environ.get("TORCHELASTIC_RUN_ID", "none")
    if run not in ("", "none"):  # `none` is torchrun's word for not being told one
        return run
    if environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
        return f"{environ['MASTER_ADDR']}-{environ['MASTER_PORT']}"
    return ""


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _clean(text: str, limit: int) -> str:
    return "".join(c if c.isprintable() else "_" for c in text[:limit])
