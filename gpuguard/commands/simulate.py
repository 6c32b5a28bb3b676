"""What would this trace have done on this cluster?

Runs a trace of jobs through the real scheduler core on a virtual clock, and tells how long they waited and how busy
the GPUs were. Several --policy are shown side by side. Both files are CSV, plain or gzip, with a header: jobs need
job_id, submit_s, duration_s, gpus; nodes need node_id, gpus, gpu_type, cpus, mem (docs/simulate.md has them all). A
file with a mistake is refused whole. With --inflate nothing ends: shuffled jobs come one after the other, and what is
told is how much of the cluster they cannot use. `gpuguard simulate claims` measures what is claimed of schedulers;
`gpuguard simulate fleet` runs the agent's detectors and decisions on nodes that fail as real ones do
(docs/fleet-simulation.md): which faults are found how soon, and what is drained for nothing.
Same files, same options, same answer.
Exit codes  0 done, 2 a file cannot be used, 64 usage error
"""

import math
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuguard.errors import Absent, ActionRefused, UsageError

if TYPE_CHECKING:
    from gpuguard.runtime.simulation import Case, Read, Run
    from gpuguard.simulator.engine import Model

EXAMPLE = "gpuguard simulate --jobs jobs.csv.gz --nodes nodes.csv --policy all"

DEFAULT = "gpuguard"
POLICIES = ("fifo-spread", "fifo-pack", "easy-pack", "easy-spread", DEFAULT)
MANUAL = "manual"
"""No policy of the core: a world without it, which stands beside the others as a column."""
WALLTIMES = {
    "exact": "each job's run time", "bucket": "run times rounded up to 2h, 1d, 2d or 7d",
    "x3": "three times the run times",
}  # fmt: skip
MOST_RESERVATIONS = 1000
FLEET_POLICIES = (DEFAULT, "any-xid", "reboot-clears")
FLEET_NODE_DAYS = 30_000
MOST_NODE_DAYS = 1_000_000


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    # No choices here: a mistyped option would be told as a wrong choice of the word after it.
    parser.add_argument(
        "what", nargs="?", metavar="claims|fleet", help="measure the claims, or a fleet that fails, instead"
    )
    files = parser.add_argument_group("files")
    files.add_argument("--jobs", metavar="FILE", help="the jobs, .csv or .csv.gz")
    files.add_argument("--nodes", metavar="FILE", help="the nodes")
    files.add_argument("--gpu-types", metavar="FILE", help="which GPU types jobs may run on: job_id,gpu_type")
    files.add_argument("--traces", metavar="DIR", help="with claims: the folder of the traces (default: ./traces)")
    how = parser.add_argument_group("what is simulated")
    how.add_argument(
        "--policy", action="append", type=_policy, metavar="NAME",
        help=f"one of {', '.join(POLICIES)} (the default), or all; {MANUAL}[:KEY=VALUE,...]: people choose GPUs"
        f" themselves; again for another beside it. With fleet: {', '.join(FLEET_POLICIES)}, or all",
    )  # fmt: skip
    how.add_argument(
        "--node-days", type=_node_days, metavar="N",
        help=f"with fleet: so many days of a node, over 60 d (default: {FLEET_NODE_DAYS:,})",
    )  # fmt: skip
    how.add_argument(
        "--walltime", choices=tuple(WALLTIMES), metavar="exact|bucket|x3",
        help="what each job asks for: its run time, that rounded up to 2 h, 1 d, 2 d or 7 d, three times that (default:"
        " what the trace tells, else bucket)",
    )  # fmt: skip
    how.add_argument("--from-day", type=_days, metavar="A", help="only jobs submitted from this day of the trace on")
    how.add_argument("--to-day", type=_days, metavar="B", help="and before this one")
    how.add_argument("--max-days", type=_some_days, metavar="D", help="cut run times to this")
    how.add_argument("--reservations", type=_reservations, metavar="K", help="plan so many starts ahead")
    how.add_argument(
        "--wiring", choices=("two-sockets", "unknown"), default="two-sockets", metavar="two-sockets|unknown",
        help="what is assumed of nodes of 8 GPUs (default: two-sockets, PCIe switches with two GPUs each)",
    )  # fmt: skip
    how.add_argument(
        "--inflate", type=_share, metavar="SHARE", help="jobs asking for this share of all GPUs; none ends"
    )
    how.add_argument(
        "--model", action="append", metavar="NAME[:KEY=VALUE,...]",
        help="the world with this in it, again for another; `--model list` lists them",
    )  # fmt: skip
    how.add_argument("--claim", action="append", metavar="ID", help="with claims: only this one, again for another")
    how.add_argument("--seed", type=_whole, default=0, metavar="N", help="of all chances (default: 0)")
    out = parser.add_argument_group("what is told")
    form = out.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="print JSON: an object, or a list of them for several policies"
    )
    form.add_argument("--table", action="store_true", help="print a table of 80 columns (the default)")
    out.add_argument("--picture", metavar="FILE", help="draw the run over time, .svg or .png")
    out.add_argument("--chart", metavar="FILE", help="draw what each GPU ran, .svg or .png")
    out.add_argument(
        "--colour", choices=("size", "tier", "end"), metavar="size|tier|end",
        help="with --chart: what the colours tell of a job (default: size)",
    )  # fmt: skip
    out.add_argument("--progress", action="store_true", help="tell how far it is on standard error, also into a log")


