"""How this machine is wired: the matrix of GPUs and network cards, islands, and what is not as it should be.

Asks the agent that runs, else looks by itself; or reads anybody's `nvidia-smi topo -m` with --from-matrix FILE (- is
standard input). --best K names the K GPUs that work best together, --between tells what a choice of GPUs costs against
that, or how far a card is; GPUs are given as 0,3 or 0-3, as GPU0, by PCI address or by UUID. --diff compares with the
machine's profile and with what --learn once wrote; a machine of which neither is known is no fault. --format writes the
wiring for others: matrix (as nvidia-smi prints it), drawing, svg, gres and slurm-topology (Slurm), nccl-xml
(NCCL_TOPO_FILE), labels (Kubernetes).
Exit codes  0 as it should be, 1 something differs, 2 nothing is known or cannot be done, 64 usage error
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuguard.model.topology import Device, Topology
    from gpuguard.runtime.wiring import Wiring

EXAMPLE = "gpuguard topo --best 4"

# The longest text that is read as a matrix or a fabric file. Units: bytes
LIMIT = 4 * 1024 * 1024

# Any: the answer is JSON, which mixes types.
Facts = dict[str, Any]


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    from gpuguard.runtime.known import options

    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--format", choices=_formats(), metavar="F", help=f"write it as {', '.join(_formats())}")
    asked.add_argument("--diff", action="store_true", help="only what differs, a line each, and what is not known")
    asked.add_argument("--best", metavar="K", type=_size, help="the K GPUs that work best together")
    asked.add_argument("--between", metavar="A,B", type=_names, help="what these GPUs or cards have between them")
    asked.add_argument("--learn", action="store_true", help="write down this wiring as what is expected from now on")
    parser.add_argument("--free", metavar="A,B", type=_names, help="with --best: choose among these alone")
    parser.add_argument("--from-matrix", metavar="FILE", help="read the text of `nvidia-smi topo -m` instead")
    parser.add_argument("--profile", metavar="NAME", help="compare with this table of rules/topology/ (or `none`)")
    parser.add_argument("--fabric", metavar="FILE", help="switches of the network, for slurm-topology and labels")
    parser.add_argument("--node", metavar="NAME", help="the machine's name in the scheduler (default: its own)")
    parser.add_argument("--output", metavar="FILE", help="write there instead of to standard output")
    parser.add_argument("--force", action="store_true", help="with --learn: also with something amiss")
    options(parser)


def _formats() -> tuple[str, ...]:
    """The forms on the shelf, by the names of their files."""
    import pkgutil

    from gpuguard.topology import formats

    return tuple(sorted(entry.name.replace("_", "-") for entry in pkgutil.iter_modules(formats.__path__)))


def _size(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 64):
        raise ArgumentTypeError(f"{text!r} is no number of GPUs; give 1 to 64")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    """Names of GPUs, also as bare numbers and ranges of them."""
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise ArgumentTypeError(f"{text!r} is no list of GPUs; give them as GPU0,GPU1 or 0,1 or 0-3")
    return tuple(f"GPU{name}" if name.isdecimal() else name for part in names for name in _span(part))


def _span(text: str) -> list[str]:
    """The numbers of a range as Slurm prints it, 0-3; anything else is itself."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and len(text) <= 2 * len("000") + 1):
        return [text]
    if int(first) > int(last):
        raise ArgumentTypeError(f"{text!r} ends before it begins; give the lower number first")
    return [str(number) for number in range(int(first), int(last) + 1)]


