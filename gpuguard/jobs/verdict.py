"""Whether a job is held up, by what, and by which of its ranks.

Theory. One signal alone says little: a GPU reads 99 % busy while a collective waits for ever, and 0 % while a
checkpoint is written. So a verdict needs two kinds of evidence that agree, and any sign of real work speaks against a
hang:

  silence    a rank showed no progress for longer than its limit, learned from its own past by phase
  phase      what a rank says it does: in a checkpoint, an evaluation or a compilation others wait for it rightly
  GPU        computes; spins (busy, and nothing is computed or moved); idle
  process    gone, stopped, hangs in the kernel, still (no processor, no switch, no byte), or works
  storage    all of its cgroup waits for storage
  NCCL       the collectives that each rank called and completed

A rank that is gone while the others do nothing says so at once, and so does one that is stopped, frozen with its
control group or suspended by its scheduler. Where ranks are silent beyond their limits, the job is hung, unless one
of the silent shows life: it reads or writes, its GPU computes, or it uses processors while its GPU does not spin. Such
a one is given patience, as it may do rightly what nobody told us of; while the GPUs of all that are silent compute,
without an end: some tell a step an epoch. Nor is one held up that sleeps until somebody asks it something, as a
notebook does and a server. Where nobody tells of progress at all, GPUs that worked before and all spin for a while are
the silence. What other nodes do this one cannot see: a job that has ranks elsewhere and nobody suspect here waits, and
`hang --merge` finds for whom.

Whom the others wait for is found by jobs/culprit. A collective that times out ends those that wait in it: one that
ended after a silence beyond its limit gave up, and the culprit is among those that are left.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuguard.jobs.culprit import culprit_of, is_still, loops_alone, suspect_of, untold
from gpuguard.jobs.views import GpuView, JobView, Judgement, RankView, TaskView
from gpuguard.jobs.wording import counted
from gpuguard.model.ids import SubjectId
from gpuguard.model.units import Seconds

STEP, START = "step", "start"
# Where a process sleeps that waits for a person or a question: an event loop, a server, a prompt. A poll is none of
# these: so do ranks wait for their loaders.
ASKED = ("ep_poll", "do_epoll_wait", "inet_csk_accept", "unix_accept", "n_tty_read")
# Where one sleeps whose control group is frozen, as by `docker pause`: cgroup v2, v1.
FROZEN = ("do_freezer_trap", "__refrigerator")
DECLARED = ("checkpoint", "evaluation", "compile")
HELD_UP = ("hung", "waiting", "storage_stalled", "paused", "slow_start")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What counts as life, and how long something must be so."""

    # Silent, but it works: so long nobody calls it a hang. Evaluations without a word took 20 min (torchft 70: 40 min).
    patience: Seconds = Seconds(3600.0)
    spinning: Seconds = Seconds(75.0)  # GPUs of one node that all spin for so long; a collective takes seconds
    unsure: Seconds = Seconds(600.0)  # the same where nobody told on how many nodes the job runs
    stopped: Seconds = Seconds(10.0)  # a debugger that looks at a process stops it for less
    alone: Seconds = Seconds(20.0)  # ranks wait for one that is gone for so long; launchers end them within seconds
    evident: Seconds = Seconds(40.0)  # silent for so long, where one hangs and all others spin; whatever is usual
    still: Seconds = Seconds(20.0)  # without a processor, a switch or a byte
    bytes_per_second: float = 1e5  # reading or writing more than this is work
    cores: float = 0.3  # using more of the processors than this is work, where its GPU does not spin
    one_core: float = 1.3  # a thread that polls, and a little more
    # Of one that tells of no progress, and so may be no training: a server reads what it is asked, and no more.
    reading: float = 1e7
    stalled: float = 0.5  # share of the last minute in which all of it waited for storage
    slower: float = 1.4  # steps take so many times longer than usual: somebody holds up the others
    fed: float = 0.5  # GPUs that are active for less of the time while steps take longer wait for something
    steadily: Seconds = Seconds(100.0)  # and work, a little at each look, for as long as that was measured over
    loading: float = 2.0  # processors that the loaders of each rank use then, where it is them
    apart: float = 0.2  # by so much busier than the others is a GPU whose rank holds them up


