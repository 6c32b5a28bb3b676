"""Is the agent well, what does it see, what is owed, and who holds this node's drain?

Asks the agent that runs; answers from the disk when none does, and says so. Asks nobody outside unless told `--live`.
Exit codes  0 all is well, 1 something needs attention, 2 nothing could be read, 64 usage error
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from gpuguard.model.health import Drain, Pause, SubjectView
    from gpuguard.model.story import OwedAction
    from gpuguard.ports import Actuator, Clock, NodeReport
    from gpuguard.runtime.assembly import Parts
    from gpuguard.runtime.known import Known

EXAMPLE = "gpuguard status --live"

LEVELS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
# Answers of the target that are shown.
ANSWERS_SHOWN = 3
DRY_RUN = "dry_run"
UNUSED, UNWATCHED = "this agent does not read it", "no agent runs"

# Any: the answer is JSON, which mixes types.
Facts = dict[str, Any]


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    from gpuguard.runtime.known import options

    options(parser)
    parser.add_argument("--live", action="store_true", help="also ask the scheduler what it says of this node")


def run(args: Namespace) -> int:
    """Prints the answer."""
    from pathlib import Path

    from gpuguard.runtime.clock import SystemClock

    return answer(args, SystemClock(Path(args.root)))


def answer(args: Namespace, clock: "Clock", *, target: "Actuator | None" = None) -> int:
    """The same by a clock that is given; `target` stands for the scheduler.

    Raises  StoreFailed when neither memory nor snapshot can be read; ConfigInvalid
    """
    from gpuguard.errors import StoreFailed
    from gpuguard.runtime.known import config_path, look_up, state_dir

    site = _site(config_path(args))
    known = _newest(look_up(state_dir(args), clock))
    report = None
    if args.live:
        report = target.read_state() if target is not None else _look(site)
    try:
        if known.health is None and known.snapshot is None and not known.alive:
            problem = known.problem or f"nothing can be read in {known.state_dir}"
            raise StoreFailed("\n".join([problem, *(f"the agent does not start with {m}" for m in site.mistakes)]))
        facts = _facts(known, report, site)
    finally:
        known.close()
    if args.json:
        import json

        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        from gpuguard.runtime.words import page

        sys.stdout.write(page(_lines(facts, known)))
    return 1 if facts["attention"] else 0


def _newest(known: "Known") -> "Known":
    """The same, with what the agent says now where it answers: it writes to the disk on changes alone."""
    from dataclasses import replace

    from gpuguard.runtime.board import ask_agent

    listen = known.snapshot.shell.listen if known.snapshot is not None else ""
    said = ask_agent(listen) if listen and known.alive and not known.hangs else None
    return known if said is None else replace(known, snapshot=said)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """The configuration as it stands now, or what is wrong with it; neither where this user may not read it."""

    parts: "Parts | None" = None
    mistakes: tuple[str, ...] = ()

    @property
    def target(self) -> str | None:
        """Where the actuator writes; None when that is not known."""
        return None if self.parts is None else str(self.parts.config.settings("actuator").target)


def _site(config: "Path | None") -> _Site:
    """What the agent would start with; a wrong configuration is something to tell, and no reason for no status."""
    import os

    from gpuguard.errors import ConfigInvalid
    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.config import DEFAULT_PATH

    path = config or DEFAULT_PATH
    if os.path.exists(path) and not os.access(path, os.R_OK):
        return _Site()
    try:
        return _Site(parts=assemble(config))
    except ConfigInvalid as error:
        return _Site(mistakes=error.mistakes)


def _look(site: _Site) -> "NodeReport":
    """What the scheduler says; a configuration that is wrong is a reason for no answer."""
    from gpuguard.ports import NodeReport
    from gpuguard.runtime.offline import look

    if site.parts is None:
        why = "; ".join(site.mistakes) or "this user may not read it"
        return NodeReport(target="scheduler", node="", error=f"the configuration does not tell which it is: {why}")
    return look(site.parts)


# --- the facts --------------------------------------------------------------------------------------------------------


def _facts(known: "Known", report: "NodeReport | None", site: _Site) -> Facts:
    import msgspec

    from gpuguard.runtime.person import owner_of

    snapshot, health = known.snapshot, known.health
    drain = health.drain if health is not None else snapshot.drain if snapshot is not None else None
    shell = snapshot.shell if snapshot is not None else None
    owner = owner_of(report, drain, known.actions) if report is not None else None
    facts: Facts = {
        "agent": {
            "runs": known.alive, "hangs": known.hangs, "pid": known.pid, "since": known.started,
            "last_sign_of_life_s": None if known.age is None else round(known.age, 1),
            "version": shell.version if shell else None, "mode": shell.mode if shell else None,
            "policy": shell.policy if shell else None, "target": site.target, "state_dir": str(known.state_dir),
        },
        "configuration": {"mistakes": list(site.mistakes)},
        "node": _node(known),
        "sources": _sources(known),
        "actuator": {
            "ok": shell.actuator_ok if shell else None,
            "answers": [_answered(owed) for owed in _last_answers(known)],
        },
        "scheduler": None if report is None or owner is None else {
            **msgspec.to_builtins(report), "holder": owner.holder, "token": owner.token, "words": owner.words,
        },
        "drain": _drain(drain),
        "pause": _pause(health.pause if health is not None else snapshot.pause if snapshot is not None else None),
        "owed": [_owed(owed) for owed in known.actions if owed.state == "owed"],
        "subjects": [_subject(view) for view in _views(known) if view.state != "healthy"],
        "problem": known.problem, "private": known.private,
    }  # fmt: skip
    facts["attention"] = list(_attention(facts))
    return facts


def _pause(pause: "Pause | None") -> Facts | None:
    """A person's pause, and until when it lasts as far as the clock of its begin tells."""
    if pause is None:
        return None
    until = pause.since.utc + pause.seconds if pause.since.utc is not None else None
    return {"by": pause.by, "reason": pause.reason, "until": until, "seconds": pause.seconds}


