"""What a node knows of its jobs, by hand: for the commands and pages that show it."""

from collections.abc import Mapping

import msgspec

from gpuguard.model.health import FindingView, Snapshot, SubjectView
from gpuguard.model.ids import GpuUuid, SubjectId
from gpuguard.model.readings import Group, Values
from tests.support.core import BOOT, UTC, instant
from tests.support.snapshots import DECLARED, full

GIB = 2**30
JOB = "slurm/8123"
PCI = tuple(f"0000:{bus:02x}:00.0" for bus in (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF))
HOSTILE = 'x\x1b[2J\u202e"}\n\\' + "名" * 40
Rows = dict[str, Values]


def snapshot(rows: Mapping[str, Values], findings: tuple[FindingView, ...] = ()) -> Snapshot:
    """A snapshot with these readings and findings."""
    readings = {
        SubjectId(name): {"jobs/fast": Group(source="jobs", rate="fast", at=instant(99.0), valid_for=30.0, values=row)}
        for name, row in rows.items()
    }
    views = tuple(
        SubjectView(
            id=name, state="healthy", remedy="none", serial=None, uuid=GpuUuid(f"GPU-{name[-4:-2]}"),
            findings=tuple(finding for finding in findings if finding.subject == name),
        )
        for name in sorted({*readings, *(finding.subject for finding in findings)})
        if name.startswith("gpu:") or any(finding.subject == name for finding in findings)
    )  # fmt: skip
    return msgspec.structs.replace(
        full(), at=instant(100.0), boot=BOOT, subjects=views, readings=readings, quantities=DECLARED, drain=None
    )


def finding(subject: str, code: str, reason: str, severity: str = "degraded") -> FindingView:
    """A finding that stands."""
    return FindingView(
        subject=SubjectId(subject), code=code, check=code, severity=severity, confirmed=False, remedy="none",  # type: ignore[arg-type]
        reason=reason, count=1, first_utc=UTC, last_utc=UTC, sources=("jobs",), secondary_to=None, latched=False,
        because=(),
    )  # fmt: skip


def gpus(job: str | None = JOB, *, busy: float = 0.97, count: int = 8) -> Rows:
    """GPUs that are this job's, '' for nobody's; None where nobody tells."""
    return {
        f"gpu:{pci}": {
            "gpu_index": index, "gpu_up": 1, "sm_active_ratio": busy, "memory_used_bytes": 70 * GIB,
            **({} if job is None else {"gpu_job": job, "gpu_jobs": int(bool(job)), "gpu_orphan_bytes": 0,
                                       "gpu_orphans": "", "gpu_strangers": "", "gpu_unowned_processes": 0}),
        }
        for index, pci in enumerate(PCI[:count])
    }  # fmt: skip


def process(index: int, pid: int, job: str | None = JOB, **more: object) -> Rows:
    """A process on a GPU, and what is known of it besides."""
    values: Values = {
        "process_name": "python3", "process_memory_bytes": 70 * GIB, "process_held_seconds": 5400.0,
        "process_peak_bytes": 71 * GIB, **({} if job is None else {"process_job": job}),
    }  # fmt: skip
    values.update(more)  # type: ignore[arg-type]
    return {f"process:{PCI[index]}/{pid}": values, f"task:{pid}": {"task_state": "R", "task_name": "python3"}}


def rank(number: int, job: str = JOB, *, step: int = 120_345, silent: float = 1.0, **more: object) -> Rows:
    """A rank that does its work on the GPU of its number."""
    values: Values = {
        "rank_job": job, "rank_number": number, "rank_world": 16, "rank_pid": 41_200 + number, "rank_step": step,
        "rank_phase": "step", "rank_progress_seconds": silent, "rank_limit_seconds": 38.0,
        "rank_behind_steps": 120_345 - step, "rank_gpu": f"gpu:{PCI[number % 8]}",
    }  # fmt: skip
    values.update(more)  # type: ignore[arg-type]
    return {f"rank:{job}/{number}": values}


def job(name: str = JOB, **more: object) -> Rows:
    """What is concluded of a job that does well on all eight GPUs."""
    values: Values = {
        "job_name": "llama-70b", "job_user": "mia", "job_alive": 1, "job_world": 16, "job_ranks": 8,
        "job_step": 120_345, "job_phase": "step", "job_progress_seconds": 1.0,
        "job_progress_limit_seconds": 38.0, "job_verdict": "",
        "job_gpus": ",".join(f"gpu:{pci}" for pci in PCI), "job_gpus_held": 8, "job_gpus_working": 8,
        "job_gpu_activity_ratio": 0.97, "job_gpu_memory_bytes": 560 * GIB, "job_seen_seconds": 5400.0, "job_ended": 0,
        "job_gpus_given": "0-7",
    }  # fmt: skip
    values.update(more)  # type: ignore[arg-type]
    return {f"job:{name}": values}


NODE: Rows = {"node": {"jobs_here": 1, "progress_known_ratio": 1.0}}


def trains() -> Snapshot:
    """One job on all GPUs, which does well."""
    rows = {**NODE, **gpus(), **job()}
    for number in range(8):
        rows |= {**rank(number), **process(number, 41_200 + number)}
    return snapshot(rows)


