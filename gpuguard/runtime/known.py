"""What is known here, for commands: from the memory, from the snapshot, and whether an agent runs.

Nothing here needs root or a running agent. What cannot be read is told with its reason, and the rest is still there.
"""

import os
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpuguard.errors import Absent, NotUnderstood, ReadFailed, StoreFailed, UsageError
from gpuguard.health.state import Health, restore
from gpuguard.model.events import Cursor
from gpuguard.model.health import Snapshot, SubjectHealth
from gpuguard.model.ids import NODE, PciAddress, TokenId, gpu, kind_of, nvswitch, parse_pci_address
from gpuguard.model.instants import Instant
from gpuguard.model.jobs import names_of
from gpuguard.model.story import OwedAction
from gpuguard.ports import Clock
from gpuguard.runtime import assembly, cache
from gpuguard.runtime.config import load_config
from gpuguard.store.lock import LOCK_NAME, holder_of
from gpuguard.store.reader import DATABASE_NAME, SqliteReader, open_reader

_SHORT_PCI = re.compile(r"[0-9a-f]{2}:[0-9a-f]{2}(\.[0-7])?", re.IGNORECASE | re.ASCII)
_INDEX = re.compile(r"(?:gpu)?(\d{1,3})", re.IGNORECASE | re.ASCII)
# Fewer digits of a UUID could be meant for another GPU.
_UUID_MIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What could be learned.

    `snapshot` is what an agent last published, `age` how long ago it gave a sign of life (seconds), `started` when the
    running agent took its lock (seconds since 1970). `health`, `actions` and `cursors` are from the memory on disk;
    without a `reader`, `problem` tells why there are none; it is `private` when this user is the reason, who may not
    read them.
    """

    state_dir: Path
    now: Instant
    alive: bool
    pid: int | None
    started: float | None
    snapshot: Snapshot | None
    age: float | None
    health: Health | None
    actions: tuple[OwedAction, ...]
    cursors: Mapping[str, Cursor]
    reader: SqliteReader | None
    problem: str | None
    private: bool = False

    @property
    def hangs(self) -> bool:
        """Whether an agent runs and has given no sign of life for longer than it may."""
        return self.alive and self.age is not None and self.age > cache.STALE_AFTER

    def memory(self) -> tuple[SqliteReader, Health]:
        """The memory.

        Raises  StoreFailed, with the reason and the next step, when it could not be read
        """
        if self.reader is None or self.health is None:
            raise StoreFailed(self.problem or f"{self.state_dir} cannot be read")
        return self.reader, self.health

    def close(self) -> None:
        """The memory's file is free."""
        if self.reader is not None:
            self.reader.close()


