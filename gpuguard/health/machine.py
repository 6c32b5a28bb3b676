"""The states of a subject, and what moves them.

Theory. A subject (a GPU, an NVSwitch, the node) holds findings; its state follows from what stands and from what it
was before, by TABLE. Nothing turns healthy without evidence: an unfit subject whose faults are cleared goes to
`returning`. There it has to be looked at several times over some minutes with the kernel log watched, every answer
given and nothing new, and to pass a test where the site has them: then it is `tested` and may be used again. It stays
`returning` on probation for days, as what failed once fails again soon or not at all: in that time a mild fault of the
hardware, which else is only watched, makes it unfit.
Who clears a finding: time without a repeat (`quiet`), a remedy that was seen (`reset`, `reboot`, `replace`), or a
person (`ack`); each finding lists which of these end it, and a latched one never ends by time.
A remedy counts as tried for a fault only when it was applied while that fault stood: when the fault comes back, the
next remedy of its ladder is due. Planned reboots of a healthy node count for nothing.
A newer lesser fault never replaces a held worse one, as the state is always that of the worst that stands.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from gpuguard.incident.ranks import LOST
from gpuguard.model.findings import REMEDIES, SEVERITIES, Clear, Finding, Remedy
from gpuguard.model.health import STATES, Accepted, Applied, Cleared, Incident, Standing, State, SubjectHealth
from gpuguard.model.ids import BootId
from gpuguard.model.instants import Instant, seconds_between

# What stands on a subject now, in one word, and the state that follows from it, by the state before.
Situation = Literal["critical", "fault", "silent", "clear", "passed", "passed_fault"]
ROWS: dict[Situation, tuple[State, State, State, State, State]] = {
    #  from: healthy    watched    unfit        unknown    returning
    # A confirmed critical finding stands.
    "critical": ("unfit", "unfit", "unfit", "unfit", "unfit"),
    # Something milder, or a critical finding that waits for its second witness.
    "fault": ("watched", "watched", "returning", "watched", "returning"),
    # Nothing is wrong that we could see, but we cannot see.
    "silent": ("unknown", "unknown", "returning", "unknown", "returning"),
    # Nothing stands.
    "clear": ("healthy", "healthy", "returning", "healthy", "returning"),
    # Probation is over: nothing new came, and the log was watched; without or with an old mild fault still standing.
    "passed": ("healthy", "healthy", "returning", "healthy", "healthy"),
    "passed_fault": ("watched", "watched", "returning", "watched", "watched"),
}
TABLE = {situation: dict(zip(STATES, row, strict=True)) for situation, row in ROWS.items()}

# Which clears a proof of one remedy implies: a reboot resets the GPU, a new board has neither.
IMPLIES: dict[Clear, tuple[Clear, ...]] = {
    "reset": ("reset",),
    "reboot": ("reset", "reboot"),
    "replace": ("reset", "reboot", "replace"),
    "ack": ("ack",),
    "quiet": ("quiet",),
}
LOG_SOURCES = ("kmsg", "journal", "logfile")
# A syslog file takes what any user gives to `logger -t kernel`: alone it proves nothing.
HEARSAY = "logfile"
# The driver's library tells the number of an Xid, and none of the words and registers that a log has of it.
WITNESS = "nvml"
BECAUSE_KEPT = 8
APPLIED_KEPT = 32
CLEARED_KEPT = 32
RAW_KEPT = 2048
# A remedy of longer ago says nothing about the fault of today. Units: seconds
APPLIED_COUNTS_FOR = 30 * 86400.0
# Two reports this far apart may still speak of one fault. Units: seconds
WITNESS_WITHIN = 3600.0
# The driver's own word is always its newest; what it says is never raised by what it said of another fault. What it
# tells when asked now comes before what it once printed.
DRIVERS_WORDS = ("recovery_action", "xid154")


REPEATS = (
    "fault_codes", "row_remap", "retired_pages", "ecc_uncorrected", "sram_threshold", "memory_unrepairable",
    "recovery_action",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a subject that was unfit has to show. Units: seconds

    `clean_passes` looks that find nothing, over `clean_for` at least, and with `tests` a passed test: then it may be
    used again. After `probation` more it counts as healthy. On probation a mild fault of its hardware that one of the
    checks `repeats` found takes it out: checks that read the hardware's own word, which neither a program nor a hot
    room can put there.
    """

    clean_for: float = 600.0
    clean_passes: int = 3
    probation: float = 7 * 86400.0
    tests: bool = False
    repeats: tuple[str, ...] = REPEATS

    @property
    def pass_every(self) -> float:
        """Between two looks that count."""
        return self.clean_for / self.clean_passes


