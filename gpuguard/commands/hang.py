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
    from gpuguard.jobs.merge import Merged, MergedJob, Seen
    from gpuguard.jobs.sights import NodeSight, RankSight

EXAMPLE = "gpuguard hang --job slurm/8123"

BAR = 7  # letters up to the limit, and as many beyond
HEAD = "  RANK     PID     STEP BEHIND PHASE    SIL/LIMIT PROC GPU ACT% 0      |limit"
MERGED_HEAD = HEAD.replace("    PID", "NODE   ")
# What a page shows: ranks in a table, signals for a verdict, files or nodes that are wrong, letters of a text. The
# others are counted; files of other nodes may hold anything.
MOST, SIGNALS, NOTES, LETTERS = 32, 12, 8, 400
STACKS, STACKS_WITHIN, STACK_LINES = 3, 10.0, 100  # ranks of a job, seconds and lines for each
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
    parser.add_argument(
        "--stacks", action="store_true", help="also the stacks of the rank that holds a job up; needs py-spy"
    )
    options(parser)


def run(args: Namespace) -> int:
    """Prints the verdict on each job, and its ranks.

    Raises  Absent where there is neither a job nor a GPU; NotUnderstood for a job that is not here; ReadFailed where
            there is nothing to merge; UsageError for stacks of processes that are not here
    """
    from gpuguard.errors import UsageError
    from gpuguard.jobs.merge import alone

    if args.stacks and (args.merge or args.json or args.root != "/"):
        raise UsageError("--stacks looks at processes of this machine, for people: not with --merge, --root or --json")
    if args.merge:
        told = _merged(args)
        answer: Merged | NodeSight = told
    else:
        answer = _look(args)
        told = alone(answer)
    sys.stdout.write(_json(answer) if args.json else _page(told))
    if args.stacks:
        sys.stdout.flush()  # it takes a while, and who waits has something to read
        _stacks(told)
    return _code(told)


def _code(told: "Merged") -> int:
    from gpuguard.runtime.tenants import is_sure

    if any(job.verdict and is_sure(job.confidence) for job in told.jobs):
        return 1
    return 0 if any(job.known for job in told.jobs) or (not told.jobs and told.attributed) else 2


def _look(args: Namespace) -> "NodeSight":
    """What this node sees now."""
    import socket
    from pathlib import Path

    from gpuguard.errors import Absent
    from gpuguard.jobs.sights import sight_of
    from gpuguard.model.readings import merged
    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.board import measured
    from gpuguard.runtime.clock import SystemClock
    from gpuguard.runtime.known import config_path, is_remembered, state_dir
    from gpuguard.runtime.tenants import asked, tenants

    root, parts = Path(args.root), assemble(config_path(args))
    memory = state_dir(args) if is_remembered(args) else None
    snapshot, _ = measured(parts, state_dir=memory, root=root, clock=SystemClock(root))
    found = tenants(snapshot)
    if not found.jobs and not found.gpus:
        raise Absent("no job and no GPU is known here; `gpuguard status` tells which sources see anything")
    return sight_of(
        {name: merged(groups, snapshot.at) for name, groups in snapshot.readings.items()},
        node=socket.gethostname().partition(".")[0] if root == Path("/") else root.resolve().name,
        at=snapshot.at, called=found.called, held={job.id: job.gpus for job in asked(found, args.job)},
        attributed=bool(found.gpus) and all(gpu.jobs is not None for gpu in found.gpus),
    )  # fmt: skip


def _merged(args: Namespace) -> "Merged":
    """What the nodes see together that wrote into a folder."""
    from pathlib import Path

    import msgspec

    from gpuguard.jobs.merge import merge
    from gpuguard.runtime.sight_files import sights_in
    from gpuguard.runtime.tenants import meant

    sights, problems = sights_in(Path(args.merge))
    told = merge(sights, problems=problems)
    jobs = meant(told.jobs, args.job, lambda job: (job.job, *job.parts))
    return msgspec.structs.replace(told, jobs=jobs)


def _json(answer: "Merged | NodeSight") -> str:
    """Of one node what `--merge` wants; of several what they see together."""
    import msgspec

    return msgspec.json.encode(answer).decode() + "\n"


# --- the page --------------------------------------------------------------------------------------------------------


def _page(told: "Merged") -> str:
    from gpuguard.runtime.words import date, page, paragraph

    of = f"{len(told.nodes)} nodes" if len(told.nodes) > 1 else _short(told.nodes[0])
    lines = paragraph(f"{date(told.at)}  {of}", hanging=2)
    lines += [*_notes("not read", told.problems), *_notes("stale", told.stale), *_notes("unheard", told.unheard)]
    if not told.jobs:
        lines += paragraph(
            "no job is here"
            if told.attributed
            else f"progress is not known: no source told which jobs are here, and none told how far it is. {NEXT}"
        )
    for job in told.jobs:
        lines += ["", *_job(job)]
    if any(not job.known for job in told.jobs):
        lines += ["", *paragraph(NEXT)]
    return page(lines)


