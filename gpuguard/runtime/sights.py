"""What one node sees of the ranks of its jobs, as `gpuguard hang --json` prints it; and several of these joined.

A job on many nodes is seen by each of them in part: a node whose ranks wait for one elsewhere can only say so. Side by
side they show which rank it is: the one that its own node calls hung, else the one that completed fewer collectives,
else fewer steps, than every other.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from gpuguard.errors import NotUnderstood, ReadFailed
from gpuguard.model.readings import Values
from gpuguard.runtime.tenants import Job, Tenants, number, text

# Verdicts that say that the cause is elsewhere.
ELSEWHERE = ("", "waiting")
# A cluster of that many nodes, each with some hundred ranks. Units: files, bytes
FILES, SIZE = 16384, 16 * 1024 * 1024


class RankSight(msgspec.Struct, frozen=True, kw_only=True):
    """One rank; `gpu` is the number of its GPU, or its address, and '' where nobody knows it; `activity` how busy that
    is, of 1."""

    rank: int
    readings: Values
    task: Values = {}
    gpu: str = ""
    activity: float | None = None


class JobSight(msgspec.Struct, frozen=True, kw_only=True):
    """One job on one node; `known` says whether anything is known of its progress there, and `called` what the GPUs of
    its node are called, by subject."""

    job: str
    readings: Values
    ranks: tuple[RankSight, ...] = ()
    gpus: tuple[str, ...] = ()
    known: bool = False
    called: dict[str, str] = {}


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs of one node. `at` is in seconds since 1970; without `attributed` it is not known whose its GPUs are."""

    node: str
    at: float | None
    jobs: tuple[JobSight, ...] = ()
    attributed: bool = True


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """One job on all nodes that were looked at. `cause` is the node and what it sees of the job, of which the verdict
    is; `culprit` the node and number of the rank that holds up the others, None where that cannot be told."""

    job: str
    cause: tuple[str, JobSight]
    ranks: tuple[tuple[str, RankSight], ...]
    nodes: tuple[str, ...]
    culprit: tuple[str, int] | None

    @property
    def verdict(self) -> str:
        """What holds the job up; empty where nothing does or nobody knows."""
        return text(self.cause[1].readings, "job_verdict")


def sight_of(found: Tenants, jobs: Iterable[Job], *, node: str, at: float | None) -> Sight:
    """What this node sees of these jobs."""
    seen = []
    for job in jobs:
        ranks = []
        for rank in job.ranks:
            gpu = found.gpu(text(rank.values, "rank_gpu"))
            busy = None
            if gpu is not None:
                active = number(gpu.values, "sm_active_ratio")
                busy = active if active is not None else number(gpu.values, "utilization_ratio")
            ranks.append(
                RankSight(
                    rank=rank.number, readings=rank.values, task=rank.task, activity=busy,
                    gpu=gpu.called if gpu is not None else "",
                )
            )  # fmt: skip
        held = tuple(gpu.called for name in job.gpus if (gpu := found.gpu(name)) is not None)
        seen.append(
            JobSight(
                job=job.id, readings=job.values, ranks=tuple(ranks), gpus=held, known=job.is_known, called=found.called
            )
        )
    attributed = bool(found.gpus) and all(gpu.jobs is not None for gpu in found.gpus)
    return Sight(node=node, at=at, jobs=tuple(seen), attributed=attributed)


def read(folder: Path) -> tuple[Sight, ...]:
    """The sights in the files `*.json` of a folder, one of each node.

    Raises  ReadFailed where there are none, or one cannot be read; NotUnderstood for one that is something else, or
            where two are of one node
    """
    try:
        files = sorted(folder.glob("*.json"))[:FILES]
        if not files:
            raise ReadFailed(f"{folder} has no *.json; `gpuguard hang --json` on each node writes one")
        sights: dict[str, Sight] = {}
        for file in files:
            with file.open("rb") as opened:
                sight = msgspec.json.decode(opened.read(SIZE), type=Sight)
            if sight.node in sights:
                raise NotUnderstood(f"{file.name} is of node {sight.node!r}, of which there is a file already")
            sights[sight.node] = sight
    except OSError as error:
        raise ReadFailed(f"{error.filename or folder}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise NotUnderstood(f"{file.name} is not what `gpuguard hang --json` prints: {error}") from error
    return tuple(sights.values())


def joined(sights: Sequence[Sight]) -> tuple[Joined, ...]:
    """Each job as all nodes together see it, in the order of their names."""
    seen: dict[str, list[tuple[str, JobSight]]] = {}
    for sight in sights:
        for job in sight.jobs:
            seen.setdefault(job.job, []).append((sight.node, job))
    return tuple(_join(job, parts) for job, parts in sorted(seen.items()))


def _join(job: str, parts: list[tuple[str, JobSight]]) -> Joined:
    cause = max(parts, key=lambda part: _weight(part[1]))
    ranks = tuple((node, rank) for node, part in parts for rank in part.ranks)
    return Joined(
        job=job, cause=cause, ranks=tuple(sorted(ranks, key=lambda rank: _worst_first(cause, rank))),
        nodes=tuple(node for node, _ in parts), culprit=_culprit(cause, ranks),
    )  # fmt: skip


def _weight(job: JobSight) -> tuple[bool, bool, float]:
    """A node that names a cause is heard before one that says it is elsewhere, and a sure one before others."""
    verdict = text(job.readings, "job_verdict")
    return verdict not in ELSEWHERE, bool(verdict), number(job.readings, "job_confidence") or 0.0


def _culprit(cause: tuple[str, JobSight], ranks: Sequence[tuple[str, RankSight]]) -> tuple[str, int] | None:
    node, job = cause
    verdict, named = text(job.readings, "job_verdict"), number(job.readings, "job_culprit_rank")
    if not verdict or (verdict in ELSEWHERE and len({on for on, _ in ranks}) < 2):
        return None
    if named is not None and verdict not in ELSEWHERE:
        return next(((on, rank.rank) for on, rank in ranks if rank.rank == named), (node, int(named)))
    return _last(ranks, "flight_completed") or _last(ranks, "rank_step")


def _last(ranks: Sequence[tuple[str, RankSight]], column: str) -> tuple[str, int] | None:
    """The one rank that is behind all others by this count."""
    told = sorted(
        (count, node, rank.rank) for node, rank in ranks if (count := number(rank.readings, column)) is not None
    )
    return told[0][1:] if len(told) > 1 and told[0][0] < told[1][0] else None


def share(rank: RankSight) -> float | None:
    """How much of its limit a rank has been silent for; None where that is not known."""
    silent, limit = number(rank.readings, "rank_progress_seconds"), number(rank.readings, "rank_limit_seconds")
    return silent / limit if silent is not None and limit else None


def _worst_first(cause: tuple[str, JobSight], rank: tuple[str, RankSight]) -> tuple[bool, bool, float, float, int]:
    readings = rank[1].readings
    named = number(cause[1].readings, "job_culprit_rank")
    is_named = bool(text(cause[1].readings, "job_verdict")) and named == rank[1].rank
    part = share(rank[1])
    return (
        not is_named, readings.get("rank_gone") != 1, -(part if part is not None else -1.0),
        -(number(readings, "rank_behind_steps") or 0.0), rank[1].rank,
    )  # fmt: skip
