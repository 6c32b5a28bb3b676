"""One event in, one decision out: the function to read first.

Same input, same output: time and chance come with the event. Detectors judge subjects alone; `incident` joins what
has one cause; `machine` says what state follows; `drain` what is owed. A detector that crashes is a finding against
itself and blinds no other.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

import msgspec

from gpuguard.health import (
    checks,
    drain,
    errands,
    forgetting,
    identity,
    ladder,
    machine,
    past,
    policy,
    reclaims,
    restarts,
    story,
)
from gpuguard.health.board import Board
from gpuguard.health.state import Health, Memories
from gpuguard.incident import join, ranks
from gpuguard.model.actions import DRY, DrainVerb, Question
from gpuguard.model.events import (
    Acknowledged,
    ActionOutcome,
    AnyEvent,
    Booted,
    GpuProbed,
    LogLine,
    OperatorAsked,
    SourceChanged,
    Sweep,
    Tick,
)
from gpuguard.model.findings import SEVERITIES, Clear, Finding
from gpuguard.model.health import Decision, Incident, Owed, SourceHealth, Standing, State, SubjectHealth, Transition
from gpuguard.model.ids import NODE, IncidentId, SubjectId, TokenId
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.story import StoryEntry
from gpuguard.ports import AnyDetector, Deriver, Detector, MachineDetector, RowDetector

# How long after its first report a held finding is asked about again; each time costs a query of the journal.
ASK_AGAIN_AT = (60.0, 300.0, 1800.0)
# The source that reads lines as they are printed.
FIRST_HAND = "kmsg"


def decide(
    health: Health, event: AnyEvent, detectors: Sequence[AnyDetector], settings: policy.Settings
) -> tuple[Health, Decision]:
    """The health after the event, and what follows from the change.

    Shape   the health given is not changed; the parts of the new one that are the same are the same objects
    """
    desk = _Desk(health, event, settings)
    desk.take_in()
    derivers, of_events, of_rows, of_machine = checks.by_shape(tuple(detectors))
    if isinstance(event, Sweep):
        for deriver in derivers:
            desk.guarded(desk.derive, deriver, event)
        for rows in of_rows:
            desk.guarded(desk.consult_rows, rows, event)
        for whole in of_machine:
            desk.guarded(desk.consult_machine, whole, event)
    else:
        for detector in of_events:
            if isinstance(event, detector.reads):
                desk.guarded(desk.consult, detector)
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
        self.folds = health.folds
        self.began = health.began
        self.identified = health.identified
        self.board = Board(health.readings)
        self.drain = health.drain
        self.tokens = health.tokens
        self.errands = health.errands
        self.pause = health.pause
        self.released, self.past = health.released, health.past
        self.owed: list[Owed] = []
        self.settled: list[Owed] = []
        self.story: list[StoryEntry] = []
        self.transitions: list[Transition] = []
        self.questions: list[Question] = []
        self.failed: list[str] = []
        self.touched: dict[SubjectId, list[Standing]] = {}
        self.new_finding = False

    def health(self) -> Health:
        return Health(
            now=self.now, subjects=self.subjects, retired=self.retired, incidents=self.incidents,
            sources=self.sources, drain=self.drain, tokens=self.tokens, identified=self.identified,
            memory=self.memory, folds=self.folds, readings=self.board.readings, began=self.began,
            errands=self.errands, pause=self.pause, released=self.released,
            past=self.past,
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
            case Sweep():
                self._measure(event)
            case Tick():
                self._age()
            case ActionOutcome():
                self._hear_of(event)
            case Acknowledged():
                self._acknowledge(event)
            case OperatorAsked():
                self._obey(event)

    def _obey(self, event: OperatorAsked) -> None:
        """A person's wish, and what follows from it."""
        paused = self.pause
        obeyed = drain.obey(self.health(), event, self.settings)
        self.drain, self.pause = obeyed.drain, obeyed.pause
        self.story.append(story.operator(event, obeyed.answer))
        self._owe(obeyed.owed)
        if obeyed.accepted:
            self._accept_returning()
        if paused is not None and self.pause is None:
            self._doubt(seconds_between(paused.since, self.now))

    def _hear_of(self, event: ActionOutcome) -> None:
        """What came of an action is known to whoever it was owed for: the drain, or an errand."""
        verb, token = event.key.split(":")[:2]
        errand = errands.of_key(self.errands, event.key)
        subject = errand.subject if errand is not None else None
        self.errands = errands.answered(self.errands, event)
        if verb in get_args(DrainVerb):
            given_back = verb == "release" and event.result == "done" and not event.key.endswith(DRY)
            ours = self.drain is not None and self.drain.by == "gpuguard" and self.drain.state == "releasing"
            if given_back and ours:
                self.released = (*self.released, event.at)[-drain.RELEASES_KEPT :]
            self.drain, owed = drain.after_outcome(self.drain, event, verb, TokenId(token))
            subject = self.before.drain.subject if self.before.drain else None
            self._owe(owed)
        elif errand is not None and not errand.dry:
            self._take_remedy(errand, event)
        if not errands.is_old_answer(event, errand, self.before.drain):
            self.story.append(story.outcome(event, subject))

    def _take_remedy(self, errand: errands.Errand, event: ActionOutcome) -> None:
        """What came of a test or a reset is evidence like any other."""
        for name in ladder.concerned(errand, self.subjects):
            if ladder.is_proof(errand, event):
                self._prove(name, "reset")
            if (after := ladder.learned(self.subjects[name], errand, event)) is not self.subjects[name]:
                self._put(after)
        if (found := ladder.found(errand, event)) is not None:
            self._hear(found)

    def _boot(self, event: Booted) -> None:
        if event.previous is not None and event.previous != event.at.boot:
            for name in list(self.subjects):
                self._prove(name, "reboot")
            for name in self._returning():
                # The time the machine was off is no time in which it proved itself.
                self._put(machine.begin_anew(self.subjects[name], self.now))
            self.story.append(story.rebooted(event))
        self.sources = {}
        self.began = event.at
        if self.drain is not None and self.drain.dry_run and not self.settings.dry_run:
            self._doubt()  # the site only watched until now
        self._ask(self.subjects.values(), always=True)
        for subject in self.subjects.values():
            if subject.seen is not None and subject.seen != event.at.boot:
                # It answered on an earlier boot: does it still?
                self.questions.append(Question(subject=subject.id, code="presence", source="", raw="", at=event.at))

    def _measure(self, event: Sweep) -> None:
        """What was measured is known from now on, and by it which GPU is where."""
        self._identify(identity.swept(self.health(), event))
        self.past = past.named(self.past, event.rows)
        self.board.take(event.source, event.rate, event.valid_for, event.rows, event)

    def derive(self, deriver: Deriver, event: Sweep) -> None:
        """What the deriver concludes from what is known now stands beside what was measured."""
        if not self.board.brings(deriver.reads):
            return
        fold: Any = self.folds.get(deriver.name)  # Any: the type is the deriver's own
        before = deriver.start() if fold is None else fold
        after, rows = deriver.derive(before, lambda *kinds: self.board.of(kinds, event), event.at, event.rows)
        if after is not fold:
            self.folds = {**self.folds, deriver.name: after}
        if rows:
            self.board.take(deriver.name, "fast", deriver.valid_for, rows, event)

    def _identify(self, learned: Health) -> None:
        before, now = self.subjects, learned.subjects
        if now is not before:
            for name, subject in now.items():
                if before.get(name) is not subject:
                    self.touched.setdefault(name, [])
            others = {
                name for name, known in before.items()
                if known.uuid is not None and (name not in now or now[name].uuid != known.uuid)
            }  # fmt: skip
            # What was counted and measured of the GPU that was there says nothing of the one that is, or will be.
            if others:
                self.memory = {key: memory for key, memory in self.memory.items() if key[1] not in others}
                self.board.without(others)
            self.subjects = dict(now)
        self.retired, self.identified = learned.retired, learned.identified

    def _age(self) -> None:
        for name, subject in self.subjects.items():
            aged = machine.expire(subject, self.now)
            if len(aged.standing) != len(subject.standing):
                self._put(aged)
            elif subject.state == "returning":
                self.touched.setdefault(name, [])
        self._ask(self.subjects.values())
        self.incidents = forgetting.without_old(self.incidents, self.subjects, self.now)
        self.board.age(self.now)
        self.past = past.aged(self.past, self.now)
        self._forget()
        self._end_pause()

    def _forget(self) -> None:
        """Jobs that are over, and addresses about which nothing is known, are forgotten with all that was kept of
        them."""
        for over in forgetting.passed(self.subjects, self.board.readings, self.began, self.event.at, self.now):
            self._put(over)
        strangers = forgetting.strangers(self.subjects, self.board.readings, self.now)
        for name in strangers:
            del self.subjects[name]
        self.memory = forgetting.memory_without(self.memory, strangers, self.board.readings, self.began, self.now)

    def _end_pause(self) -> None:
        """A person's pause that ran out is over; what was seen before it and not since has to be seen again."""
        if self.pause is None or (seconds_between(self.pause.since, self.now) or 0.0) < self.pause.seconds:
            return
        self.story.append(story.pause_ended(self.pause, self.event))
        self._doubt(seconds_between(self.pause.since, self.now))
        self.pause = None

    def _doubt(self, paused: float | None = None) -> None:
        """Nothing is acted on that was only seen before a pause of so many seconds, or so long ago that it is old news,
        while no drain of ours stands."""
        recent = min(self.settings.fresh_for, self.settings.fresh_for if paused is None else paused)
        if self.drain is not None and self.drain.state in ("standing", "releasing") and not self.drain.dry_run:
            return
        for subject in list(self.subjects.values()):
            doubted = machine.doubt(subject, self.now, recent)
            if doubted.standing != subject.standing:
                self._put(doubted)
        self._ask(self.subjects.values(), always=True)

    def _accept_returning(self) -> None:
        """A person gives the node back: what was on probation is taken as well, and a GPU that is gone as gone."""
        for name in self._returning():
            subject = self.subjects[name]
            if subject.seen is not None and subject.seen != self.now.boot:
                del self.subjects[name]
                if subject.uuid is not None:
                    self.retired = {**self.retired, subject.uuid: subject}
                continue
            mild = any(s.finding.severity != "info" for s in subject.standing)
            state: State = "watched" if mild else "healthy"
            accepted = msgspec.structs.replace(machine.unproven(subject, None), state=state, since=self.now)
            self.subjects[name] = accepted
            self._tell(subject, accepted, [])

    def _acknowledge(self, event: Acknowledged) -> None:
        for name in [event.subject] if event.subject else list(self.subjects):
            subject = self._subject(name)
            standing = next((s for s in subject.standing if s.finding.code == event.code), None)
            if standing is None:
                continue
            covered = join.explained_by(standing, subject.standing)
            for code in (event.code, *covered):
                subject = machine.accept(subject, code, self.event.at)
            self._put(subject)
            self.story.append(story.acknowledged(event, name, covered))

    # --- what the detectors say -------------------------------------------------------------------------------------

    def consult(self, detector: Detector) -> None:
        """The detector has judged the event; its findings stand, or are withdrawn."""
        for name in detector.subjects(self.event):
            for finding in self._judged(detector, name, detector.observe, name, self.event):
                self._hear(finding)

    def consult_rows(self, detector: RowDetector, event: Sweep) -> None:
        """The detector has judged the rows of its kind of which the sweep brought a column it reads."""
        for row in self.board.new(detector.of, event):
            if self.board.brought[row.subject].isdisjoint(detector.reads):
                continue
            for finding in self._judged(detector, row.subject, detector.observe, row.subject, row):
                self._hear_level(finding, event)

    def consult_machine(self, detector: MachineDetector, event: Sweep) -> None:
        """The detector has judged all rows of its kinds, if the sweep brought a column it reads."""
        if not self.board.brings(detector.reads):
            return
        for finding in self._judged(detector, NODE, detector.survey, self.board.of(detector.of, event)):
            self._hear_level(finding, event)

    def _judged(
        self,
        detector: AnyDetector,
        name: SubjectId,
        judge: Callable[..., tuple[Any, Sequence[Finding]]],
        *shown: object,
    ) -> Sequence[Finding]:
        """What the detector says of what it is shown; its memory of the subject is the one after that."""
        memory: Any = self.memory.get((detector.name, name))  # Any: the type is the detector's own
        after, findings = judge(detector.start() if memory is None else memory, *shown)
        if after != memory:
            self.memory = {**self.memory, (detector.name, name): after}
        return findings

    def guarded(self, consult: Callable[..., None], detector: AnyDetector, *shown: object) -> None:
        """The detector was consulted; one that crashes is a finding against itself."""
        try:
            consult(detector, *shown)
        except Exception as error:  # noqa: BLE001 - one of the three homes: a broken check must not blind the others
            self.failed.append(detector.name)
            self._hear(checks.against_itself(detector.name, error, self.event))

    def _hear_level(self, finding: Finding, event: Sweep) -> None:
        """A measured finding is news when it comes, goes, changes its weight, or needs no witness any more; a person's
        word on it holds until it was gone once or is graver. A latched one does not end because nothing is measured any
        more."""
        subject = self.subjects.get(finding.subject)
        standing = subject.standing if subject is not None else ()
        known = next((s for s in standing if s.finding.code == finding.code), None)
        if not finding.stands:
            if known is not None and not known.finding.latched:
                self._hear(finding)
            elif subject is not None and subject.accepted:
                self._forget_word(subject, finding)
            return
        if subject is not None and subject.accepted:
            if machine.is_accepted(subject, finding):
                return
            self._forget_word(subject, finding)
        if known is not None and _as_grave(known.finding, finding):
            return
        clears = tuple(clear for clear in finding.clears if clear != "quiet")
        self._hear(
            msgspec.structs.replace(
                finding, at=event.at, source=event.source, because=(event.id,), level=True, clears=clears
            )
        )

    def _forget_word(self, subject: SubjectHealth, finding: Finding) -> None:
        if (left := machine.without_word(subject, finding.code)) is not subject:
            self._put(left)

    def _hear(self, finding: Finding) -> None:
        finding = policy.adjust(finding, self.event, self.settings)
        if finding.proves is not None:
            self._prove(finding.subject, finding.proves)
        subject = self._subject(finding.subject)
        known = next((s for s in subject.standing if s.finding.code == finding.code), None)
        if not finding.stands:
            if known is not None:
                self._put(machine.withdraw(subject, finding.code, self.event.at))
            return
        if known is None and self._second_hand() and machine.is_over(subject, finding, self.now.boot):
            return
        sure = join.losses(self.incidents, self.subjects)
        incident, secondary_to = join.join(self.incidents, subject, finding, sure)
        if secondary_to is None and known is not None and any(loss.name == known.secondary_to for loss in sure):
            secondary_to = known.secondary_to
        self.incidents[incident.id] = incident
        raw = self.event.raw if isinstance(self.event, LogLine) else ""
        after = machine.observe(subject, finding, incident, secondary_to, fresh=self._fresh(), raw=raw)
        standing = next(s for s in after.standing if s.finding.code == finding.code)
        self._put(after, standing)
        self.new_finding = self.new_finding or known is None or known.finding is not standing.finding

    def _second_hand(self) -> bool:
        """Whether the line was not read as it was printed: then it may tell of what is long over."""
        event = self.event
        return isinstance(event, LogLine) and (event.backlog or event.source != FIRST_HAND)

    def _fresh(self) -> bool:
        event = self.event
        if not isinstance(event, LogLine):
            return True
        age = seconds_between(event.at, self.now)
        return event.at.boot == self.now.boot and age is not None and age <= self.settings.fresh_for

    def _prove(self, name: SubjectId, proof: Clear) -> None:
        subject = self._subject(name)
        if subject.standing:
            self._put(machine.prove(subject, proof, self._proven_at()))

    def _proven_at(self) -> Instant:
        """When the remedy was: a reboot at the beginning of the boot, not when the agent came up in it."""
        at = self.event.at
        if not isinstance(self.event, Booted):
            return at
        return Instant(boot=at.boot, mono=0.0, utc=None if at.utc is None else at.utc - at.mono, estimated=True)

    # --- what follows -----------------------------------------------------------------------------------------------

    def move_subjects(self) -> None:
        """Each subject that was touched is in the state that follows, and every change of verdict is told."""
        self._excuse_peers()
        for name, news in self.touched.items():
            if name not in self.subjects:
                continue
            before = self.before.subject(name)
            after = machine.move(self.subjects[name], self.now, proof=self._proof(), watching=self._watching())
            self.subjects[name] = after
            if before.state != "unfit" and after.state == "unfit":
                mild = all(s.finding.severity != "critical" for s in machine.deciding(after))
                self.past = past.remember(
                    self.past, after, after.last_fault or "none", self.event.at, self.now, self.settings.past, mild=mild
                )
            self._tell(before, after, news)
        self._ask([self.subjects[name] for name in self.touched if name in self.subjects])

    def _proof(self) -> machine.Proof:
        """What a subject has to show; a test is made under our own drain alone, so without one none is waited for."""
        drain, proof = self.drain, self.settings.proof
        holds = drain is not None and drain.by == "gpuguard" and drain.state in ("standing", "owed", "refused")
        if drain is not None and drain.state == "owed" and not drain.pending:
            holds = False  # taken back by a person's pause
        return proof if holds or not proof.tests else dataclasses.replace(proof, tests=False)

    def _excuse_peers(self) -> None:
        """What peers said of a GPU just before it was known to be lost is told as its consequence."""
        for name in list(self.touched):
            if name in self.subjects:
                self.subjects[name] = machine.confirm(self.subjects[name])
        if not any(s.finding.code in ranks.LOST for news in self.touched.values() for s in news):
            return
        for loss in join.losses(self.incidents, self.subjects):
            for name, code in join.echoes(self.subjects, loss):
                subject = self.subjects[name]
                marked = tuple(
                    msgspec.structs.replace(s, secondary_to=loss.name) if s.finding.code == code else s
                    for s in subject.standing
                )
                self._put(msgspec.structs.replace(subject, standing=marked))

    def _tell(self, before: SubjectHealth, after: SubjectHealth, news: list[Standing]) -> None:
        """Every new or graver finding is told; the gravest of them with the change of state."""
        known = {s.finding.code: s for s in before.standing}
        now = {s.finding.code: s for s in after.standing}
        told = [now.get(s.finding.code, s) for s in news]
        fresh = [s for s in told if _is_news(known.get(s.finding.code), s)]
        fresh.sort(key=lambda s: (s.confirmed, SEVERITIES.index(s.finding.severity)), reverse=True)
        tested = after.tested is not None and before.tested is None
        moved = before.state != after.state or before.remedy != after.remedy or tested
        if not (fresh or moved):
            return
        held = (*machine.deciding(after), *machine.deciding(before), *before.standing)
        instead = None if before.state == "returning" else next(iter(held), None)
        first = next(iter(fresh), None) or next(iter(told), None) or instead
        self.transitions.append(story.transition(self.event, before, after, first, self.settings))
        self.transitions.extend(story.transition(self.event, after, after, other, self.settings) for other in fresh[1:])

    def _ask(self, subjects: Iterable[SubjectHealth], *, always: bool = False) -> None:
        """Witnesses are asked for what is held: at once, and again at a few ages, as a witness may come late."""
        for subject, standing in policy.held_back(subjects):
            new = standing.first == self.event.at
            asked = any(q.subject == subject.id and q.code == standing.finding.code for q in self.questions)
            if not asked and (always or new or self._came_of_age(standing)):
                self.questions.append(
                    Question(
                        subject=subject.id, code=standing.finding.code, source=standing.finding.source,
                        raw=standing.raw, at=standing.first,
                    )
                )  # fmt: skip

    def _came_of_age(self, standing: Standing) -> bool:
        before, after = (seconds_between(standing.first, at) for at in (self.before.now, self.now))
        return before is not None and after is not None and any(before < age <= after for age in ASK_AGAIN_AT)

    def _owe(self, owed: Sequence[Owed]) -> None:
        self.owed.extend(owed)
        self.story.extend(story.owed(o, self.event) for o in owed)

    def settle(self) -> None:
        """The drain follows from the health as it is now."""
        if not (self.touched or isinstance(self.event, ActionOutcome | Booted | OperatorAsked | Tick)):
            return
        self.drain, owed = drain.settle(self.health(), self.event, self.settings)
        if self.drain is not None:
            self.tokens = self.tokens.given(self.drain.token)
            if self.drain.kept and (self.before.drain is None or self.before.drain.kept != self.drain.kept):
                self.story.append(story.kept(self.drain, self.event))
        for errand in (restarts.settle, reclaims.settle, ladder.settle):
            self.errands, more = errand(self.health(), self.event, self.settings)
            for o in more:
                self.tokens = self.tokens.given(o.action.token)
            owed.extend(more)
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
        news = self.touched.setdefault(subject.id, [])
        if standing is not None:
            news[:] = [s for s in news if s.finding.code != standing.finding.code]
            news.append(standing)

    def _begin_probations_anew(self, event: SourceChanged) -> None:
        """What nobody read while every log was blind is missing from every probation."""
        was_blind = not _any_log(self.before.sources)
        for name in self._returning():
            if was_blind or not self._watching():
                self.subjects[name] = machine.begin_anew(self.subjects[name], self.now)
            self.touched.setdefault(name, [])

    def _returning(self) -> list[SubjectId]:
        return [name for name, subject in self.subjects.items() if subject.state == "returning"]

    def _watching(self) -> bool:
        return _any_log(self.sources)


def _any_log(sources: Mapping[str, SourceHealth]) -> bool:
    """Whether any log is read; before the first word of a source nothing speaks against it."""
    logs = [source for source in sources.values() if source.name in machine.LOG_SOURCES]
    return not logs or any(source.level != "blind" for source in logs)


def _is_news(old: Standing | None, new: Standing) -> bool:
    return old is None or old.finding.severity != new.finding.severity or old.confirmed != new.confirmed


def _as_grave(old: Finding, new: Finding) -> bool:
    """Whether nothing about it changed that anything is decided by."""
    return machine.weight(old) == machine.weight(new) and (old.self_evident, old.latched) == (
        new.self_evident, new.latched,
    )  # fmt: skip
