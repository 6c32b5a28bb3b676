"""Gives this node back, if the drain is gpuguard's: after a fresh look, and never while a subject is unfit.

Without --yes nothing is written: it shows what would be done. `--adopt TOKEN` takes over a gpuguard drain whose record
is not on this machine; after that it may be resumed like our own.
Exit codes  0 done (without --yes: it would be), 1 it waits, or somebody else holds the node, or a fault came first, or
            gpuguard only observes, 2 refused, or nobody could be asked, 64 usage error
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuguard.health.state import Health
    from gpuguard.model.ids import TokenId
    from gpuguard.ports import Actuator, Clock, NodeReport
    from gpuguard.runtime.assembly import Parts
    from gpuguard.runtime.known import Known
    from gpuguard.runtime.person import Ownership

EXAMPLE = "gpuguard resume --by mia --reason 'board replaced' --yes"

HISTORY_SEARCHED = 100_000

# Any: the answer is JSON, which mixes types.
Facts = dict[str, Any]


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    from gpuguard.runtime.known import options

    parser.add_argument("--reason", metavar="TEXT", default="no reason given", help="why; kept in the history")
    parser.add_argument("--by", metavar="NAME", help="who asks (default: the user who calls)")
    parser.add_argument("--yes", action="store_true", help="do it")
    parser.add_argument("--adopt", metavar="TOKEN", help="take over this drain first; resume then gives it back")
    options(parser)


def run(args: Namespace) -> int:
    """Gives the node back, or tells what would be done."""
    from gpuguard.runtime.clock import SystemClock

    return answer(args, SystemClock(Path(args.root)))


def answer(args: Namespace, clock: "Clock", *, target: "Actuator | None" = None) -> int:
    """The same by a clock that is given; `target` stands for the scheduler.

    Raises  UsageError; ActionRefused with what must happen first; StoreFailed, Absent without a memory; ReadFailed when
            the agent does not answer
    """
    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.known import config_path, look_up, state_dir
    from gpuguard.runtime.offline import look
    from gpuguard.runtime.person import must_say_something, owner_of

    must_say_something(args)
    adopted = _token(args.adopt) if args.adopt is not None else None
    folder = state_dir(args)
    parts = assemble(config_path(args), with_sources=False)
    known = look_up(folder, clock)
    try:
        _, health = known.memory()
        returns = _earlier_returns(known, health)
    finally:
        known.close()
    report = target.read_state() if target is not None else look(parts)
    owner = owner_of(report, health.drain, known.actions)
    wish = _adoption(adopted, owner, health) if adopted is not None else _release(health, owner)
    facts: Facts = {
        "wish": wish[0], "token": wish[1], "by": args.by, "reason": args.reason, "result": wish[2], "written": False,
        "message": wish[3], "scheduler": owner.words, "holder": owner.holder, "agent": known.alive,
        "earlier_returns": returns, "dry_run": health.drain.dry_run if health.drain and adopted is None else None,
    }  # fmt: skip
    if wish[2] == "preview":
        facts |= _judged(report, wish[0], wish[1])
        if args.yes:
            facts |= _done(args, folder, parts, clock, known, wish[0], wish[1], target)
    if args.json:
        import json

        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        from gpuguard.runtime.words import page

        sys.stdout.write(page(_lines(facts)))
    return _exit_code(facts)


def _token(text: str) -> "TokenId":
    """The token as it was typed, with or without `gpuguard:`.

    Raises  UsageError when it is none
    """
    from gpuguard.custody.token import parse_token
    from gpuguard.errors import NotUnderstood, UsageError

    try:
        return parse_token(text.removeprefix("gpuguard:"))
    except NotUnderstood as error:
        raise UsageError(f"--adopt: {error}; `gpuguard status --live` shows the one that the node carries") from error


Wish = tuple[str, "TokenId | None", str, str]
"""Verb, token, result so far (`preview` while nothing speaks against it) and a sentence."""


def _adoption(token: "TokenId", owner: "Ownership", health: "Health") -> Wish:
    """May this token be taken over?

    Raises  ActionRefused when the node does not carry it, or it is ours already
    """
    from gpuguard.errors import ActionRefused

    if owner.holder == "unknown":
        raise ActionRefused(f"the scheduler could not be asked, so nothing is adopted: {owner.words}")
    if owner.token != token:
        raise ActionRefused(f"the node does not carry the token {token}, so there is nothing to adopt; {owner.words}")
    if health.drain is not None and health.drain.token == token:
        raise ActionRefused(f"{token} is on record here already; `gpuguard resume --yes` gives it back")
    return "adopt", token, "preview", ""


def _release(health: "Health", owner: "Ownership") -> Wish:
    """May the node be given back?

    Raises  ActionRefused while a subject is unfit, with the findings that must be cleared
    """
    from gpuguard.errors import ActionRefused
    from gpuguard.health.machine import deciding
    from gpuguard.runtime.chain import acknowledgements

    drain = health.drain
    noted = drain is None or drain.dry_run
    if owner.token is not None and noted:
        # An orphan, or a token of ours whose drain is over: somebody wrote it again.
        adopt = f"no such drain stands here; `gpuguard resume --adopt {owner.token}` takes it over"
        return "release", owner.token, "foreign", adopt
    if owner.holder == "foreign" and noted:
        return "release", None, "foreign", "somebody else drained this node: gpuguard leaves it to them"
    if drain is None:
        return "release", None, "nothing", "no drain of gpuguard's stands on this node: there is nothing to give back"
    unfit = [s for s in health.subjects.values() if s.state == "unfit"]
    if unfit:
        blockers = [f"{s.pci or s.id} is unfit ({', '.join(f.finding.code for f in deciding(s))})" for s in unfit]
        acks = [ack for s in unfit for ack in acknowledgements(s, deciding(s))]
        raise ActionRefused(
            f"{'; '.join(blockers)}: jobs would go onto a bad part. `gpuguard why` tells what mends it; if you know "
            f"better, {'; '.join(acks)} clears it"
        )
    return "release", drain.token, "preview", ""


def _judged(report: "NodeReport", verb: str, token: "TokenId | None") -> Facts:
    from gpuguard.custody.ownership import judge
    from gpuguard.model.ids import TokenId

    judgement = judge(report, "adopt" if verb == "adopt" else "release", token or TokenId("0000"))
    return {"call": judgement.call, "why": judgement.why}


def _done(
    args: Namespace, folder: Path, parts: "Parts", clock: "Clock", known: "Known", verb: str,
    token: "TokenId | None", target: "Actuator | None",
) -> Facts:  # fmt: skip
    """What came of the wish."""
    from gpuguard.runtime.control import Word
    from gpuguard.runtime.person import UNWRITTEN, name_of_caller, outcome_of, speak, wrote_nothing

    by = args.by or name_of_caller()
    word = Word(verb=verb, by=by, reason=args.reason, token=token if verb == "adopt" else None)
    told = speak(folder, parts, word, alive=known.alive, clock=clock, target=target)
    came = outcome_of(folder, told.id, "adopt" if verb == "adopt" else "release")
    if came.action is None:
        refused = came.answer.startswith("refused")
        return {"by": by, "result": "refused" if refused else "waits", "message": came.answer or UNWRITTEN}
    state, dry = came.action.state, wrote_nothing(came.action)
    result = "deferred" if state == "owed" and came.action.tries else {"owed": "waits"}.get(state, state)
    message = came.action.message or "no answer yet; the agent goes on asking"
    if state == "cancelled":
        message = (
            "a fault came before the scheduler answered, so the wish is no longer owed; `gpuguard why` tells which"
        )
    return {
        "by": by, "result": result, "dry_run": dry, "written": result == "done" and not dry, "message": message,
    }  # fmt: skip


def _earlier_returns(known: "Known", health: "Health") -> list[float | None]:
    from gpuguard.runtime.person import returns_of

    reader, _ = known.memory()
    if health.drain is None or health.drain.code == "operator":
        return []
    return [entry.at.utc for entry in returns_of(reader.story(limit=HISTORY_SEARCHED), health.drain.subject)]


def _exit_code(facts: Facts) -> int:
    if facts["result"] == "preview":
        return 0 if facts["call"] in ("write", "done") and not facts["dry_run"] else 1
    if facts["result"] == "nothing":
        return 0
    if facts["result"] == "refused":
        return 2
    return 0 if facts["result"] == "done" and not facts["dry_run"] else 1


def _lines(facts: Facts) -> Iterator[str]:
    from gpuguard.runtime.words import paragraph, row

    head = {
        "preview": "Nothing was written: this shows what `--yes` would do.",
        "done": "The node is given back." if facts["wish"] == "release" else f"The drain {facts['token']} is ours now.",
        "deferred": "Not yet: it waits, and is tried again by itself.",
        "waits": "Not yet: it is on its way.",
        "foreign": "Not given back: the drain is not ours.",
        "refused": "Refused: nothing was written.",
        "cancelled": "Called off: the node is to stay drained.",
        "nothing": "Nothing to do.",
    }[facts["result"]]
    if facts["result"] == "done" and facts["dry_run"]:
        head = "Observe-only: nothing was written, as the drain was only noted. It is noted no longer."
    yield head
    yield from row("scheduler" if facts["result"] != "done" else "was", facts["scheduler"], indent=2)
    if facts["result"] == "preview":
        then = {
            "release": "the node is given back", "adopt": f"the drain {facts['token']} becomes ours",
        }[facts["wish"]]  # fmt: skip
        nothing = then if facts["wish"] == "adopt" else "nothing is left to write"
        then = {"write": then, "done": nothing, "wait": f"it waits: {facts['why']}"}.get(
            facts["call"], f"nothing: {facts['why']}"
        )
        if facts["dry_run"]:
            then = "the drain that was only noted (observe-only) is noted no longer; nothing is written"
        yield from row("then", then, indent=2)
        yield from row("through", "the running agent" if facts["agent"] else "this command, as no agent runs", indent=2)
    elif facts["message"]:
        yield from row("answer", facts["message"], indent=2)
    yield from _warnings(facts["earlier_returns"])
    if facts["wish"] == "adopt" and facts["result"] == "done":
        yield from row("next", "`gpuguard resume --yes` gives the node back", indent=2)
    if facts["result"] in ("deferred", "waits") and not facts["agent"]:
        yield from paragraph("no agent runs; it is tried again when one does", indent=2)


def _warnings(returns: Sequence[float | None]) -> Iterator[str]:
    from gpuguard.runtime.words import date, row, times

    if returns:
        last = ", ".join(date(utc) for utc in returns[-3:])
        told = f"this part was given back {times(len(returns))} before and failed again: {last}"
        yield from row("beware", told, indent=2)
