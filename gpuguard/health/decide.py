"""One event in, one decision out: the function to read first.

Same input, same output: time and chance come with the event. Detectors judge subjects alone; `incident` joins what
has one cause; `machine` says what state follows; `policy` what is owed. A detector that crashes is a finding against
itself and blinds no other.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gpuguard.health import identity, machine, policy, story
from gpuguard.health.state import Health, Memories
from gpuguard.incident import join, ranks
from gpuguard.model.actions import Question
from gpuguard.model.events import (
    Acknowledged,
    ActionOutcome,
    AnyEvent,
    Booted,
    GpuProbed,
    LogLine,
    OperatorAsked,
    SourceChanged,
    Tick,
)
from gpuguard.model.findings import Clear, Finding
from gpuguard.model.health import Decision, Incident, Owed, SourceHealth, Standing, SubjectHealth, Transition
from gpuguard.model.ids import NODE, IncidentId, SubjectId
from gpuguard.model.instants import seconds_between
from gpuguard.model.story import StoryEntry
from gpuguard.ports import Detector

# Closed incidents are remembered this long, so that what comes late still finds the cause it belongs to.
INCIDENT_KEPT = 3600.0
INCIDENTS_KEPT = 256


def decide(
    health: Health, event: AnyEvent, detectors: Sequence[Detector], settings: policy.Settings
) -> tuple[Health, Decision]:
    """The health after the event, and what follows from the change.

    Shape   the health given is not changed; the parts of the new one that are the same are the same objects
    """
    desk = _Desk(health, event, settings)
    desk.take_in()
    for detector in detectors:
        if isinstance(event, detector.reads):
            desk.consult(detector)
    desk.move_subjects()
    desk.settle()
    desk.tell()
    return desk.health(), desk.decision()


class _Desk:
    """The working copy of the health while one event is decided."""

    def __init__(self, health: Health, event: AnyEvent, settings: policy.Settings) -> None:
        self.before, self.event, self.settings = health, event, settings
        ahead = seconds_between(health.now, event.at)
        self.now = event.at if isinstance(event, Booted) or (ahead or 0.0) > 0 else health.now
        self.subjects: dict[SubjectId, SubjectHealth] = dict(health.subjects)
        self.retired = health.retired
        self.incidents: dict[IncidentId, Incident] = dict(health.incidents)
        self.sources = health.sources
        self.memory: Memories = health.memory
        self.identified = health.identified
        self.drain = health.drain
        self.owed: list[Owed] = []
        self.settled: list[Owed] = []
        self.story: list[StoryEntry] = []
        self.transitions: list[Transition] = []
        self.questions: list[Question] = []
        self.failed: list[str] = []
        self.touched: dict[SubjectId, Standing | None] = {}
        self.new_finding = False

    def health(self) -> Health:
        return Health(
            now=self.now, subjects=self.subjects, retired=self.retired, incidents=self.incidents,
            sources=self.sources, drain=self.drain, identified=self.identified, memory=self.memory,
        )  # fmt: skip

    def decision(self) -> Decision:
        drain_changed = self.drain is not self.before.drain
        return Decision(
            transitions=tuple(self.transitions), story=tuple(self.story), owed=tuple(self.owed),
            questions=tuple(self.questions), failed=tuple(self.failed),
            keep_event=self.new_finding or bool(self.transitions),
            urgent=bool(self.transitions or self.owed or self.story or drain_changed or self.questions),
        )  # fmt: skip

    # --- what the event itself says ---------------------------------------------------------------------------------

    def take_in(self) -> None:
        event = self.event
        match event:
            case Booted():
                self._boot(event)
            case SourceChanged():
                level = SourceHealth(name=event.source, level=event.level, reason=event.reason, since=event.at)
                self.sources = {**self.sources, event.source: level}
                self.story.append(story.source_changed(event))
                self._begin_probations_anew(event)
            case LogLine() if event.parsed.kind == "gpu_identity":
                self._identify(identity.learn(self.health(), event))
            case GpuProbed() if event.answers:
                self._identify(identity.probed(self.health(), event))
            case Tick():
                self._age()
            case ActionOutcome():
                verb, token = event.key.split(":")[:2]
                self.drain = policy.after_outcome(self.drain, event, verb, token)
                self.story.append(story.outcome(event, self.before.drain))
            case Acknowledged():
                self._acknowledge(event)
            case OperatorAsked():
                self.drain, owed, answer = policy.obey(self.health(), event, self.settings)
                self.owed.extend(owed)
                self.story.append(story.operator(event, answer))
                self.story.extend(story.owed(o, event) for o in owed)

    def _boot(self, event: Booted) -> None:
        if event.previous is not None and event.previous != event.at.boot:
            for name in list(self.subjects):
                self._prove(name, "reboot")
            self.story.append(story.rebooted(event))
        self.sources = {}
        self._ask(self.subjects.values())

    def _identify(self, learned: Health) -> None:
        for name, subject in learned.subjects.items():
            if self.subjects.get(name) is not subject:
                self.touched.setdefault(name, None)
        self.subjects, self.retired = dict(learned.subjects), learned.retired
        self.identified = learned.identified

    def _age(self) -> None:
        for name, subject in self.subjects.items():
            aged = machine.expire(subject, self.now)
            if len(aged.standing) != len(subject.standing):
                self._put(aged)
            elif subject.state == "returning":
                self.touched.setdefault(name, None)
        self._forget_incidents()

    def _forget_incidents(self) -> None:
        held = {s.incident for subject in self.subjects.values() for s in subject.standing}
        old = [
            incident
            for incident in self.incidents.values()
            if incident.id not in held and (seconds_between(incident.last, self.now) or 0.0) > INCIDENT_KEPT
        ]
        for incident in old:
            del self.incidents[incident.id]
        for incident in sorted(self.incidents.values(), key=lambda i: i.last.mono)[:-INCIDENTS_KEPT]:
            if incident.id not in held:
                del self.incidents[incident.id]

    def _acknowledge(self, event: Acknowledged) -> None:
        for name in [event.subject] if event.subject else list(self.subjects):
            subject = self._subject(name)
            standing = next((s for s in subject.standing if s.finding.code == event.code), None)
            if standing is None:
                continue
            covered = join.explained_by(standing, subject.standing)
            for code in (event.code, *covered):
                subject = machine.withdraw(subject, code)
            self._put(subject)
            self.story.append(story.acknowledged(event, name, covered))

    # --- what the detectors say -------------------------------------------------------------------------------------

    def consult(self, detector: Detector) -> None:
        """The detector has judged the event; its findings stand, or are withdrawn."""
        try:
            for name in detector.subjects(self.event):
                memory: Any = self.memory.get((detector.name, name))  # Any: the type is the detector's own
                memory = detector.start() if memory is None else memory
                after, findings = detector.observe(memory, name, self.event)
                if after != memory:
                    self.memory = {**self.memory, (detector.name, name): after}
                for finding in findings:
                    self._hear(finding)
        except Exception as error:  # noqa: BLE001 - one of the three homes: a broken check must not blind the others
            self.failed.append(detector.name)
            self._hear(_against_itself(detector.name, error, self.event))

    def _hear(self, finding: Finding) -> None:
        finding = policy.adjust(finding, self.event, self.settings)
        if finding.proves is not None:
            self._prove(finding.subject, finding.proves)
        subject = self._subject(finding.subject)
        if not finding.stands:
            if any(s.finding.code == finding.code for s in subject.standing):
                self._put(machine.withdraw(subject, finding.code))
            return
        incident, secondary_to = join.join(self.incidents, subject, finding)
        self.incidents[incident.id] = incident
        known = next((s for s in subject.standing if s.finding.code == finding.code), None)
        after = machine.observe(subject, finding, incident, secondary_to, fresh=self._fresh())
        standing = next(s for s in after.standing if s.finding.code == finding.code)
        self._put(after, standing)
        self.new_finding = self.new_finding or known is None or known.finding is not standing.finding
        if incident.name in ranks.LOST:
            self._mark_echoes(incident)

    def _mark_echoes(self, loss: Incident) -> None:
        for name, code in join.echoes(self.subjects, loss):
            subject = self.subjects[name]
            marked = tuple(
                msgspec.structs.replace(s, secondary_to=loss.name) if s.finding.code == code else s
                for s in subject.standing
            )
            self._put(msgspec.structs.replace(subject, standing=marked))

    def _fresh(self) -> bool:
        event = self.event
        if not isinstance(event, LogLine) or not event.backlog:
            return True
        age = seconds_between(event.at, self.now)
        return event.at.boot == self.now.boot and age is not None and age <= self.settings.fresh_for

    def _prove(self, name: SubjectId, proof: Clear) -> None:
        subject = self._subject(name)
        if subject.standing:
            self._put(machine.prove(subject, proof, self.now))

    # --- what follows -----------------------------------------------------------------------------------------------

    def move_subjects(self) -> None:
        """Each subject that was touched is in the state that follows, and every change of verdict is told."""
        for name, standing in self.touched.items():
            if name not in self.subjects:
                continue
            before = self.before.subject(name)
            after = machine.move(
                self.subjects[name], self.now, probation=self.settings.probation, watching=self._watching()
            )
            self.subjects[name] = after
            self._tell(before, after, standing)
        self._ask(self.subjects[name] for name in self.touched if name in self.subjects)

    def _tell(self, before: SubjectHealth, after: SubjectHealth, standing: Standing | None) -> None:
        if standing is not None:
            standing = next((s for s in after.standing if s.finding.code == standing.finding.code), standing)
        known = {s.finding.code: s for s in before.standing}
        old = known.get(standing.finding.code) if standing else None
        news = standing is not None and (
            old is None or old.finding.severity != standing.finding.severity or old.confirmed != standing.confirmed
        )
        if not (news or before.state != after.state or before.remedy != after.remedy):
            return
        held = (*machine.deciding(after), *machine.deciding(before), *before.standing)
        cause = standing or (None if before.state == "returning" else next(iter(held), None))
        self.transitions.append(story.transition(self.event, before, after, cause, self.settings))

    def _ask(self, subjects: Iterable[SubjectHealth]) -> None:
        for subject, standing in policy.held_back(subjects):
            if standing.first != self.event.at and not isinstance(self.event, Booted):
                continue
            raw = self.event.raw if isinstance(self.event, LogLine) else ""
            self.questions.append(
                Question(
                    subject=subject.id, code=standing.finding.code, source=standing.finding.source, raw=raw,
                    at=standing.first,
                )
            )  # fmt: skip

    def settle(self) -> None:
        """The drain follows from the health as it is now."""
        if not (self.touched or isinstance(self.event, ActionOutcome | Booted | OperatorAsked | Tick)):
            return
        drain, owed = policy.settle(self.health(), self.event, self.settings)
        self.drain = drain
        self.settled = owed
        self.owed.extend(owed)

    def tell(self) -> None:
        """The story has a sentence for each change; a GPU that is well again is given back only with its node."""
        if not any(o.action.verb == "release" and not o.cancelled for o in self.owed):
            self.transitions = [
                msgspec.structs.replace(told, action="none") if told.action == "release" else told
                for told in self.transitions
            ]
        self.story.extend(story.verdict(told) for told in self.transitions)
        self.story.extend(story.owed(o, self.event) for o in self.settled)

    # --- small things -----------------------------------------------------------------------------------------------

    def _subject(self, name: SubjectId) -> SubjectHealth:
        return self.subjects.get(name) or msgspec.structs.replace(self.before.subject(name), since=self.now)

    def _put(self, subject: SubjectHealth, standing: Standing | None = None) -> None:
        self.subjects[subject.id] = subject
        if standing is not None or subject.id not in self.touched:
            self.touched[subject.id] = standing

    def _begin_probations_anew(self, event: SourceChanged) -> None:
        """What a blind log would have said is missing from every probation."""
        before = self.before.sources.get(event.source)
        went_or_came = event.level == "blind" or (before is not None and before.level == "blind")
        for name in self._returning():
            if went_or_came and event.source in machine.LOG_SOURCES:
                self.subjects[name] = msgspec.structs.replace(self.subjects[name], probation_from=self.now)
            self.touched.setdefault(name, None)

    def _returning(self) -> list[SubjectId]:
        return [name for name, subject in self.subjects.items() if subject.state == "returning"]

    def _watching(self) -> bool:
        """Whether any log is read; before the first word of a source nothing speaks against it."""
        logs = [source for source in self.sources.values() if source.name in machine.LOG_SOURCES]
        return not logs or any(source.level != "blind" for source in logs)


def _against_itself(check: str, error: Exception, event: AnyEvent) -> Finding:
    return Finding(
        subject=NODE, check=check, code=f"check_{check}", at=event.at, severity="degraded", silent=True,
        source="gpuguard", because=(event.id,), advice="watch",
        reason=f"the check {check} crashed with {type(error).__name__}: {error}; please report it",
    )  # fmt: skip