def judge(job: JobView, settings: Settings) -> Judgement:
    """What holds the job up, if anything."""
    ranks = tuple(rank for rank in job.ranks if not rank.done)
    for look in (_gone, _stopped, _silent, _slow) if ranks else (_stopped_tasks, _spinning):
        found = look(job, ranks, settings)
        if found is not None:
            return _suspended(found) if job.suspended and found.verdict in HELD_UP else found
    return _starved(job, settings) or Judgement()


def _suspended(found: Judgement) -> Judgement:
    """The same, where its scheduler has stopped the job: then nobody else does, and nobody is to blame."""
    return Judgement(
        verdict="paused",
        confidence=0.95,
        speaks_for=found.speaks_for,
        why="its scheduler has suspended it and lets it go on by itself or when told to (`scontrol resume`)",
    )


def _gone(job: JobView, ranks: Sequence[RankView], settings: Settings) -> Judgement | None:
    """A rank ended without a word, and the others wait for it."""
    gone = [rank for rank in ranks if rank.gone]
    left = [rank for rank in ranks if not rank.gone]
    if not gone or not left or any(_moved(rank, settings.alone) for rank in left):
        return None
    first = [rank for rank in gone if not _gave_up(rank)]
    if not first:
        return None if any(_is_stopped(rank.task, settings) for rank in left) else _left(job, gone, left, settings)
    # One that writes the last checkpoint or counts the last score is left alone by the others, and waits for none.
    longest = max((rank.silent or 0.0 for rank in left), default=0.0)
    declared = [rank for rank in left if rank.phase in DECLARED and (rank.silent or 0.0) < rank.limit]
    busy = _at_work(job, left, settings) if longest < settings.patience else ()
    if declared or busy:
        doing = tuple(f"rank {rank.number} is in {rank.phase}" for rank in declared)
        return Judgement(speaks_for=tuple(f"rank {rank.number} ended without done()" for rank in gone[:3]),
                         against=(*doing, *busy))  # fmt: skip
    lost = max(first, key=lambda rank: rank.silent or 0.0)
    others = counted(len(left), "other rank")
    return Judgement(
        verdict="hung", confidence=0.9, rank=lost.number, gpu=lost.gpu,
        why=f"the process of rank {lost.number} is gone, and {others} {'wait' if len(left) > 1 else 'waits'} for it",
        speaks_for=(f"rank {lost.number} ended without done()", *_silences(left)),
        against=_working(job, left, settings),
    )  # fmt: skip


def _at_work(job: JobView, ranks: Sequence[RankView], settings: Settings) -> tuple[str, ...]:
    """Which of these ranks do what no wait looks like. To use a processor is a wait as well while nothing is known of
    the GPU."""
    patterns = {gpu.gpu: gpu.pattern for gpu in job.gpus}
    seen = [
        rank for rank in ranks
        if (patterns.get(rank.gpu, "unknown") if rank.gpu is not None else "unknown") != "unknown"
        or (rank.task is not None and (rank.task.io_bytes_per_second or 0.0) > settings.bytes_per_second)
    ]  # fmt: skip
    return _working(job, seen, settings)


def _gave_up(rank: RankView) -> bool:
    """Whether it ended after it had waited for longer than its limit, as a collective that times out ends those in it:
    then somebody else had stopped before."""
    return rank.ended is not None and rank.silent is not None and rank.silent - rank.ended >= rank.limit


def _left(job: JobView, gone: Sequence[RankView], left: Sequence[RankView], settings: Settings) -> Judgement:
    """Those that are gone gave up; whom they waited for is among those that are left."""
    culprit, evidence = culprit_of(job, left, left, settings.still)
    if len(left) == 1 and len(gone) == 1:
        culprit = None  # one that hung and was then killed looks the same as one that waited
    ended = f"{counted(len(gone), 'rank')} waited and gave up"
    who = f"rank {left[0].number} is" if len(left) == 1 else f"{len(left)} are"
    why = f"{ended}, and {who} left without progress in {left[0].phase or STEP} for {left[0].silent or 0.0:.0f} s"
    if evidence:
        why += f"; {evidence[0]}"
    return Judgement(
        verdict="hung", confidence=0.9 if culprit is not None else 0.8, why=why,
        rank=culprit.number if culprit is not None else None, gpu=culprit.gpu if culprit is not None else None,
        speaks_for=(*evidence, ended, *_silences(left)), against=_working(job, left, settings),
    )  # fmt: skip


