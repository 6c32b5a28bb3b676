"""Findings that have one cause become one incident.

Theory. One hardware fault prints many lines: on its GPU within milliseconds to seconds, on the peers and switches it
talks to within some twelve seconds. An incident is open for what comes within `JOIN_AFTER_LAST` of its last line and
`JOIN_IN_ALL` of its first. Its strongest member names it. What a peer reports about a lost GPU is joined to that
GPU's incident and marked secondary: the peer is not to blame.
A code that still stands stays in the incident that raised it, however late it is repeated.
"""

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from gpuguard.incident.ranks import ECHOES_OF_LOST, LOST, rank
from gpuguard.model.findings import Finding
from gpuguard.model.health import Incident, Standing, SubjectHealth
from gpuguard.model.ids import IncidentId, SubjectId
from gpuguard.model.instants import Instant, seconds_between

JOIN_AFTER_LAST = 30.0
JOIN_IN_ALL = 300.0


def is_open(incident: Incident, at: Instant) -> bool:
    """Whether a finding of this moment may belong to the incident; also when it was read out of order."""
    since_last, since_first = seconds_between(incident.last, at), seconds_between(incident.opened, at)
    return (
        since_last is not None
        and since_first is not None
        and abs(since_last) <= JOIN_AFTER_LAST
        and abs(since_first) <= JOIN_IN_ALL
    )


def incident_id(finding: Finding) -> IncidentId:
    """An id that is the same each time the same first fact is read."""
    first = finding.because[0] if finding.because else f"{finding.at.boot}:{finding.at.mono}"
    return IncidentId(hashlib.blake2s(f"{first}|{finding.subject}|{finding.code}".encode(), digest_size=4).hexdigest())


def join(
    incidents: Mapping[IncidentId, Incident],
    subject: SubjectHealth,
    finding: Finding,
    losses: Iterable[Incident] = (),
) -> tuple[Incident, str | None]:
    """The incident this finding belongs to, updated, and the code it is secondary to (a lost peer), if any.

    `losses` are the incidents of GPUs that are lost without doubt: a doubtful one excuses nobody.
    """
    lost = _open_loss(losses, finding)
    standing = next((s for s in subject.standing if s.finding.code == finding.code), None)
    current = incidents.get(standing.incident) if standing else None
    if current is None:
        mine = [i for i in incidents.values() if i.subject == finding.subject and is_open(i, finding.at)]
        current = max(mine, key=lambda incident: incident.last.mono, default=None)
    if current is None:
        opened = Incident(
            id=incident_id(finding), subject=finding.subject, name=finding.code, opened=finding.at, last=finding.at,
            members=(finding.code,), part_of=lost.id if lost else None,
        )  # fmt: skip
        return opened, lost.name if lost else None
    name = strongest(finding, (s for s in subject.standing if s.incident == current.id))
    members = current.members if finding.code in current.members else (*current.members, finding.code)
    later = seconds_between(current.last, finding.at)
    last = finding.at if later is not None and later > 0 else current.last
    joined = msgspec.structs.replace(
        current, last=last, name=name, members=members, part_of=lost.id if lost else current.part_of
    )
    return joined, lost.name if lost else None


def strongest(finding: Finding, others: Iterable[Standing]) -> str:
    """The code that names an incident with these members; the earliest among equals."""
    members = [other.finding for other in others if other.finding.code != finding.code]
    return max([*members, finding], key=rank).code


def explained_by(root: Standing, others: Iterable[Standing]) -> tuple[str, ...]:
    """The codes of the same incident that are no stronger than this one and come from its source: its lesser lines.

    What another source sees by itself (a GPU that does not answer on the bus) is no line of the incident, nor is what
    is measured: a first sweep finds all that ails a GPU in one moment, whatever its causes.
    """
    return tuple(
        s.finding.code
        for s in others
        if s is not root
        and not s.finding.level
        and s.incident == root.incident
        and s.finding.source == root.finding.source
        and rank(s.finding) <= rank(root.finding)
    )


def losses(incidents: Mapping[IncidentId, Incident], subjects: Mapping[SubjectId, SubjectHealth]) -> list[Incident]:
    """The incidents of GPUs that are lost without doubt."""
    sure = {
        s.incident
        for subject in subjects.values()
        for s in subject.standing
        if s.confirmed and s.finding.code in LOST and s.secondary_to is None
    }
    return [incidents[name] for name in sorted(sure) if name in incidents and incidents[name].name in LOST]


def _open_loss(losses: Iterable[Incident], finding: Finding) -> Incident | None:
    if finding.code not in ECHOES_OF_LOST:
        return None
    return next((i for i in losses if i.subject != finding.subject and is_open(i, finding.at)), None)


def echoes(subjects: Mapping[SubjectId, SubjectHealth], loss: Incident) -> list[tuple[SubjectId, str]]:
    """Standing findings on other subjects that this loss explains, though they were reported before it."""
    return [
        (subject.id, standing.finding.code)
        for subject in subjects.values()
        if subject.id != loss.subject
        for standing in subject.standing
        if standing.finding.code in ECHOES_OF_LOST and standing.secondary_to is None and is_open(loss, standing.first)
    ]
