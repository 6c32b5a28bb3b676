"""What a simulation needs of this machine: the files of a trace, a stopwatch, dice, and how much memory it took.

The simulator itself is pure; here is its shell, which the command and whoever else runs it share.
"""

import gc
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuguard.errors import ConfigInvalid, UsageError
from gpuguard.runtime.trace_files import trace_lines
from gpuguard.scheduler.events import ConditionMet, NodeJoined
from gpuguard.scheduler.plan import Refuse
from gpuguard.scheduler.request import WHOLE
from gpuguard.scheduler.settings import Settings
from gpuguard.scheduler.wiring import two_sockets
from gpuguard.simulator.course import Course
from gpuguard.simulator.engine import Engine, Model
from gpuguard.simulator.goodput import goodput
from gpuguard.simulator.inflation import Inflation
from gpuguard.simulator.nearness import Nearness
from gpuguard.simulator.policies import policies
from gpuguard.simulator.summary import cycles, measured_window, summary
from gpuguard.simulator.trace import Trace, TraceJob
from gpuguard.simulator.traces import shared_columns
from gpuguard.simulator.walltimes import Mode, with_walltimes
from gpuguard.simulator.windows import Window, inflated, submitted_in, window

WIRED = 8
"""Nodes of so many GPUs are nearly always built in the same way; of others nothing is assumed."""

Show = Callable[[int, int], None]
Facts = dict[str, Any]  # Any: the answer is JSON, which mixes types
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The files of a simulation. `notes`: what was odd in them and does no harm."""

    trace: Trace
    nodes: tuple[NodeJoined, ...]
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """Of all nodes."""
        return sum(node.gpus for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What every policy is run on. `walltimes`: as told by the trace, and made where it is silent, when None."""

    window: Window
    jobs: tuple[TraceJob, ...]
    nodes: tuple[NodeJoined, ...]
    walltimes: Mode | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy's run: its figures, its course, and the jobs that it could never have held."""

    facts: Facts
    course: Course | None
    refused: tuple[Refuse, ...]


def read(jobs: str, nodes: str, gpu_types: str | None = None, *, wired: bool = True) -> Read:
    """The files, whole.

    Shape   wired: nodes of WIRED GPUs of which nothing is known are taken to have two sockets
    Raises  ConfigInvalid with the mistakes of all files by line and column; ReadFailed, NotUnderstood for a file that
            is none
    """
    mistakes: list[str] = []
    trace = _tried(lambda: shared_columns.jobs(trace_lines(jobs), jobs), mistakes)
    joined = _tried(lambda: shared_columns.nodes(trace_lines(nodes), nodes), mistakes)
    types = None
    if gpu_types is not None:
        types = _tried(lambda: shared_columns.gpu_types(trace_lines(gpu_types), gpu_types), mistakes)
    if mistakes or trace is None or joined is None:
        raise ConfigInvalid(mistakes)
    notes = []
    if trace.unread:
        notes.append(f"{jobs}: left alone, as no such columns are known: {', '.join(map(ascii, trace.unread))}")
    if types is not None:
        trace, strangers = shared_columns.with_gpu_types(trace, types)
        if strangers:
            many = "1 job that is" if strangers == 1 else f"{strangers:,} jobs that are"
            notes.append(f"{gpu_types}: names {many} not in {jobs}, which constrains nobody")
    if wired:
        joined = tuple(
            msgspec.structs.replace(node, placement=two_sockets(WIRED))
            if node.placement is None and node.gpus == WIRED else node
            for node in joined
        )  # fmt: skip
    return Read(trace=trace, nodes=joined, notes=tuple(notes))


def _tried(reading: Callable[[], _T], mistakes: list[str]) -> _T | None:
    try:
        return reading()
    except ConfigInvalid as error:
        mistakes.extend(error.mistakes)
        return None


def case(
    found: Read, *, walltimes: Mode | None, from_day: float | None, to_day: float | None, max_days: float | None
) -> Case:
    """The jobs of these days, cut to their longest, each with a walltime.

    Raises  UsageError when no job that ran was submitted in them, ConfigInvalid when none of all did
    """
    if from_day is to_day is None and not any(job.duration_s is not None for job in found.trace.jobs):
        raise ConfigInvalid(
            ["no job has a run time, so there is nothing to simulate: fill in duration_s, or use --inflate"]
        )
    chosen = window(found.trace, from_day=from_day, to_day=to_day, max_days=max_days)
    return Case(
        window=chosen, jobs=tuple(with_walltimes(chosen.jobs, walltimes)), nodes=found.nodes, walltimes=walltimes
    )


def settings_of(policy: str, reservations: int | None = None) -> Settings:
    """The policy's, with another number of reservations where one is given.

    Raises  UsageError for a policy that reserves nothing
    """
    found = policies()[policy]
    if reservations is None:
        return found
    if not found.backfill:
        raise UsageError(f"{policy} has no reservations, as nobody overtakes in it: leave out --reservations")
    return msgspec.structs.replace(found, reservations=reservations)