def _moved(rank: RankView, within: float) -> bool:
    return rank.silent is None or rank.silent < within


def _stopped(job: JobView, ranks: Sequence[RankView], settings: Settings) -> Judgement | None:
    for rank in ranks:
        if rank.task is not None and _is_stopped(rank.task, settings) and not _moved(rank, settings.stopped):
            return _paused(rank.task, rank.number, rank.gpu, _silences([rank]))
    return None


def _stopped_tasks(job: JobView, ranks: Sequence[RankView], settings: Settings) -> Judgement | None:
    for task in job.tasks:
        if _is_stopped(task, settings):
            return _paused(task, task.rank, task.gpu, ())
    return None


def _is_stopped(task: TaskView | None, settings: Settings) -> bool:
    if task is None or task.gone or task.state_seconds < settings.stopped:
        return False
    return task.state in ("T", "t") or (_is_frozen(task) and task.still >= settings.stopped)


def _is_frozen(task: TaskView) -> bool:
    return task.waits_in in FROZEN


def _waits_to_be_asked(task: TaskView | None, settings: Settings) -> bool:
    """Whether it sleeps until a person or a program wants something of it."""
    return is_still(task, settings.still) and task is not None and task.waits_in in ASKED


def _paused(task: TaskView, rank: int | None, gpu: SubjectId | None, silences: tuple[str, ...]) -> Judgement:
    who = f"rank {rank} (pid {task.pid})" if rank is not None else f"process {task.pid} ({task.name})"
    how = f"was stopped (SIGSTOP); `kill -CONT {task.pid}` lets it go on"
    if task.state == "t":
        how = "is held by a debugger; it goes on when that lets it, or is ended"
    if _is_frozen(task):
        how = "is frozen with its control group; `docker unpause`, or a 0 in its cgroup.freeze, lets it go on"
    state = task.waits_in if _is_frozen(task) else f"state {task.state}"
    return Judgement(
        verdict="paused", confidence=0.95, rank=rank, gpu=gpu,
        why=f"{who} {how}", speaks_for=(f"{state} for {task.state_seconds:.0f} s", *silences),
    )  # fmt: skip


def _silent(job: JobView, ranks: Sequence[RankView], settings: Settings) -> Judgement | None:
    """Ranks are silent beyond their limits."""
    left = [rank for rank in ranks if not rank.gone and rank.silent is not None]
    late = [rank for rank in left if (rank.silent or 0.0) >= rank.limit] or _evident(job, left, settings)
    if not late:
        return None
    busy = [rank for rank in left if rank not in late and rank.phase in DECLARED]
    if busy:
        first = busy[0]
        return Judgement(
            against=(f"rank {first.number} is in {first.phase} since {first.silent:.0f} of {first.limit:.0f} s",)
        )
    longest = max(rank.silent or 0.0 for rank in late)
    nobody = all(rank.pid is None for rank in late) and all(task.gone for task in job.tasks)
    if nobody and longest < settings.patience:
        return Judgement(speaks_for=_silences(late), against=("no process of the job is seen here",))
    stalled = _stalled(job, late, settings)
    if stalled is not None:
        return stalled
    quiet = [rank for rank in left if (rank.silent or 0.0) >= min(settings.still, 0.5 * rank.limit)]
    alive = _working(job, quiet, settings)
    computing = {gpu.gpu for gpu in job.gpus if gpu.pattern == "working"}
    excused = longest < settings.patience or all(rank.gpu in computing for rank in left)
    if alive and excused and not _all_but_one_may_wait(job, left, settings):
        return Judgement(speaks_for=_silences(late), against=alive)
    if len(left) == 1 and not untold(job, left) and not job.elsewhere and _waits_to_be_asked(left[0].task, settings):
        return Judgement(speaks_for=_silences(late), against=(f"rank {left[0].number} sleeps until it is asked",))
    unstarted = [rank for rank in late if not rank.started]
    if unstarted and len(unstarted) == len(late):
        first = max(unstarted, key=lambda rank: rank.silent or 0.0)
        return Judgement(
            verdict="slow_start", confidence=0.7, rank=first.number, gpu=first.gpu, speaks_for=_silences(late),
            against=alive, why=f"no first step in {first.silent:.0f} s; usual is less than {first.limit:.0f} s",
        )  # fmt: skip
    culprit, evidence = culprit_of(job, left, late, settings.still)
    if job.elsewhere and culprit is None and len(late) == len(left) and longest < settings.patience:
        return Judgement(
            verdict="waiting", confidence=0.7, speaks_for=_silences(late),
            against=("the job has ranks on other nodes", *alive),
            why="every rank here waits, most probably for one on another node; `gpuguard hang --merge` finds it",
        )  # fmt: skip
    return _hung(job, late, culprit, evidence, alive, settings)


