"""Is a job hung? Which rank is behind, in which phase, and what speaks for and against it.

Asks the agent that runs, else looks by itself. Each rank has a bar: where it reaches `|` the rank has shown no progress
for as long as its limit, which is a hang; `!` is the time beyond. The rank that holds up the others is marked with `>`
and has a bar of `#`: others wait for it, and so are silent for as long. ACT% is how busy its GPU is, which alone proves
nothing: a GPU that waits for others reads 100. A job on several nodes is judged by all of them together: write what
`gpuguard hang --json` prints on each node into a folder, and give that to `--merge`.
Exit codes  0 no hang, 1 something holds a job up, 2 nobody knows how far a job is, 64 usage error
"""

import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuguard.runtime.sights import Joined, RankSight, Sight

EXAMPLE = "gpuguard hang --job slurm/8123"

BAR = 7  # letters up to the limit, and as many beyond
HEAD = "  RANK     PID     STEP BEHIND PHASE    SIL/LIMIT PROC GPU ACT% 0      |limit"
MERGED_HEAD = HEAD.replace("    PID", "NODE   ")
MOST = 32  # ranks in a table; the others are counted
NEXT = (
    "How far a job is, one line in its training loop tells (`from gpuguard import progress`, then `progress.step(n)`), "
    "or a log, a file or a folder of checkpoints that gpuguard watches for it: docs/hangs.md"
)


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    from gpuguard.runtime.known import options

    parser.add_argument("--job", metavar="ID", help="this job alone: slurm/8123, or 8123")
    parser.add_argument(
        "--merge", metavar="DIR", help="what several nodes see together: their `hang --json`, a file *.json each"
    )
    options(parser)


def run(args: Namespace) -> int:
    """Prints the verdict on each job, and its ranks.

    Raises  Absent where there is neither a job nor a GPU; NotUnderstood for a job that is not here; what `read` raises
    """
    from pathlib import Path

    from gpuguard.runtime.sights import joined, read
    from gpuguard.runtime.tenants import is_sure

    sights = read(Path(args.merge)) if args.merge else (_look(args),)
    if args.merge and args.job:
        sights = tuple(_alone(sight, args.job) for sight in sights)
    jobs = joined(sights)
    sys.stdout.write(_json(sights, jobs, merged=bool(args.merge)) if args.json else _page(sights, jobs))
    if any(job.verdict and is_sure(job.cause[1].readings) for job in jobs):
        return 1
    return 0 if any(_is_known(job) for job in jobs) or (not jobs and all(sight.attributed for sight in sights)) else 2


def _look(args: Namespace) -> "Sight":
    """What this node sees now."""
    import socket
    from pathlib import Path

    from gpuguard.errors import Absent
    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.board import measured
    from gpuguard.runtime.clock import SystemClock
    from gpuguard.runtime.known import config_path, is_remembered, state_dir
    from gpuguard.runtime.sights import sight_of
    from gpuguard.runtime.tenants import asked, tenants

    root, parts = Path(args.root), assemble(config_path(args))
    memory = state_dir(args) if is_remembered(args) else None
    snapshot, _ = measured(parts, state_dir=memory, root=root, clock=SystemClock(root))
    found = tenants(snapshot)
    if not found.jobs and not found.gpus:
        raise Absent("no job and no GPU is known here; `gpuguard status` tells which sources see anything")
    node = socket.gethostname().partition(".")[0] if root == Path("/") else root.resolve().name
    return sight_of(found, asked(found, args.job), node=node, at=snapshot.at.utc)


def _alone(sight: "Sight", wanted: str) -> "Sight":
    import msgspec

    from gpuguard.runtime.tenants import is_meant

    jobs = tuple(job for job in sight.jobs if is_meant(job.job, wanted))
    return msgspec.structs.replace(sight, jobs=jobs)