def remedy_rank(remedy: Remedy) -> int:
    """Remedies by how much they take."""
    return REMEDIES.index(remedy)


def due_remedy(subject: SubjectHealth, finding: Finding) -> Remedy:
    """The remedy that is due now: the next of the ladder after those tried for this very fault."""
    tried = [
        a
        for a in subject.applied
        if a.code == finding.code and (seconds_between(a.at, finding.at) or 0.0) <= APPLIED_COUNTS_FOR
    ]
    if finding.code in DRIVERS_WORDS:
        return finding.remedy
    ladder = [finding.remedy, *(step for step in finding.ladder if remedy_rank(step) > remedy_rank(finding.remedy))]
    for step in ladder:
        if not any(remedy_rank(a.remedy) >= remedy_rank(step) for a in tried):
            return step
    return ladder[-1]


def observe(
    subject: SubjectHealth,
    finding: Finding,
    incident: Incident,
    secondary_to: str | None,
    *,
    fresh: bool,
    raw: str = "",
) -> SubjectHealth:
    """The finding stands on the subject, joined with an earlier report of it.

    A milder report of the same code counts, but does not keep the graver one alive.
    """
    raw = raw[:RAW_KEPT] if finding.severity == "critical" and not finding.self_evident else ""
    old = next((s for s in subject.standing if s.finding.code == finding.code), None)
    if old is None:
        new = Standing(
            finding=finding, incident=incident.id, first=finding.at, last=finding.at, count=finding.count,
            sources=(finding.source,), remedy=due_remedy(subject, finding), because=finding.because[:BECAUSE_KEPT],
            secondary_to=secondary_to, fresh=fresh, raw=raw,
        )  # fmt: skip
        return msgspec.structs.replace(subject, standing=(*subject.standing, new))
    newest, counts, milder = _heard(old.finding, finding)
    later = seconds_between(old.last, finding.at)
    new = msgspec.structs.replace(
        old,
        finding=newest,
        remedy=due_remedy(subject, newest),
        last=finding.at if (later is None or later > 0) and not milder else old.last,
        count=old.count + (finding.count if counts else 0),
        sources=old.sources if finding.source in old.sources else (*old.sources, finding.source),
        because=(*old.because, *(b for b in finding.because if b not in old.because))[:BECAUSE_KEPT],
        secondary_to=secondary_to,
        fresh=old.fresh or fresh,
        raw=raw or old.raw,
    )
    return msgspec.structs.replace(subject, standing=tuple(new if s is old else s for s in subject.standing))


def _heard(old: Finding, new: Finding) -> tuple[Finding, bool, bool]:
    """Which of two reports of one code stands, whether the new one is one more, and whether it is the milder."""
    if new.level:
        # What is measured is as grave as it was measured last.
        return new, True, False
    if old.source != new.source and WITNESS in (old.source, new.source):
        # It confirms the same line: what the log says of it counts, and one line does not become two.
        return (old if new.source == WITNESS else new), False, False
    worse, milder = weight(new) > weight(old), weight(new) < weight(old)
    # A word of the driver's of less severity is one whose number was cut off: it says nothing.
    word = new.code in DRIVERS_WORDS and SEVERITIES.index(new.severity) >= SEVERITIES.index(old.severity)
    # A second witness of the same line confirms it; it does not make it two.
    return (new if worse or word else old), old.source == new.source or worse, milder


def weight(finding: Finding | Accepted) -> tuple[int, int]:
    """How grave a finding is, to compare two of one code."""
    return SEVERITIES.index(finding.severity), remedy_rank(finding.remedy)