def _all_but_one_may_wait(job: JobView, left: Sequence[RankView], settings: Settings) -> bool:
    """Whether one sits still and each of the others does no more than use a processor, which to wait in a collective
    takes as well, while nothing is known of their GPUs."""
    patterns = {gpu.gpu: gpu.pattern for gpu in job.gpus}

    def may_wait(rank: RankView) -> bool:
        task, pattern = rank.task, patterns.get(rank.gpu, "unknown") if rank.gpu is not None else "unknown"
        return (
            task is not None and pattern == "unknown" and not is_still(task, settings.still)
            and (task.cpu or 0.0) <= settings.one_core and (task.children_cpu or 0.0) <= settings.cores
            and (task.io_bytes_per_second or 0.0) <= settings.bytes_per_second
        )  # fmt: skip

    waits = [rank for rank in left if may_wait(rank)]
    return len(waits) >= 2 and len(waits) == len(left) - 1 and sum(is_still(r.task, settings.still) for r in left) == 1


def _evident(job: JobView, left: Sequence[RankView], settings: Settings) -> list[RankView]:
    """All of them, where the limit is long and there is no doubt all the same: all are silent, and the GPUs of all
    spin, or of all but one that hangs, sits still or loops."""
    if len(left) < 2 or any(
        (rank.silent or 0.0) < settings.evident or rank.phase in (*DECLARED, START) or not rank.learned for rank in left
    ):
        return []
    shown = {gpu.gpu: gpu for gpu in job.gpus if gpu.pattern == "spinning"}

    def spins(rank: RankView) -> bool:
        gpu = shown.get(rank.gpu) if rank.gpu is not None else None
        return gpu is not None and gpu.pattern_seconds >= 0.7 * settings.evident

    if all(spins(rank) for rank in left) and not job.elsewhere:
        return list(left)
    for rank in left:
        others = [other for other in left if other is not rank]
        if all(spins(other) for other in others) and (
            is_still(rank.task, settings.still) or loops_alone(rank.gpu, [other.gpu for other in others], job.gpus)
        ):
            return list(left)
    return []


