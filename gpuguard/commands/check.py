"""May this node run jobs now?

Answers from the agent's cache when one runs, else by a look of its own. NAME limits the answer to checks of that
name. Exit code: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN; in the modes prolog and epilog only a confirmed CRITICAL is
not 0, in the mode health nothing is.
"""

import sys
from argparse import ArgumentParser, Namespace

EXAMPLE = "gpuguard check --mode prolog"

WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
# Worst first, for people.
ORDER = (2, 1, 3, 0)
STATE_DIR = "/var/lib/gpuguard"
CONFIG = "/etc/gpuguard/config.toml"
LINE_LIMIT = 120

Verdict = dict[str, "object"]


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

    try:
        verdict = _verdict(args)
    except GpuguardError as error:
        # Whatever keeps us from knowing is no verdict on the node.
        verdict = _unknown(" ".join(str(error).split()))
    if unknown := _unknown_names(args.names, verdict):
        sys.stderr.write(f"gpuguard check: no check named {', '.join(unknown)}; there are {', '.join(_names())}\n")
        return 64
    if args.names:
        verdict = _only(verdict, args.names)
    return _show(verdict, args)


def _verdict(args: Namespace) -> Verdict:
    from gpuguard.runtime import cache

    state_dir = args.state_dir or _state_dir(args.config)
    if not args.fresh and args.root == "/":
        cached = cache.read(state_dir)
        if cached is not None and cache.agent_runs(state_dir):
            snapshot, age = cached
            if age <= cache.STALE_AFTER:
                return {**_told(snapshot), "from": "cache", "age_s": round(age, 1)}
            return _unknown(f"the agent gave no sign of life for {age:.0f} s; see `gpuguard status`")
    return _look(args, state_dir)


def _state_dir(config: str | None) -> str:
    """The state directory that the configuration names; only that is read of it.

    Raises  ConfigInvalid
    """
    import os

    path = config or CONFIG
    if config is None and not os.path.exists(path):
        return STATE_DIR
    import tomllib

    from gpuguard.errors import ConfigInvalid

    try:
        with open(path, "rb") as file:
            agent = tomllib.load(file).get("agent", {})
    except (OSError, ValueError) as error:
        raise ConfigInvalid([f"{path}: {error}; correct the file"]) from error
    return str(agent.get("state_dir", STATE_DIR)) if isinstance(agent, dict) else STATE_DIR


def _look(args: Namespace, state_dir: str) -> Verdict:
    import json
    from pathlib import Path

    import msgspec

    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.clock import SystemClock
    from gpuguard.runtime.look import look

    root = Path(args.root)
    parts = assemble(Path(args.config) if args.config else None)
    snapshot = look(parts, state_dir=Path(state_dir), root=root, clock=SystemClock(root))
    return {**_told(json.loads(msgspec.json.encode(snapshot))), "from": "look", "age_s": 0.0}


def _told(snapshot: Verdict) -> Verdict:
    """The verdict in a snapshot; UNKNOWN when it is not one of ours."""
    try:
        subjects = [
            {"id": s["id"], "state": s["state"], "remedy": s["remedy"], "uuid": s["uuid"], "findings": s["findings"]}
            for s in snapshot["subjects"]  # type: ignore[attr-defined]  # JSON, checked by the keys
        ]
        level = int(snapshot["level"])  # type: ignore[call-overload]  # the same
        status = WORDS[level]
        line, confirmed = str(snapshot["line"]), bool(snapshot["confirmed"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        return _unknown(f"the agent's cache is of another version ({error!r}); restart the agent")
    return {"status": status, "code": level, "confirmed": confirmed, "line": line, "subjects": subjects}


def _unknown(why: str) -> Verdict:
    return {"status": "UNKNOWN", "code": 3, "confirmed": False, "line": why, "subjects": [], "from": "", "age_s": 0.0}


def _names() -> list[str]:
    """The checks there are, by the files of their shelf.

    Source  gpuguard/detectors; listed without importing any
    """
    import os

    import gpuguard

    shelf = os.path.join(os.path.dirname(gpuguard.__file__), "detectors")
    names = {entry.partition(".")[0] for entry in os.listdir(shelf)}
    return sorted(name for name in names if not name.startswith("_"))


def _unknown_names(names: list[str], verdict: Verdict) -> list[str]:
    return [name for name in names if name not in _names()] if names else []


def _only(verdict: Verdict, names: list[str]) -> Verdict:
    """The verdict of some checks alone."""
    if verdict["code"] == 3 and not verdict["subjects"]:
        return verdict
    kept, levels, parts = [], [0], []
    for subject in verdict["subjects"]:  # type: ignore[attr-defined]  # JSON
        findings = [f for f in subject["findings"] if f["check"] in names]
        kept.append({**subject, "findings": findings})
        for finding in findings:
            levels.append(_level(finding))
            if levels[-1]:
                parts.append(f"{subject['id']} {finding['code']}")
    level = next(word for word in ORDER if word in levels)
    line = "; ".join(parts) or f"nothing from {', '.join(names)}"
    return {**verdict, "status": WORDS[level], "code": level, "confirmed": level == 2, "line": line, "subjects": kept}


def _level(finding: dict[str, object]) -> int:
    if finding["severity"] == "info":
        return 0
    if str(finding["code"]).startswith(("blind_", "check_")):
        return 3
    return 2 if finding["severity"] == "critical" and finding["confirmed"] and not finding["secondary_to"] else 1


# --- output ----------------------------------------------------------------------------------------------------------


def _show(verdict: Verdict, args: Namespace) -> int:
    level = int(str(verdict["code"]))
    line = f"{verdict['status']}: {verdict['line']}"[:LINE_LIMIT]
    if args.format == "json":
        import json

        sys.stdout.write(json.dumps(verdict) + "\n")
    elif args.format == "nagios":
        sys.stdout.write(f"GPUGUARD {line.replace('|', '/')} | {_performance(verdict)}\n")
    elif args.format == "prom":
        sys.stdout.write(_prometheus(verdict))
    elif args.mode == "people":
        sys.stdout.write("\n".join([line, *_details(verdict)]) + "\n")
    if args.mode == "people":
        return level
    if level:
        sys.stderr.write(f"gpuguard check: {line}\n")
    if args.mode == "health":
        return 0
    return 2 if level == 2 and verdict["confirmed"] else 0


def _count(verdict: Verdict, state: str) -> int:
    return sum(s["state"] == state for s in verdict["subjects"])  # type: ignore[attr-defined]  # JSON


def _performance(verdict: Verdict) -> str:
    return " ".join(f"{state}={_count(verdict, state)}" for state in ("healthy", "watched", "unfit", "returning"))


def _details(verdict: Verdict) -> list[str]:
    """What stands, a few words each, so that the node can be judged without another command."""
    import textwrap

    rows = []
    whole = str(verdict["line"])
    if len(f"{verdict['status']}: {whole}") > LINE_LIMIT:
        rows += textwrap.wrap(whole, width=80, initial_indent="  ", subsequent_indent="  ")
    standing = len(rows)
    for subject in verdict["subjects"]:  # type: ignore[attr-defined]  # JSON
        for finding in subject["findings"]:
            held = "" if finding["confirmed"] or finding["severity"] != "critical" else " (held: one witness)"
            count = f" x{finding['count']}" if finding["count"] > 1 else ""
            text = f"{subject['id']} {finding['severity']}{held} {finding['code']}{count}: {finding['reason']}"
            rows += textwrap.wrap(text, width=80, initial_indent="  ", subsequent_indent="      ")
    if len(rows) > standing:
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