def _json(sights: "Sequence[Sight]", jobs: "Sequence[Joined]", *, merged: bool) -> str:
    """Of one node what `--merge` wants; of several what they see together."""
    import msgspec

    told = msgspec.json.encode({"jobs": jobs} if merged else sights[0])
    return told.decode() + "\n"


# --- the page --------------------------------------------------------------------------------------------------------


def _page(sights: "Sequence[Sight]", jobs: "Sequence[Joined]") -> str:
    from gpuguard.runtime.words import date, page, paragraph

    newest = max((sight.at for sight in sights if sight.at is not None), default=None)
    of = f"{len(sights)} nodes" if len(sights) > 1 else sights[0].node
    lines = paragraph(f"{date(newest)}  {of}", hanging=2)
    if not jobs:
        lines += paragraph(
            "no job is here"
            if all(sight.attributed for sight in sights)
            else f"progress is not known: no source told which jobs are here, and none told how far it is. {NEXT}"
        )
    for job in jobs:
        lines += ["", *_job(job)]
    if any(not _is_known(job) for job in jobs):
        lines += ["", *paragraph(NEXT)]
    return page(lines)


def _job(job: "Joined") -> Iterator[str]:
    from gpuguard.runtime.tenants import number, sentence, text, with_numbers
    from gpuguard.runtime.words import paragraph, row, tidy

    seen = job.cause[1]
    values = seen.readings
    whose = " of ".join(part for part in (text(values, "job_name"), text(values, "job_user")) if part)
    world = number(values, "job_world")
    count = f"{len(job.ranks)} of {world:.0f} ranks" if world is not None else f"{len(job.ranks)} ranks"
    where = f"on {len(job.nodes)} nodes" if len(job.nodes) > 1 else "here"
    size = f"{count} {where}" if job.ranks else f"GPU {_gpus(seen.gpus)}" if seen.gpus else "no GPU"
    yield from paragraph(tidy(f"{job.job}  {f'{whose}, ' if whose else ''}{size}"), hanging=2)
    if job.verdict:
        yield from paragraph(tidy(with_numbers(sentence(values), seen.called)), hanging=2)
        yield from row("culprit", tidy(_culprit(job)))
        for label, column in (("for", "job_signals_for"), ("against", "job_signals_against")):
            signals = [
                signal for signal in with_numbers(text(values, column), seen.called).split(";") if signal.strip()
            ]
            for place, signal in enumerate(signals):
                yield from row(label if place == 0 else "", tidy(signal))
    elif _is_known(job):
        yield from paragraph(_well(job), hanging=2)
    else:
        yield from paragraph(tidy(_unknown(job)), hanging=2)
    if job.ranks:
        yield from _table(job)


def _gpus(called: Sequence[str]) -> str:
    from gpuguard.runtime.words import numbers

    return numbers(map(int, called)) if all(name.isdecimal() for name in called) else ", ".join(called)


def _culprit(job: "Joined") -> str:
    from gpuguard.runtime.tenants import number

    if job.culprit is None:
        more = "" if len(job.nodes) > 1 else "; `gpuguard hang --merge` over all its nodes may"
        return f"what is seen here does not tell{more}"
    node, number_ = job.culprit
    rank = next((rank for on, rank in job.ranks if (on, rank.rank) == job.culprit), None)
    parts = [f"rank {number_}"]
    if rank is not None:
        pid = number(rank.readings, "rank_pid")
        parts += [f"pid {pid:.0f}"] if pid is not None else []
        parts += [f"GPU {rank.gpu}"] if rank.gpu else []
    return ", ".join([*parts, f"node {node}"])


