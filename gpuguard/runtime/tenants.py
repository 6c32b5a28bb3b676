"""Who is on the GPUs of this node, as a snapshot tells it: jobs with their ranks, GPUs with their processes.

What nobody told is missing from the values, and is never taken for "nobody": a GPU without the column `gpu_job` is one
of which it is not known whose it is.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpuguard.errors import NotUnderstood
from gpuguard.model.health import FindingView, Snapshot
from gpuguard.model.ids import NODE, SubjectId, kind_of
from gpuguard.model.jobs import names_of
from gpuguard.model.readings import Value, Values, merged
from gpuguard.runtime.words import brief, cell

# Long words of a phase, as they fit into the table.
SHORT = {"checkpoint": "ckpt", "evaluation": "eval"}
# From this confidence on the check job_progress makes a finding of a verdict, as it ships.
SURE = 0.6
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank of a job on this node; `task` is what is known of its process, empty where nothing is."""

    number: int
    values: Values
    task: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job; `gpus` are those that it has processes on. `ranks` are those on this node of which anything is known."""

    id: str
    values: Values
    ranks: tuple[Rank, ...]
    gpus: tuple[SubjectId, ...]
    findings: tuple[FindingView, ...]

    @property
    def verdict(self) -> str:
        """What holds it up; empty where nothing does or nobody knows."""
        return text(self.values, "job_verdict")

    @property
    def confidence(self) -> float | None:
        """How sure the verdict is, of 1."""
        return number(self.values, "job_confidence")

    @property
    def is_known(self) -> bool:
        """Whether anything is known of its progress."""
        return any(number(rank.values, "rank_progress_seconds") is not None for rank in self.ranks) or (
            number(self.values, "job_progress_seconds") is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process on one GPU."""

    gpu: SubjectId
    pid: int
    values: Values
    task: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; `jobs` is None where nobody told whose it is, and empty where it is nobody's."""

    id: SubjectId
    index: int | None
    values: Values
    jobs: tuple[str, ...] | None
    processes: tuple[Process, ...]

    @property
    def called(self) -> str:
        """Its number, or its address where it has none."""
        return str(self.index) if self.index is not None else self.id.removeprefix("gpu:0000:").removeprefix("gpu:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """All of it: jobs by name, GPUs by number."""

    jobs: tuple[Job, ...]
    gpus: tuple[Gpu, ...]
    node: Values
    findings: tuple[FindingView, ...] = ()

    @property
    def called(self) -> dict[str, str]:
        """What each GPU is called, by its subject."""
        return {gpu.id: gpu.called for gpu in self.gpus}

    def gpu(self, name: str) -> Gpu | None:
        """The GPU of this name; None where there is none."""
        return next((gpu for gpu in self.gpus if gpu.id == name), None)


def tenants(snapshot: Snapshot) -> Tenants:
    """Who is where. A job that is over is left out unless it still has memory of a GPU."""
    values = {name: merged(groups, snapshot.at) for name, groups in snapshot.readings.items()}
    rows: defaultdict[str, dict[SubjectId, Values]] = defaultdict(dict)
    for name, row in values.items():
        if row:
            rows[kind_of(name)][name] = row
    views = {view.id: view for view in snapshot.subjects}
    for name in views:
        if kind_of(name) == "gpu":
            rows["gpu"].setdefault(name, {})
    tasks = {name.removeprefix("task:"): row for name, row in rows["task"].items()}
    processes = sorted(_processes(rows["process"], tasks), key=lambda p: (-(_memory(p) or 0), p.pid))
    gpus = []
    for name, row in rows["gpu"].items():
        told = row.get("gpu_job")
        index = number(row, "gpu_index")
        if index is None and name in views:
            index = views[name].index
        gpus.append(
            Gpu(
                id=name, index=None if index is None else int(index), values=row,
                jobs=split(told) if isinstance(told, str) else None,
                processes=tuple(process for process in processes if process.gpu == name),
            )
        )  # fmt: skip
    gpus.sort(key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.id))
    findings = tuple(finding for view in snapshot.subjects for finding in view.findings)
    jobs = tuple(_jobs(rows, gpus, tasks, findings))
    return Tenants(jobs=jobs, gpus=tuple(gpus), node=values.get(NODE, {}), findings=findings)


def _processes(rows: Mapping[SubjectId, Values], tasks: Mapping[str, Values]) -> Iterator[Process]:
    for name, row in rows.items():
        gpu, _, pid = name.removeprefix("process:").rpartition("/")
        if pid.isdecimal() and pid.isascii():
            yield Process(gpu=SubjectId(f"gpu:{gpu}"), pid=int(pid), values=row, task=tasks.get(pid, {}))


def _jobs(
    rows: Mapping[str, Mapping[SubjectId, Values]], gpus: list[Gpu], tasks: Mapping[str, Values],
    findings: tuple[FindingView, ...],
) -> Iterator[Job]:  # fmt: skip
    ranks: defaultdict[str, list[Rank]] = defaultdict(list)
    for name, row in rows.get("rank", {}).items():
        job, _, place = name.removeprefix("rank:").rpartition("/")
        if place.isdecimal() and place.isascii():
            pid = number(row, "rank_pid")
            task = tasks.get(f"{pid:.0f}", {}) if pid is not None else {}
            ranks[job].append(Rank(number=int(place), values=row, task=task))
    told = {name.removeprefix("job:"): row for name, row in rows.get("job", {}).items()}
    holders = {job for gpu in gpus for job in gpu.jobs or ()}
    for job in sorted({*told, *ranks, *holders}):
        row = told.get(job, {})
        held = [gpu.id for gpu in gpus if job in (gpu.jobs or ())]
        named = split(row.get("job_gpus"))
        held += [gpu.id for gpu in gpus if gpu.id in named and gpu.id not in held]
        if row.get("job_ended") == 1 and not held:
            continue
        whose = (f"job:{job}", f"rank:{job}/")
        yield Job(
            id=job, values=row, gpus=tuple(held),
            ranks=tuple(sorted(ranks.get(job, ()), key=lambda rank: rank.number)),
            findings=tuple(f for f in findings if f.subject == whose[0] or f.subject.startswith(whose[1])),
        )  # fmt: skip


def _memory(process: Process) -> float | None:
    return number(process.values, "process_memory_bytes")


def asked(found: Tenants, wanted: str | None) -> tuple[Job, ...]:
    """The jobs on this node that are meant: all of them where none is named.

    Raises  NotUnderstood, with those that are here
    """
    return meant(found.jobs, wanted, lambda job: (job.id,))


def meant(jobs: Sequence[_T], wanted: str | None, names: Callable[[_T], Iterable[str]]) -> tuple[_T, ...]:
    """Those of these jobs that a person means by any of their names; all for None.

    Raises  NotUnderstood where there is none, with those that are known
    """
    found = tuple(job for job in jobs if wanted is None or any(wanted in names_of(name) for name in names(job)))
    if wanted is not None and not found:
        known = ", ".join(cell(next(iter(names(job))), 60) for job in jobs[:8]) or "none"
        raise NotUnderstood(f"no job {cell(wanted, 60)!r} is known here; known are {known}", wanted)
    return found


def split(told: Value) -> tuple[str, ...]:
    """The parts of a list with commas; none where there is no text."""
    return tuple(part.strip() for part in told.split(",") if part.strip()) if isinstance(told, str) else ()


def number(values: Mapping[str, Value], name: str) -> float | None:
    """The value as a number; None where it is absent, unknown or no number."""
    value = values.get(name)
    return value if isinstance(value, int | float) else None


def text(values: Mapping[str, Value], name: str) -> str:
    """The value as text; empty where it is absent, unknown or no text."""
    value = values.get(name)
    return value if isinstance(value, str) else ""


def is_sure(confidence: float | None) -> bool:
    """Whether a job's verdict is more than a guess."""
    return confidence is None or confidence >= SURE


def sentence(verdict: str, confidence: float | None, why: str) -> str:
    """A job's verdict in one sentence, with how sure it is."""
    sure = f" ({100 * confidence:.0f} % sure)" if confidence is not None else ""
    perhaps = "" if is_sure(confidence) else "perhaps "
    return f"{perhaps}{verdict.replace('_', ' ').upper()}{sure}{': ' if why else ''}{why}"


def phase(told: str) -> str:
    """What a job or rank does, short enough for a table."""
    return SHORT.get(told, told) or "-"


def steps(count: float | None) -> str:
    """A step in at most eight letters."""
    if count is None:
        return "-"
    return f"{count:.0f}" if abs(count) < 1e7 else f"{count:.2e}"


def silence(since: float | None, limit: float | None) -> str:
    """Since when no progress was shown, and after how long that is a hang."""
    if since is None:
        return "?"
    return f"{brief(since)}/{brief(limit) if limit else '?'}"
