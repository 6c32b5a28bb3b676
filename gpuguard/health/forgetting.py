"""What the memory need not hold any longer: closed incidents, jobs that are over, addresses that nobody knows."""

from collections.abc import Mapping, Sequence

from gpuguard.health import machine
from gpuguard.health.state import Memories
from gpuguard.model.health import Incident, SubjectHealth
from gpuguard.model.ids import NODE, IncidentId, SubjectId, kind_of
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.readings import Readings

# Closed incidents are remembered this long, so that what comes late still finds the cause it belongs to.
INCIDENT_KEPT = 3600.0
INCIDENTS_KEPT = 256
# A GPU that really is there answers on the bus or says its UUID within its first day.
STRANGER_KEPT = 7 * 86400.0
# Kinds of subject that end: what stood on one of which nothing was read for so long is over, and it is forgotten.
PASSING = ("job", "rank", "task", "process")
PASSED_AFTER = 900.0

Subjects = Mapping[SubjectId, SubjectHealth]


def without_old(incidents: dict[IncidentId, Incident], subjects: Subjects, now: Instant) -> dict[IncidentId, Incident]:
    """The incidents that something stands for, or that were a short while ago."""
    held = {s.incident for subject in subjects.values() for s in subject.standing}
    left = {
        name: incident
        for name, incident in incidents.items()
        if name in held or (seconds_between(incident.last, now) or 0.0) <= INCIDENT_KEPT
    }
    for incident in sorted(left.values(), key=lambda i: i.last.mono)[:-INCIDENTS_KEPT]:
        if incident.id not in held:
            del left[incident.id]
    return left


def passed(
    subjects: Subjects, readings: Readings, began: Instant | None, at: Instant, now: Instant
) -> list[SubjectHealth]:
    """Jobs that are over, and their ranks, with what stood withdrawn: nobody will say that it is well again."""
    if _fresh(began, now):
        return []  # who lives may not have been heard yet
    over = []
    for name, subject in subjects.items():
        if kind_of(name) not in PASSING or name in readings:
            continue
        if any((seconds_between(s.last, now) or 0.0) < PASSED_AFTER for s in subject.standing):
            continue
        left = subject
        for standing in subject.standing:
            left = machine.withdraw(left, standing.finding.code, at)
        over.append(left)
    return over


def strangers(subjects: Subjects, readings: Readings, now: Instant) -> list[SubjectId]:
    """Addresses that were named once, by a broken line or a GPU long gone, and about which nothing is known."""
    return [
        subject.id
        for subject in subjects.values()
        if subject.state == "healthy"
        and not (subject.standing or subject.uuid or subject.seen or subject.applied or subject.accepted)
        and subject.id != NODE
        and (seconds_between(subject.since, now) or 0.0)
        > (PASSED_AFTER if kind_of(subject.id) in PASSING and subject.id not in readings else STRANGER_KEPT)
    ]


def memory_without(
    memory: Memories, gone: Sequence[SubjectId], readings: Readings, began: Instant | None, now: Instant
) -> Memories:
    """The checks' memory without that of subjects that are gone, and of what is over; the same where there is none."""
    fresh = _fresh(began, now)
    names = set(gone)
    dead = [
        key
        for key in memory
        if key[1] in names or (not fresh and kind_of(key[1]) in PASSING and key[1] not in readings)
    ]
    return {key: kept for key, kept in memory.items() if key not in dead} if dead else memory


def _fresh(began: Instant | None, now: Instant) -> bool:
    return began is not None and (seconds_between(began, now) or 0.0) < PASSED_AFTER