def confirm(subject: SubjectHealth, repeats: Collection[str] = REPEATS) -> SubjectHealth:
    """Critical findings that have witnesses enough are confirmed, for as long as they stand.

    A fresh self-evident one needs none but itself. Any other needs a second source, for the same code or for another
    critical one of about the same time on this subject. Old news needs a witness that is no log: a log tells only
    what was once printed. On probation a mild fault of the hardware is confirmed as it is.
    """
    critical = [s for s in subject.standing if s.finding.severity == "critical" and not s.finding.consequence]

    def settled(standing: Standing) -> Standing:
        if standing.confirmed:
            return standing
        if _is_repeat(subject, standing, repeats):
            remedy: Remedy = max(standing.remedy, "test", key=remedy_rank)
            return msgspec.structs.replace(standing, confirmed=True, remedy=remedy)
        if standing not in critical:
            return standing
        witnesses = {source for s in critical if _speak_of_one(standing, s) for source in s.sources}
        enough = len(witnesses) > 1
        if standing.fresh:
            confirmed = enough or (standing.finding.self_evident and standing.sources != (HEARSAY,))
        else:
            confirmed = enough and any(source not in LOG_SOURCES for source in witnesses)
        return msgspec.structs.replace(standing, confirmed=confirmed) if confirmed else standing

    return msgspec.structs.replace(subject, standing=tuple(settled(s) for s in subject.standing))


def _is_repeat(subject: SubjectHealth, standing: Standing, repeats: Collection[str]) -> bool:
    """Whether it is a mild fault of hardware that came while the subject was on probation."""
    finding = standing.finding
    if subject.tested is None or finding.severity != "degraded" or finding.blame != "hardware":
        return False
    if finding.check not in repeats:
        return False
    if finding.silent or finding.consequence or standing.secondary_to is not None:
        return False
    later = seconds_between(subject.tested, standing.last)
    return standing.fresh and standing.sources != (HEARSAY,) and later is not None and later > 0


def doubt(subject: SubjectHealth, now: Instant, fresh_for: float) -> SubjectHealth:
    """After a pause, what was confirmed before it and not seen since is old news: it needs a new witness that is no
    log. What is measured is as new as its last measurement. Units: fresh_for: seconds that are no news yet
    """

    def doubted(standing: Standing) -> Standing:
        age = seconds_between(standing.last, now)
        if not standing.confirmed or standing.finding.level or (age is not None and age <= fresh_for):
            return standing
        sources = tuple(s for s in standing.sources if s in LOG_SOURCES) or standing.sources[:1]
        return msgspec.structs.replace(standing, confirmed=False, fresh=False, sources=sources)

    return msgspec.structs.replace(subject, standing=tuple(doubted(s) for s in subject.standing))


def _speak_of_one(one: Standing, other: Standing) -> bool:
    if one is other or (one.finding.code in LOST and other.finding.code in LOST):
        # However long apart: a GPU that was reported lost, and one that does not answer on the bus.
        return True
    apart = seconds_between(one.last, other.last)
    return apart is not None and abs(apart) <= WITNESS_WITHIN


def withdraw(subject: SubjectHealth, code: str, at: Instant) -> SubjectHealth:
    """The finding no longer stands: its detector said so, or a person did."""
    stays = tuple(s for s in subject.standing if s.finding.code != code)
    return _ended(msgspec.structs.replace(subject, standing=stays), (code,), at)


def accept(subject: SubjectHealth, code: str, at: Instant) -> SubjectHealth:
    """A person cleared the finding; one that is measured is told again when it was gone once, or becomes graver."""
    levels = [s.finding for s in subject.standing if s.finding.code == code and s.finding.level]
    subject = without_word(withdraw(subject, code, at), code)
    words = tuple(Accepted(code=code, severity=level.severity, remedy=level.remedy) for level in levels)
    return msgspec.structs.replace(subject, accepted=(*subject.accepted, *words)) if words else subject


def is_accepted(subject: SubjectHealth, finding: Finding) -> bool:
    """Whether a person's word covers a measured finding as grave as it is now."""
    return any(word.code == finding.code and weight(finding) <= weight(word) for word in subject.accepted)


def without_word(subject: SubjectHealth, code: str) -> SubjectHealth:
    """A person's word on this finding holds no longer; the same subject where there was none."""
    left = tuple(word for word in subject.accepted if word.code != code)
    return subject if len(left) == len(subject.accepted) else msgspec.structs.replace(subject, accepted=left)