def run(args: Namespace) -> int:
    """Answers what was asked.

    Raises  Absent where nothing is known of the wiring; NotUnderstood for a file in no form that is known
    """
    from gpuguard.errors import ConfigInvalid, UsageError

    if args.free and args.best is None:
        raise UsageError("--free goes with --best K: it says among which GPUs to choose")
    if args.learn and args.from_matrix:
        raise UsageError("--learn writes down this machine; what a matrix tells is too little to expect anything by")
    if args.force and not args.learn:
        raise UsageError("--force goes with --learn: it writes down also what is amiss")
    if args.json and args.format:
        raise UsageError("--format writes a form of its own: ask for it without --json")
    if args.learn and args.root != "/" and args.state_dir:
        raise UsageError(
            f"a recorded machine carries what was learned of it in its own folder, {args.root}, and --state-dir has no "
            "part in it; --output FILE writes it elsewhere"
        )
    wiring = _wiring(args)
    if args.free:
        args.free = tuple(_found(wiring.topology.gpus, name) for name in args.free)
    if args.between:
        args.between = tuple(_found(wiring.topology.devices, name) for name in args.between)
        if len(set(args.between)) == 1:
            raise UsageError("--between: name two devices or more")
    if args.learn:
        return _learn(args, wiring)
    if args.diff and wiring.mistakes:
        raise ConfigInvalid(list(wiring.mistakes))
    _write(args, _answer(args, wiring))
    if args.format or args.best or args.between:
        return 0
    return 2 if wiring.mistakes else 1 if wiring.differences else 0


def _wiring(args: Namespace) -> "Wiring":
    import dataclasses

    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.clock import SystemClock
    from gpuguard.runtime.known import config_path, is_remembered, state_dir
    from gpuguard.runtime.wiring import of_machine, of_matrix

    if args.from_matrix:
        host = None if args.from_matrix == "-" else Path(args.from_matrix).stem
        return of_matrix(_read(args.from_matrix), args.profile, host)
    root, parts = Path(args.root), assemble(config_path(args))
    memory = state_dir(args) if is_remembered(args) else None
    if memory is not None:
        parts = dataclasses.replace(parts, agent=dataclasses.replace(parts.agent, state_dir=str(memory)))
    return of_machine(parts, state_dir=memory, root=root, clock=SystemClock(root), profile=args.profile)


def _found(devices: "Sequence[Device]", name: str) -> str:
    """The device's name in the matrix, from that, its alias, its PCI address or its UUID.

    Raises  UsageError where it is none of these
    """
    from gpuguard.errors import UsageError
    from gpuguard.topology.names import listed

    asked = name.lower()
    for device in devices:
        uuid = device.gpu.uuid if device.gpu is not None else None
        pci = device.pci or ""
        known = (device.name, device.alias, uuid, pci, pci.removeprefix("0000:"))
        if asked in [word.lower() for word in known if word]:
            return device.name
    raise UsageError(f"no {name[:40]!r} here; there are {listed([device.name for device in devices]) or 'none'}")


def _answer(args: Namespace, wiring: "Wiring") -> str:
    if args.json:
        return _json(args, wiring)
    if args.format:
        return _formatted(args, wiring)
    if args.diff:
        return _lines([*_differences(wiring), *_notes(wiring.topology)])
    if args.best:
        return _lines([*_best(wiring.topology, args.best, args.free), *_notes(wiring.topology)])
    if args.between:
        return _lines([*_between(wiring.topology, args.between), *_notes(wiring.topology)])
    return _whole(wiring)


# --- for people ------------------------------------------------------------------------------------------------------


def _lines(lines: Iterable[str]) -> str:
    from gpuguard.runtime.words import page

    return page(lines)


def _whole(wiring: "Wiring") -> str:
    """The matrix where it fits the terminal, else the drawing; islands; notes; what differs."""
    import shutil

    from gpuguard.errors import Absent
    from gpuguard.runtime.words import paragraph
    from gpuguard.topology.formats import Wish, drawing, matrix
    from gpuguard.topology.islands import islands

    topology = wiring.topology
    try:
        cells = matrix.render(topology, Wish()).partition("\n\nLegend:")[0].rstrip("\n")
    except Absent:  # network cards alone, none with RDMA: nvidia-smi has no row for them, the drawing has
        cells = ""
    wide = max((len(line.expandtabs()) for line in cells.splitlines()), default=0)
    fits = cells and wide <= shutil.get_terminal_size((1 << 16, 24)).columns
    parts = [] if fits else [drawing.render(topology, Wish()).rstrip("\n"), ""]
    told = [line for island in islands(topology) for line in paragraph(island.words, hanging=2)]
    if fits:
        parts += [cells, "", *told, *_notes(topology), ""]
    return "\n".join(parts) + "\n" + _lines(_differences(wiring))


