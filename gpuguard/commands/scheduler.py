"""Our tiers, queues, levels and preemption, written for another scheduler.

render --for slurm writes lines of slurm.conf to include and a script of sacctmgr that makes the QOS; render --for
volcano writes queues, priority classes and the scheduler's configuration as one YAML. What the other scheduler cannot
do stands in the comments. Nothing is changed on this machine. The scheduler itself does not run yet: `render` is all
there is.
Exit codes  0 written, 2 a name or a file cannot be used, 64 usage error
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuguard.scheduler.renderings import Rendering, Wish

EXAMPLE = "gpuguard scheduler render --for slurm --gpus 1040"

# The longest list of nodes that is read. Units: bytes
LIMIT = 16 * 1024 * 1024


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("what", choices=("render",), metavar="render", help="write the rules for another scheduler")
    parser.add_argument("--for", dest="target", choices=_targets(), required=True, help="for whom")
    parser.add_argument("--gpus", metavar="N", type=_count, help="GPUs in the cluster, for the cap on the high level")
    parser.add_argument(
        "--nodes", metavar="FILE", help="a node list (CSV, may be .gz) with gpus and mem: counts them instead"
    )
    parser.add_argument(
        "--pool", metavar="POOL=NODES", type=_pool, action="append", default=[],
        help="nodes of a pool as Slurm lists them, as interactive=node[1-2]",
    )  # fmt: skip
    parser.add_argument("--output", metavar="FOLDER", help="write the files there instead of to standard output")
    parser.add_argument("--only", metavar="FILE", help="print this one of the files alone")
    parser.add_argument("--json", action="store_true", help="print JSON: the files, and what is in them")


def _targets() -> tuple[str, ...]:
    """The schedulers on the shelf, by the names of their files."""
    import pkgutil

    from gpuguard.scheduler import renderings

    return tuple(sorted(entry.name for entry in pkgutil.iter_modules(renderings.__path__)))


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 10_000_000):
        raise ArgumentTypeError(f"{text!r} is no number of GPUs; give how many the cluster has")
    return int(text)


def _pool(text: str) -> tuple[str, str]:
    pool, equals, nodes = text.partition("=")
    if not (pool and equals and nodes):
        raise ArgumentTypeError(f"{text!r} names no pool and its nodes; give it as interactive=node[1-2]")
    return pool, nodes


def run(args: Namespace) -> int:
    """Writes the rendering.

    Raises  UsageError for options that do not go together; ReadFailed, NotUnderstood for a list of nodes; ActionRefused
            for a folder that cannot be written
    """
    import importlib

    from gpuguard.errors import UsageError
    from gpuguard.scheduler.settings import Settings

    if args.gpus is not None and args.nodes is not None:
        raise UsageError("--nodes counts the GPUs: leave out --gpus")
    if args.output is not None and (args.json or args.only):
        raise UsageError("--output writes all files: leave out --json and --only")
    if args.pool and args.target != "slurm":
        raise UsageError("--pool is for Slurm; on Kubernetes the nodes of a pool have a label, as the file says")
    module = importlib.import_module(f"gpuguard.scheduler.renderings.{args.target}")
    rendering: Rendering = module.render(Settings(), _wish(args))
    if args.only is not None and args.only not in rendering.files:
        raise UsageError(f"--only: there is no {args.only}; there is {' and '.join(rendering.files)}")
    if args.output is not None:
        return _written(Path(args.output), rendering)
    sys.stdout.write(_printed(args, rendering))
    return 0


def _wish(args: Namespace) -> "Wish":
    from gpuguard.scheduler.renderings import Wish

    gpus, memory = args.gpus, None
    if args.nodes is not None:
        gpus, memory = _counted(args.nodes)
    return Wish(gpus=gpus, memory=memory, nodes=dict(args.pool))


def _counted(name: str) -> tuple[int, int | None]:
    """How many GPUs a node list has, and the least memory that a node has for each of its GPUs.

    Units   MiB
    Raises  ReadFailed, NotUnderstood with line and column
    """
    import csv
    import gzip
    import zlib

    from gpuguard.errors import NotUnderstood, ReadFailed
    from gpuguard.runtime.files import read_regular

    try:
        data, _ = read_regular(name, LIMIT)
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ReadFailed(f"{name} cannot be read: {reason}; name a CSV of nodes, plain or .gz") from error
    rows = csv.DictReader(text.splitlines())
    if "gpus" not in (rows.fieldnames or ()):
        raise NotUnderstood(
            f"{name}, line 1: there is no column gpus; its first line must name the columns", text[:200]
        )
    total, parts = 0, []
    for row in rows:
        for column in ("gpus", "mem"):
            value = row.get(column) or ""
            if value and not (value.isascii() and value.isdecimal()):
                raise NotUnderstood(f"{name}, line {rows.line_num}, column {column}: {value!r} is no number", value)
        gpus = int(row["gpus"] or 0)
        total += gpus
        if gpus:
            parts.append(int(row.get("mem") or 0) // gpus)
    if not total:
        raise NotUnderstood(
            f"{name}: no node of it has a GPU; name a list that has some in the column gpus", text[:200]
        )
    return total, min(parts) or None


def _printed(args: Namespace, rendering: "Rendering") -> str:
    files = rendering.files if args.only is None else {args.only: rendering.files[args.only]}
    if args.json:
        import json

        return json.dumps({"for": args.target, "files": dict(files), **rendering.facts}) + "\n"
    if len(files) == 1:
        return next(iter(files.values()))
    return "\n".join(f"# ==> {name} <==\n{text}" for name, text in files.items())


def _written(folder: Path, rendering: "Rendering") -> int:
    from gpuguard.errors import ActionRefused

    for name, text in rendering.files.items():
        try:
            path = folder / name
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if name.endswith(".sh") else 0o644)
        except OSError as error:
            raise ActionRefused(
                f"cannot write {folder / name}: {error.strerror}; name a folder that is there"
            ) from error
        sys.stdout.write(f"{path}\n")
    return 0