def models(asked: Sequence[str], seed: int) -> tuple[Model, ...]:
    """The models of the world that were asked for, each with its chances from the seed.

    Raises  UsageError for one that there is not
    """
    from gpuguard.simulator.shelf import build

    return build(asked, random.Random(seed))


def simulated(
    given: Case, policy: str, settings: Settings, *, models: Sequence[Model] = (), sampled: bool = True, show: Show
) -> Run:
    """The whole run."""
    nearness = Nearness(given.nodes)
    began = time.perf_counter()
    engine = Engine(
        given.nodes, given.jobs, settings, policy=policy, start=given.window.start, end=given.window.end,
        models=(nearness, *models), stopwatch=time.perf_counter, sampled=sampled,
    )  # fmt: skip
    # What files and downloads wait for is there from the start: a trace tells of none that came later.
    for name in dict.fromkeys(
        what.name for traced in given.jobs for what in traced.job.after if what.relation == "condition"
    ):
        engine.later(given.window.start, ConditionMet(at=given.window.start, name=name))
    # The trace stays until the end: a collector that looks through it again and again would be seen in the passes.
    gc.freeze()
    try:
        for done, total in engine.run():
            show(done, total)
    finally:
        gc.unfreeze()
    figures = summary(
        engine.course, cycles_ms=engine.cycles, wall_s=time.perf_counter() - began, peak_rss_mib=peak_rss_mib()
    )
    figures |= {
        "policy": policy, "refused": len(engine.refused), "placement": nearness.figures(),
        "goodput": goodput(engine.course, *measured_window(engine.course)).figures(),
    }  # fmt: skip
    return Run(facts=figures, course=engine.course, refused=tuple(engine.refused))


def by_hand(given: Case, typed: str, *, seed: int) -> Run:
    """The same jobs where no scheduler runs and people choose their GPUs themselves.

    Shape   typed: manual[:key=value,...]. finished: jobs that ran to their end. given_up: those that crashed too often.
            refused: work for CPUs alone, which is nobody's trouble here, and what has more GPUs than all nodes
            together. There is no core, so there are no cycles of it
    Raises  UsageError for a setting that there is not
    """
    from gpuguard.simulator.shelf import bypass

    began = time.perf_counter()
    world = bypass(typed, random.Random(seed))
    outcome = world.run(given.nodes, given.jobs)
    course = outcome.course
    course.start, course.end = given.window.start, given.window.end
    figures = summary(course, cycles_ms=(), wall_s=time.perf_counter() - began, peak_rss_mib=peak_rss_mib())
    ends = Counter(record.outcome for record in course.jobs)
    figures |= {
        "finished": ends["completed"], "policy": typed, "refused": ends["refused"], "given_up": ends["failed"],
        "out_of_memory": len(outcome.out_of_memory), "goodput": goodput(course, *measured_window(course)).figures(),
    }  # fmt: skip
    return Run(facts=figures, course=course, refused=())


def inflation(
    found: Read, share: float, policy: str, settings: Settings, *, seed: int, from_day: float | None,
    to_day: float | None, show: Show,
) -> Run:  # fmt: skip
    """Shuffled jobs, one after the other, until they ask for `share` of all GPUs; nothing ends."""
    chosen = submitted_in(found.trace.jobs, from_day, to_day)
    if not chosen:
        raise UsageError("no job was submitted in these days: choose --from-day and --to-day where the trace has jobs")
    began = time.perf_counter()
    dice = random.Random(seed)
    jobs = inflated(chosen, gpus=found.gpus, share=share, order=lambda count: dice.sample(range(count), count))
    run = Inflation(found.nodes, jobs, settings, stopwatch=time.perf_counter)
    for done, total in run.run():
        show(done, total)
    held = run.gpus * WHOLE
    figures = {
        "unallocated_share": None if run.unallocated_share is None else round(run.unallocated_share, 6),
        "unallocated_gpus": round(run.gpus - run.used / WHOLE, 3),
        "gpus": run.gpus,
        "asked_share": round(run.asked / held, 6) if held else None,
        "jobs": run.jobs,
        "placed": run.placed,
        "passed_over": run.passed_over,
        "refused": len(run.refused),
        "policy": policy,
        "seed": seed,
        "cycles": cycles(run.cycles),
        "wall_s": round(time.perf_counter() - began, 3),
        "peak_rss_mib": round(peak_rss_mib(), 1),
    }
    return Run(facts=figures, course=None, refused=tuple(run.refused))


def peak_rss_mib() -> float:
    """The most memory that this process has held so far.

    Reads   /proc/self/status, VmHWM; where that is not told, getrusage
    Units   MiB
    Source  getrusage(2) counts in KiB, and what the process was before it became this program: whoever starts it from a
            large program would be told that one's size
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError, IndexError):
        kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kib / 1024.0
