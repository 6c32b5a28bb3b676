"""What runs on which GPU, how far it is, and what holds it up.

Asks the agent that runs, else looks by itself. GiB is the memory that a job holds on all its GPUs here, ACT% how busy
they are, SIL how long its slowest rank has shown no progress, LIMIT after how long that is a hang. Below stand
GPUs that nobody holds, and processes that no job owns or that outlived theirs. A dash stands for what there is not, a
question mark for what nobody knows.
Exit codes  0 nothing is wrong, 1 something needs a look, 2 nobody knows whose the GPUs are, 64 usage error
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuguard.model.health import Snapshot
    from gpuguard.runtime.tenants import Gpu, Job, Process, Tenants

EXAMPLE = "gpuguard jobs --memory"

HEAD = "JOB            USER/NAME  RANKS GPUS       GiB ACT%     STEP PHASE    SIL/LIMIT"
MEMORY_HEAD = "GPU      PID PROCESS          JOB                  PEAK GiB  NOW GiB  HELD FREED"
JOB_WIDTH, NAME_WIDTH = 14, 10
GIB = 2.0**30

# Any: the answer is JSON, which mixes types.
Facts = dict[str, Any]


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    from gpuguard.runtime.known import options

    parser.add_argument("--job", metavar="ID", help="this job alone: slurm/8123, or 8123")
    parser.add_argument("--memory", action="store_true", help="also which process took how much memory, for how long")
    options(parser)


def run(args: Namespace) -> int:
    """Prints the table.

    Raises  Absent where there is neither a job nor a GPU; NotUnderstood for a job that is not here
    """
    from pathlib import Path

    from gpuguard.errors import Absent
    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.board import measured
    from gpuguard.runtime.clock import SystemClock
    from gpuguard.runtime.known import config_path, is_remembered, state_dir
    from gpuguard.runtime.tenants import asked, tenants

    root, parts = Path(args.root), assemble(config_path(args))
    memory = state_dir(args) if is_remembered(args) else None
    snapshot, taken_by = measured(parts, state_dir=memory, root=root, clock=SystemClock(root))
    found = tenants(snapshot)
    if not found.jobs and not found.gpus:
        raise Absent("no job and no GPU is known here; `gpuguard status` tells which sources see anything")
    jobs = asked(found, args.job)
    sys.stdout.write(_json(snapshot, found, jobs, taken_by) if args.json else _page(snapshot, found, jobs, args))
    return _code(found, jobs, whole=args.job is None)


def _code(found: "Tenants", jobs: "Iterable[Job]", *, whole: bool) -> int:
    from gpuguard.runtime.tenants import is_sure

    if any(
        (job.verdict and is_sure(job.confidence)) or any(f.severity != "info" for f in job.findings) for job in jobs
    ):
        return 1
    if not whole:
        return 0
    if any(_unowned(gpu) for gpu in found.gpus):
        return 1
    return 2 if any(gpu.jobs is None for gpu in found.gpus) and not found.jobs else 0


def _unowned(gpu: "Gpu") -> bool:
    from gpuguard.runtime.tenants import number, text

    return bool(
        text(gpu.values, "gpu_strangers") or text(gpu.values, "gpu_orphans") or number(gpu.values, "gpu_orphan_bytes")
    )


# --- the table -------------------------------------------------------------------------------------------------------


def _page(snapshot: "Snapshot", found: "Tenants", jobs: "tuple[Job, ...]", args: Namespace) -> str:
    from gpuguard.jobs.wording import counted
    from gpuguard.runtime.words import date, page

    lines = [date(snapshot.at.utc)]
    if found.jobs or any(gpu.jobs is not None for gpu in found.gpus):
        lines[0] += f"  {counted(len(found.jobs), 'job')} on {counted(len(found.gpus), 'GPU')}"
    if jobs:
        lines.append(HEAD)
    for job in jobs:
        lines += [*_row(found, job), *_told(found, job)]
    if args.job is None:
        lines += _beside(found)
    if args.memory:
        wanted = None if args.job is None else {job.id for job in jobs}
        lines += ["", *_memory(found, wanted)]
    return page(lines)


def _row(found: "Tenants", job: "Job") -> Iterator[str]:
    from gpuguard.model.numbers import spans
    from gpuguard.runtime.tenants import number, phase, silence, steps, text
    from gpuguard.runtime.words import cell, padded

    values = job.values
    label = job.id
    if len(label) > JOB_WIDTH:
        yield cell(label, 80)
        label = ""
    held = [gpu for name in job.gpus if (gpu := found.gpu(name)) is not None]
    gpus = spans(gpu.index for gpu in held if gpu.index is not None) or (f"{len(held)} ?" if held else "-")
    world, ranks = number(values, "job_world"), number(values, "job_ranks")
    here = len(job.ranks) if ranks is None else int(ranks)
    of = f"{here}/{world:.0f}" if world is not None else str(here)
    active = number(values, "job_gpu_activity_ratio")
    silent = silence(number(values, "job_progress_seconds"), number(values, "job_progress_limit_seconds"))
    yield (
        f"{padded(label, JOB_WIDTH)} {padded(who(job), NAME_WIDTH)} {cell(of if job.ranks or ranks else '-', 5):>5} "
        f"{padded(gpus, 7)} {_gib(number(values, 'job_gpu_memory_bytes')):>6} "
        f"{'?' if active is None else f'{100 * active:.0f}':>4} {steps(number(values, 'job_step')):>8} "
        f"{padded(phase(text(values, 'job_phase')), 8)} {silent:>9}"
    ).rstrip()


def who(job: "Job") -> str:
    """Owner and name of a job, as far as its keeper told them."""
    from gpuguard.runtime.tenants import text

    return "/".join(part for part in (text(job.values, "job_user"), text(job.values, "job_name")) if part) or "-"


def _gib(value: float | None) -> str:
    return "?" if value is None else f"{value / GIB:.1f}"


def _told(found: "Tenants", job: "Job") -> Iterator[str]:
    """What stands against a job, and what it has and does not use, in a sentence each."""
    from gpuguard.jobs.wording import with_numbers
    from gpuguard.model.numbers import spans
    from gpuguard.runtime.tenants import sentence, text
    from gpuguard.runtime.words import paragraph, tidy

    if job.verdict:
        told = sentence(job.verdict, job.confidence, with_numbers(text(job.values, "job_why"), found.called))
        yield from paragraph(tidy(told), indent=2, hanging=2)
    given = text(job.values, "job_gpus_given")
    held = spans(gpu.index for name in job.gpus if (gpu := found.gpu(name)) is not None and gpu.index is not None)
    if given and given != held:
        yield from paragraph(f"GPU {tidy(given)} were given to it, {held or 'none'} it holds", indent=2, hanging=2)
    for finding in job.findings:
        if not (job.verdict and job.verdict in finding.code):
            yield from paragraph(tidy(f"{finding.severity} {finding.code}: {finding.reason}"), indent=2, hanging=2)


def _beside(found: "Tenants") -> list[str]:
    """GPUs that are nobody's, that several share or of which it is not known whose they are; what no job owns."""
    from gpuguard.runtime.tenants import text
    from gpuguard.runtime.words import listed, paragraph, tidy

    free = [gpu for gpu in found.gpus if gpu.jobs == () and not _holders(gpu) and not _unowned(gpu)]
    unknown = [gpu for gpu in found.gpus if gpu.jobs is None]
    lines = []
    if trouble := text(found.node, "watches_trouble"):
        lines += paragraph(f"not watched as it was asked for: {tidy(trouble)}", hanging=2)
    if free:
        lines += paragraph(f"nobody holds GPU {_named(free)}", hanging=2)
    for gpu in found.gpus:
        if gpu.jobs and len(gpu.jobs) > 1:
            lines += paragraph(f"GPU {gpu.called} is shared by {listed(tidy(job) for job in gpu.jobs)}", hanging=2)
    for gpu in found.gpus:
        lines += _leftovers(gpu)
    if unknown:
        lines += paragraph(
            f"nobody knows whose GPU {_named(unknown)} {'is' if len(unknown) == 1 else 'are'}: no source told which "
            "processes belong to which job. The source `tasks` does; `gpuguard status` tells whether it sees anything",
            hanging=2,
        )
        lines += _people(unknown)
    return ["", *lines] if lines else []