def _notes(topology: "Topology") -> Iterator[str]:
    """What is not known, and why."""
    from gpuguard.runtime.words import paragraph

    for note in topology.notes:
        yield from paragraph(f"note: {note}", hanging=2)


def _differences(wiring: "Wiring") -> Iterator[str]:
    """What differs, a line each, the most important first."""
    from gpuguard.runtime.words import paragraph

    learn = "" if wiring.layout is not None else "`gpuguard topo --learn` writes down what it is now, and "
    if wiring.mistakes:
        yield "What this machine should be is not known:"
        for mistake in wiring.mistakes:
            yield from paragraph(mistake, hanging=2)
        yield from paragraph("`gpuguard topo --learn` writes the learned profile anew.")
    elif wiring.expected is None:
        yield from paragraph(
            f"What this machine should be is not known, which is no fault: {learn}--profile NAME compares with a kind "
            "of machine."
        )
    elif wiring.expected.is_empty:
        yield from paragraph(
            f"Nothing is expected of {wiring.expected.title} by their kind, as each is built otherwise: {learn}"
            "--profile NAME compares with another kind."
        )
    elif not wiring.differences:
        yield from paragraph(f"Nothing differs from what is expected: {wiring.expected.title}.")
    else:
        for difference in wiring.differences:
            yield difference.words  # in one line however long it is, for whoever searches
        yield from paragraph(f"Compared with: {wiring.expected.title}.")


def _best(topology: "Topology", size: int, free: Sequence[str] | None) -> Iterator[str]:
    """The best subset, why it is, and where its cards and processors are."""
    from gpuguard.runtime.words import paragraph

    told = _chosen(topology, size, free)
    yield ",".join(told["gpus"])
    yield from paragraph(told["words"], indent=2, hanging=2)
    for name, reason in told["left_out"].items():
        yield from paragraph(f"left out: {name}, as {reason}", indent=2, hanging=2)
    if size > 1:
        yield from paragraph(f"ring: {', '.join(told['ring'])}", indent=2, hanging=2)
    for name in told["gpus"]:
        processors = told["cpus"][name]
        near = [*_card(topology, name, told["nics"][name]), *([f"CPUs {processors}"] if processors else [])]
        yield from paragraph(f"{name}: {', '.join(near) or 'no card and no CPUs are known'}", indent=2, hanging=2)


def _check_size(size: int, choice: Sequence[str], less: Mapping[str, str]) -> None:
    from gpuguard.errors import UsageError

    if size > len(choice):
        told = "".join(f"; {name} is left out, as {reason}" for name, reason in less.items())
        raise UsageError(f"{size} GPUs were asked for, and {len(choice)} can be given: ask for fewer{told}")


def _card(topology: "Topology", gpu: str, card: str | None) -> Iterator[str]:
    """The network card for the GPU, and how far it is."""
    if card is not None:
        place = topology.place(card)
        alias = topology.devices[place].alias
        far = topology.cell(topology.place(gpu), place)
        yield f"card {card}{f' ({alias})' if alias else ''}{f' {far}' if far else ''}"


def _between(topology: "Topology", names: Sequence[str]) -> Iterator[str]:
    """What each pair has, and what a choice of GPUs costs against the best one of its size."""
    from gpuguard.runtime.words import paragraph
    from gpuguard.topology.distance import cost, distance
    from gpuguard.topology.offered import offered
    from gpuguard.topology.subsets import Subsets

    places = [topology.place(name) for name in dict.fromkeys(names)]
    gpus = [place for place in places if topology.devices[place].kind == "gpu"]
    best: tuple[str, ...] = ()
    for one, other in combinations(places, 2):
        if one in gpus and other in gpus:
            told = cost(topology, one, other)
            best = told.best
            yield from paragraph(told.words if len(places) == 2 else told.alone, hanging=2)
        else:
            yield from paragraph(distance(topology, one, other).words, hanging=2)
    if best and len(places) > 2:
        words = distance(topology, *map(topology.place, best)).words
        yield from paragraph(f"the best pair: {words}", hanging=2)
    choice = offered(topology)
    if 1 < len(gpus) <= len(choice):
        chosen = Subsets(topology).best(len(gpus), choice)
        yield from paragraph(f"the best {len(gpus)} of this machine: {', '.join(chosen)}", hanging=2)