def _short(text: str, most: int = LETTERS) -> str:
    """The text on one line, printable and not endless."""
    from gpuguard.runtime.words import tidy

    return tidy(text if len(text) <= most else f"{text[:most]}...")


def _notes(label: str, told: Sequence[str], most: int = NOTES) -> Iterator[str]:
    """Texts below each other, beside a label; those that are too many are counted."""
    from gpuguard.runtime.words import row

    for place, text in enumerate(told[:most]):
        yield from row(label if place == 0 else "", _short(text))
    if len(told) > most:
        yield from row("", f"and {len(told) - most} more; --json has all")


def _job(job: "MergedJob") -> Iterator[str]:
    from gpuguard.jobs.wording import counted
    from gpuguard.runtime.tenants import sentence
    from gpuguard.runtime.words import paragraph, row

    whose = " of ".join(_short(part) for part in (job.name, job.user) if part)
    count = f"{job.seen} of {counted(job.world, 'rank')}" if job.world is not None else counted(job.seen, "rank")
    where = f"on {len(job.nodes)} nodes" if len(job.nodes) > 1 else "here"
    size = f"{count} {where}" if job.ranks else f"GPU {_gpus(job.gpus)}" if job.gpus else "no GPU"
    yield from paragraph(f"{_short(job.job)} {f'{whose}, ' if whose else ''}{size}", hanging=2)
    if job.verdict:
        yield from paragraph(sentence(job.verdict, job.confidence, _short(job.why)), hanging=2)
        yield from row("waiting for" if job.verdict == "waiting" and job.rank is not None else "culprit", _culprit(job))
        yield from _notes("for", job.speaks_for, SIGNALS)
        yield from _notes("against", job.against, SIGNALS)
    elif job.known:
        yield from paragraph(_well(job), hanging=2)
        if any((seen.rank.share or 0.0) > 1.0 for seen in job.ranks):
            yield from _notes("against", job.against, SIGNALS)
    else:
        yield from paragraph(_unknown(job), hanging=2)
    unread = [f"dump of rank {s.number}: {s.rank.dump_problem}" for s in job.ranks if s.rank.dump_problem]
    yield from _notes("not read", unread, SIGNALS)
    if job.missing and not job.verdict:  # else it is among what speaks against the verdict
        many = "rank" if job.missing.isdecimal() else "ranks"
        yield from row("missing", _short(f"nobody told of {many} {job.missing}"))
    if job.ranks:
        yield from _table(job)


def _gpus(called: Sequence[str]) -> str:
    from gpuguard.model.numbers import spans

    if all(name.isdecimal() and len(name) < 6 for name in called):
        return spans(map(int, called))
    return _short(", ".join(called[:MOST]))


def _culprit(job: "MergedJob") -> str:
    if job.rank is None:
        if job.node:
            return f"most likely on node {_short(job.node)}, of which there is no word"
        more = "" if len(job.nodes) > 1 else "; `gpuguard hang --merge` over all its nodes may"
        return f"what is seen here does not tell{more}"
    seen = next((seen for seen in job.ranks if seen.number == job.rank), None)
    parts = [f"rank {job.rank}"]
    if seen is not None:
        parts += [f"pid {seen.rank.pid}"] if seen.rank.pid is not None else []
        parts += [f"GPU {_short(seen.rank.called, 20)}"] if seen.rank.called else []
    together = "" if job.lagging in ("", str(job.rank)) else f"; the first of ranks {_short(job.lagging)}"
    return f"{', '.join([*parts, f'node {_short(job.node)}'])}{together}"


def _well(job: "MergedJob") -> str:
    from gpuguard.jobs.wording import counted
    from gpuguard.runtime.words import span

    if job.ranks and all(seen.rank.done or seen.rank.gone for seen in job.ranks):
        mute = sum(not seen.rank.done for seen in job.ranks)
        how = f"{mute} of them without done(); `gpuguard why {_short(job.job)}`" if mute else "all of them with done()"
        return f"it is over: {counted(len(job.ranks), 'rank')} ended, {how}{' tells what is known' if mute else ''}"
    told = [(share, seen.rank) for seen in job.ranks if (share := seen.rank.share) is not None]
    why = f"{_short(job.why)}; " if job.why else ""
    if not told:
        return f"no hang: {why}nothing speaks for one, though no limits are known yet"
    share, rank = max(told, key=lambda pair: pair[0])
    silent, limit = span(rank.silent or 0.0), span(rank.limit or 0.0)
    if share > 1.0:
        return (
            f"no hang is found, though rank {rank.number} has shown no progress for {silent}, more than its limit of "
            f"{limit}: {'other signals speak against one' if job.against else 'nothing else speaks for one yet'}"
        )
    return f"no hang: {why}longest without progress is rank {rank.number}, for {silent} of the {limit} it may be"


