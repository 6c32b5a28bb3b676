"""May this node run jobs now?

Answers from the cache of an agent that gives signs of life, else by a look of its own. NAME limits the answer to
checks of that name. Exit code: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (also when the answer cannot be written); in the
modes prolog and epilog only a confirmed CRITICAL is not 0, in the mode health nothing is. While the fleet's budget
holds this node's drain, those two modes are 0 as well: by failing prologs Slurm would drain the fleet itself.
"""

import sys
from argparse import ArgumentParser, Namespace
from typing import Any, TypedDict, cast

from gpuguard.runtime.cache import CONFIG, STATE_DIR

EXAMPLE = "gpuguard check --mode prolog"

WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
# Worst first, for people.
ORDER = (2, 1, 3, 0)
DATABASE = "gpuguard.db"
LINE_LIMIT = 120


class Standing(TypedDict):
    """A finding in the cache; the fields of model/health.py FindingView that an answer needs."""

    check: str
    code: str
    severity: str
    confirmed: bool
    secondary_to: str | None
    reason: str
    count: int


class Subject(TypedDict):
    """A subject in the cache."""

    id: str
    state: str
    remedy: str
    uuid: str | None
    findings: list[Standing]


Verdict = TypedDict(
    "Verdict",
    {
        "status": str,
        "code": int,
        "confirmed": bool,
        "line": str,
        "subjects": list[Subject],
        "from": str,
        "age_s": float,
        "held": str,
    },
)


def arguments(parser: ArgumentParser) -> None:
    """The options of check."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="only these checks, as fault_codes or log_loss")
    parser.add_argument("--fresh", action="store_true", help="look now, even where an agent runs")
    parser.add_argument("--format", choices=("text", "nagios", "json", "prom"), default="text")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    parser.add_argument("--mode", choices=("people", "prolog", "epilog", "health"), default="people")
    parser.add_argument("--config", metavar="FILE", help=f"configuration (default: {CONFIG})")
    parser.add_argument("--state-dir", metavar="DIR", help=f"the agent's memory (default: {STATE_DIR})")
    parser.add_argument("--root", metavar="DIR", default="/", help="a recorded machine instead of this one")


def run(args: Namespace) -> int:
    """Prints the verdict; the exit code is the mode's."""
    from gpuguard.errors import GpuguardError
    from gpuguard.runtime import cache

    doubt = ""
    try:
        # This machine's memory is not a recorded one's.
        if args.root == "/" or args.config:
            args.state_dir = args.state_dir or cache.state_dir(args.config)
        verdict, doubt = _verdict(args)
    except GpuguardError as error:
        # Whatever keeps us from knowing is no verdict on the node.
        verdict = _unknown(" ".join(str(error).split()))
    if unknown := [name for name in args.names if name not in _names()]:
        sys.stderr.write(f"gpuguard check: no check named {', '.join(unknown)}; there are {', '.join(_names())}\n")
        return 64
    if args.names:
        verdict = _only(verdict, args.names)
    return _show(_doubted(verdict, doubt), args)


def _verdict(args: Namespace) -> tuple[Verdict, str]:
    """What stands, and why there may be more, '' where that is all."""
    from gpuguard.runtime import cache

    silent = ""
    if not args.fresh and args.root == "/":
        cached = cache.read(args.state_dir)
        if cached is not None and cache.agent_runs(args.state_dir):
            snapshot, age = cached
            if age <= cache.STALE_AFTER:
                return _told(snapshot, "cache", round(age, 1)), ""
            # It may hang since before the fault, and what it wrote down before still counts.
            silent = f"the agent gave no sign of life for {age:.0f} s; see `gpuguard status`"
    return _look(args), silent or _unread(args.state_dir)


def _doubted(seen: Verdict, doubt: str) -> Verdict:
    """What was seen, as far as it goes: a fault stands whatever is in doubt, that there is none does not."""
    if not doubt:
        return seen
    if seen["code"] == 0:
        return {**seen, "status": "UNKNOWN", "code": 3, "confirmed": False, "line": doubt}
    return {**seen, "line": f"{seen['line']}; {doubt}"}