# --- for programs ----------------------------------------------------------------------------------------------------


def _json(args: Namespace, wiring: "Wiring") -> str:
    import json

    import msgspec

    from gpuguard.topology.facts import facts
    from gpuguard.topology.islands import islands
    from gpuguard.topology.near import nics_of
    from gpuguard.topology.offered import offered
    from gpuguard.topology.placement import placement
    from gpuguard.topology.subsets import Subsets

    topology = wiring.topology
    subsets = Subsets(topology).table(offered(topology, args.free))
    answer: Facts = {
        **facts(topology, wiring.layout),
        "islands": [
            {"kind": island.kind, "members": list(island.members), "words": island.words}
            for island in islands(topology)
        ],
        "best": {str(size): list(names) for size, names in subsets.items()},
        "differences": [
            {
                "kind": difference.kind, "subject": difference.subject, "device": difference.device,
                "expected": difference.expected, "found": difference.found, "words": difference.words,
            }
            for difference in wiring.differences
        ],
        "profile": None if wiring.expected is None else wiring.expected.title, "notes": list(topology.notes),
        "placement": placement(topology), "distances": _distances(topology), "graph": msgspec.to_builtins(topology),
        "nics_by_distance": {gpu.name: list(nics_of(topology, gpu.name)) for gpu in topology.gpus},
        "mistakes": list(wiring.mistakes),
    }  # fmt: skip
    if args.best:
        answer["chosen"] = _chosen(topology, args.best, args.free)
    if args.between:
        answer["between"] = _pairs(topology, args.between)
    return json.dumps(answer) + "\n"


def _distances(topology: "Topology") -> list[Facts]:
    """How far each two devices are: as nvidia-smi says it, in hops, and as a bandwidth in bytes per second, one way."""
    from gpuguard.topology.distance import distance

    found = []
    for one, other in combinations(range(len(topology.devices)), 2):
        far = distance(topology, one, other)
        found.append({
            "pair": [topology.devices[one].name, topology.devices[other].name], "cell": far.cell, "level": far.level,
            "way": far.kind, "hops": far.hops, "bytes_per_second": far.bytes_per_second,
        })  # fmt: skip
    return found


def _chosen(topology: "Topology", size: int, free: Sequence[str] | None) -> Facts:
    """What --best answers."""
    from gpuguard.topology.near import cpus_of, spread
    from gpuguard.topology.offered import offered, withheld
    from gpuguard.topology.rings import ring
    from gpuguard.topology.subsets import Subsets

    subsets, choice, less = Subsets(topology), offered(topology, free), withheld(topology, free)
    _check_size(size, choice, less)
    chosen = subsets.best(size, choice)
    return {
        "gpus": list(chosen), "words": subsets.why(size, choice), "left_out": less,
        "ring": list(ring(topology, chosen)), "nics": spread(topology, chosen),
        "cpus": {name: cpus_of(topology, name) for name in chosen},
    }  # fmt: skip


def _pairs(topology: "Topology", names: Sequence[str]) -> list[Facts]:
    """What --between answers; `ratio` is of the bandwidth that the best pair of GPUs has, null for other devices."""
    from gpuguard.topology.distance import cost, distance

    found: list[Facts] = []
    for pair in combinations(dict.fromkeys(names), 2):
        one, other = map(topology.place, pair)
        if all(topology.devices[place].kind == "gpu" for place in (one, other)):
            told = cost(topology, one, other)
            found.append({"pair": list(pair), "best": list(told.best), "ratio": told.ratio, "words": told.words})
        else:
            words = distance(topology, one, other).words
            found.append({"pair": list(pair), "best": None, "ratio": None, "words": words})
    return found


def _formatted(args: Namespace, wiring: "Wiring") -> str:
    import importlib

    from gpuguard.topology.formats import Wish, matrix

    if args.format == "matrix" and wiring.layout is not None:
        return matrix.render_as(wiring.topology, wiring.layout)
    form = importlib.import_module(f"gpuguard.topology.formats.{args.format.replace('-', '_')}")
    fabric = _read(args.fabric) if args.fabric else None
    text: str = form.render(wiring.topology, Wish(node=args.node or _own_name(args, wiring), fabric=fabric))
    return text