def _policy(text: str) -> str:
    if text.partition(":")[0] != MANUAL and text not in (*POLICIES, *FLEET_POLICIES, "all"):
        raise ArgumentTypeError(
            f"there is no policy {text!r}; there are {', '.join(POLICIES)}, {MANUAL}, or all; of a fleet "
            f"{', '.join(FLEET_POLICIES)}, or all"
        )
    return text


def _node_days(text: str) -> int:
    if not 1 <= (value := _whole(text)) <= MOST_NODE_DAYS:
        raise ArgumentTypeError(f"{text!r} is no number of node-days from 1 to {MOST_NODE_DAYS:,}")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ArgumentTypeError(f"{text!r} is no number of 0 or more")
    return value


def _days(text: str) -> float:
    if (value := _number(text)) > 1e5:
        raise ArgumentTypeError(f"{text!r} is no day of a trace; days are counted from its first instant")
    return value


def _some_days(text: str) -> float:
    if not (value := _days(text)):
        raise ArgumentTypeError("run times cannot be cut to 0 days; give a number above 0")
    return value


def _share(text: str) -> float:
    if not 0 < (value := _number(text)) <= 100:
        raise ArgumentTypeError(f"{text!r} is no share of a cluster; give 1.3 for 130 %")
    return value


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return int(text)


def _reservations(text: str) -> int:
    if (value := _whole(text)) > MOST_RESERVATIONS:
        raise ArgumentTypeError(f"{text!r} is too many; plan at most {MOST_RESERVATIONS} starts ahead")
    return value


def run(args: Namespace) -> int:
    """Prints the figures.

    Raises  UsageError; ConfigInvalid, ReadFailed or NotUnderstood for a file that cannot be used
    """
    if args.model and "list" in args.model:
        return _list_models(args)
    _check(args)
    if args.what == "claims":
        return _claims(args)
    if args.what == "fleet":
        return _fleet(args)
    policies = _policies(args)
    _check_manual(args, policies)
    _check_pictures(args, policies)
    from gpuguard.runtime.simulation import read

    found = read(args.jobs, args.nodes, args.gpu_types, wired=args.wiring == "two-sockets")
    for note in found.notes:
        _say(note)
    if args.inflate is not None:
        runs = list(_inflations(args, found, policies))
        told: Sequence[str] = ()
    else:
        given = _case(args, found)
        runs = list(_runs(args, given, policies))
        told = list(_told(args, found, given))
    _print(args, runs, told)
    for done in runs:
        _draw(args, done)  # after the figures: a disk that is full does not cost them
    return 0


# --- what was asked --------------------------------------------------------------------------------------------------


