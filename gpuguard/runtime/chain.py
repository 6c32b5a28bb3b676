"""The chain from an action back to the line in the kernel's log, as plain values: what `gpuguard why` tells.

The drain (who wanted it, what the target answered), the verdicts it rests on, the findings of each with its witnesses,
what was tried and what ends it, the raw lines, and what a person can do next.
"""

import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

from gpuguard.health import past
from gpuguard.health.machine import remedy_rank
from gpuguard.health.state import Health
from gpuguard.incident.join import explained_by
from gpuguard.incident.ranks import rank
from gpuguard.model.health import Drain, Standing, SubjectHealth
from gpuguard.model.ids import NODE, EventId, TokenId, kind_of
from gpuguard.model.past import Record
from gpuguard.model.story import StoryEntry
from gpuguard.model.tables import lookup_text
from gpuguard.ports import StoreReader
from gpuguard.runtime.assets import read_text
from gpuguard.runtime.known import Known, find_subject
from gpuguard.runtime.words import listed, named, remembered

STORY_SEARCHED = 100_000

# Any: the answer is JSON, which mixes types.
Facts = dict[str, Any]

STEPS = {
    "none": "look at what the lines say",
    "test": "test the GPU when it is idle (`dcgmi diag -r 3`)",
    "reset": "when no job runs, reset the GPU (`nvidia-smi --gpu-reset -i {address}`)",
    "reboot": "when no job runs, reboot the node",
    "replace": "have the part replaced; its serial is {serial}",
}
REMEDIES = ("evict", "test", "reset", "reboot")
HINDERED = ("refused", "failed", "held")
AFTERWARDS = {
    "foreign": "somebody else holds the node: gpuguard takes it when they let go, unless it is mended by then",
    "refused": "the scheduler refused the drain, so jobs may still come: drain the node by hand",
    "held": (
        "gpuguard may take no more of the fleet by itself, so jobs may still come: find out whether many nodes have "
        "one cause; `gpuguard drain --reason TEXT --yes` drains this one all the same"
    ),
    "overridden": "somebody gave the node back, so jobs may still come",
}


def of_subject(known: Known, reader: StoreReader, asked: SubjectHealth) -> Facts:
    """The node's drain and the verdicts it rests on; for a GPU its own verdict, and the drain if it holds it."""
    _, health = known.memory()
    subjects = [asked]
    if asked.id == NODE:
        others = [s for s in health.subjects.values() if s.id != NODE and _speaks(s)]
        subjects = [*sorted(others, key=lambda s: (s.state != "unfit", -remedy_rank(s.remedy), s.id))]
        subjects += [asked] if _speaks(asked) or not others else []
    concerned = asked.id == NODE or asked.state in ("unfit", "returning")
    holds = health.drain is not None and (concerned or health.drain.subject == asked.id)
    drain = health.drain if holds else None
    facts: Facts = {
        "asked": asked.id, "orphan": False, "token": drain.token if drain else None,
        "stands": drain is not None or any(_speaks(subject) for subject in subjects),
        "drain": _drain(known, drain) if drain is not None else None,
        "subjects": [_subject(known, reader, subject) for subject in subjects],
        "story": [],
    }  # fmt: skip
    if drain is not None and drain.code == "operator":
        facts["story"] = [_told(entry) for entry in _about(reader, drain.token) if entry.kind == "operator"]
    facts["paused"] = _pause(health)
    facts["remedies"] = [
        {
            "verb": e.verb,
            "subject": e.subject,
            "came": e.came,
            "message": e.message,
            "tries": e.number,
            "spent": e.spent,
        }
        for e in health.errands.values()
        if e.verb in REMEDIES and not e.dry and (asked.id in (NODE, e.subject)) and (e.came in HINDERED or e.spent)
    ]
    facts["next"] = list(_next(facts))
    return facts


def _pause(health: Health) -> Facts | None:
    pause = health.pause
    return None if pause is None else {"by": pause.by, "reason": pause.reason, "since": pause.since.utc}


def acknowledgements(subject: SubjectHealth, standing: Iterable[Standing]) -> Iterator[str]:
    """What a person types to clear these findings of a subject: one command an incident, of its strongest code.

    That one clears its lesser lines too. What another source saw by itself it does not: such a code is named beside it.
    """
    left = sorted(standing, key=lambda s: rank(s.finding), reverse=True)
    whom = f" --gpu {subject.pci}" if subject.pci else ""
    if kind_of(subject.id) == "job":
        whom = f" --job {subject.id.removeprefix('job:')}"
    while left:
        root = left[0]
        covered = {root.finding.code, *explained_by(root, left)}
        others = [s for s in left if s.incident == root.incident and s.finding.code not in covered]
        left = [s for s in left if s.incident != root.incident]
        also = "".join(f", and the same for {s.finding.code}, which {listed(s.sources)} saw by itself" for s in others)
        yield f"`gpuguard ack {root.finding.code}{whom} --by YOU --reason TEXT`{also}"


