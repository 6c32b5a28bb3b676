"""When a process that outlived its job is ended for the GPU memory it holds: off unless the site turns it on.

Theory. A patrol finds memory of a GPU that processes hold whose job is over, and names them with the moment they were
started, so that a number that was given to another process since means nobody. Each is due once the finding has stood,
and this very process has been named, for `reclaim_after` seconds. Whether its job is really over is asked again by the
one who ends it, which knows better and later than what is written here: this only says what is worth asking.
One that is named no more needs nothing more. One that is named still, long after it was to be ended, is tried TRIES
times in all; what was refused waits for a person.
"""

import re

from gpuguard.health import errands
from gpuguard.health.errands import Errand, Settled, Wanted
from gpuguard.health.policy import Settings, component
from gpuguard.health.state import Health
from gpuguard.model.events import AnyEvent
from gpuguard.model.health import SubjectHealth
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.readings import merged

CODE = "gpu_orphan_memory"
COLUMN = "gpu_orphans"
TRIES = 3
# More leftovers than this on one GPU are ended after the others.
MOST = 32
_ORPHAN = re.compile(r"(\d{1,10})/(\d{1,12}(?:\.\d{1,6})?)", re.ASCII)

# Of a process: the GPU it holds memory of, its number, and its start in seconds since boot.
Orphan = tuple[SubjectHealth, int, float]


def settle(health: Health, event: AnyEvent, settings: Settings) -> Settled:
    """What is owed for leftover processes as things stand now."""
    on = settings.reclaim_orphans and health.pause is None
    orphans, unsure = _orphans(health, event.at) if on else ({}, frozenset())

    def wanted(errand: Errand) -> Wanted:
        # Nothing new is owed for what cannot be seen now, and nothing is taken back.
        return "keep" if errand.about in orphans or errand.subject in unsure else "drop"

    if not orphans and not health.errands:
        return health.errands, []
    left, owed = errands.looked_at(health.errands, "reclaim", wanted, event, dry=settings.dry_run)
    for about, (gpu, pid, started) in orphans.items():
        name = errands.named("reclaim", about)
        errand = left.get(name) or Errand(verb="reclaim", about=about, subject=gpu.id, since=event.at)
        left[name] = errand
        if not _due(errand, gpu, event.at, settings):
            continue
        left[name], action = errands.owe(
            errand, event, (*health.tokens.used, *(o.action.token for o in owed)),
            (component(gpu), "leftover", f"pid{pid}"), dry=settings.dry_run, pid=pid, started=started,
        )  # fmt: skip
        owed.append(action)
    return (health.errands if left == health.errands else left), owed


def _orphans(health: Health, now: Instant) -> tuple[dict[str, Orphan], frozenset[str]]:
    """The processes that are named, by `pid/start`, and the GPUs that have a finding and no such list now."""
    found: dict[str, Orphan] = {}
    unsure = set()
    for subject in health.subjects.values():
        if not any(s.finding.code == CODE for s in subject.standing):
            continue
        named = merged(health.readings.get(subject.id, {}), now).get(COLUMN)
        if not isinstance(named, str):
            unsure.add(subject.id)
            continue
        for word in named.split(",")[:MOST]:
            if match := _ORPHAN.fullmatch(word):
                found[word] = (subject, int(match[1]), float(match[2]))
    return found, frozenset(unsure)


def _due(errand: Errand, gpu: SubjectHealth, now: Instant, settings: Settings) -> bool:
    stood = seconds_between(next(s.first for s in gpu.standing if s.finding.code == CODE), now)
    waits = [stood, seconds_between(errand.since, now)]
    if errand.ended is not None:
        waits.append(seconds_between(errand.ended, now))
    rested = all(wait is not None and wait >= settings.reclaim_after for wait in waits)
    return rested and errand.pending is None and errand.came != "refused" and len(errand.owed) < TRIES
