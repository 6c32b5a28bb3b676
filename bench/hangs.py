"""Hangs that are none and hangs that are, through the real core: how many are cried, how many found, whom it names.

usage  python bench/hangs.py [--benign N] [--hangs N] [--slow N] [--seed S] [--replay benign:7|hang:7|slow:7]

--benign N   phases that look like a hang and are none (1000): checkpoints, evaluations, compilations, restarts, slow
             storage, with log-normal and Pareto times of up to 40 min; declared by all ranks, by one, or by nobody
--hangs N    ranks that are killed, stopped, dead-locked, stuck in storage or in a kernel, in another collective, or cut
             off from another node (500); progress known by heartbeats, by step files, and not at all
--slow N     ranks that are three times slower, and jobs whose loaders are too slow (60); found, and how soon
--replay     plays one case alone and prints each change of what is concluded of its job

Jobs are simulated (tests/support/training.py); every sweep of theirs goes through every check as the agent would judge
it. Virtual time: nobody waits. Prints JSON; progress goes to standard error. Exit code 1 when a promise does not hold.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpuguard.health import policy
from gpuguard.health.decide import decide
from gpuguard.health.state import Health
from gpuguard.model.events import Booted, Sweep, Tick
from gpuguard.model.ids import EventId, job
from gpuguard.model.instants import Instant
from gpuguard.model.readings import merged
from gpuguard.ports import AnyDetector
from gpuguard.runtime.assembly import assemble
from tests.support.training import BEGIN, BOOT, FAULTS, JOB, UTC, Part, Told, Training

TOLD: tuple[Told, ...] = ("heartbeats", "file", "none")
# What may be said of a fault: more than one word is right where a person would say either.
RIGHT: dict[str, tuple[str, ...]] = {
    "killed": ("hung",), "stopped": ("paused", "hung"), "locked": ("hung",), "loop": ("hung",),
    # Where nobody tells on how many nodes it runs, all that can be known is that its ranks wait.
    "mismatch": ("hung", "waiting"),
    "hang in storage": ("storage_stalled", "hung"), "partition": ("hung", "waiting"),
    "straggler": ("straggler",), "starved": ("data_starved",),
}  # fmt: skip
WATCHED = 300.0  # seconds after a fault, after which it counts as missed
SETTLED = 30.0  # seconds after the first verdict, at which it is looked at again
TICK = 10.0
# Seconds to a verdict that are promised where a rank here stops. Of a job that is cut off from another node all that
# shows is that its ranks wait, perhaps rightly, for as long as they ever did: how late that is told is in `by_cause`.
LATEST = {"heartbeats": 60.0, "file": 60.0, "none": 120.0}
SUBJECT = job(JOB)


@dataclass(frozen=True, slots=True)
class Case:
    """One job to play; `kind` is benign, hang or slow, `cause` what is wrong with it."""

    kind: str
    number: int
    cause: str
    told: Told
    play: Training
    phases: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.number}"


@dataclass(slots=True)
class Course:
    """What was found of the job, by seconds since its begin: the verdict that stands as a finding, with rank and
    reason, when it changed, and when which finding came."""

    verdicts: list[tuple[float, str, int | None, str]] = field(default_factory=list)
    findings: list[tuple[float, str]] = field(default_factory=list)
    crashed: set[str] = field(default_factory=set)
    sweeps: int = 0

    def at(self, seconds: float) -> tuple[str, int | None]:
        """Verdict and culprit then."""
        past = [(verdict, rank) for when, verdict, rank, _ in self.verdicts if when <= seconds]
        return past[-1] if past else ("", None)


# --- the jobs ---------------------------------------------------------------------------------------------------------


def heavy(chance: Random, median: float, sigma: float, most: float) -> float:
    """A time with a heavy tail: one in six is Pareto's, with a mean that hardly exists."""
    if chance.random() < 1 / 6:
        return min(most, median * chance.paretovariate(1.1))
    return min(most, median * chance.lognormvariate(0.0, sigma))


def _benign_part(chance: Random, ranks: int) -> Part:
    kind = chance.choice(("checkpoint", "checkpoint", "evaluation", "compile", "recompile", "restart", "slow storage"))
    match kind:
        case "checkpoint":
            return Part(kind, heavy(chance, 45, 1.0, 2400), how=chance.choice(("first", "all", "async")))
        case "evaluation":
            return Part(kind, heavy(chance, 120, 1.0, 2400), how=chance.choice(("all", "first")))
        case "compile":
            return Part(kind, heavy(chance, 60, 0.9, 1500))
        case "recompile":
            return Part(kind, heavy(chance, 30, 0.8, 600))
        case "restart":
            return Part(kind, heavy(chance, 60, 0.8, 1200))
        case _:
            how = chance.choice(("trickle", "stall"))
            return Part(kind, heavy(chance, 90, 0.8, 1200), rank=chance.randrange(ranks), how=how)