def _node(known: "Known") -> Facts | None:
    """The verdict on the node; `changed` says that the memory was written after the agent's last word.

    A person's word while no agent runs is in the memory alone, and the memory is then what counts.
    """
    from gpuguard.health.snapshot import take

    said = known.snapshot
    if said is None:
        return None
    now = take(known.health, said.shell, known.now) if known.health is not None and not known.alive else said
    changed = (now.level, now.line) != (said.level, said.line)
    return {"level": LEVELS[now.level], "line": now.line, "changed": changed}


def _sources(known: "Known") -> list[Facts]:
    found: dict[str, Facts] = {}
    for view in known.snapshot.shell.sources if known.snapshot is not None else ():
        found[view.name] = {
            "name": view.name, "level": view.level if known.alive else "blind",
            "reason": view.reason if known.alive else UNWATCHED, "last_success": view.last_success_utc,
            "lost": view.lost, "restarts": view.restarts, "cursor": None,
        }  # fmt: skip
    for name, cursor in known.cursors.items():
        row = found.setdefault(
            name,
            {
                "name": name, "level": "blind", "last_success": None, "lost": None, "restarts": None,
                "reason": UNUSED if known.alive else UNWATCHED,
            },
        )  # fmt: skip
        row["cursor"] = {"boot": cursor.boot, "position": cursor.position}
        row["unused"] = known.alive and row["reason"] == UNUSED
    return list(found.values())


def _last_answers(known: "Known") -> "list[OwedAction]":
    return [owed for owed in known.actions if owed.tries][-ANSWERS_SHOWN:]


def _answered(owed: "OwedAction") -> Facts:
    return {"verb": owed.action.verb, "token": owed.action.token, "state": owed.state, "message": owed.message}


def _owed(owed: "OwedAction") -> Facts:
    return {
        "verb": owed.action.verb, "token": owed.action.token, "reason": owed.action.reason, "tries": owed.tries,
        "since": owed.action.at.utc, "message": owed.message,
        "next_try": None if owed.not_before is None else _utc_of(owed),
    }  # fmt: skip


def _utc_of(owed: "OwedAction") -> float | None:
    """When the next try is due: `not_before` is moved in boot time alone, its UTC is that of the answer."""
    due, at = owed.not_before, owed.action.at
    if due is None or at.utc is None or due.boot != at.boot:
        return None
    return at.utc + due.mono - at.mono


def _drain(drain: "Drain | None") -> Facts | None:
    if drain is None:
        return None
    return {
        "token": drain.token, "subject": drain.subject, "code": drain.code, "reason": drain.reason, "by": drain.by,
        "state": drain.state, "since": drain.since.utc, "dry_run": drain.dry_run, "message": drain.message,
        "node_state": drain.node_state,
    }  # fmt: skip


def _views(known: "Known") -> "tuple[SubjectView, ...]":
    from gpuguard.health.snapshot import take
    from gpuguard.model.health import ShellFacts

    if known.health is not None:
        return take(known.health, ShellFacts(version="", mode="", policy="default"), known.now).subjects
    return known.snapshot.subjects if known.snapshot is not None else ()


