"""How this machine is wired: the matrix of GPUs and network cards, islands, and what is not as it should be.

Asks the agent that runs, else looks by itself; or reads anybody's `nvidia-smi topo -m` with --from-matrix FILE (- is
standard input). --best K names the K GPUs that work best together, --between tells what a choice of GPUs costs against
that. --diff compares with the machine's profile and with what --learn once wrote; a machine of which neither is known
is no fault. --format writes the wiring for others: matrix (as nvidia-smi prints it), drawing, svg, gres and
slurm-topology (Slurm), nccl-xml (NCCL_TOPO_FILE), labels (Kubernetes).
Exit codes  0 as it should be, 1 something differs, 2 nothing is known or cannot be done, 64 usage error
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuguard.model.topology import Topology
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
    asked.add_argument("--diff", action="store_true", help="only what differs, a line each")
    asked.add_argument("--best", metavar="K", type=_size, help="the K GPUs that work best together")
    asked.add_argument("--between", metavar="A,B", type=_names, help="what these GPUs have between them")
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
    """Names of GPUs, also as bare numbers."""
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise ArgumentTypeError(f"{text!r} is no list of GPUs; give them as GPU0,GPU1 or 0,1")
    return tuple(f"GPU{name}" if name.isdecimal() else name for name in names)


def run(args: Namespace) -> int:
    """Answers what was asked.

    Raises  Absent where nothing is known of the wiring; NotUnderstood for a file in no form that is known
    """
    from gpuguard.errors import ConfigInvalid, UsageError

    if args.free and args.best is None:
        raise UsageError("--free goes with --best K: it says among which GPUs to choose")
    if args.learn and args.from_matrix:
        raise UsageError("--learn writes down this machine; what a matrix tells is too little to expect anything by")
    wiring = _wiring(args)
    for name in (*(args.free or ()), *(args.between or ())):
        _check_name(wiring.topology, name)
    if args.between and len(set(args.between)) == 1:
        raise UsageError("--between: name two GPUs or more")
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


def _check_name(topology: "Topology", name: str) -> None:
    from gpuguard.errors import UsageError

    known = [gpu.name for gpu in topology.gpus]
    if name not in known:
        raise UsageError(f"no GPU {name[:40]!r} here; there are {', '.join(known) or 'none'}")


def _answer(args: Namespace, wiring: "Wiring") -> str:
    if args.json:
        return _json(args, wiring)
    if args.format:
        return _formatted(args, wiring)
    if args.diff:
        return _lines(_differences(wiring))
    if args.best:
        return _lines(_best(wiring.topology, args.best, args.free))
    if args.between:
        return _lines(_between(wiring.topology, args.between))
    return _whole(wiring)


# --- for people ------------------------------------------------------------------------------------------------------


def _lines(lines: Iterable[str]) -> str:
    from gpuguard.runtime.words import page

    return page(lines)


def _whole(wiring: "Wiring") -> str:
    """The matrix where it fits the terminal, else the drawing; islands; notes; what differs."""
    import shutil

    from gpuguard.runtime.words import paragraph
    from gpuguard.topology.formats import Wish, drawing, matrix
    from gpuguard.topology.islands import islands

    topology = wiring.topology
    cells = matrix.render(topology, Wish()).partition("\n\nLegend:")[0].rstrip("\n")
    wide = max(len(line.expandtabs()) for line in cells.splitlines())
    fits = wide <= shutil.get_terminal_size((1 << 16, 24)).columns
    parts = [] if fits else [drawing.render(topology, Wish()).rstrip("\n"), ""]
    told = [line for island in islands(topology) for line in paragraph(island.words, hanging=2)]
    notes = [line for note in topology.notes for line in paragraph(f"not known: {note}", hanging=2)]
    if fits:
        parts += [cells, "", *told, *notes, ""]
    return "\n".join(parts) + "\n" + _lines(_differences(wiring))


def _differences(wiring: "Wiring") -> Iterator[str]:
    """What differs, a line each, the most important first."""
    from gpuguard.runtime.words import paragraph

    if wiring.mistakes:
        yield "What this machine should be is not known:"
        for mistake in wiring.mistakes:
            yield from paragraph(mistake, hanging=2)
        yield from paragraph("`gpuguard topo --learn` writes the learned profile anew.")
    elif wiring.expected is None:
        yield from paragraph(
            "What this machine should be is not known, which is no fault: `gpuguard topo --learn` writes down what it "
            "is now, and --profile NAME compares with a kind of machine."
        )
    elif not wiring.differences:
        yield from paragraph(f"As it should be: {wiring.expected.title}.")
    else:
        for difference in wiring.differences:
            yield from paragraph(difference.words, hanging=2)
        yield from paragraph(f"Compared with: {wiring.expected.title}.")


def _best(topology: "Topology", size: int, free: Sequence[str] | None) -> Iterator[str]:
    """The best subset, why it is, and where its cards and processors are."""
    from gpuguard.runtime.words import paragraph
    from gpuguard.topology.near import cpus_of
    from gpuguard.topology.rings import ring
    from gpuguard.topology.subsets import Subsets

    subsets = Subsets(topology)
    chosen = subsets.best(size, free)
    yield ",".join(chosen)
    yield from paragraph(subsets.why(size, free), indent=2, hanging=2)
    if size > 1:
        yield from paragraph(f"ring: {', '.join(ring(topology, chosen))}", indent=2, hanging=2)
    for name in chosen:
        processors = cpus_of(topology, name)
        told = [*_nearest_card(topology, name), *([f"CPUs {processors}"] if processors else [])]
        yield from paragraph(f"{name}: {', '.join(told) or 'no card and no CPUs are known'}", indent=2, hanging=2)


def _nearest_card(topology: "Topology", gpu: str) -> Iterator[str]:
    """The network card that is best for the GPU, and how far it is."""
    from gpuguard.topology.near import nics_of

    for name in nics_of(topology, gpu)[:1]:
        place = topology.place(name)
        alias = topology.devices[place].alias
        far = topology.cell(topology.place(gpu), place)
        yield f"card {name}{f' ({alias})' if alias else ''}{f' {far}' if far else ''}"


def _between(topology: "Topology", names: Sequence[str]) -> Iterator[str]:
    """What each pair has, and what the choice costs against the best one of its size."""
    from itertools import combinations

    from gpuguard.runtime.words import paragraph
    from gpuguard.topology.distance import cost
    from gpuguard.topology.subsets import Subsets

    for one, other in combinations(dict.fromkeys(names), 2):
        yield from paragraph(cost(topology, topology.place(one), topology.place(other)).words, hanging=2)
    best = Subsets(topology).best(len(set(names)))
    yield from paragraph(f"the best {len(best)} of this machine: {', '.join(best)}", hanging=2)


# --- for programs ----------------------------------------------------------------------------------------------------


def _json(args: Namespace, wiring: "Wiring") -> str:
    import json

    from gpuguard.topology.facts import facts
    from gpuguard.topology.islands import islands
    from gpuguard.topology.placement import placement
    from gpuguard.topology.subsets import Subsets

    topology = wiring.topology
    subsets = Subsets(topology).table(args.free)
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
        "mistakes": list(wiring.mistakes), "placement": placement(topology),
    }  # fmt: skip
    return json.dumps(answer) + "\n"


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
    from gpuguard.topology.profiles import doubts, learn

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
        raise ReadFailed(f"{name} cannot be read: {error.strerror or error}; name a file of text") from error
    # What a shell of Windows writes is UTF-16, with a mark that says so.
    return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace")


def _write(args: Namespace, text: str) -> None:
    if args.output and args.output != "-":
        _replace(Path(args.output), text)
    else:
        sys.stdout.write(text)