def _well(job: "Joined") -> str:
    from gpuguard.runtime.sights import share
    from gpuguard.runtime.words import span

    told = [(part, rank) for _, rank in job.ranks if (part := share(rank)) is not None]
    if not told:
        return "no hang: nothing speaks for one, though no limits are known yet"
    part, rank = max(told, key=lambda pair: pair[0])
    silent = _silent(rank) or 0.0
    limit = rank.readings.get("rank_limit_seconds")
    until = f"{span(limit)}" if isinstance(limit, int | float) else "?"
    if part > 1.0:
        return (
            f"no hang is found, though rank {rank.rank} has shown no progress for {span(silent)}, more than its limit "
            f"of {until}: other signals speak against one, or it is not that long ago"
        )
    return f"no hang: longest without progress is rank {rank.rank}, for {span(silent)} of the {until} it may be"


def _unknown(job: "Joined") -> str:
    from gpuguard.runtime.tenants import number

    values = job.cause[1].readings
    active = number(values, "job_gpu_activity_ratio")
    busy = f" Its GPUs are {100 * active:.0f} % busy, which is no progress." if active is not None else ""
    return f"progress of job {job.job} is not known: no heartbeats, and nothing is watched for it.{busy}"


def _is_known(job: "Joined") -> bool:
    """Whether anything is known of its progress: a verdict, or when a rank was last heard."""
    return bool(job.verdict) or job.cause[1].known or any(_silent(rank) is not None for _, rank in job.ranks)


def _silent(rank: "RankSight") -> float | None:
    from gpuguard.runtime.tenants import number

    return number(rank.readings, "rank_progress_seconds")


# --- the ranks -------------------------------------------------------------------------------------------------------


def _table(job: "Joined") -> Iterator[str]:
    merged = len(job.nodes) > 1
    yield ""
    yield MERGED_HEAD if merged else HEAD
    for node, rank in job.ranks[:MOST]:
        yield _rank(rank, node if merged else None, behind=(node, rank.rank) == job.culprit)
    if len(job.ranks) > MOST:
        yield f"and {len(job.ranks) - MOST} ranks that stand better; --json has all"


def _rank(rank: "RankSight", node: str | None, *, behind: bool) -> str:
    from gpuguard.runtime.tenants import number, phase, silence, steps
    from gpuguard.runtime.words import cell, padded

    values = rank.readings
    pid, missing = number(values, "rank_pid"), number(values, "rank_behind_steps")
    place = padded(node, 7) if node is not None else f"{'?' if pid is None else cell(f'{pid:.0f}', 7):>7}"
    busy = "?" if rank.activity is None else f"{100 * rank.activity:.0f}"
    steps_behind = "?" if missing is None else f"{missing:.0f}" if missing < 1e6 else f"{missing:.0e}"
    return (
        f"{'>' if behind else ' '}{cell(str(rank.rank), 5):>5} {place} {steps(number(values, 'rank_step')):>8} "
        f"{steps_behind:>6} {padded(phase(values, 'rank_phase'), 8)} "
        f"{silence(values, 'rank_progress'):>9} {_process(rank):>4} {cell(rank.gpu or '-', 3):>3} {busy:>4} "
        f"{_bar(rank, behind)}"
    ).rstrip()


def _process(rank: "RankSight") -> str:
    """What its process does, by the kernel's letter; `gone` for one that has ended."""
    from gpuguard.runtime.tenants import text
    from gpuguard.runtime.words import cell

    if rank.readings.get("rank_done") == 1:
        return "done"
    if rank.readings.get("rank_gone") == 1 or rank.task.get("task_gone") == 1:
        return "gone"
    return cell(text(rank.task, "task_state"), 4) or "?"


def _bar(rank: "RankSight", behind: bool) -> str:
    """How much of its limit a rank has been silent for: to `|`, and what is beyond; of another letter for the one that
    holds up the others, which are often silent for as long."""
    from gpuguard.runtime.sights import share

    part = share(rank)
    if part is None:
        return ""
    within, beyond = min(BAR, math.ceil(part * BAR)), max(0, math.ceil((part - 1.0) * BAR))
    more = "!" * beyond if beyond <= BAR else "!" * (BAR - 1) + "+"
    bar = f"{'=' * within:<{BAR}}|{more}"
    return bar.replace("=", "#") if behind else bar
