"""Whose a GPU is, and what on it is nobody's: what follows for the GPU from the processes on it.

Theory. A process is one of four things. Of a job of a scheduler that may be there: rightful. Left over (an orphan): it
is dead and the driver still lists its memory, or its job is over. A stranger: no scheduler's job is behind it, or one
that was given other GPUs. Or a service of the machine, which is none of these. What is not known makes nobody an
orphan or a stranger: a process whose cgroup could not be read, a job that its scheduler does not tell of, a process
without a size.

A process that this machine does not have is dead only where whoever looks sees all processes: within a container,
without the host's process ids, every process of the others would seem to be dead, and the driver lists none of them
(NVIDIA/nvidia-docker issue 179). The same holds for memory that is in use while the driver lists no process.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpuguard.jobs.wording import clean
from gpuguard.model.ids import JobId
from gpuguard.model.jobs import SCHEDULERS, keeper_of
from gpuguard.model.readings import Value, Values

# A process' name as the kernel keeps it.
NAME_LENGTH = 15
# Services of the GPU stack and of the screen. Anybody can take such a name, so only a user of the system is believed.
SERVICES = (
    "nvidia-persistenced", "nv-hostengine", "dcgm-exporter", "nvidia-fabricmanager", "nv-fabricmanager", "nvsm_core",
    "nvvs", "Xorg", "X", "Xwayland", "gnome-shell", "gdm-x-session", "kwin_x11", "kwin_wayland", "gpuguard",
)  # fmt: skip
# What these start as the system's own user is theirs: Slurm's prolog, epilog and health check test GPUs for minutes.
UNITS = ("slurmd.service",)
# These run as whoever uses them.
UNIT_JOBS = frozenset(f"systemd/{name}" for name in UNITS)
MPS = ("nvidia-cuda-mps-server", "nvidia-cuda-mps-control")
# Users below this belong to the system (login.defs, UID_MIN).
FIRST_USER = 1000
# Memory that is in use while no process is: the driver itself takes less.
UNLISTED_BYTES = 2**30
TOLD = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process on a GPU.

    `known` says whether anybody could tell whose it is; then `job` None means that no keeper started it. `started` is
    in seconds since boot. `gone` says that there is no such process, or that it is a zombie. `bytes` is what it holds,
    `kind` compute, graphics or mps, `instance` the MIG instance it is in.
    """

    pid: int
    started: float | None = None
    job: JobId | None = None
    known: bool = True
    gone: bool = False
    bytes: float | None = None
    kind: str = "compute"
    name: str = ""
    uid: int | None = None
    instance: int | None = None


def gpu_columns(
    gpu: Mapping[str, Value],
    processes: Sequence[Holder] | None,
    jobs_alive: Mapping[JobId, bool | None],
    given: Mapping[JobId, Collection[int] | None],
    *,
    scheduler_known: bool,
    sees_all: bool,
    services: Collection[str] = (),
    keepers: Collection[str] = SCHEDULERS,
) -> Values:
    """Columns of the GPU: gpu_job, gpu_jobs, gpu_mps, gpu_orphan_bytes, gpu_orphans and, where a scheduler tells of its
    jobs, gpu_strangers and gpu_unowned_processes.

    `gpu` is its row; `processes` those on it, None where nobody could list them. `jobs_alive` is what schedulers say of
    their jobs, `given` the numbers of the GPUs that each was given: no number for a job without GPUs, None for one of
    which that is not told. `sees_all` says that processes of all containers are seen here: true as soon as any process
    that the driver lists was found in /proc. `services` are more names of processes, or of the units or containers they
    run in, that may be there; `keepers` those whose jobs a GPU may belong to.
    """
    if processes is None:
        names: tuple[str, ...] = ("gpu_job", "gpu_jobs", "gpu_mps", "gpu_orphan_bytes", "gpu_orphans")
        return dict.fromkeys((*names, "gpu_strangers", "gpu_unowned_processes") if scheduler_known else names)
    over = [p for p in processes if _is_over(p, jobs_alive, keepers, sees_all)]
    left = {p.pid for p in over}
    living = [p for p in processes if p.pid not in left and not p.gone and not _is_service(p, services)]
    jobs = sorted({p.job for p in living if p.known and p.job is not None})
    untold = any(not p.known for p in living) or (not sees_all and any(p.gone for p in processes))
    told: Values = {
        "gpu_job": None if untold and not jobs else ",".join(jobs[:TOLD]),
        "gpu_jobs": None if untold and not jobs else len(jobs),
        "gpu_mps": int(any(p.kind == "mps" or _is_called(p.name, MPS) for p in processes if p.pid not in left)),
        "gpu_orphan_bytes": _orphan_bytes(gpu, processes, over, sees_all),
        "gpu_orphans": ",".join(f"{p.pid}/{_start(p)}" for p in over[:TOLD]),
    }
    if scheduler_known:
        strangers = [(p, why) for p in living if (why := _why_strange(gpu, p, given, keepers))]
        more = f"; and {len(strangers) - TOLD} more" if len(strangers) > TOLD else ""
        told["gpu_strangers"] = "; ".join(_words(p, why) for p, why in strangers[:TOLD]) + more
        told["gpu_unowned_processes"] = None if untold and not strangers else len(strangers)
    return told