def _hung(
    job: JobView, late: Sequence[RankView], culprit: RankView | None, evidence: tuple[str, ...],
    alive: tuple[str, ...], settings: Settings,
) -> Judgement:  # fmt: skip
    spinning = [gpu for gpu in job.gpus if gpu.pattern == "spinning"]
    still = [rank for rank in late if is_still(rank.task, settings.still)]
    # A silence alone may be a long step, where nothing is learned of how long one takes and nothing else is seen.
    seen = any(gpu.pattern != "unknown" for gpu in job.gpus) or any(rank.task is not None for rank in late)
    learned, longest = any(rank.learned for rank in late), max(rank.silent or 0.0 for rank in late)
    confidence = 0.65 if seen or learned or job.flight is not None or longest >= settings.patience else 0.5
    confidence += 0.1 if spinning else 0.0
    confidence += 0.1 if still else 0.0
    confidence += 0.1 if culprit is not None else 0.0
    confidence += 0.05 if learned else 0.0
    confidence -= 0.05 if alive else 0.0
    first = culprit or max(late, key=lambda rank: (rank.silent or 0.0) / max(rank.limit, 1.0))
    what = f"rank {first.number}" if culprit is not None or len(late) == 1 else "every rank"
    why = (
        f"{what} shows no progress in {first.phase or STEP} for {first.silent or 0.0:.0f} s (limit {first.limit:.0f} s)"
    )
    if culprit is not None and evidence:
        why += f"; {evidence[0]}"
    return Judgement(
        verdict="hung", confidence=min(confidence, 0.98), rank=culprit.number if culprit is not None else None,
        gpu=culprit.gpu if culprit is not None else None, why=why,
        speaks_for=(*evidence, *_silences(late), *_gpu_words(spinning)), against=alive,
    )  # fmt: skip


def _stalled(job: JobView, late: Sequence[RankView], settings: Settings) -> Judgement | None:
    """Storage holds them up."""

    def stalls(rank: RankView) -> float:
        task = rank.task
        if task is None:
            return 0.0
        hangs = 1.0 if task.state == "D" and task.state_seconds >= settings.still else 0.0
        return max(hangs, task.io_stalled or 0.0)

    worst = max(late, key=stalls)
    task = worst.task
    if task is None or stalls(worst) < settings.stalled:
        return None
    where = f" in {task.waits_in}" if task.waits_in else ""
    told = f"rank {worst.number} hangs in the kernel{where} for {task.state_seconds:.0f} s"
    if task.state != "D":
        told = f"rank {worst.number} waited for storage {100 * (task.io_stalled or 0.0):.0f} % of the last minute"
    return Judgement(
        verdict="storage_stalled", confidence=0.85, rank=worst.number, gpu=worst.gpu,
        why=f"{told}; look at the file system it reads or writes", speaks_for=(told, *_silences([worst])),
    )  # fmt: skip


def _working(job: JobView, ranks: Sequence[RankView], settings: Settings) -> tuple[str, ...]:
    """Which of these ranks show real work, in words."""
    gpus = {gpu.gpu: gpu for gpu in job.gpus}
    found = []
    for rank in ranks:
        gpu = gpus.get(rank.gpu) if rank.gpu is not None else None
        words = _life(rank.task, gpu, settings)
        if words:
            found.append(f"rank {rank.number} {words}")
    return tuple(found)


def _life(task: TaskView | None, gpu: GpuView | None, settings: Settings) -> str:
    """What shows that somebody works; '' where nothing does."""
    if gpu is not None and gpu.pattern == "working":
        return f"computes on its GPU ({gpu.words})" if gpu.words else "computes on its GPU"
    if task is None or task.gone:
        return ""
    if (task.io_bytes_per_second or 0.0) > settings.bytes_per_second:
        return f"reads or writes {(task.io_bytes_per_second or 0.0) / 1e6:.1f} MB/s"
    cores = (task.cpu or 0.0) + (task.children_cpu or 0.0)
    if cores > settings.cores and (gpu is None or gpu.pattern != "spinning"):
        return f"uses {cores:.1f} processors"
    return ""


