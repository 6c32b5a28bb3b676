"""Sessions that sit on GPUs for days, and what a limit of one hour does to all others."""

from collections.abc import Sequence

import msgspec

from gpuguard.scheduler.settings import DAY, HOUR, MINUTE, Settings
from gpuguard.simulator.claim import Dice, Finding, Given, Measured, Row, shown
from gpuguard.simulator.course import Course
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, mean_wait, mix, play, size_of, traced
from gpuguard.simulator.summary import utilisation
from gpuguard.simulator.trace import TraceJob

ID = "S8"
CLAIM = "Interactive sessions that end strictly after one hour shorten everybody's wait."
CLAIMED = "waits fell a great deal, no figure"
NEEDS = ()

NODES, SPAN = 16, 14 * DAY
TRAINING, SESSIONS = 0.75, 0.20
SESSION_SIZES = ((1, 0.4), (2, 0.2), (4, 0.2), (8, 0.2))
USED = 0.10
GROUPS = {"1": (1, 1), "2-4": (2, 4), "8": (8, 8)}


def measure(given: Given) -> Finding:
    """The same jobs with sessions of days; with the limit, and people who come back for what they had not done yet; and
    with the limit, and people who do not."""
    jobs = mix(given.dice, capacity=8 * NODES, load=TRAINING, span=SPAN)
    long = _sessions(given.dice)
    again = [part for one in long for part in _hours(given.dice, one)]
    once = [msgspec.structs.replace(one, duration_s=HOUR) for one in long]
    ours = policies()["gpuguard"]
    runs = {
        "without_limit": _run(given, "sessions without limit", [*jobs, *long], _without_limit(ours)),
        "limit_and_they_come_back": _run(given, "sessions of an hour, again", [*jobs, *again], ours),
        "limit_and_they_do_not": _run(given, "sessions of an hour, once", [*jobs, *once], ours),
    }
    return Finding(
        measured=runs,
        assumptions=(
            f"{NODES} nodes of 8 for {SPAN // DAY} days; training at load {TRAINING}, sizes and run times as in Philly",
            f"sessions of 1 to 8 GPUs for 1 to 3 days that hold {SESSIONS:.0%} of the GPUs and use {USED:.0%} of the"
            " time; they go before training",
            "with the limit, each person comes back until the hours are used that were used before, at any time of the"
            " same days; or does not",
            "a session that the limit ends loses nothing",
        ),
    )


def _sessions(dice: Dice) -> list[TraceJob]:
    missing = SESSIONS * 8 * NODES * SPAN
    found: list[TraceJob] = []
    while missing > 0:
        gpus, length = size_of(dice, SESSION_SIZES), int(DAY + dice.random() * 2 * DAY)
        missing -= gpus * length
        submit = int(dice.random() * SPAN)
        found.append(traced(f"session{len(found):04}", submit, length, gpus, tier="interactive", walltime=length))
    return found


def _hours(dice: Dice, session: TraceJob) -> list[TraceJob]:
    """What was used of the session, in sessions of an hour over the same days; each ends by itself or by the limit."""
    length = session.duration_s or 0
    left = USED * length
    found: list[TraceJob] = []
    while left > 0:
        part = max(60, min(HOUR, round(left)))
        left -= HOUR
        found.append(
            traced(
                f"{session.job.id}.{len(found):02}", session.submit_s + int(dice.random() * length), part,
                session.job.gpus, tier="interactive", walltime=HOUR,
            )
        )  # fmt: skip
    return found


def _without_limit(settings: Settings) -> Settings:
    tiers = dict(settings.tiers)
    tiers["interactive"] = msgspec.structs.replace(tiers["interactive"], session=None)
    return msgspec.structs.replace(settings, tiers=tiers)


def _run(given: Given, what: str, jobs: Sequence[TraceJob], settings: Settings) -> dict[str, object]:
    course = play(given, what, cluster(NODES), jobs, settings, start=0, end=SPAN).course
    training = [job for job in course.jobs if job.tier == "training"]
    return {
        "wait_s": mean_wait(training),
        "wait_s_by_gpus": {name: mean_wait(training, *sizes) for name, sizes in GROUPS.items()},
        "session_wait_s": mean_wait(job for job in course.jobs if job.tier == "interactive"),
        "held_share": _rounded(utilisation(course, 0, SPAN)),
        "held_by_sessions_share": _held(course),
    }


def _held(course: Course) -> float:
    held = sum(
        gpus * max(0, min(segment.end, SPAN) - segment.start)
        for job, segment, gpus in course.held()
        if job.tier == "interactive"
    )
    return round(held / (8 * NODES * SPAN), 4)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def judge(measured: Measured) -> Sequence[Row]:
    """Each group waits less, though people come back; sessions themselves do not wait longer by more than a minute."""
    before, after = measured["without_limit"], measured["limit_and_they_come_back"]
    rows = [
        Row(
            f"wait of training on {name} GPU{'s' * (name != '1')}", "less",
            f"{_minutes(was)} -> {_minutes(now)}", was is not None and now is not None and now < was,
        )
        for name in GROUPS
        for was, now in ((before["wait_s_by_gpus"][name], after["wait_s_by_gpus"][name]),)
    ]  # fmt: skip
    was, now = before["session_wait_s"], after["session_wait_s"]
    rows.append(
        Row(
            "wait of a session", "less", f"{_minutes(was)} -> {_minutes(now)}",
            was is not None and now is not None and now <= was + MINUTE,
        )
    )  # fmt: skip
    return tuple(rows)


def _minutes(seconds: float | None) -> str:
    return shown(None if seconds is None else seconds / MINUTE, " min")