def _subject(view: "SubjectView") -> Facts:
    return {
        "subject": view.id, "state": view.state, "remedy": view.remedy, "uuid": view.uuid, "serial": view.serial,
        "findings": [f.code for f in view.findings if f.severity != "info" and f.secondary_to is None],
    }  # fmt: skip


def _attention(facts: Facts) -> Iterator[str]:
    """What a person should look at, each with the next step."""
    from gpuguard.runtime.words import tries

    agent, mistakes = facts["agent"], facts["configuration"]["mistakes"]
    if not agent["runs"]:
        first = "mend the configuration (below), then " if mistakes else ""
        yield f"no agent runs: nobody watches this node; {first}`systemctl start gpuguard-agent` starts it"
    elif agent["hangs"]:
        yield (
            f"the agent gave no sign of life for {agent['last_sign_of_life_s']:.0f} s; `journalctl -u gpuguard-agent` "
            "tells more, `systemctl restart gpuguard-agent` is safe at any time"
        )
    yield from mistakes
    if mistakes and agent["runs"]:
        yield "the agent goes on with the configuration it was started with; with this one it would not start again"
    if facts["problem"] and not facts["private"]:
        yield f"the memory cannot be read: {facts['problem']}"
    if agent["runs"]:
        for source in facts["sources"]:
            if source["level"] != "watching" and not source.get("unused"):
                yield f"{source['name']} is {source['level']}: {source['reason']}"
    if facts["subjects"]:
        yield "something stands against this node; `gpuguard why` tells what, why and what ends it"
    yield from _attention_to_drain(facts)
    for owed in facts["owed"]:
        if owed["tries"]:
            yield f"{owed['verb']} {owed['token']} is still owed after {tries(owed['tries'])}: {owed['message']}"


def _attention_to_drain(facts: Facts) -> Iterator[str]:
    drain, scheduler = facts["drain"], facts["scheduler"]
    if drain is not None and drain["state"] == "held":
        yield (
            f"the drain {drain['token']} is held, so jobs may still come: {drain['message']}; `gpuguard drain --reason "
            "TEXT --yes` drains the node all the same"
        )
    if drain is not None and not facts["subjects"]:
        yield f"the drain {drain['token']} is {drain['state']}; `gpuguard why {drain['token']}` tells its story"
    if scheduler is None:
        return
    if scheduler["holder"] == "unknown" and scheduler["target"] == DRY_RUN:
        return  # there is nobody to ask, as the site has it
    if scheduler["holder"] == "unknown":
        yield "the scheduler could not be asked; see above why, and who holds the drain there is not known"
    elif scheduler["holder"] == "orphan":
        token = scheduler["token"]
        yield f"the drain {token} has no record here; `gpuguard resume --adopt {token}` takes it over"
    elif scheduler["holder"] == "ours" and (drain is None or drain["token"] != scheduler["token"]):
        token = scheduler["token"]
        yield f"the drain {token} is over here and stands in the scheduler; `gpuguard resume --adopt {token}` takes it"
    elif scheduler["holder"] == "foreign" and drain is None:
        yield "somebody else drained this node; gpuguard leaves it to them"
    elif (
        scheduler["holder"] == "nobody" and drain is not None and drain["state"] == "standing" and not drain["dry_run"]
    ):
        yield f"the drain {drain['token']} stands here, but not in the scheduler: somebody lifted it"


# --- for people -------------------------------------------------------------------------------------------------------


