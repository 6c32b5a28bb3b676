"""Everybody at the top: who comes takes, and who was there comes back and takes again."""

from collections.abc import Sequence

import msgspec

from gpuguard.scheduler.plan import AnyDecision, Finish
from gpuguard.scheduler.settings import DAY, HOUR, MINUTE
from gpuguard.simulator.claim import Finding, Given, Measured, Row, shown
from gpuguard.simulator.engine import Engine, Model, World
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, mix, play
from gpuguard.simulator.trace import TraceJob

ID = "S13"
CLAIM = "With everything at top priority jobs are preempted and requeued without end, and nothing finishes."
CLAIMED = "nothing finishes; cure: at most 20 % high, preemption only downward"
NEEDS = ()

NODES, SPAN, LOAD = 8, 4 * DAY, 1.2
LOOKS = 5 * MINUTE
SAVES = 30 * MINUTE
HIGH = 0.2
NOTHING = 0.10
"""Less than this share of what gets done under order counts as nothing."""
LITTLE = 0.80


class Grabbing(Model):
    """Whoever has waited five minutes has as many GPUs taken from others as he needs, and these submit again.

    Shape   oldest: those go first that have run longest; else those that came last. saves: seconds between two saves of
            a job, None: it saves nothing
    """

    name = "grabbing"

    def __init__(self, end: int, *, oldest: bool, saves: int | None) -> None:
        self._end = end
        self._oldest = oldest
        self._saves = saves
        self._taken: dict[str, float] = {}
        self.grabbed = 0
        self.first: set[str] = set()

    def begin(self, world: World, start: int, end: int) -> None:
        """Somebody looks every five minutes, until the days are over."""
        world.call(start + LOOKS, lambda now: self._look(world, now))

    def _look(self, world: World, now: int) -> None:
        free = sum(int(count) for count in world.state.cluster.count)
        victims = [job for job in world.state.running if job not in self._taken]
        victims.sort(key=lambda job: (world.lives[job].began, job), reverse=not self._oldest)
        need = sum(entry.gpus for entry in world.state.queue.in_order() if now - entry.submitted >= LOOKS) - free
        for job in victims:
            if need <= 0:
                break
            life = world.lives[job]
            if now - life.began < LOOKS:
                continue
            need -= life.job.gpus
            done = life.done(now)
            self._taken[job] = done - done % self._saves if self._saves else 0.0
            world.end(job, now + 1, 143)
        if now + LOOKS < self._end:
            world.call(now + LOOKS, lambda then: self._look(world, then))

    def decided(self, world: World, decision: AnyDecision, now: int) -> None:
        """Whoever was robbed submits again, at the top like everybody."""
        if not isinstance(decision, Finish) or decision.job not in self._taken:
            return
        kept = self._taken.pop(decision.job)
        if decision.outcome == "completed":
            return
        self.grabbed += 1
        life = world.lives[decision.job]
        root, _, times = decision.job.partition("~")
        self.first.add(root)
        job = msgspec.structs.replace(life.job, id=f"{root}~{int(times or 0) + 1}")
        left = max(1, round(life.work - kept))
        world.submit(now + MINUTE, TraceJob(job=job, submit_s=now + MINUTE, duration_s=left))