def _spinning(job: JobView, ranks: Sequence[RankView], settings: Settings) -> Judgement | None:
    """Nobody tells of progress: GPUs that worked, and all of them spin."""
    known = [gpu for gpu in job.gpus if gpu.worked]
    spinning = [gpu for gpu in known if gpu.pattern == "spinning"]
    rest = [gpu for gpu in known if gpu.pattern != "spinning"]
    if not spinning or any(gpu.pattern not in ("idle", "unknown") for gpu in rest) or len(spinning) < len(rest):
        return None
    span = min(gpu.pattern_seconds for gpu in spinning)
    if span < settings.spinning:
        return None
    suspect, reason = suspect_of(job, settings.still)
    if suspect is not None and rest and _waits_to_be_asked(suspect, settings):
        told = f"process {suspect.pid} sleeps until it is asked, and the others wait for it rightly"
        return Judgement(speaks_for=_gpu_words(spinning), against=(told,))
    hang = next((task for task in job.tasks if task.state == "D" and task.state_seconds >= settings.still), None)
    if hang is not None:
        return Judgement(
            verdict="storage_stalled", confidence=0.75, speaks_for=_gpu_words(spinning), rank=hang.rank, gpu=hang.gpu,
            why=f"process {hang.pid} hangs in the kernel ({hang.waits_in or 'state D'}) and the GPUs wait for it",
        )  # fmt: skip
    # A process whose GPU spins uses a processor to look whether it is done: that is no work. Its bytes are.
    by_gpu: dict[str | None, GpuView] = {gpu.gpu: gpu for gpu in job.gpus}
    alive = tuple(
        f"process {task.pid} {words}"
        for task in job.tasks
        if (words := _life(task, by_gpu.get(task.gpu, spinning[0]), settings))
    )
    if alive and span < settings.patience:
        return Judgement(speaks_for=_gpu_words(spinning), against=alive)
    if job.elsewhere and not rest and span < settings.patience:
        return Judgement(
            verdict="waiting", confidence=0.65, speaks_for=_gpu_words(spinning), against=("it has other nodes",),
            why=f"all GPUs it has here wait for {span:.0f} s, most probably for one on another node",
        )  # fmt: skip
    odd = rest[0] if len(rest) == 1 else None
    confidence = 0.7 + (0.1 if odd is not None else 0.0) + (0.1 if suspect is not None else 0.0)
    if job.world is None and not job.elsewhere and span < settings.unsure and odd is None and suspect is None:
        return Judgement(
            verdict="waiting", confidence=0.6, speaks_for=_gpu_words(spinning),
            against=("nobody tells of its progress, nor on how many nodes it runs", *alive),
            why=f"all GPUs it has here wait for {span:.0f} s, for a rank here or, if it has any, on another node",
        )  # fmt: skip
    why = f"its GPUs are busy for {span:.0f} s and neither compute nor move anything"
    if suspect is not None:
        why += f"; {reason}"
    elif odd is not None:
        why += f"; {odd.gpu} idles, and the others wait for it"
    return Judgement(
        verdict="hung", confidence=confidence, rank=suspect.rank if suspect is not None else None,
        gpu=(suspect.gpu if suspect is not None else None) or (odd.gpu if odd is not None else None), why=why,
        speaks_for=_gpu_words(spinning), against=("nobody tells of its progress", *alive),
    )  # fmt: skip


def _slow(job: JobView, ranks: Sequence[RankView], settings: Settings) -> Judgement | None:
    """One rank holds the others up, and all get on."""
    if len(ranks) < 2 or any(rank.phase in DECLARED for rank in ranks):
        return None
    slower = [rank.slower for rank in ranks if rank.slower is not None]
    far = max(ranks, key=lambda rank: rank.behind)
    # Ranks that drift apart do not wait for each other: several programs, or each its own share. Only one that has
    # become slower itself, and the others have not, has something wrong with it.
    slowed = (far.slower or 1.0) >= settings.slower and sum(
        (rank.slower or 1.0) >= settings.slower for rank in ranks
    ) == 1
    apart = far.behind >= max(10, 0.05 * (far.step or 0)) and far.behind > 2 * _median(r.behind for r in ranks) + 5
    if slowed and apart:
        return Judgement(
            verdict="straggler", confidence=0.75, rank=far.number, gpu=far.gpu,
            why=f"rank {far.number} is {far.behind} steps behind the others, and its steps take "
            f"{far.slower or 1.0:.1f} times as long as they did",
            speaks_for=(f"at step {far.step}",), against=(),
        )  # fmt: skip
    if not slower or _median(slower) < settings.slower:
        return None
    lately = {gpu.gpu: gpu.activity for gpu in job.gpus if gpu.activity is not None}
    busy = [(lately[rank.gpu], rank) for rank in ranks if rank.gpu is not None and rank.gpu in lately]
    if len(busy) < 2:
        return None
    most, rank = max(busy, key=lambda one: one[0])
    others = [activity for activity, other in busy if other is not rank]
    if most - max(others) < settings.apart:
        return None
    return Judgement(
        verdict="straggler", confidence=0.7, rank=rank.number, gpu=rank.gpu,
        why=f"steps take {_median(slower):.1f} times as long as usual, and only the GPU of rank {rank.number} is "
        f"always busy ({100 * most:.0f} %, others {100 * _median(others):.0f} %)",
        speaks_for=(f"its GPU is busy {100 * most:.0f} %, the others wait",), against=(),
    )  # fmt: skip