def _own_name(args: Namespace, wiring: "Wiring") -> str | None:
    """The machine's name; that of a file with a matrix is none that a scheduler knows."""
    return None if args.from_matrix else wiring.topology.host


# --- learning, reading, writing --------------------------------------------------------------------------------------


def _learn(args: Namespace, wiring: "Wiring") -> int:
    """What the machine is now is written down, unless something is amiss with it.

    Raises  ActionRefused where something is amiss, or the file cannot be written
    """
    import os

    from gpuguard.errors import ActionRefused
    from gpuguard.runtime.clock import SystemClock
    from gpuguard.runtime.words import date, paragraph
    from gpuguard.sources.topology import MOST_LEARNED
    from gpuguard.topology.learning import doubts, learn

    amiss = doubts(wiring.topology, wiring.kind)
    for words in amiss:
        sys.stderr.write(f"gpuguard topo: {words}\n")
    if amiss and not args.force:
        raise ActionRefused("nothing was learned: mend what is amiss first, or write it down as it is with --force")
    text = learn(wiring.topology, date(SystemClock(Path(args.root)).now().utc)[:10])
    if len(text.encode()) > MOST_LEARNED:
        raise ActionRefused(
            f"nothing was learned: what {len(wiring.topology.devices)} devices have is more than is read"
        )
    if args.output == "-":
        sys.stdout.write(text)
        return 1 if amiss else 0
    path = Path(os.path.realpath(args.output or _learned(args)))  # what a link leads to may be on another disk
    if path.exists() and not path.is_file():
        raise ActionRefused(f"{path} is there and no file; remove it, or name another place with --output")
    before = path.with_name(f"{path.name}.before") if path.exists() else None
    _replace(path, text, before)
    path.chmod(0o644)  # the agent reads it as another user
    kept = f" What was expected before is in {before}." if before else ""
    told = f"{path}: {len(wiring.topology.devices)} devices are expected here from now on.{kept}"
    sys.stdout.write(_lines(paragraph(told, hanging=2)))
    return 1 if amiss else 0


def _learned(args: Namespace) -> Path:
    """Where the source looks for what was learned: in the memory, or beside a recorded machine."""
    from gpuguard.runtime.known import state_dir
    from gpuguard.sources.topology import LEARNED

    return (state_dir(args) if args.root == "/" else Path(args.root)) / LEARNED


def _replace(path: Path, text: str, before: Path | None = None) -> None:
    """The file says this, or what it said; `before` is what it said. A link stays one, and so does a device.

    Raises  ActionRefused when it cannot be written
    """
    import os

    from gpuguard.errors import ActionRefused

    try:
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8") as device:  # /dev/stdout, or a pipe of the shell
                device.write(text)
            return
        target = Path(os.path.realpath(path))
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        try:
            with fresh.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                fresh.chmod(target.stat().st_mode & 0o777)
            if before is not None:
                before.unlink(missing_ok=True)
                os.link(target, before)
            fresh.replace(target)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        raise ActionRefused(
            f"cannot write {path}: {getattr(error, 'strerror', None) or error}; name another place with --output"
        ) from error


def _read(name: str) -> str:
    """The text of a file that a person named; - is standard input.

    Raises  ReadFailed when it cannot be read, or is longer than any such text
    """
    from gpuguard.errors import ReadFailed
    from gpuguard.runtime.files import read_regular

    try:
        if name == "-":
            data = sys.stdin.buffer.read(LIMIT + 1)
            if len(data) > LIMIT:
                raise ReadFailed(f"standard input has more than {LIMIT} bytes; give one matrix alone")
        else:
            data, _ = read_regular(name, LIMIT)
    except OSError as error:
        raise ReadFailed(
            f"{name} cannot be read: {error.strerror or error}; name a file of text, or - for standard input"
        ) from error
    # What a shell of Windows writes is UTF-16, with a mark that says so.
    return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace")


def _write(args: Namespace, text: str) -> None:
    if args.output and args.output != "-":
        _replace(Path(args.output), text)
    else:
        sys.stdout.write(text)