def _named(gpus: "list[Gpu]") -> str:
    from gpuguard.model.numbers import spans

    return ",".join(
        part
        for part in (
            spans(gpu.index for gpu in gpus if gpu.index is not None),
            *(gpu.called for gpu in gpus if gpu.index is None),
        )
        if part
    )


def _holders(gpu: "Gpu") -> "list[Process]":
    """Processes on it that have not given its memory back."""
    return [process for process in gpu.processes if process.values.get("process_released_seconds") is None]


def _leftovers(gpu: "Gpu") -> Iterator[str]:
    """Processes of one GPU that are dead, or that no job owns."""
    from gpuguard.runtime.tenants import number, text
    from gpuguard.runtime.words import paragraph

    orphaned = number(gpu.values, "gpu_orphan_bytes")
    orphans = _processes(gpu, text(gpu.values, "gpu_orphans"))
    if orphaned or orphans:
        whom = f"by {orphans}: dead, or their job is over" if orphans else "by nobody who lives"
        yield from paragraph(f"GPU {gpu.called}: {_gib(orphaned)} GiB are held {whom}", hanging=2)
    if strangers := _processes(gpu, text(gpu.values, "gpu_strangers")):
        yield from paragraph(f"GPU {gpu.called} is used past its keeper by {strangers}", hanging=2)


