"""Takes this node out of service through gpuguard: guarded, with a token, never over somebody else's drain.

Without --yes nothing is written: it shows what the scheduler says and what would be done. With --yes the wish goes
through the running agent, or is carried out by this command when none runs, and its outcome is waited for.
Exit codes  0 done (without --yes: it would be), 1 it waits, or somebody else holds the node, or gpuguard only observes,
            2 refused, or nobody could be asked, 64 usage error
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuguard.ports import Actuator, Clock

EXAMPLE = "gpuguard drain --reason 'fans are being changed' --yes"

# States of a drain of which nothing stands on the node.
GONE = ("overridden", "refused", "held")

# Any: the answer is JSON, which mixes types.
Facts = dict[str, Any]


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    from gpuguard.runtime.known import options

    parser.add_argument("--reason", metavar="TEXT", required=True, help="why; kept in the history")
    parser.add_argument("--by", metavar="NAME", help="who asks (default: the user who calls)")
    parser.add_argument("--yes", action="store_true", help="do it")
    options(parser)


def run(args: Namespace) -> int:
    """Drains, or tells what would be done."""
    from pathlib import Path

    from gpuguard.runtime.clock import SystemClock

    return answer(args, SystemClock(Path(args.root)))


def answer(args: Namespace, clock: "Clock", *, target: "Actuator | None" = None) -> int:
    """The same by a clock that is given; `target` stands for the scheduler.

    Raises  UsageError; StoreFailed, Absent without a memory; ReadFailed when the agent does not answer; ActionRefused
    """
    from gpuguard.custody.ownership import judge
    from gpuguard.custody.token import make_reason
    from gpuguard.model.ids import TokenId
    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.control import Word
    from gpuguard.runtime.known import config_path, look_up, state_dir
    from gpuguard.runtime.offline import look
    from gpuguard.runtime.person import (
        UNWRITTEN,
        must_say_something,
        name_of_caller,
        outcome_of,
        owner_of,
        speak,
        wrote_nothing,
    )

    must_say_something(args)
    folder, by = state_dir(args), args.by or name_of_caller()
    parts = assemble(config_path(args), with_sources=False)
    known = look_up(folder, clock)
    try:
        drain = known.memory()[1].drain
    finally:
        known.close()
    report = target.read_state() if target is not None else look(parts)
    owner = owner_of(report, drain, known.actions)
    # The token is made of the wish itself; 0000 stands for it, as the table knows no difference between new tokens.
    judgement = judge(report, "drain", TokenId("0000"))
    mode = known.snapshot.shell.mode if known.alive and known.snapshot is not None else parts.policy.mode
    facts: Facts = {
        "wish": "drain", "by": by, "reason": args.reason, "written": False, "result": "preview", "token": None,
        "mode": "observe" if parts.policy.name == "observe" else mode, "agent": known.alive,
        "scheduler": owner.words, "holder": owner.holder, "call": judgement.call, "why": judgement.why,
        "text": make_reason(TokenId("0000"), "node", "operator", by).replace("0000", "<token>", 1), "message": "",
        "standing": drain.reason if drain is not None and drain.state not in GONE else None,
    }  # fmt: skip
    if args.yes:
        word = Word(verb="drain", by=by, reason=args.reason)
        told = speak(folder, parts, word, alive=known.alive, clock=clock, target=target)
        came = outcome_of(folder, told.id, "drain")
        facts["message"] = came.answer or UNWRITTEN
        facts["result"] = "done" if came.answer and drain is not None and drain.state == "standing" else "waits"
        if came.action is not None:
            facts["token"], facts["text"] = came.action.action.token, came.action.action.reason
            facts["result"] = _result(came.action.state, came.action.tries)
            facts["message"] = came.action.message or "no answer yet; the agent goes on asking"
            facts["dry_run"] = wrote_nothing(came.action)
            facts["written"] = facts["result"] == "done" and not facts["dry_run"]
    if args.json:
        import json

        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        from gpuguard.runtime.words import page

        sys.stdout.write(page(_lines(facts, yes=args.yes)))
    return _exit_code(facts)


def _result(state: str, tries: int) -> str:
    return "deferred" if state == "owed" and tries else {"owed": "waits", "cancelled": "refused"}.get(state, state)


def _exit_code(facts: Facts) -> int:
    if facts["result"] == "preview":
        would = facts["call"] in ("write", "done") and facts["mode"] == "drain" and not facts["standing"]
        return 0 if would else 1
    if facts["result"] == "refused":
        return 2
    return 0 if facts["result"] == "done" and not facts.get("dry_run") else 1


def _lines(facts: Facts, *, yes: bool) -> Iterator[str]:
    from gpuguard.runtime.person import OBSERVES
    from gpuguard.runtime.words import paragraph, row

    if not yes:
        yield "Nothing was written: this shows what `--yes` would do."
        yield from row("scheduler", facts["scheduler"], indent=2)
        if facts["standing"]:
            how = "noted" if facts["mode"] == "observe" else "drained"
            yield from row(how, f"already, by gpuguard: {facts['standing']}", indent=2)
            if facts["mode"] == "observe":
                yield from paragraph(OBSERVES)
            return
        would = {
            "write": "the node is drained", "done": "nothing, it is so already", "wait": f"it waits: {facts['why']}",
            "never": f"it waits until the node is free: {facts['why']}",
        }[facts["call"]]  # fmt: skip
        if facts["mode"] != "observe":
            yield from row("then", would, indent=2)
            yield from row("with", f"{facts['text']} (Slurm shows this; your words stay in the history)", indent=2)
        yield from row("through", "the running agent" if facts["agent"] else "this command, as no agent runs", indent=2)
        if facts["mode"] == "observe":
            yield from paragraph(OBSERVES)
        return
    if facts.get("dry_run"):
        yield from paragraph(OBSERVES)
        yield from row("wish", f"{facts['token']}, kept for when it may act; {facts['message']}", indent=2)
        return
    if facts["token"] is None:
        yield from paragraph(facts["message"])
        return
    head = {
        "done": "The node is drained.", "deferred": "Not yet: it waits, and is tried again by itself.",
        "waits": "Not yet: it is on its way.", "foreign": "Not drained by gpuguard: somebody else holds the node.",
        "refused": "Refused: nothing was written.", "held": "Held for the fleet's sake: nothing was written.",
    }  # fmt: skip
    yield head[facts["result"]]
    yield from row("reason", facts["text"], indent=2)
    yield from row("answer", facts["message"], indent=2)
    if facts["result"] == "done":
        yield from row("next", "`gpuguard resume --yes` gives it back", indent=2)
    elif facts["result"] not in ("refused", "held") and not facts["agent"]:
        yield from row("next", "no agent runs; it is tried again when one does", indent=2)