def _is_over(
    process: Holder, jobs_alive: Mapping[JobId, bool | None], keepers: Collection[str], sees_all: bool
) -> bool:
    if process.gone:
        return sees_all
    job = process.job if process.known else None
    return job is not None and keeper_of(job) in keepers and jobs_alive.get(job) is False


def _orphan_bytes(
    gpu: Mapping[str, Value], processes: Sequence[Holder], over: Sequence[Holder], sees_all: bool
) -> float | None:
    """What those hold; of nobody at all, what is in use on a GPU that does nothing. Unknown where no size is known."""
    if over:
        sizes = [p.bytes for p in over if p.bytes is not None]
        return sum(sizes) if sizes else None
    used = gpu.get("memory_used_bytes")
    if processes or not sees_all or gpu.get("mig_mode") == 1 or not isinstance(used, int | float):
        return 0
    # A GPU that works has somebody, though the driver does not list him.
    idle = gpu.get("utilization_ratio") == 0 and gpu.get("process_count") == 0
    return used if idle and used > UNLISTED_BYTES else 0


def _start(process: Holder) -> str:
    return "?" if process.started is None else f"{process.started:.2f}"


def _is_called(name: str, names: Collection[str]) -> bool:
    return bool(name) and name[:NAME_LENGTH] in {one[:NAME_LENGTH] for one in names}


def _is_service(process: Holder, services: Collection[str]) -> bool:
    if process.kind == "graphics" or _is_called(process.name, MPS) or _is_called(process.name, services):
        return True
    if process.job is not None and process.job.partition("/")[2] in services:
        return True
    own = process.uid is None or process.uid < FIRST_USER
    if process.uid is not None and own and process.job is not None and process.job in UNIT_JOBS:
        return True
    return own and _is_called(process.name, SERVICES)


def _why_strange(
    gpu: Mapping[str, Value], process: Holder, given: Mapping[JobId, Collection[int] | None], keepers: Collection[str]
) -> str:
    """Why it should not be there; '' where it may, or where nobody knows."""
    if not process.known:
        return ""
    if process.job is None:
        return "of no job"
    if keeper_of(process.job) not in keepers:
        return f"of {clean(process.job)}, which no scheduler started"
    numbers = given.get(process.job)
    if numbers is None or process.instance is not None or gpu.get("mig_mode") == 1:
        return ""  # numbers of jobs on MIG count instances
    # Slurm counts GPUs by their device files, NVML by their addresses; mostly these are the same.
    mine = {gpu.get("gpu_index"), gpu.get("gpu_minor")} - {None}
    if not mine or not mine.isdisjoint(numbers):
        return ""
    theirs = " ".join(str(number) for number in sorted(numbers)[:TOLD])
    return f"of {clean(process.job)}, which was given " + (f"GPU {theirs}" if numbers else "no GPU")


def _words(process: Holder, why: str) -> str:
    user = "" if process.uid is None else f" of uid {process.uid}"
    return f"{process.pid} ({clean(process.name, 32) or 'of unknown name'}){user}, {why}"