def _ended(subject: SubjectHealth, codes: Iterable[str], at: Instant) -> SubjectHealth:
    ended = tuple(Cleared(code=code, at=at) for code in codes)
    others = tuple(c for c in subject.cleared if c.code not in {e.code for e in ended})
    return msgspec.structs.replace(subject, cleared=(*others, *ended)[-CLEARED_KEPT:])


def is_over(subject: SubjectHealth, finding: Finding, boot: BootId) -> bool:
    """Whether this report is of a time before the same finding was ended: read late, from another log.

    `boot` is the one that runs now. Boots are told apart by their ids alone: the clock may have been set between them.
    """
    ended = next((c for c in subject.cleared if c.code == finding.code), None)
    if ended is None:
        return False
    if ended.at.boot == finding.at.boot:
        return finding.at.mono <= ended.at.mono
    return finding.at.boot != boot


def prove(subject: SubjectHealth, proof: Clear, at: Instant) -> SubjectHealth:
    """A remedy was seen: what it ends is ended, and it counts as tried for every critical fault that stood.

    A remedy ends nothing for which a greater one is already due.
    """
    remedy: Remedy | None = proof if proof in ("reset", "reboot", "replace") else None

    def stays(standing: Standing) -> bool:
        too_small = remedy is not None and remedy_rank(remedy) < remedy_rank(standing.remedy)
        return too_small or not set(standing.finding.clears) & set(IMPLIES[proof])

    tried = [
        Applied(code=s.finding.code, remedy=remedy, at=at)
        for s in subject.standing
        if remedy and s.finding.severity == "critical" and not s.finding.consequence and s.secondary_to is None
    ]
    kept = tuple(s for s in subject.standing if stays(s))
    ended = [s.finding.code for s in subject.standing if s not in kept]
    return _ended(
        msgspec.structs.replace(subject, standing=kept, applied=(*subject.applied, *tried)[-APPLIED_KEPT:]), ended, at
    )


def tried(subject: SubjectHealth, remedies: Iterable[Applied]) -> SubjectHealth:
    """The subject with remedies that were tried and did not help: the next ones are due."""
    subject = msgspec.structs.replace(subject, applied=(*subject.applied, *remedies)[-APPLIED_KEPT:])
    raised = (msgspec.structs.replace(s, remedy=due_remedy(subject, s.finding)) for s in subject.standing)
    return msgspec.structs.replace(subject, standing=tuple(raised))


def expire(subject: SubjectHealth, now: Instant) -> SubjectHealth:
    """Findings that end by quiet and were quiet for long enough are gone."""

    def stays(standing: Standing) -> bool:
        if standing.finding.latched or "quiet" not in standing.finding.clears:
            return True
        silence = seconds_between(standing.last, now)
        return silence is not None and silence < standing.finding.quiet_after

    return msgspec.structs.replace(subject, standing=tuple(s for s in subject.standing if stays(s)))


def next_expiry(subject: SubjectHealth) -> list[Instant]:
    """When `expire` would next have something to do, as instants of the boot the findings are from."""
    return [
        msgspec.structs.replace(s.last, mono=s.last.mono + s.finding.quiet_after)
        for s in subject.standing
        if "quiet" in s.finding.clears and not s.finding.latched
    ]


def deciding(subject: SubjectHealth) -> list[Standing]:
    """The confirmed critical findings of a subject that are its own, the worst remedy first."""
    own = (s for s in subject.standing if s.confirmed and s.secondary_to is None and not s.finding.consequence)
    return sorted(own, key=lambda s: -remedy_rank(s.remedy))


def situation(subject: SubjectHealth, now: Instant, *, proof: Proof, watching: bool) -> Situation:
    """What stands on the subject, in the word that TABLE knows."""
    if deciding(subject):
        return "critical"
    faults = _faults(subject)
    if subject.state == "returning" and subject.tested is not None and watching and not _doubtful(subject, now):
        elapsed = seconds_between(subject.tested, now)
        if elapsed is not None and elapsed >= proof.probation:
            return "passed_fault" if faults else "passed"
    if faults:
        return "fault"
    return "silent" if any(s.finding.silent for s in subject.standing) else "clear"


def in_doubt(subject: SubjectHealth) -> list[Standing]:
    """What was once enough to take it out and was not seen since a pause: it waits for a new witness."""
    return [
        s
        for s in subject.standing
        if s.finding.severity == "critical"
        and not (s.confirmed or s.fresh or s.finding.consequence)
        and s.secondary_to is None
    ]