def _check(args: Namespace) -> None:
    if args.what not in (None, "claims", "fleet"):
        raise UsageError(
            f"{args.what!r} is no option and no file's place: only `claims` or `fleet` stands alone; example: {EXAMPLE}"
        )
    if args.what is not None:
        _check_alone(args)
        return
    if args.node_days is not None:
        raise UsageError("--node-days goes with `gpuguard simulate fleet`; a trace has its own days")
    if strange := [name for name in args.policy or () if name in FLEET_POLICIES and name not in POLICIES]:
        raise UsageError(f"--policy {strange[0]} is one of `gpuguard simulate fleet`; see --help for those of traces")
    if args.claim is not None:
        raise UsageError("--claim goes with `gpuguard simulate claims`: it says which of them to measure")
    if args.traces is not None:
        raise UsageError("--traces goes with `gpuguard simulate claims`; here --jobs and --nodes name the files")
    missing = [name for name, value in (("--jobs", args.jobs), ("--nodes", args.nodes)) if value is None]
    if missing:
        raise UsageError(f"{' and '.join(missing)} FILE is missing; example: {EXAMPLE}")
    if args.colour is not None and args.chart is None:
        raise UsageError("--colour goes with --chart FILE, which it colours: add that, or leave it out")
    if args.inflate is not None and args.model:
        raise UsageError("with --inflate nothing goes on, so no --model has anything to change: leave it out")
    if args.inflate is not None and (args.picture or args.chart):
        raise UsageError(
            "with --inflate all is one instant, of which there is no picture: leave out --picture, --chart"
        )


def _check_alone(args: Namespace) -> None:
    """The claims and the fleet bring their own cases: what has no part in them is told, not passed over."""
    common = ("jobs", "nodes", "gpu_types", "walltime", "from_day", "to_day", "max_days", "reservations", "inflate")
    fleet = args.what == "fleet"
    other = ("claim", "traces") if fleet else ("policy", "node_days")
    for name in (*common, "model", "picture", "chart", "colour", *other):
        if getattr(args, name) is not None:
            whose = "the fleet, which is drawn by its recipe" if fleet else "the claims, which bring their own cases"
            raise UsageError(f"--{name.replace('_', '-')} has no part in {whose}: leave it out")
    if fleet and (strange := [name for name in args.policy or () if name not in (*FLEET_POLICIES, "all")]):
        raise UsageError(f"--policy {strange[0]} is none of a fleet; there are {', '.join(FLEET_POLICIES)}, or all")


def _policies(args: Namespace) -> list[str]:
    """Each once, in the order in which they were named."""
    names = args.policy or [DEFAULT]
    return list(dict.fromkeys(one for name in names for one in (POLICIES if name == "all" else (name,))))


def _check_manual(args: Namespace, policies: Sequence[str]) -> None:
    if not any(map(_is_manual, policies)):
        return
    for option, value in (("--model", args.model), ("--inflate", args.inflate), ("--reservations", args.reservations)):
        if value is not None:
            raise UsageError(f"in {MANUAL} no scheduler runs, so {option} has no part in it: leave one of them out")


def _is_manual(policy: str) -> bool:
    return policy.partition(":")[0] == MANUAL


def _check_pictures(args: Namespace, policies: Sequence[str]) -> None:
    """Whatever stands against a picture is told before the long work, not after it."""
    import importlib.util

    wanted = [path for path in (args.picture, args.chart) if path is not None]
    if not wanted:
        return
    from gpuguard.runtime.pictures import form_of

    for path in wanted:
        form_of(path)
    if len(policies) > 1:
        raise UsageError("a picture shows one run: give one --policy with --picture or --chart")
    if args.picture is not None and args.chart is not None and _same(args.picture, args.chart):
        raise UsageError("--picture and --chart are two pictures: name a file for each")
    for path in wanted:
        place = Path(path)
        if not place.parent.is_dir():
            raise ActionRefused(f"{path}: there is no folder {place.parent}; make it first")
        if place.is_dir() or not os.access(place if place.exists() else place.parent, os.W_OK):
            raise ActionRefused(f"{path} cannot be written: name a file in a folder where you may write")
    if importlib.util.find_spec("matplotlib") is None:
        raise Absent("pictures need matplotlib: pip install 'gpuguard[pictures]'")