def options(parser: ArgumentParser) -> None:
    """The options that all these commands share."""
    parser.add_argument("--state-dir", metavar="DIR", help="the agent's memory (default: what the configuration says)")
    parser.add_argument("--config", metavar="FILE", help="configuration (default: /etc/gpuguard/config.toml)")
    parser.add_argument(
        "--root", metavar="DIR", type=_folder, default="/", help="a recorded machine instead of this one"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _folder(text: str) -> str:
    if not os.path.isdir(text):
        raise ArgumentTypeError(f"{text} is no directory; a recorded machine is one, as fixtures/nodes/h100x8 is")
    return text


def config_path(args: Namespace) -> Path | None:
    """The configuration that was named, None for the usual one."""
    return Path(args.config) if args.config else None


def is_remembered(args: Namespace) -> bool:
    """Whether there is a memory to ask: this machine has one, a recorded machine only where one is named for it."""
    return args.root == "/" or bool(args.state_dir or args.config)


def state_dir(args: Namespace) -> Path:
    """Where the memory is.

    Raises  UsageError for a recorded machine whose memory is not named: this machine's is another's;
            ConfigInvalid when the configuration must be asked and cannot be read
    """
    if not is_remembered(args):
        raise UsageError(
            f"this machine's memory is not that of {args.root}; `gpuguard agent --root {args.root} --state-dir DIR "
            "--once` makes one, then ask with --state-dir DIR; `gpuguard check` and `gpuguard gpus` need none"
        )
    if args.state_dir:
        return Path(args.state_dir)
    settings = load_config(config_path(args), {"agent": assembly.Settings}, whole=False).settings("agent")
    return Path(settings.state_dir)


def look_up(folder: Path, clock: Clock) -> Known:
    """Everything that can be learned from the state directory; whoever asks closes it."""
    now = clock.now()
    alive = cache.agent_runs(str(folder))
    snapshot, age = _snapshot(folder)
    reader: SqliteReader | None = None
    problem: str | None = None
    health: Health | None = None
    actions: tuple[OwedAction, ...] = ()
    cursors: Mapping[str, Cursor] = {}
    try:
        reader = open_reader(folder / DATABASE_NAME)
        actions, cursors = reader.actions(), reader.cursors()
        # Memories of detectors are theirs alone: nobody but the agent needs them.
        health = restore(reader.load_state(), (), now)
    except (Absent, ReadFailed, StoreFailed, NotUnderstood) as error:
        problem = str(error)
    except msgspec.ValidationError as error:
        problem = f"{folder / DATABASE_NAME} was written by another version ({error}); use that version's commands"
    if problem is not None and reader is not None:
        reader.close()
        reader = None
    return Known(
        state_dir=folder, now=now, alive=alive, pid=holder_of(folder) if alive else None,
        started=_changed_at(folder / LOCK_NAME) if alive else None, snapshot=snapshot, age=age, health=health,
        actions=actions, cursors=cursors, reader=reader, problem=problem,
        private=problem is not None and _may_not_read(folder / DATABASE_NAME),
    )  # fmt: skip


def _snapshot(folder: Path) -> tuple[Snapshot | None, float | None]:
    found = cache.read(str(folder))
    if found is None:
        return None, None
    raw, age = found
    try:
        return msgspec.convert(raw, Snapshot), age
    except msgspec.ValidationError:
        return None, age


def _may_not_read(path: Path) -> bool:
    try:
        return path.exists() and not os.access(path, os.R_OK)
    except PermissionError:  # not even the folder may be looked into
        return True


def _changed_at(path: Path) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


# --- whom a person means ----------------------------------------------------------------------------------------------


def find_subject(health: Health, text: str) -> SubjectHealth:
    """The subject that a person names: `node`, an index, an address in any spelling, a UUID or its beginning, a serial;
    a job by its id, or by the part of it after the keeper.

    GPUs that were taken out are found by UUID and serial.
    Raises  NotUnderstood when there is none, with those that are known
    """
    for subject in [*health.subjects.values(), *health.retired.values()]:
        if _is_meant(subject, text.strip()):
            return subject
    if text.strip().lower() == "node":
        return health.subject(NODE)
    jobs = [
        subject
        for name, subject in health.subjects.items()
        if kind_of(name) == "job" and text.strip() in names_of(name.removeprefix("job:"))
    ]
    if len(jobs) == 1:
        return jobs[0]
    known = sorted(health.subjects)
    if len(jobs) > 1:
        raise NotUnderstood(f"{text[:40]!r} may be any of {', '.join(job.id for job in jobs)}; name one", text)
    whom = f"no GPU {text[:40]!r} is known"
    if "/" in text:
        whom = f"no job that anything ever stood against is called {text[:96]!r}"
    raise NotUnderstood(
        f"{whom} here; known are {', '.join(_spellings(health)) or 'none yet'}"
        + ("" if known else ": the agent learns them from the kernel log"),
        text,
    )


def find_token(text: str) -> TokenId | None:
    """The token when the text looks like one, None else."""
    text = text.removeprefix("gpuguard:")
    is_token = re.fullmatch(r"[0-9a-f]{4}", text, re.ASCII) is not None
    return TokenId(text) if is_token else None


def _is_meant(subject: SubjectHealth, text: str) -> bool:
    if subject.id in (text, text.lower()) or (subject.serial is not None and subject.serial == text):
        return True
    if (index := _INDEX.fullmatch(text)) and subject.index is not None:
        return subject.index == int(index[1])
    if subject.uuid is not None and len(text) >= _UUID_MIN:
        plain = text.lower().removeprefix("gpu-")
        if plain and subject.uuid.lower().removeprefix("gpu-").startswith(plain):
            return True
    address = _address(text)
    return address is not None and subject.id in (gpu(address), nvswitch(address))


def _address(text: str) -> PciAddress | None:
    full = f"0000:{text}" if _SHORT_PCI.fullmatch(text) else text
    try:
        return parse_pci_address(full)
    except NotUnderstood:
        return None


def _spellings(health: Health) -> Iterator[str]:
    for name in sorted(health.subjects):
        subject = health.subjects[name]
        number = f"{subject.index} " if subject.index is not None else ""
        switch = " (NVSwitch)" if kind_of(name) == "nvswitch" else ""
        yield f"{number}{subject.pci or name}{switch}"
    for uuid in sorted(health.retired):
        yield f"{uuid} (taken out)"