def _unread(state_dir: str | None) -> str:
    """Why the memory on disk did not count, '' where it did or there is none."""
    import os

    path = os.path.join(state_dir, DATABASE) if state_dir else ""
    if not os.path.exists(path) or os.access(path, os.R_OK):
        return ""
    return (
        f"no agent gives an answer, and this user may not read its memory {path}; ask as root or a member of its group"
    )


def _look(args: Namespace) -> Verdict:
    import json
    from pathlib import Path

    import msgspec

    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.clock import SystemClock
    from gpuguard.runtime.look import look

    root = Path(args.root)
    parts = assemble(Path(args.config) if args.config else None)
    # DCGM tells how busy GPUs are; a verdict need not wait for it, should it hang.
    memory = Path(args.state_dir) if args.state_dir else None
    snapshot = look(parts, state_dir=memory, root=root, clock=SystemClock(root), without=("dcgm",))
    return _told(json.loads(msgspec.json.encode(snapshot)), "look", 0.0)


def _told(snapshot: dict[str, Any], origin: str, age: float) -> Verdict:  # Any: JSON, checked by the keys
    """The verdict in a snapshot; UNKNOWN when it is not one of ours."""
    try:
        subjects = [_subject(subject) for subject in snapshot["subjects"]]
        level = int(snapshot["level"])
        status = dict(enumerate(WORDS))[level]
        line, confirmed = str(snapshot["line"]), bool(snapshot["confirmed"])
        held = _held(snapshot["drain"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        return _unknown(f"the agent's cache is of another version ({error!r}); restart the agent")
    return {
        "status": status, "code": level, "confirmed": confirmed, "line": line, "subjects": subjects, "from": origin,
        "age_s": age, "held": held,
    }  # fmt: skip


def _held(drain: dict[str, Any] | None) -> str:  # Any: JSON, checked by the keys
    """Why the fleet's budget holds this node's drain, '' where it does not.

    Raises  KeyError, TypeError
    """
    if drain is None or drain["state"] != "held" or drain["dry_run"]:
        return ""
    return " ".join(str(drain["message"]).split()) or "the fleet's budget holds its drain"


def _subject(row: dict[str, Any]) -> Subject:  # Any: JSON, checked by the keys
    """A subject with all that an answer is made of.

    Raises  KeyError, TypeError
    """
    for finding in row["findings"]:
        for key in Standing.__annotations__:
            finding[key]
        if not isinstance(finding["count"], int):
            raise TypeError("count is no number")
    return cast(Subject, {key: row[key] for key in Subject.__annotations__})


def _unknown(why: str) -> Verdict:
    return {
        "status": "UNKNOWN", "code": 3, "confirmed": False, "line": why, "subjects": [], "from": "", "age_s": 0.0,
        "held": "",
    }  # fmt: skip


def _names() -> list[str]:
    """The checks there are, by the files of their shelf.

    Source  gpuguard/detectors; listed without importing any
    """
    import os

    import gpuguard

    shelf = os.path.join(os.path.dirname(gpuguard.__file__), "detectors")
    names = {entry.partition(".")[0] for entry in os.listdir(shelf)}
    return sorted(name for name in names if not name.startswith("_"))


def _only(verdict: Verdict, names: list[str]) -> Verdict:
    """The verdict of some checks alone."""
    if verdict["code"] == 3 and not verdict["subjects"]:
        return verdict
    kept: list[Subject] = []
    levels, parts = [0], []
    for subject in verdict["subjects"]:
        findings = [f for f in subject["findings"] if f["check"] in names]
        kept.append({**subject, "findings": findings})
        for finding in findings:
            levels.append(_level(finding))
            if levels[-1]:
                parts.append(f"{subject['id']} {finding['code']}")
    level = next(word for word in ORDER if word in levels)
    line = "; ".join(parts) or f"nothing from {', '.join(names)}"
    return {**verdict, "status": WORDS[level], "code": level, "confirmed": level == 2, "line": line, "subjects": kept}


def _level(finding: Standing) -> int:
    if finding["severity"] == "info":
        return 0
    if finding["code"].startswith(("blind_", "check_")):
        return 3
    return 2 if finding["severity"] == "critical" and finding["confirmed"] and not finding["secondary_to"] else 1


# --- output ----------------------------------------------------------------------------------------------------------


def _show(verdict: Verdict, args: Namespace) -> int:
    from gpuguard.errors import OutputFailed

    level = verdict["code"]
    line = f"{verdict['status']}: {verdict['line']}"[:LINE_LIMIT]
    code = level
    if args.mode != "people":
        bad = level == 2 and verdict["confirmed"] and args.mode != "health"
        code = 2 if bad and not verdict["held"] else 0
        if level:
            though = f"jobs may come all the same, {verdict['held']}; " if bad and verdict["held"] else ""
            sys.stderr.write(f"gpuguard check: {though}{line}\n")
    page = _page(verdict, line, args)
    try:
        if page:
            sys.stdout.write(page)
            sys.stdout.flush()
    except BrokenPipeError:
        return code  # the reader went away: it had what it wanted
    except OutputFailed as error:
        sys.stderr.write(f"gpuguard check: {error}\n")
        # A hook's answer is the code alone; people and Nagios were told nothing.
        return code if args.mode != "people" else 3
    return code


def _page(verdict: Verdict, line: str, args: Namespace) -> str:
    if args.format == "json":
        import json

        return json.dumps(verdict) + "\n"
    if args.format == "nagios":
        return f"GPUGUARD {line.replace('|', '/')} | {_performance(verdict)}\n"
    if args.format == "prom":
        return _prometheus(verdict)
    return "\n".join([line, *_details(verdict, args)]) + "\n" if args.mode == "people" else ""


def _count(verdict: Verdict, state: str) -> int:
    return sum(s["state"] == state for s in verdict["subjects"])


def _performance(verdict: Verdict) -> str:
    return " ".join(f"{state}={_count(verdict, state)}" for state in ("healthy", "watched", "unfit", "returning"))


def _details(verdict: Verdict, args: Namespace) -> list[str]:
    """What stands, a few words each, so that the node can be judged without another command."""
    import os
    import textwrap

    rows = []
    whole = verdict["line"]
    if len(f"{verdict['status']}: {whole}") > LINE_LIMIT:
        rows += textwrap.wrap(whole, width=80, initial_indent="  ", subsequent_indent="  ")
    standing = len(rows)
    for subject in verdict["subjects"]:
        for finding in subject["findings"]:
            held = "" if finding["confirmed"] or finding["severity"] != "critical" else " (held: one witness)"
            count = f" x{finding['count']}" if finding["count"] > 1 else ""
            text = f"{subject['id']} {finding['severity']}{held} {finding['code']}{count}: {finding['reason']}"
            rows += textwrap.wrap(text, width=80, initial_indent="  ", subsequent_indent="      ")
    remembered = bool(args.state_dir) and os.path.exists(os.path.join(args.state_dir, DATABASE))
    if len(rows) > standing and (verdict["from"] == "cache" or remembered):
        rows.append("`gpuguard why` tells the whole story")
    return rows


def _prometheus(verdict: Verdict) -> str:
    """For the node exporter's textfile collector."""
    rows = [
        "# HELP gpuguard_check_status 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.",
        "# TYPE gpuguard_check_status gauge",
        f"gpuguard_check_status {verdict['code']}",
        "# HELP gpuguard_check_subjects Subjects by state.",
        "# TYPE gpuguard_check_subjects gauge",
    ]
    states = ("healthy", "watched", "unfit", "unknown", "returning")
    rows += [f'gpuguard_check_subjects{{state="{state}"}} {_count(verdict, state)}' for state in states]
    return "\n".join(rows) + "\n"