def _unknown(job: "MergedJob") -> str:
    active = job.activity
    busy = f" Its GPUs are {100 * active:.0f} % busy, which is no progress." if active is not None else ""
    return f"progress of job {_short(job.job)} is not known: no heartbeats, and nothing is watched for it.{busy}"


# --- the ranks -------------------------------------------------------------------------------------------------------


def _table(job: "MergedJob") -> Iterator[str]:
    merged = len(job.nodes) > 1
    yield ""
    yield MERGED_HEAD if merged else HEAD
    for seen in job.ranks[:MOST]:
        held_up = job.verdict is not None and seen.number == job.rank
        yield _rank(seen.rank, seen.node if merged else None, behind=held_up)
    if len(job.ranks) > MOST:
        yield f"and {len(job.ranks) - MOST} ranks that stand better; --json has all"


def _rank(rank: "RankSight", node: str | None, *, behind: bool) -> str:
    from gpuguard.runtime.tenants import phase, silence, steps
    from gpuguard.runtime.words import cell, padded

    pid, missing = rank.pid, rank.behind
    place = padded(node, 7) if node is not None else f"{'?' if pid is None else cell(str(pid), 7):>7}"
    busy = "?" if rank.activity is None else cell(f"{100 * rank.activity:.0f}", 4)
    steps_behind = "?" if missing is None else str(missing) if abs(missing) < 1e5 else f"{missing:.0e}"
    return (
        f"{'>' if behind else ' '}{cell(str(rank.number), 5):>5} {place} {steps(rank.step):>8} "
        f"{steps_behind:>6} {padded(phase(rank.phase), 8)} {silence(rank.silent, rank.limit):>9} "
        f"{_process(rank):>4} {cell(rank.called or '-', 3):>3} {busy:>4} {_bar(rank, behind)}"
    ).rstrip()


def _process(rank: "RankSight") -> str:
    """What its process does, by the kernel's letter; `gone` for one that has ended."""
    from gpuguard.runtime.words import cell

    if rank.done:
        return "done"
    return "gone" if rank.gone else cell(rank.state, 4) or "?"


def _bar(rank: "RankSight", behind: bool) -> str:
    """How much of its limit a rank has been silent for: to `|`, and what is beyond; of another letter for the one that
    holds up the others, which are often silent for as long."""
    if rank.share is None:
        return ""
    part = max(0.0, min(rank.share, 3.0))  # anything beyond twice the limit looks alike
    within, beyond = min(BAR, math.ceil(part * BAR)), max(0, math.ceil((part - 1.0) * BAR))
    more = "!" * beyond if beyond <= BAR else "!" * (BAR - 1) + "+"
    bar = f"{'=' * within:<{BAR}}|{more}"
    return bar.replace("=", "#") if behind else bar


# --- stacks ----------------------------------------------------------------------------------------------------------


def _stacks(told: "Merged") -> None:
    """Prints what the rank does that holds a job up; where none is named, what the worst of its ranks do."""
    from gpuguard.child.stacks import stacks
    from gpuguard.errors import Absent, ReadFailed
    from gpuguard.runtime.words import page

    wanted = [seen for job in told.jobs if job.verdict is not None for seen in _suspects(job)]
    if not wanted:
        sys.stdout.write("\nno stacks: no process here holds a job up\n")
    for seen in wanted:
        rank, pid = seen.rank, seen.rank.pid
        if rank.gone or pid is None:
            sys.stdout.write(f"\nrank {rank.number}: its process {'has ended' if rank.gone else 'is not known'}\n")
            continue
        sys.stderr.write(f"looking at rank {rank.number}, pid {pid}, for {STACKS_WITHIN:.0f} s at most ...\n")
        try:
            lines = stacks(pid, STACKS_WITHIN).splitlines()
        except Absent as error:
            sys.stdout.write(page(("", f"no stacks: {error}")))
            return
        except ReadFailed as error:
            sys.stdout.write(page(("", f"rank {rank.number}: {error}")))
            continue
        more = [f"  and {len(lines) - STACK_LINES} lines more"] if len(lines) > STACK_LINES else []
        shown = [f"  {line[:LETTERS]}".rstrip() for line in lines[:STACK_LINES]]
        sys.stdout.write(page(("", f"stacks of rank {rank.number}, pid {pid}", *shown, *more)))


def _suspects(job: "MergedJob") -> "Sequence[Seen]":
    named = [seen for seen in job.ranks if seen.number == job.rank]
    return named or [seen for seen in job.ranks if not seen.rank.done][:STACKS]