def _doubtful(subject: SubjectHealth, now: Instant) -> bool:
    """Whether something speaks against its return: a critical finding that waits for its witness, or a GPU that used
    to answer on the bus and was not seen there since the machine was started.
    """
    held = any(
        s.finding.severity == "critical" and s.secondary_to is None and not s.finding.consequence
        for s in subject.standing
    )
    return held or (subject.seen is not None and subject.seen != now.boot)


def _faults(subject: SubjectHealth) -> list[Standing]:
    return [s for s in subject.standing if s.finding.severity != "info" and not s.finding.silent]


def _newer(faults: Iterable[Standing], than: Instant) -> bool:
    return any((seconds_between(than, fault.last) or 0.0) > 0 for fault in faults)


def move(subject: SubjectHealth, now: Instant, *, proof: Proof, watching: bool) -> SubjectHealth:
    """The subject in the state that follows from what stands, and what it has shown by now of being well."""
    subject = confirm(subject, proof.repeats)
    word = situation(subject, now, proof=proof, watching=watching)
    state = TABLE[word][subject.state]
    since = subject.since if state == subject.state else now
    facts = deciding(subject)
    subject = msgspec.structs.replace(
        subject, state=state, since=since, remedy=_remedy(subject),
        last_fault=facts[0].finding.code if facts else subject.last_fault,
    )  # fmt: skip
    if state != "returning":
        return unproven(subject, None) if subject.probation_from is not None else subject
    start = subject.probation_from
    if start is None or (subject.tested is None and _newer(_faults(subject), start)):
        return unproven(subject, now)
    return _shown(subject, now, start, proof) if watching else subject


def unproven(subject: SubjectHealth, start: Instant | None) -> SubjectHealth:
    """Whatever it has shown counts no more; `start` is since when it is to show that it is well, None for no need."""
    return msgspec.structs.replace(subject, probation_from=start, passes=0, passed=None, proven=None, tested=None)


def begin_anew(subject: SubjectHealth, now: Instant) -> SubjectHealth:
    """Nobody saw it until now: if it had not yet shown that it is well, it begins anew."""
    return subject if subject.state != "returning" or subject.tested is not None else unproven(subject, now)


def _shown(subject: SubjectHealth, now: Instant, start: Instant, proof: Proof) -> SubjectHealth:
    """One more look that found nothing, if one is due; and it is tested once it has shown all that it must."""
    blind = any(s.finding.silent for s in subject.standing)
    if subject.tested is not None or blind or _doubtful(subject, now):
        return subject
    rested = seconds_between(subject.passed or start, now)
    if rested is not None and rested >= proof.pass_every and subject.passes < proof.clean_passes:
        subject = msgspec.structs.replace(subject, passes=subject.passes + 1, passed=now)
    elapsed = seconds_between(start, now)
    enough = elapsed is not None and elapsed >= proof.clean_for and subject.passes >= proof.clean_passes
    if not enough or (proof.tests and subject.proven is None):
        return subject
    return msgspec.structs.replace(subject, tested=now)


def dues(subject: SubjectHealth, proof: Proof) -> list[Instant]:
    """When time alone would next change something: what ends by quiet, a look that counts, the end of probation."""
    due = next_expiry(subject)
    if subject.tested is not None:
        due.append(msgspec.structs.replace(subject.tested, mono=subject.tested.mono + proof.probation))
    elif subject.probation_from is not None:
        last = subject.passed or subject.probation_from
        due.append(msgspec.structs.replace(last, mono=last.mono + proof.pass_every))
    return due


def _remedy(subject: SubjectHealth) -> Remedy:
    """What is due: the driver's own word (its recovery action, Xid 154) where it stands, but never less than what
    escalation asks, and never less than a new part where that is due: the driver counts no spare rows.
    """
    facts = deciding(subject)
    verdict = next((s for code in DRIVERS_WORDS for s in facts if s.finding.code == code), None)
    if verdict is None:
        return facts[0].remedy if facts else "none"
    escalated = [
        s.remedy for s in facts if s.remedy == "replace" or remedy_rank(s.remedy) > remedy_rank(s.finding.remedy)
    ]
    return max([verdict.remedy, *escalated], key=remedy_rank)
