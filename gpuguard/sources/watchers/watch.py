"""What is watched for a rank: said by the site, by a file that the job's scheduler drops, or by the job itself.

Shape   of a file: TOML with the keys of Watch, or several tables [[watch]] of them:
            job = "slurm/8123"
            rank = 0
            log = "/srv/run7/train.log"
            pattern = "iteration\\\\s+(\\\\d+)/"
        of an environment: GPUGUARD_WATCH_FILE, _LOG, _PATTERN, _CHECKPOINTS
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from gpuguard.errors import NotUnderstood
from gpuguard.model.ids import JobId
from gpuguard.model.jobs import Keeper, job_id
from gpuguard.sources.watchers.patterns import Pattern

PREFIX = "GPUGUARD_WATCH_"
KEEPERS: tuple[Keeper, ...] = ("slurm", "kubernetes", "gpuguard", "systemd", "docker")
# Where launchers write the number of a rank and how many there are: PyTorch, Slurm, Open MPI, MPICH.
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
WORLD_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
TEXT = 4096  # the longest path of Linux
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**24)]
_Text = Annotated[str, msgspec.Meta(max_length=TEXT)]


class Watch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is watched for one rank. `file` is touched, or holds the number of the step; `log` grows; `pattern` recurs
    in it; `checkpoints` is a folder in which one complete checkpoint after the other turns up. With `uid` only what
    that user owns is read: whoever writes down a path that somebody else named must say whose it may be."""

    job: _Text
    rank: _Number = 0
    world: Annotated[int, msgspec.Meta(ge=1, le=2**24)] | None = None
    pid: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
    uid: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] | None = None
    file: _Text = ""
    log: _Text = ""
    pattern: _Text = ""
    checkpoints: _Text = ""

    def check(self) -> None:
        """It can be watched.

        Raises  NotUnderstood with what is wrong
        """
        if not self.job:
            raise NotUnderstood("job: must be named")
        if self.pattern and not self.log:
            raise NotUnderstood("pattern: needs the log that it recurs in")
        if not (self.file or self.log or self.checkpoints):
            raise NotUnderstood("file, log or checkpoints must be named")
        if any("\0" in text for text in (self.job, self.file, self.log, self.checkpoints)):
            raise NotUnderstood("a name without NUL is needed")
        if self.pattern:
            Pattern(self.pattern)


def named(job: str, uid: int) -> JobId:
    """The job's id, by whoever has a right to name it: that of a keeper, or of a user's own word."""
    for keeper in KEEPERS:
        if job.startswith(f"{keeper}/") and job != f"{keeper}/":
            return job_id(keeper, job.removeprefix(f"{keeper}/"))
    return job_id("claimed", f"{uid}-{job}")


def of_table(table: Mapping[str, object]) -> Watch:
    """What one table says.

    Raises  NotUnderstood with the key that is wrong
    """
    try:
        watch = msgspec.convert(dict(table), Watch)
    except msgspec.ValidationError as error:
        raise NotUnderstood(str(error)) from error
    watch.check()
    return watch


def of_file(text: bytes) -> tuple[Watch, ...]:
    """What a dropped file says.

    Raises  NotUnderstood for the whole file when any of it is wrong
    """
    try:
        tree = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:  # of the first, a number of too many digits is no mistake of TOML's
        raise NotUnderstood(f"no TOML: {error}") from error
    tables = tree.pop("watch", None)
    if tables is None:
        return (of_table(tree),)
    if tree or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise NotUnderstood("either the keys of one watch or tables [[watch]] are needed, not both")
    return tuple(of_table(table) for table in tables)


def of_environment(variables: Mapping[str, str], job: JobId, pid: int) -> Watch | None:
    """What a process asks for by its environment; None where it asks for nothing.

    Raises  NotUnderstood where what it asks for cannot be watched
    """
    asked = {name: variables.get(PREFIX + name.upper(), "") for name in ("file", "log", "pattern", "checkpoints")}
    if not any(asked.values()):
        return None
    rank = _number(variables, RANK_VARIABLES)
    world = _number(variables, WORLD_VARIABLES)
    return of_table(
        {"job": job, "rank": rank or 0, "pid": pid, **asked, **({"world": world} if world else {})}
    )  # fmt: skip


def variables_of(environ: bytes) -> dict[str, str]:
    """The variables that are of use here. Shape: NAME=value, each ended by a NUL"""
    wanted = (*RANK_VARIABLES, *WORLD_VARIABLES)
    found = {}
    for one in environ.split(b"\0"):
        name, _, value = one.decode("utf-8", "surrogateescape").partition("=")
        if name.startswith(PREFIX) or name in wanted:
            found[name] = value
    return found


def _number(variables: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = variables.get(name, "")
        if text.isascii() and text.isdigit() and len(text) <= 8:
            return int(text)
    return None


def absolute(path: str, proc: Path) -> str:
    """The path as the process itself sees it: within its container, from the folder that it works in."""
    return f"{proc}/root{path}" if path.startswith("/") else f"{proc}/cwd/{path}"