def _same(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()


def _case(args: Namespace, found: "Read") -> "Case":
    from gpuguard.runtime.simulation import case

    return case(found, walltimes=args.walltime, from_day=args.from_day, to_day=args.to_day, max_days=args.max_days)


# --- the work --------------------------------------------------------------------------------------------------------


def _runs(args: Namespace, given: "Case", policies: Sequence[str]) -> Iterator["Run"]:
    import dataclasses

    from gpuguard.runtime.bar import Bar
    from gpuguard.runtime.simulation import by_hand, settings_of, simulated

    chosen = [(name, None if _is_manual(name) else settings_of(name, args.reservations)) for name in policies]
    for name, settings in chosen:
        models = _models(args)  # anew for each run: they remember what happened in it
        with Bar(name, "jobs", shown=True if args.progress else None) as bar:
            if settings is None:
                done = by_hand(given, name, seed=args.seed)
            else:
                done = simulated(given, name, settings, models=models, show=bar.show)
        _tell_refused(done)
        done.facts["walltime"] = args.walltime or "trace"
        done.facts["seed"] = args.seed
        done.facts["models"] = list(args.model or ())
        # The next run needs the memory; a picture is of one run alone.
        yield done if args.picture or args.chart else dataclasses.replace(done, course=None)


def _models(args: Namespace) -> "tuple[Model, ...]":
    if not args.model:
        return ()
    from gpuguard.runtime.simulation import models

    return models(args.model, args.seed)


def _list_models(args: Namespace) -> int:
    from gpuguard.runtime.words import page, row
    from gpuguard.simulator.shelf import keys, lines

    if args.json:
        import json

        shelf = [
            {"model": name, "what": text, "settings": dict(key.split("=", 1) for key in keys(name))}
            for name, text in lines().items()
        ]
        sys.stdout.write(json.dumps(shelf) + "\n")
        return 0
    out: list[str] = []
    for name, text in lines().items():
        out += [*row(name, text, label_width=14), *row("", ", ".join(keys(name)), label_width=14)]
    sys.stdout.write(page(out))
    return 0


def _inflations(args: Namespace, found: "Read", policies: Sequence[str]) -> Iterator["Run"]:
    from gpuguard.runtime.bar import Bar
    from gpuguard.runtime.simulation import inflation, settings_of

    for name in policies:
        with Bar(name, "jobs", shown=True if args.progress else None) as bar:
            done = inflation(
                found, args.inflate, name, settings_of(name), seed=args.seed, from_day=args.from_day,
                to_day=args.to_day, show=bar.show,
            )  # fmt: skip
        _tell_refused(done)
        yield done


def _tell_refused(done: "Run") -> None:
    """One of each kind: who mends a trace wants to know all that is wrong with it."""
    from gpuguard.runtime.words import many

    for rule, count in Counter(refuse.rule for refuse in done.refused).items():
        first = next(refuse for refuse in done.refused if refuse.rule == rule)
        _say(
            f"{done.facts['policy']}: {many(count, 'job')} {'was' if count == 1 else 'were'} refused ({rule});"
            f" the first is {first.job}: {first.why}"
        )


def _draw(args: Namespace, done: "Run") -> None:
    if done.course is None or not (args.picture or args.chart):
        return
    from gpuguard.runtime.pictures import form_of, picture

    for path, kind in ((args.picture, "course"), (args.chart, "gpus")):
        if path is None:
            continue
        drawn = picture(done.course, "course" if kind == "course" else "gpus", form_of(path), args.colour or "size")
        try:
            _write(Path(path), drawn)
        except OSError as error:
            raise ActionRefused(f"{path} cannot be written ({error.strerror or error}): name another file") from error
        _say(f"{path} is written")


def _write(path: Path, drawn: bytes) -> None:
    """The picture stands at the path, whole; where that fails, what stood there before still does.

    Raises  OSError
    """
    if path.exists() and not path.is_file():
        path.write_bytes(drawn)  # a pipe or a device stays what it is
        return
    path = path.resolve()  # a link goes on pointing to the picture
    fresh = path.with_name(f".{path.name[:200]}.new")
    try:
        fresh.write_bytes(drawn)
        if path.exists():
            fresh.chmod(path.stat().st_mode & 0o777)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


# --- what is told ----------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    from gpuguard.runtime.words import printable

    sys.stderr.write(printable(f"gpuguard simulate: {text}") + "\n")


def _told(args: Namespace, found: "Read", given: "Case") -> Iterator[str]:
    """What the figures are about, in sentences."""
    from gpuguard.runtime.words import listed, many, paragraph
    from gpuguard.scheduler.settings import DAY

    chosen = given.window
    left = [
        f"{count:,} {what}" for count, what in (
            (chosen.outside, "submitted on other days"), (chosen.never_started, "that never started"),
        ) if count
    ]  # fmt: skip
    text = f"{many(len(chosen.jobs), 'job')} of {Path(args.jobs).name}, submitted on days"
    digits = 1 if chosen.end - chosen.start >= DAY else 3
    text += f" {chosen.start / DAY:.{digits}f} to {chosen.end / DAY:.{digits}f}."
    text += f" Left out: {listed(left)}." if left else ""
    text += f" Cut to {args.max_days:g} days: {chosen.capped:,}." if chosen.capped else ""
    yield from paragraph(text)
    yield from paragraph(
        f"{many(len(found.nodes), 'node')} of {Path(args.nodes).name} with {many(found.gpus, 'GPU')}."
        f" Walltimes: {WALLTIMES.get(args.walltime, 'as told, else ' + WALLTIMES['bucket'])}."
    )


def _print(args: Namespace, runs: "Sequence[Run]", told: Sequence[str]) -> None:
    if args.json:
        import msgspec

        facts = [done.facts for done in runs]
        sys.stdout.write(msgspec.json.encode(facts[0] if len(facts) == 1 else facts).decode() + "\n")
        return
    from gpuguard.runtime.words import page
    from gpuguard.simulator.tables import INFLATION, ROWS, table

    rows = ROWS if args.inflate is None else INFLATION
    shown = table({str(done.facts["policy"]): done.facts for done in runs}, rows)
    sys.stdout.write((page([*told, ""]) if told else "") + shown)


# --- the claims ------------------------------------------------------------------------------------------------------


def _claims(args: Namespace) -> int:
    import msgspec

    from gpuguard.runtime.bar import Bar
    from gpuguard.runtime.claims import findings, page, traces

    recorded = traces(args.traces, _say)
    with Bar("claims", "", shown=True if args.progress else None) as bar:
        found = findings(recorded, seed=args.seed, only=args.claim or (), say=bar.say)
        if args.json:
            sys.stdout.write(msgspec.json.encode(list(found)).decode() + "\n")
            return 0
        from gpuguard.runtime import words

        for line in page(found):
            bar.make_way()
            sys.stdout.write(words.page((line,)))
            sys.stdout.flush()
    return 0


# --- the fleet -------------------------------------------------------------------------------------------------------


def _fleet(args: Namespace) -> int:
    from gpuguard.runtime.bar import Bar
    from gpuguard.runtime.fleet import page, simulated

    names = [one for name in args.policy or [DEFAULT] for one in (FLEET_POLICIES if name == "all" else (name,))]
    runs = []
    for name in dict.fromkeys(names):
        with Bar(name, "node-days", shown=True if args.progress else None) as bar:
            node_days = args.node_days or FLEET_NODE_DAYS
            runs.append(simulated(name, node_days=node_days, seed=args.seed, show=bar.show))
    if args.json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(runs[0] if len(runs) == 1 else runs).decode() + "\n")
        return 0
    from gpuguard.runtime import words

    sys.stdout.write(words.page(page(runs)))
    return 0