def _processes(gpu: "Gpu", told: str) -> str:
    """Processes as people know them: pid, name, and whose."""
    from gpuguard.runtime.tenants import split
    from gpuguard.runtime.words import cell

    words = []
    for part in split(told):
        pid = part.partition("/")[0].strip()
        process = next((p for p in gpu.processes if str(p.pid) == pid), None)
        whose = ", ".join(cell(word, 24) for word in _called(process)) if process is not None else ""
        words.append(f"pid {cell(pid, 20)}{f' ({whose})' if whose else ''}")
    return ", ".join(words)


def _called(process: "Process") -> list[str]:
    from gpuguard.runtime.tenants import text

    return [
        word
        for word in (
            text(process.values, "process_name") or text(process.task, "task_name"),
            text(process.values, "process_user"),
        )
        if word
    ]


def _people(gpus: "list[Gpu]") -> Iterator[str]:
    """The processes on GPUs of which it is not known whose they are."""
    from gpuguard.runtime.words import cell

    for gpu in gpus:
        for process in _holders(gpu):
            name = " ".join(cell(word, 30) for word in _called(process)) or "-"
            yield f"  GPU {gpu.called}: pid {process.pid} {name}"


# --- memory taken and given back --------------------------------------------------------------------------------------


def _memory(found: "Tenants", wanted: "set[str] | None") -> Iterator[str]:
    from gpuguard.runtime.tenants import number, text
    from gpuguard.runtime.words import brief, cell, padded

    rows = [
        (gpu, process)
        for gpu in found.gpus for process in gpu.processes
        if wanted is None or text(process.values, "process_job") in wanted
    ]  # fmt: skip
    if not rows:
        yield "no process was seen with memory of a GPU"
        return
    yield MEMORY_HEAD
    for gpu, process in rows:
        values = process.values
        held, since = number(values, "process_held_seconds"), number(values, "process_released_seconds")
        now = number(values, "process_memory_bytes")
        yield (
            f"{cell(gpu.called, 3):<3} {process.pid:>8} {padded((_called(process) or ['-'])[0], 16)} "
            f"{padded(_job_of(values), 20)} {_gib(number(values, 'process_peak_bytes')):>8} "
            f"{'-' if since is not None else _gib(now):>8} {'?' if held is None else brief(held):>5} "
            f"{'-' if since is None else f'{brief(since)}':>5}"
        ).rstrip()


def _job_of(values: Facts) -> str:
    """The job of a process: `-` where it has none, `?` where nobody told."""
    told = values.get("process_job")
    return (told or "-") if isinstance(told, str) else "?"


# --- JSON ------------------------------------------------------------------------------------------------------------


def _json(snapshot: "Snapshot", found: "Tenants", jobs: "tuple[Job, ...]", taken_by: str) -> str:
    import json

    facts: Facts = {
        "at": snapshot.at.utc, "from": taken_by,
        "jobs": [
            {
                "job": job.id, "gpus": list(job.gpus), "progress_known": job.is_known,
                "readings": dict(sorted(job.values.items())),
                "ranks": [
                    {"rank": rank.number, "readings": dict(sorted(rank.values.items()))} for rank in job.ranks
                ],
                "findings": [finding.code for finding in job.findings],
            }
            for job in jobs
        ],
        "gpus": [
            {
                "subject": gpu.id, "index": gpu.index, "jobs": None if gpu.jobs is None else list(gpu.jobs),
                "orphans": gpu.values.get("gpu_orphans"), "orphan_bytes": gpu.values.get("gpu_orphan_bytes"),
                "strangers": gpu.values.get("gpu_strangers"),
                "processes": [
                    {"pid": process.pid, "readings": dict(sorted(process.values.items()))} for process in gpu.processes
                ],
            }
            for gpu in found.gpus
        ],
    }  # fmt: skip
    return json.dumps(facts) + "\n"