def benign(number: int, seed: int, phases: int) -> Case:
    """A job with some such phases, and steps between them."""
    chance = Random(f"{seed} benign {number}")
    ranks = chance.choice((1, 2, 4, 4, 8))
    plan = [Part("start", heavy(chance, 45, 0.6, 600)), Part("steps", chance.uniform(20, 150))]
    for _ in range(phases):
        plan += [_benign_part(chance, ranks), Part("steps", chance.uniform(15, 90))]
    plan.append(Part("done", 20))
    told = TOLD[number % 3]
    play = Training(
        seed=chance.randrange(2**31), plan=plan, ranks=ranks, told=told, beat=2.0, step=_step(chance),
        nodes=2 if chance.random() < 0.2 else 1, slurm=chance.random() < 0.7, pipes=chance.random() < 0.7,
        declared=chance.choice(("all", "all", "all", "first", "none")),
    )  # fmt: skip
    return Case("benign", number, "", told, play, phases)


def _step(chance: Random) -> float:
    return min(3.0, max(0.2, chance.lognormvariate(0.1, 0.6)))


def _warm(chance: Random) -> list[Part]:
    plan = [Part("start", chance.uniform(25, 60)), Part("steps", chance.uniform(150, 260))]
    if chance.random() < 0.3:
        plan += [Part("checkpoint", heavy(chance, 25, 0.6, 120), how=chance.choice(("first", "all")))]
        plan += [Part("steps", chance.uniform(20, 90))]
    return plan