def _for_a_person(standing: Standing) -> bool:
    """Whether it stands against its subject, and a person's word would end it."""
    finding = standing.finding
    return finding.severity != "info" and standing.secondary_to is None and "ack" in finding.clears


def _speaks(subject: SubjectHealth) -> bool:
    """Whether there is something to say of a subject to somebody who asked about the whole node."""
    return subject.state != "healthy" or any(s.finding.severity != "info" for s in subject.standing)


def of_token(known: Known, reader: StoreReader, token: TokenId) -> Facts:
    """The drain with this token: the one that stands, or the story of one that is over, or nothing: an orphan."""
    _, health = known.memory()
    if health.drain is not None and health.drain.token == token:
        return of_subject(known, reader, find_subject(health, "node")) | {"asked": token}
    story = [_told(entry) for entry in _about(reader, token)]
    facts: Facts = {
        "asked": token, "token": token, "of": _what(reader, token), "orphan": not story, "stands": False,
        "drain": None, "subjects": [], "story": story,
    }  # fmt: skip
    if not story:
        facts["next"] = [
            f"`gpuguard status --live` shows who holds the node; `gpuguard resume --adopt {token}` takes the drain over"
        ]
    else:
        facts["next"] = []
        causes = [entry.event_id for entry in _about(reader, token) if entry.event_id is not None]
        facts["lines"] = _raw(reader, causes)
    return facts


# Kinds of entry that a token begins with.
BEGINNINGS = ("drain", "adopt", "requeue", "reclaim")


def _about(reader: StoreReader, token: TokenId) -> list[StoryEntry]:
    """Every entry about a drain: the verdict or the wish it began with, what was owed, what came of it."""
    story = reader.story(limit=STORY_SEARCHED)
    begins = {entry.event_id for entry in story if entry.cause == token and entry.kind in BEGINNINGS}
    return [entry for entry in story if entry.cause == token or entry.event_id in begins or _wished(entry, token)]


def _what(reader: StoreReader, token: TokenId) -> str:
    """What the token was given to: a drain, or something that was done about a job or a process."""
    verbs = {owed.action.verb for owed in reader.actions() if owed.action.token == token}
    return {"requeue": "restart of a job", "reclaim": "end of a leftover process"}.get(next(iter(verbs), ""), "drain")


def _wished(entry: StoryEntry, token: TokenId) -> bool:
    return entry.kind == "operator" and token in str(entry.detail.get("answer", "")).split()


def _told(entry: StoryEntry) -> Facts:
    return {
        "at": entry.at.utc, "kind": entry.kind, "subject": entry.subject, "text": entry.text,
        "event_id": entry.event_id,
    }  # fmt: skip


def _drain(known: Known, drain: Drain) -> Facts:
    tried = [owed for owed in known.actions if owed.action.token == drain.token]
    return {
        "token": drain.token, "subject": drain.subject, "code": drain.code, "reason": drain.reason, "by": drain.by,
        "state": drain.state, "since": drain.since.utc, "dry_run": drain.dry_run, "message": drain.message,
        "node_state": drain.node_state, "because": list(drain.because),
        "actions": [
            {
                "verb": owed.action.verb, "state": owed.state, "tries": owed.tries, "at": owed.action.at.utc,
                "message": owed.message,
            }
            for owed in tried
        ],
    }  # fmt: skip


def _subject(known: Known, reader: StoreReader, subject: SubjectHealth) -> Facts:
    _, health = known.memory()
    findings = sorted(subject.standing, key=lambda s: (s.secondary_to is not None, not s.confirmed, s.first.mono))
    incidents = {s.incident for s in subject.standing}
    return {
        "subject": subject.id, "name": named(subject), "uuid": subject.uuid, "serial": subject.serial,
        "pci": subject.pci, "state": subject.state, "remedy": subject.remedy, "since": subject.since.utc,
        "probation_from": subject.probation_from.utc if subject.probation_from else None,
        "passes": subject.passes, "tested": subject.tested.utc if subject.tested else None,
        "findings": [_finding(reader, standing, subject) for standing in findings],
        "incidents": [
            {
                "id": incident.id, "name": incident.name, "opened": incident.opened.utc, "last": incident.last.utc,
                "members": list(incident.members), "part_of": incident.part_of,
            }
            for incident in health.incidents.values() if incident.id in incidents
        ],
        "acks": list(acknowledgements(subject, filter(_for_a_person, subject.standing))),
        "applied": [{"code": a.code, "remedy": a.remedy, "at": a.at.utc} for a in subject.applied],
        "past": past_facts(past.of(health.past, subject), known.now.utc),
    }  # fmt: skip


