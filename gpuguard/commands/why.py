"""Why is this GPU or node drained, degraded, slow to return?

Walks from the action back to the log line: the drain, the verdict it rests on, the lines that the kernel printed. A GPU
is named by index, PCI address in any spelling, UUID or serial; a job by its id, as slurm/8123; a drain by the four
digits of its token.
Exit codes  0 nothing stands, 1 something does (or the token is an orphan), 2 no such GPU or no memory, 64 usage error
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuguard.ports import Clock
    from gpuguard.runtime.known import Known

EXAMPLE = "gpuguard why 3b:00"

RAW_LINES_SHOWN = 4
INDENT = 2

# Any: the answer is JSON, which mixes types.
Facts = dict[str, Any]

ENDS = {
    "quiet": "{quiet} without a repeat",
    "reset": "a reset of the GPU",
    "reboot": "a reboot",
    "replace": "a new part",
    "ack": "`gpuguard ack`",
}
DRAINS = {
    "owed": "is to be written",
    "standing": "stands",
    "foreign": "waits: somebody else drained the node",
    "refused": "was refused",
    "held": "is held back for the fleet's sake; a person is to decide",
    "releasing": "is being given back",
    "overridden": "was taken away by somebody, which is respected until another fault comes",
}
STATES = {
    "healthy": "nothing stands against it",
    "watched": "keeps its jobs, but something stands against it",
    "unfit": "must take no more jobs",
    "unknown": "cannot be seen",
    "returning": "mended: it is given back once it stayed clean for a while, and is on probation then",
}


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    from gpuguard.runtime.known import options

    parser.add_argument(
        "whom", nargs="?", default="node", metavar="GPU|JOB|node|TOKEN", help="whom it is about (default: the node)"
    )
    options(parser)


def run(args: Namespace) -> int:
    """Prints the answer."""
    from pathlib import Path

    from gpuguard.runtime.clock import SystemClock

    return answer(args, SystemClock(Path(args.root)))


def answer(args: Namespace, clock: "Clock") -> int:
    """The same by a clock that is given.

    Raises  NotUnderstood for a GPU that is not known, with those that are; StoreFailed without a memory
    """
    from gpuguard.runtime.chain import of_subject, of_token
    from gpuguard.runtime.known import find_subject, find_token, look_up, state_dir

    known = look_up(state_dir(args), clock)
    try:
        reader, health = known.memory()
        token = find_token(args.whom)
        if token is not None:
            facts = of_token(known, reader, token)
        else:
            facts = of_subject(known, reader, find_subject(health, args.whom))
    finally:
        known.close()
    if args.json:
        import json

        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        from gpuguard.runtime.words import page

        sys.stdout.write(page(_lines(facts, known)))
    return 1 if facts["stands"] or facts["orphan"] else 0


# --- for people -------------------------------------------------------------------------------------------------------


def _lines(facts: Facts, known: "Known") -> Iterator[str]:
    from gpuguard.runtime.words import called, paragraph

    if facts["orphan"]:
        yield from paragraph(
            f"{facts['token']}: an orphan. No drain with this token is on record on this machine: another machine or a "
            "memory that was lost wrote it. It is treated as somebody else's."
        )
    elif facts["drain"] is not None:
        yield from _drain_lines(facts["drain"], facts["story"])
    elif facts["token"] is not None:
        yield from _over_lines(facts)
    for place, subject in enumerate(facts["subjects"]):
        if subject["state"] == "healthy" and not subject["findings"]:
            yield from paragraph(f"{subject['name']}: nothing stands against it.")
            yield from _applied_lines(subject)
            yield from _past_lines(subject)
            continue
        if place or facts["drain"] is not None:
            yield ""
        yield from _subject_lines(subject, called)
    if facts["next"]:
        yield ""
        yield "next"
        for step in facts["next"]:
            yield from paragraph(f"- {step}", indent=INDENT, hanging=INDENT)
    if not known.alive:
        yield ""
        yield from paragraph(
            "No agent runs: this is what the last one left. `systemctl start gpuguard-agent` starts it."
        )


def _drain_lines(drain: Mapping[str, Any], story: Iterable[Facts]) -> Iterator[str]:  # Any: JSON mixes types
    from gpuguard.runtime.words import called, date, row, tries

    dry = " (observe-only: nothing was written)" if drain["dry_run"] else ""
    yield f"node: the drain {drain['token']} {DRAINS[drain['state']]}{dry}"
    yield from row("reason", drain["reason"], indent=INDENT)
    whom = "" if drain["code"] == "operator" else f" for {called(drain['subject'])}"
    yield from row("wanted", f"{date(drain['since'])} by {drain['by']}{whom}", indent=INDENT)
    for entry in story:
        yield from row("said", entry["text"], indent=INDENT)
    for action in drain["actions"]:
        done = action["state"] + (f" after {tries(action['tries'])}" if action["tries"] > 1 else "")
        label = "reworded" if action["verb"] == "update_reason" else action["verb"]
        yield from row(label, f"{done}; {action['message'] or 'no answer yet'}", indent=INDENT)
    if drain["node_state"]:
        yield from row("node was", f"{drain['node_state']} when it was last asked about", indent=INDENT)


def _over_lines(facts: Facts) -> Iterator[str]:
    from gpuguard.runtime.words import date, paragraph

    if facts.get("of", "drain") == "drain":
        yield f"node: the drain {facts['token']} is over; its story:"
    else:
        yield f"{facts['token']}: the {facts['of']}; its story:"
    for entry in facts["story"]:
        yield from paragraph(f"{date(entry['at'])}  {entry['text']}", indent=INDENT, hanging=INDENT)
    yield from _raw_lines(facts["lines"])


def _subject_lines(subject: Mapping[str, Any], called: Any) -> Iterator[str]:  # Any: JSON mixes types
    from gpuguard.runtime.words import NEEDS, date, listed, paragraph, row, span, times

    needs = NEEDS[subject["remedy"]]
    yield from paragraph(f"{subject['name']}: {subject['state']}{needs}, since {date(subject['since'])}")
    yield from row("means", STATES[subject["state"]], indent=INDENT)
    if subject["uuid"] or subject["serial"]:
        serial = f", serial {subject['serial']}" if subject["serial"] else ""
        yield from row("is", f"{subject['uuid'] or 'of unknown UUID'}{serial}", indent=INDENT)
    if subject["probation_from"] is not None:
        words = f"clean since {date(subject['probation_from'])}, {times(subject['passes'])} looked at"
        if subject["tested"] is not None:
            words = f"on probation since {date(subject['tested'])}: a mild fault of the hardware takes it out again"
        yield from row("returning", words, indent=INDENT)
    yield from _applied_lines(subject)
    yield from _past_lines(subject)
    for incident in subject["incidents"]:
        if len(incident["members"]) > 1:
            rest = [member for member in incident["members"] if member != incident["name"]]
            yield from row("incident", f"{incident['name']}, with {listed(rest)}", indent=INDENT)
    for finding in subject["findings"]:
        yield ""
        yield from _finding_lines(finding, span, of_job=subject["subject"].startswith("job:"))


def _applied_lines(subject: Mapping[str, Any]) -> Iterator[str]:  # Any: JSON mixes types
    from gpuguard.runtime.words import date, row

    for applied in subject["applied"][-3:]:
        told = f"{applied['remedy']} for {applied['code']}, seen {date(applied['at'])}"
        yield from row("tried", told, indent=INDENT)


def _past_lines(subject: Mapping[str, Any]) -> Iterator[str]:  # Any: JSON mixes types
    from gpuguard.runtime.words import row

    if subject["past"] is not None:
        yield from row("remembered", subject["past"]["text"], indent=INDENT)


def _finding_lines(finding: Mapping[str, Any], span: Any, *, of_job: bool) -> Iterator[str]:  # Any: JSON mixes types
    from gpuguard.runtime.words import date, listed, row, times

    yield from row(finding["code"], f"{finding['severity']}, {_standing(finding)}", indent=INDENT)
    yield from row("", finding["reason"], indent=INDENT)
    first, last = date(finding["first"]), date(finding["last"])
    seen = f"{times(finding['count'])} by {listed(finding['sources'])}, "
    yield from row("seen", seen + (first if first == last else f"{first} to {last}"), indent=INDENT)
    if finding["came_back_after"]:
        yield from row(
            "came back", f"after {listed('a ' + remedy for remedy in finding['came_back_after'])}", indent=INDENT
        )
    yield from row("to blame", finding["blame"], indent=INDENT)
    catalogue = finding["catalogue"]
    if catalogue is not None and catalogue["nvidia"]:
        later = catalogue["nvidia_next"]
        told = catalogue["nvidia"] + (
            f", then {later}" if later not in (None, "not stated", catalogue["nvidia"]) else ""
        )
        yield from row("NVIDIA says", told, indent=INDENT)
    ends = [ENDS[clear].format(quiet=span(finding["quiet_after_s"])) for clear in finding["clears"]]
    if of_job:
        # It goes with the job: that a reboot ends it as well is no advice.
        ends = ["the job going on or ending", *(end for end in ends if end != ENDS["reboot"])]
    yield from row("ended by", listed(ends, "or") if ends else "its own check", indent=INDENT)
    yield from _raw_lines(finding["lines"])


def _standing(finding: Mapping[str, Any]) -> str:  # Any: JSON mixes types
    if finding["secondary_to"]:
        return f"a consequence of {finding['secondary_to']}, not this one's fault"
    if finding["severity"] != "critical":
        return "keeps no job away by itself"
    if finding["consequence"]:
        return "follows from another fault, decides nothing alone"
    if finding["confirmed"]:
        return "self-evident" if finding["self_evident"] else "confirmed by a second witness"
    if not finding["fresh"]:
        return "held: old news when it was read, waits for a witness that is no log"
    return "held: waits for a second witness"


def _raw_lines(lines: Iterable[Facts]) -> Iterator[str]:
    from gpuguard.runtime.words import date, paragraph

    lines = list(lines)
    for line in lines[:RAW_LINES_SHOWN]:
        if line["raw"] is None:
            continue
        where = f"{line['file']}:{line['line']}" if line["file"] else line["source"]
        yield f"    {date(line['at'])} {where}, event {line['event_id']}"
        for text in line["raw"].splitlines():
            yield from paragraph(text, indent=INDENT + 4, hanging=INDENT)
    if len(lines) > RAW_LINES_SHOWN:
        yield f"    and {len(lines) - RAW_LINES_SHOWN} more; `--json` has them all"