def hung() -> Snapshot:
    """Rank 3 waits for a lock that nobody gives back; all others wait for rank 3."""
    rows = {**NODE, **gpus()}
    rows |= job(
        job_verdict="hung", job_confidence=0.97, job_culprit_rank=3, job_culprit_gpu=f"gpu:{PCI[3]}",
        job_why="rank 3 shows no progress in step for 95 s; rank 3 is at collective 4710, others at 4711",
        job_signals_for="rank 3 is at collective 4710, others at 4711; its GPU idles while those of 7 other ranks wait "
        "for it; rank 3 sits still: no processor time, no switch, no byte; rank 3 is 1 step behind; "
        f"gpu:{PCI[0]} spinning for 90 s (SM 99 %, tensor 0 %, 158 of 700 W); and 6 more",
        job_signals_against="rank 5 uses 0.4 processors", job_progress_seconds=95.0, job_judged_rank=3,
        job_step=120_344,
    )  # fmt: skip
    for number in range(8):
        rows |= {**rank(number, silent=93.0), **process(number, 41_200 + number)}
    rows |= rank(3, step=120_344, silent=95.0, flight_completed=4710)
    rows["task:41203"] = {"task_state": "S", "task_waits_in": "futex_wait_queue", "task_name": "python3"}
    rows[f"gpu:{PCI[3]}"] = {**rows[f"gpu:{PCI[3]}"], "sm_active_ratio": 0.0}
    found = finding(f"job:{JOB}", "job_hung", "rank 3 has shown no progress")
    return snapshot(rows, (found,))


def untold() -> Snapshot:
    """A job that tells nothing of its progress holds half of its GPUs."""
    rows = {
        **NODE, **gpus(""), **gpus("slurm/9", count=4),
        **job(
            "slurm/9", job_name="notebook", job_world=None, job_gpus_held=4, job_gpu_memory_bytes=12 * GIB,
            job_gpu_activity_ratio=0.03, job_gpus=",".join(f"gpu:{pci}" for pci in PCI[:4]),
        ),
    }  # fmt: skip
    for column in ("job_ranks", "job_step", "job_phase", "job_progress_seconds", "job_progress_limit_seconds"):
        del rows["job:slurm/9"][column]
    for number in range(4):
        rows |= process(number, 500 + number, "slurm/9", process_memory_bytes=3 * GIB, process_peak_bytes=20 * GIB)
    return snapshot(rows, (finding("job:slurm/9", "right_sizing", "asks for 8 GPUs and holds 4", "info"),))


def leftovers() -> Snapshot:
    """A pod; a process that outlived its job, one that no job owns, a shared GPU."""
    pod = "kubernetes/0f1e2d3c-aaaa-bbbb-cccc-0123456789ab"
    rows = {
        **NODE, **gpus(""), **gpus(pod, count=1),
        **job(pod, job_name="serve-0", job_user="team-a", job_world=1, job_ranks=1, job_gpus=f"gpu:{PCI[0]}",
              job_gpus_given="0", job_gpu_memory_bytes=60 * GIB),
        **rank(0, pod), **process(0, 700, pod),
        **process(2, 4711, ""), **process(3, 4712, "", process_name="miner", process_user="eve"),
        **process(5, 800, "slurm/1"), **process(5, 801, "slurm/2"),
        **process(6, 900, "slurm/3", process_memory_bytes=None, process_released_seconds=40.0),
    }  # fmt: skip
    rows[f"gpu:{PCI[2]}"] |= {"gpu_orphan_bytes": 70 * GIB, "gpu_orphans": "4711/880.5"}
    rows[f"gpu:{PCI[3]}"] |= {"gpu_strangers": "4712", "gpu_unowned_processes": 1}
    rows[f"gpu:{PCI[5]}"] |= {"gpu_job": "slurm/1,slurm/2", "gpu_jobs": 2}
    return snapshot(rows)


def unattributed() -> Snapshot:
    """GPUs and processes, and nobody tells whose they are."""
    return snapshot({**gpus(None), **process(1, 4711, None)})


def idle() -> Snapshot:
    """No job is here."""
    return snapshot({"node": {"jobs_here": 0}, **gpus("", busy=0.0)})


def hostile() -> Snapshot:
    """Names that were chosen to do harm."""
    name = "claimed/1000-" + "z" * 90
    rows = {
        **NODE, **gpus(name),
        **job(
            name, job_name=HOSTILE, job_user=HOSTILE, job_phase=HOSTILE, job_step=2**62, job_verdict="straggler",
            job_why=HOSTILE, job_signals_for=f"{HOSTILE};;{HOSTILE}", job_gpus_given=HOSTILE, job_world=2**40,
            job_confidence=0.6, job_culprit_rank=7,
        ),
        **process(1, 4711, name, process_name=HOSTILE, process_user=HOSTILE),
        **rank(7, name, step=2**62, silent=1e9, rank_phase=HOSTILE, rank_behind_steps=2**62, rank_pid=2**40),
        **rank(2**40, name, rank_pid=4711),
    }  # fmt: skip
    rows["task:4711"] = {"task_state": HOSTILE, "task_name": HOSTILE}
    rows[f"gpu:{PCI[1]}"] |= {"gpu_strangers": f"{HOSTILE},4711,,", "gpu_unowned_processes": 1}
    return snapshot(rows, (finding(f"job:{name}", "checkpoint_late", HOSTILE),))


STORIES = (trains, hung, untold, leftovers, unattributed, idle, hostile)