def _starved(job: JobView, settings: Settings) -> Judgement | None:
    """GPUs wait for data again and again: they work in bursts, or the gaps are too short to be seen, and then the steps
    of all take longer than they did, no GPU is busy, and loaders are."""
    if any(rank.phase in DECLARED for rank in job.ranks):
        return None
    saws = [gpu for gpu in job.gpus if gpu.pattern == "sawtooth"]
    loaders = sum(task.children_cpu or 0.0 for task in job.tasks)
    bytes_read = sum(task.io_bytes_per_second or 0.0 for task in job.tasks)
    if not saws or 2 * len(saws) < len(job.gpus):
        return _fed_slowly(job, loaders, settings)
    if loaders < settings.cores and bytes_read < (settings.bytes_per_second if job.ranks else settings.reading):
        return None
    read = (
        f"loaders use {loaders:.1f} processors" if loaders >= settings.cores else f"reads {bytes_read / 1e6:.0f} MB/s"
    )
    return Judgement(
        verdict="data_starved", confidence=0.7, speaks_for=(*_gpu_words(saws), read),
        why=f"{counted(len(saws), 'GPU')} {'work' if len(saws) > 1 else 'works'} in bursts and "
        f"{'wait' if len(saws) > 1 else 'waits'} for data in between; {read}",
    )  # fmt: skip


def _fed_slowly(job: JobView, loaders: float, settings: Settings) -> Judgement | None:
    ranks = [rank for rank in job.ranks if not (rank.done or rank.gone)]
    slower = [rank.slower for rank in ranks if rank.slower is not None]
    lately = [gpu.activity for gpu in job.gpus if gpu.activity is not None]
    if not slower or len(slower) < len(ranks) or not lately or len(lately) < len(job.gpus):
        return None
    # After a pause that nobody declared, all of this is so for a while; but then they have worked for less than that.
    if any(gpu.pattern != "working" or gpu.pattern_seconds < settings.steadily for gpu in job.gpus):
        return None
    if min(slower) < settings.slower or max(lately) > settings.fed or loaders < settings.loading * len(ranks):
        return None
    words = f"loaders use {loaders:.1f} processors"
    return Judgement(
        verdict="data_starved", confidence=0.65, speaks_for=(f"GPUs are active {100 * max(lately):.0f} %", words),
        why=f"steps take {_median(slower):.1f} times as long as usual, no GPU is active for more than "
        f"{100 * max(lately):.0f} % of the time, and {words}",
    )  # fmt: skip


def _silences(ranks: Sequence[RankView]) -> tuple[str, ...]:
    """Who is silent for how long, worst first; a few of them, and how many more."""
    worst = sorted(ranks, key=lambda rank: -(rank.silent or 0.0))
    shown = [
        f"rank {rank.number} silent for {rank.silent or 0.0:.0f} s in {rank.phase or STEP} (limit {rank.limit:.0f} s)"
        for rank in worst[:3]
    ]
    return (*shown, f"and {len(worst) - 3} more") if len(worst) > 3 else tuple(shown)


def _gpu_words(gpus: Sequence[GpuView]) -> tuple[str, ...]:
    shown = [f"{gpu.gpu} {gpu.pattern} for {gpu.pattern_seconds:.0f} s{f' ({gpu.words})' if gpu.words else ''}"
             for gpu in gpus[:3]]  # fmt: skip
    return (*shown, f"and {len(gpus) - 3} more") if len(gpus) > 3 else tuple(shown)


def _median(values: Iterable[float]) -> float:
    """The one in the middle, or the upper of two; statistics would load a megabyte for this."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