def _lines(facts: Facts, known: "Known") -> Iterator[str]:
    from gpuguard.runtime.words import NEEDS, called, date, row, span, times

    yield from row("agent", _agent(facts["agent"]))
    if facts["agent"]["version"] is not None:
        yield from row("", _mode(facts["agent"]))
    if facts["node"] is not None:
        said = "" if known.alive else f" (said {span(known.age or 0.0)} ago)"
        if facts["node"]["changed"]:
            said = f" (by the memory, which was written after the agent's last word {span(known.age or 0.0)} ago)"
        yield from row("node", f"{facts['node']['level']}: {facts['node']['line']}{said}")
    # Those of which there is nothing to say but that they watch share a line.
    plain = [s["name"] for s in facts["sources"] if _is_plain(s)]
    sources = [_source(s) for s in facts["sources"] if len(plain) < 2 or not _is_plain(s)]
    for number, words in enumerate([*sources, *([f"watching: {', '.join(plain)}"] if len(plain) > 1 else [])]):
        yield from row("" if number else "sources", words)
    for number, said in enumerate(facts["actuator"]["answers"]):
        told = f"{said['verb']} {said['token']}: {said['state']}; {said['message']}"
        yield from row("" if number else "actuator", told)
    if facts["scheduler"] is not None:
        yield from row("scheduler", f"{facts['scheduler']['target']}: {facts['scheduler']['words']}")
    if facts["private"]:
        yield from row("memory", "not for this user but for its owner and group, so this is what the agent published")
    if facts["drain"] is not None:
        yield from row("drain", _drain_words(facts["drain"]))
    else:
        yield from row("drain", "none of gpuguard's")
    if facts["pause"] is not None:
        pause = facts["pause"]
        until = date(pause["until"]) if pause["until"] is not None else f"for {span(pause['seconds'])}"
        yield from row("paused", f"gpuguard keeps its hands off until {until}; {pause['by']}: {pause['reason']}")
    for number, owed in enumerate(facts["owed"]):
        due = f", next try {date(owed['next_try'])}" if owed["next_try"] is not None else ""
        tried = f"tried {times(owed['tries'])}{due}" if owed["tries"] else "not tried yet"
        yield from row(
            "" if number else "owed", f"{owed['verb']} {owed['token']}: {tried}; {owed['message']}".rstrip("; ")
        )
    for number, subject in enumerate(facts["subjects"]):
        codes = f": {', '.join(subject['findings'])}" if subject["findings"] else ""
        told = f"{called(subject['subject'])} {subject['state']}{NEEDS[subject['remedy']]}{codes}"
        yield from row("" if number else "unhealthy", told)
    for number, step in enumerate(facts["attention"]):
        if not number:
            yield ""
        yield from row("" if number else "attention", step)


def _agent(agent: Mapping[str, Any]) -> str:  # Any: JSON mixes types
    from gpuguard.runtime.words import date, span

    if not agent["runs"]:
        age = agent["last_sign_of_life_s"]
        last = f"; the last one was alive {span(age)} ago" if age is not None else ""
        return f"none runs{last}. This is what it left in {agent['state_dir']}"
    pid = f" (pid {agent['pid']})" if agent["pid"] else ""
    state = f", but hangs: no sign of life for {agent['last_sign_of_life_s']:.0f} s" if agent["hangs"] else ""
    return f"runs since {date(agent['since'])}{pid}{state}"


def _mode(agent: Mapping[str, Any]) -> str:  # Any: JSON mixes types
    acts = "drains by itself" if agent["mode"] == "drain" else "observe-only, writes nothing outside"
    if agent["mode"] == "drain" and agent["target"] == DRY_RUN:
        acts = "writes nothing outside until [actuator] target names the scheduler: slurm, kubernetes or bundled"
    elif agent["policy"] == "observe":
        acts = "writes nothing outside under the policy observe"
    return f"version {agent['version']}, mode {agent['mode']} ({acts}), policy {agent['policy']}"


def _is_plain(source: Mapping[str, Any]) -> bool:  # Any: JSON mixes types
    trouble = source["level"] != "watching" or source["lost"] or source["restarts"]
    return not trouble and source["cursor"] is None


def _source(source: Mapping[str, Any]) -> str:  # Any: JSON mixes types
    from gpuguard.runtime.words import date, times

    words = [f"{source['name']} {source['level']}" if not source.get("unused") else f"{source['name']} not read"]
    if source["level"] != "watching" and source["reason"] and not source.get("unused"):
        words.append(source["reason"])
    if source["last_success"] is not None:
        words.append(f"last success {date(source['last_success'])}")
    if source["lost"]:
        words.append(f"lost {source['lost']:,}")
    if source["restarts"]:
        words.append(f"restarted {times(source['restarts'])}")
    if source["cursor"] is not None:
        words.append(_cursor(**source["cursor"]))
    return "; ".join(words)


def _cursor(boot: str, position: str) -> str:
    """How far a source has read; only kmsg's numbers mean something to people, `--json` has the others."""
    return f"at record {position} of boot {boot[:8]}" if position.isdecimal() else f"cursor of boot {boot[:8]}"


def _drain_words(drain: Mapping[str, Any]) -> str:  # Any: JSON mixes types
    from gpuguard.runtime.words import date

    dry = " (observe-only: nothing was written outside)" if drain["dry_run"] else ""
    return f"{drain['token']} {drain['state']} since {date(drain['since'])}, by {drain['by']}: {drain['reason']}{dry}"