def past_facts(record: Record | None, now: float | None) -> Facts | None:
    """What is remembered of a board or of the machine, None where nothing is; `text` is the same for people."""
    if record is None:
        return None
    return {
        "score": round(record.score if now is None else record.score_at(now), 4), "faults": record.faults,
        "last": record.last_utc, "last_code": record.last_code, "half_life_s": record.half_life,
        "text": remembered(record, now),
    }  # fmt: skip


def _finding(reader: StoreReader, standing: Standing, subject: SubjectHealth) -> Facts:
    finding = standing.finding
    tried = [a.remedy for a in subject.applied if a.code == finding.code]
    escalated = standing.remedy != finding.remedy and tried
    return {
        "code": finding.code, "check": finding.check, "severity": finding.severity, "blame": finding.blame,
        "reason": finding.reason, "confirmed": standing.confirmed, "self_evident": finding.self_evident,
        "fresh": standing.fresh, "consequence": finding.consequence, "secondary_to": standing.secondary_to,
        "remedy": standing.remedy, "came_back_after": tried if escalated else [], "latched": finding.latched,
        "clears": [
            clear for clear in finding.clears if not (clear == "quiet" and finding.latched)
        ],
        "quiet_after_s": finding.quiet_after, "count": max(1, standing.count), "sources": list(standing.sources),
        "first": standing.first.utc, "last": standing.last.utc, "incident": standing.incident,
        "catalogue": _catalogue(finding.code), "lines": _raw(reader, standing.because),
    }  # fmt: skip


def _catalogue(code: str) -> Facts | None:
    """What the catalogue says of a code: its meaning, and NVIDIA's advice at once and when it returns."""
    family = code.rstrip("0123456789")
    if family not in ("xid", "sxid") or family == code:
        return None
    text = lookup_text(read_text("rules", "detectors", "fault_codes", f"{family}.toml"), code[len(family) :])
    if text is None:
        return None
    entry = tomllib.loads(text)[code[len(family) :]]
    return {
        "name": entry.get("name"), "meaning": entry.get("meaning"), "nvidia": entry.get("nvidia"),
        "nvidia_next": entry.get("nvidia_investigate") or None,
    }  # fmt: skip


def _raw(reader: StoreReader, events: Iterable[EventId]) -> list[Facts]:
    """The kernel's lines behind these ids; an id that is no kernel line is told by itself."""
    lines: list[Facts] = []
    for event_id in dict.fromkeys(events):
        event = reader.event(event_id)
        lines.append(
            {
                "event_id": event_id, "at": event.at.utc if event else None, "source": event.source if event else None,
                "file": event.file if event else None, "line": event.line if event else None,
                "raw": event.raw if event else None,
            }
        )  # fmt: skip
    return lines


def _next(facts: Facts) -> Iterator[str]:
    """What a person can do now, the usual first."""
    drain = facts["drain"]
    unfit = [s for s in facts["subjects"] if s["state"] == "unfit"]
    if (pause := facts["paused"]) is not None:
        yield f"{pause['by']} keeps gpuguard's hands off this node ({pause['reason']}); `gpuguard pause --end` ends it"
    waits = any(r["verb"] == "test" and r["came"] == "refused" for r in facts["remedies"])
    for remedy in facts["remedies"]:
        came = f"was {remedy['came']}" if remedy["came"] in HINDERED else "did not help"
        yield f"the {remedy['verb']} of {remedy['subject']} {came}: {remedy['message']}"
    for subject in unfit:
        address = subject["pci"] or subject["subject"]
        step = STEPS[subject["remedy"]].format(address=address, serial=subject["serial"] or "not known")
        yield f"{subject['name']}: {step}"
    if unfit and drain is not None and drain["by"] == "gpuguard":
        yield AFTERWARDS.get(
            drain["state"], "gpuguard gives the node back by itself once it saw that and the part stayed clean"
        )
    for subject in facts["subjects"]:
        if kind_of(subject["subject"]) == "job" and subject["findings"]:
            job = subject["subject"].removeprefix("job:")
            yield f"{subject['name']}: `gpuguard hang --job {job}` shows its ranks, and what speaks for and against it"
    for subject in facts["subjects"]:
        for ack in subject["acks"]:
            yield f"{'or, if' if unfit else 'if'} you know better: {ack}"
    if drain is None:
        return
    if drain["dry_run"]:
        yield 'the agent only observes: to let it act, set `mode = "drain"` under [policy] in its configuration'
    elif drain["by"] != "gpuguard" and not unfit:
        yield "`gpuguard resume --yes` gives the node back"
    elif drain["state"] == "refused":
        yield "correct what the scheduler said, then `gpuguard drain --reason TEXT --yes` asks again"
    elif facts["subjects"] and not unfit and waits:
        yield "no test can be made: once the part is known to be well, `gpuguard resume --yes` gives the node back"
    elif facts["subjects"] and not unfit:
        yield "gpuguard gives the node back by itself once it stayed clean; `gpuguard resume --yes` does it now"