def hang(number: int, seed: int) -> Case:
    """A job that trains for a while, and then stands for ever."""
    cause, told = FAULTS[number % len(FAULTS)], TOLD[number // len(FAULTS) % 3]
    chance = Random(f"{seed} hang {number}")
    ranks = chance.choice((2, 4, 8, 8))
    plan = [*_warm(chance), Part(cause, WATCHED, rank=chance.randrange(ranks))]
    play = Training(
        seed=chance.randrange(2**31), plan=plan, ranks=ranks, told=told, step=_step(chance),
        nodes=2 if cause == "partition" else 1, flight=told == "heartbeats", slurm=chance.random() < 0.7,
    )  # fmt: skip
    return Case("hang", number, cause, told, play)


def slow(number: int, seed: int) -> Case:
    """A job that gets on, but badly."""
    cause, told = ("straggler", "starved")[number % 2], TOLD[number // 2 % 3]
    chance = Random(f"{seed} slow {number}")
    ranks = chance.choice((2, 4, 8))
    last = (
        Part("steps", 2 * WATCHED, rank=chance.randrange(ranks), factor=3.0) if cause == "straggler"
        else Part("starved", 2 * WATCHED)
    )  # fmt: skip
    plan = [*_warm(chance), last]
    play = Training(
        seed=chance.randrange(2**31), plan=plan, ranks=ranks, told=told, step=_step(chance), beat=2.0,
    )  # fmt: skip
    return Case("slow", number, cause, told, play)


# --- through the core -------------------------------------------------------------------------------------------------


def events(case: Case) -> Iterator[Booted | Sweep | Tick]:
    """All that the core is told of."""
    yield Booted(id=EventId("start"), at=_instant(BEGIN - 1.0), previous=None)
    due = BEGIN + TICK
    for sweep in case.play.sweeps():
        if sweep.at.mono >= due:
            due = sweep.at.mono + TICK
            yield Tick(id=EventId(f"tick:{sweep.at.mono}"), at=sweep.at)
        yield sweep


def _instant(mono: float) -> Instant:
    return Instant(boot=BOOT, mono=mono, utc=UTC + mono)


def played(case: Case, detectors: Sequence[AnyDetector]) -> Course:
    """What the core makes of the case; one that is found is left a little later."""
    course, health, settings = Course(), Health(now=_instant(BEGIN - 2.0)), policy.Settings()
    stood: frozenset[str] = frozenset()
    begun: float | None = None
    for event in events(case):
        health, decision = decide(health, event, detectors, settings)
        course.crashed.update(decision.failed)
        if not isinstance(event, Sweep):
            continue
        course.sweeps += 1
        now = event.at.mono - BEGIN
        stands = _standing(health)
        course.findings += [(now, code) for code in sorted(stands - stood)]
        stood = stands
        values = merged(health.readings.get(SUBJECT, {}), event.at)
        verdict, number, why = values.get("job_verdict"), values.get("job_culprit_rank"), values.get("job_why")
        # What nobody is sure enough of is no finding, and counts for nothing here.
        said = (
            (verdict, int(number) if isinstance(number, int | float) else None)
            if isinstance(verdict, str) and f"job_{verdict}" in stands else ("", None)
        )  # fmt: skip
        if said != course.at(now):
            course.verdicts.append((now, *said, str(why or "")))
        # Where the fault began on the clock of the case.
        if case.kind == "hang" and case.play.fault_at is not None:
            begun = case.play.fault_at - BEGIN
        if begun is not None:
            found = _found(case, course, begun)
            if found is not None and now > found + SETTLED:
                break
    return course


def _standing(health: Health) -> frozenset[str]:
    subject = health.subjects.get(SUBJECT)
    return frozenset(s.finding.code for s in subject.standing) if subject is not None else frozenset()


def _found(case: Case, course: Course, begun: float) -> float | None:
    """When the verdict was right first; None when it never was."""
    right = RIGHT[case.cause]
    return next((when for when, verdict, _, _ in course.verdicts if when >= begun and verdict in right), None)


# --- what is counted --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """What came of the cases of one cause, known in one way."""

    cases: int = 0
    found: int = 0
    right: int = 0
    settled: int = 0
    delays: list[float] = field(default_factory=list)

    def printed(self) -> dict[str, object]:
        ordered = sorted(self.delays)
        return {
            "cases": self.cases, "found": self.found, "right_culprit": self.right,
            f"right_culprit_after_{SETTLED:.0f}_s": self.settled,
            "delay_s": {
                "p50": quantile(ordered, 0.5), "p99": quantile(ordered, 0.99), "max": quantile(ordered, 1.0),
            },
        }  # fmt: skip


def _culprit(case: Case) -> int | None:
    """Whom one may name: nobody where no rank here is at fault, nor where all show the same, and only the flight
    recorder, of which a rank tells, could tell them apart: to name one would be a guess."""
    if case.cause in ("partition", "starved") or (case.cause == "mismatch" and not case.play.flight):
        return None
    return case.play.plan[-1].rank


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The value below which that share lies; None of none."""
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


@dataclass(slots=True)
class Score:
    """Everything that is told at the end."""

    phases: int = 0
    false_hangs: list[str] = field(default_factory=list)
    other_words: dict[str, int] = field(default_factory=dict)
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    crashed: set[str] = field(default_factory=set)
    sweeps: int = 0

    def count(self, case: Case, course: Course) -> None:
        """One more case was played."""
        self.sweeps += course.sweeps
        self.crashed |= course.crashed
        if case.kind == "benign":
            self.phases += case.phases
            self._cried(case, course, float("inf"))
            return
        begun = (case.play.fault_at or case.play.part_at) - BEGIN
        self._cried(case, course, begun)
        tally = self.tallies.setdefault((case.cause, case.told), Tally())
        tally.cases += 1
        found = _found(case, course, begun)
        if found is None:
            self.missed.append(f"{case.name} ({case.cause}, {case.told}): {course.at(float('inf'))[0] or 'nothing'}")
            return
        tally.found += 1
        tally.delays.append(found - begun)
        wanted = _culprit(case)
        first, later = course.at(found)[1], course.at(found + SETTLED)[1]
        tally.right += first == wanted or case.cause == "starved"
        tally.settled += later == wanted or case.cause == "starved"
        if later != wanted and case.cause != "starved":
            self.wrong.append(f"{case.name} ({case.cause}, {case.told}): rank {later}, not {wanted}")
        if case.kind == "hang" and case.cause != "partition" and found - begun > LATEST[case.told]:
            self.late.append(f"{case.name} ({case.cause}, {case.told}): {found - begun:.0f} s")

    def _cried(self, case: Case, course: Course, before: float) -> None:
        """What was said of the job while nothing was wrong with it."""
        hung = [when for when, code in course.findings if code == "job_hung" and when < before]
        if hung:
            where = f"{case.name} ({case.told}) after {min(hung):.0f} s"
            (self.false_hangs if case.kind == "benign" else self.early).append(where)
        for when, code in course.findings:
            if when < before and code != "job_hung":
                self.other_words[code] = self.other_words.get(code, 0) + 1

    def _hangs(self) -> dict[tuple[str, str], Tally]:
        return {key: tally for key, tally in self.tallies.items() if key[0] in FAULTS}

    def holds(self) -> dict[str, bool]:
        """What is promised, and whether it is so."""
        total = _sum(self._hangs().values())
        return {
            "no false hang": not self.false_hangs and not self.early,
            "99 % found": total.found >= 0.99 * total.cases,
            "95 % right culprit": total.settled >= 0.95 * total.found,
            "in time": not self.late,
            "no check crashed": not self.crashed,
        }

    def printed(self, seconds: float) -> dict[str, object]:
        hangs = self._hangs()
        total = _sum(hangs.values())
        return {
            "benign_phases": self.phases, "false_hangs": len(self.false_hangs), "false_hangs_where": self.false_hangs,
            "early_hangs_where": self.early, "other_findings_while_well": self.other_words,
            "hangs": total.cases, "found": total.found, "right_culprit": total.right,
            f"right_culprit_after_{SETTLED:.0f}_s": total.settled,
            "delay_s_by_told": {
                told: _sum(t for key, t in hangs.items() if key[1] == told).printed()["delay_s"] for told in TOLD
            },
            "by_cause": {f"{cause}, {told}": tally.printed() for (cause, told), tally in sorted(self.tallies.items())},
            "missed": self.missed, "wrong_culprit": self.wrong, "late": self.late, "crashed": sorted(self.crashed),
            "sweeps": self.sweeps, "cpu_s": round(seconds, 1), "holds": self.holds(),
        }  # fmt: skip


def _sum(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.cases, total.found = total.cases + tally.cases, total.found + tally.found
        total.right, total.settled = total.right + tally.right, total.settled + tally.settled
        total.delays += tally.delays
    return total


# --- by hand ----------------------------------------------------------------------------------------------------------


def cases(asked: argparse.Namespace) -> Iterator[Case]:
    """All cases, the shorter kinds first."""
    for number in range(asked.hangs):
        yield hang(number, asked.seed)
    for number in range(asked.slow):
        yield slow(number, asked.seed)
    each = 8
    for number in range(-(-asked.benign // each)):
        yield benign(number, asked.seed, min(each, asked.benign - each * number))


def replay(word: str, seed: int, detectors: Sequence[AnyDetector]) -> int:
    """One case alone, told as it goes."""
    kind, _, number = word.partition(":")
    makers = {"benign": lambda n, s: benign(n, s, 8), "hang": hang, "slow": slow}
    case = makers[kind](int(number), seed)
    plan = ", ".join(
        f"{part.kind}{f' {part.how}' if part.how else ''} {part.seconds:.0f} s"
        + (f" (rank {part.rank})" if part.kind in FAULTS or part.factor > 1.0 or part.how == "stall" else "")
        for part in case.play.plan
    )
    print(
        f"{case.name}: {case.told}, declared by {case.play.declared}, {len(case.play.members)} ranks on "
        f"{case.play.nodes} nodes, steps of {case.play.step_seconds:.2f} s: {plan}"
    )
    course = played(case, detectors)
    if case.play.fault_at is not None:
        print(f"{case.play.fault_at - BEGIN:8.0f} s  the fault")
    lines = [(when, f"{verdict or 'nothing'}, rank {rank}: {why}") for when, verdict, rank, why in course.verdicts]
    lines += [(when, f"finding {code}") for when, code in course.findings]
    for when, text in sorted(lines):
        print(f"{when:8.0f} s  {text}")
    return 0


def main(words: list[str]) -> int:
    """0 what is promised holds, 1 it does not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--benign", type=int, default=1000)
    parser.add_argument("--hangs", type=int, default=500)
    parser.add_argument("--slow", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay")
    parser.add_argument("--json", action="store_true", help="prints JSON, which it always does")
    asked = parser.parse_args(words)
    detectors = assemble(with_sources=False).detectors
    if asked.replay:
        return replay(asked.replay, asked.seed, detectors)
    score, began, every = Score(), time.process_time(), list(cases(asked))
    for done, case in enumerate(every, 1):
        score.count(case, played(case, detectors))
        _show(done, len(every), score, time.process_time() - began)
    sys.stderr.write("\n")
    print(json.dumps(score.printed(time.process_time() - began), indent=2))
    return 0 if all(score.holds().values()) else 1


def _show(done: int, of: int, score: Score, seconds: float) -> None:
    """How far it is."""
    filled = 30 * done // of
    left = seconds / done * (of - done)
    cried = len(score.false_hangs) + len(score.early)
    sys.stderr.write(
        f"\rhangs: [{'#' * filled}{'.' * (30 - filled)}] {done}/{of}, false {cried}, missed {len(score.missed)}, "
        f"wrong {len(score.wrong)}, late {len(score.late)}, {left:.0f} s left "
    )
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