def measure(given: Given) -> Finding:
    """The same jobs: everybody takes from everybody, in four kinds; all high under gpuguard; a fifth high under it."""
    jobs = mix(given.dice, capacity=8 * NODES, load=LOAD, span=SPAN, longest=2 * DAY)
    high = [given.dice.random() < HIGH for _ in jobs]
    found = {}
    for oldest in (True, False):
        for saves in (None, SAVES):
            word = f"{'longest' if oldest else 'newest'}_robbed_{'saving' if saves else 'not_saving'}"
            model = Grabbing(SPAN, oldest=oldest, saves=saves)
            engine = _run(given, word, jobs, "easy-pack", [model])
            found[word] = {**_figures(engine), "robbed_share": round(len(model.first) / len(jobs), 4)}
    for word, levels in (("all_high_gpuguard", [True] * len(jobs)), ("a_fifth_high_gpuguard", high)):
        asked = [_level(one, top) for one, top in zip(jobs, levels, strict=True)]
        engine = _run(given, word, asked, "gpuguard", [])
        robbed = sum(any(one.how == "preempted" for one in job.segments) for job in engine.course.jobs)
        found[word] = {**_figures(engine), "robbed_share": round(robbed / len(jobs), 4)}
    return Finding(
        measured={"jobs": len(jobs), "runs": found},
        assumptions=(
            f"{NODES} nodes of 8 for {SPAN // DAY} days at load {LOAD}, run times up to 2 days",
            "everybody at the top: who has waited 5 min takes from those who have run at least 5 min; the robbed submit"
            " again after a minute. gpuguard's core never takes from equals, so people do it here",
            f"kinds: the longest or the newest are robbed; jobs lose all, or what they did since a save every"
            f" {SAVES // MINUTE} min",
            f"cure: {HIGH:.0%} of the jobs high, preemption strictly downward, all jobs save",
            "finished: jobs, and GPU hours of the jobs that finished, within these days",
        ),
    )


def _level(one: TraceJob, top: bool) -> TraceJob:
    job = msgspec.structs.replace(one.job, level="high" if top else "normal", checkpoints=True)
    return msgspec.structs.replace(one, job=job)


def _run(given: Given, what: str, jobs: Sequence[TraceJob], policy: str, models: Sequence[Model]) -> Engine:
    return play(
        given, what, cluster(NODES), jobs, policies()[policy], models=models, start=0, end=SPAN, saves=SAVES, until=SPAN
    )


def _figures(engine: Engine) -> dict[str, float]:
    done = [
        job for job in engine.course.jobs
        if job.outcome == "completed" and job.end is not None and job.end <= SPAN
    ]  # fmt: skip
    hours = SPAN / HOUR
    # A job that was robbed and came back counts with what was left of it, once: the rest was in runs that were broken.
    work = sum(job.gpus * (segment.end - segment.start) for job in done for segment in job.segments)
    return {
        "finished_an_hour": round(len(done) / hours, 3),
        "finished_gpu_share": round(work / (8 * NODES * SPAN), 4),
    }


def judge(measured: Measured) -> Sequence[Row]:
    """Nothing finishes where the longest are robbed and nobody saves; and the cure brings work back."""
    runs = measured["runs"]
    cure = runs["a_fifth_high_gpuguard"]
    worst, newest = runs["longest_robbed_not_saving"], runs["newest_robbed_not_saving"]
    all_high = runs["all_high_gpuguard"]
    least = min(worst["finished_gpu_share"], newest["finished_gpu_share"])
    return (
        Row(
            "GPU time in jobs that finished, all at the top", "nothing", _percent(least),
            least <= NOTHING * cure["finished_gpu_share"],
        ),
        Row(
            "jobs finished an hour, all at the top; cured", "nothing; most",
            f"{shown(worst['finished_an_hour'])}; {shown(cure['finished_an_hour'])}",
            worst["finished_an_hour"] <= NOTHING * cure["finished_an_hour"],
        ),
        Row(
            "jobs robbed, all at the top; cured", "constantly; few",
            f"{_percent(worst['robbed_share'])}; {_percent(cure['robbed_share'])}",
            worst["robbed_share"] >= 2 * cure["robbed_share"],
        ),
        Row(
            "all high under gpuguard: GPU time in jobs that finished", "as cured",
            f"{_percent(all_high['finished_gpu_share'])}; {_percent(cure['finished_gpu_share'])}",
            all_high["finished_gpu_share"] >= LITTLE * cure["finished_gpu_share"],
        ),
    )  # fmt: skip


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
