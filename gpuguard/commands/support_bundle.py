"""One file for support: status, the story, the kernel's lines, the configuration in force; at most 50 MB.

What cannot be had (no agent, a damaged memory, no right to read the kernel log) is named in MANIFEST with the reason,
and the rest is there all the same. Left out: the environment, and every setting that may be a secret. The host's name
is replaced unless `--keep-names`.
Exit codes  0 written and complete, 1 written with parts missing, 2 not written, 64 usage error
"""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuguard.runtime.bundle import LIMIT, Part, write_bundle

if TYPE_CHECKING:
    from gpuguard.model.story import StoryEntry
    from gpuguard.ports import Clock, StoreReader

EXAMPLE = "gpuguard support-bundle --output /tmp/node7.tar.gz"

# Kernel lines that are kept, the newest of them.
KERNEL_BYTES: Final = 8 * 1024 * 1024
KERNEL_SECONDS: Final = 3.0
# One question to gpuguard itself; `status --live` may wait 10 s for the actuator and 5 s for the scheduler.
ANSWER_SECONDS: Final = 30.0
NOTHING_KNOWN: Final = 2  # what `topo` ends with where there is no wiring to show
EVENTS_A_FILE: Final = 2000
STORY: Final = 100_000

SECRET: Final = r"password|passwd|secret|token|key|credential"
KERNEL_WORDS: Final = r"NVRM|nvidia|nvswitch|nvlink|Xid|gpuguard|pcieport|AER:|DPC:|Out of memory|hung|lockup|stall"
MASK: Final = "[left out]"


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    from gpuguard.runtime.known import options

    parser.add_argument("--output", metavar="FILE", help="the file to write (default: gpuguard-support-<time>.tar.gz)")
    parser.add_argument("--keep-names", action="store_true", help="leave the host's name where it stands")
    options(parser)


def run(args: Namespace) -> int:
    """Writes the bundle and tells where it is."""
    from gpuguard.runtime.clock import SystemClock

    return answer(args, SystemClock(Path(args.root)))


def answer(args: Namespace, clock: "Clock", *, limit: int = LIMIT) -> int:
    """The same by a clock that is given, at most `limit` bytes long.

    Raises  ReadFailed when the file cannot be written
    """
    from gpuguard.errors import ReadFailed
    from gpuguard.runtime.words import date, page, paragraph

    now = clock.now()
    stamp = "".join(c for c in date(now.utc) if c.isalnum())
    path = Path(args.output or f"gpuguard-support-{stamp}.tar.gz")
    replaced = () if args.keep_names else _names()
    try:
        held, missing, size = write_bundle(path, _parts(args, clock), replaced, now.utc or 0.0, limit)
    except OSError as error:
        raise ReadFailed(f"cannot write {path}: {error.strerror or error}; name another place with --output") from error
    if args.json:
        import json

        sys.stdout.write(json.dumps({"file": str(path), "bytes": size, "parts": held, "missing": missing}) + "\n")
    else:
        lines = [f"{path}: {size:,} bytes, {len(held)} parts; MANIFEST in it tells what they are."]
        for name, why in missing.items():
            lines += paragraph(f"left out: {name}: {why}", indent=2, hanging=2)
        lines += paragraph("Read it before you send it: kernel lines hold names of programs and files.")
        sys.stdout.write(page(lines))
    return 1 if missing else 0


def _names() -> tuple[str, ...]:
    """The host's names, the longest first."""
    import socket

    full = socket.gethostname()
    return tuple(sorted({full, full.partition(".")[0]} - {"", "localhost"}, key=len, reverse=True))


# --- what goes in -----------------------------------------------------------------------------------------------------


def _parts(args: Namespace, clock: "Clock") -> Iterator[Part]:
    """Every part, the most telling first: what does not fit is left out from the end."""
    from gpuguard.errors import ConfigInvalid
    from gpuguard.runtime.known import state_dir

    yield Part(name="versions.json", make=_versions)
    yield Part(name="configuration.json", make=lambda: _configuration(args))
    try:
        folder = state_dir(args)
    except ConfigInvalid as error:
        reason = error
        yield Part(name="memory", make=lambda: _fail(f"the configuration is not valid, give --state-dir: {reason}"))
    else:
        yield from _of_memory(args, folder, clock)
    yield Part(name="kernel-log.txt", make=partial(_kernel_log, args.root))


def _of_memory(args: Namespace, folder: Path, clock: "Clock") -> Iterator[Part]:
    from gpuguard.runtime import cache
    from gpuguard.runtime.files import read_regular

    yield Part(name="snapshot.json", make=lambda: read_regular(folder / cache.NAME, cache.LIMIT)[0])
    # Its own commands are asked as a person would, each in a process of its own: what breaks one breaks no other.
    for words in (
        "status --live", "status --json", "why", "why --json", "topo", "topo --json", "history --limit 1000",
    ):  # fmt: skip
        name = words.replace(" --json", ".json").replace(" --live", "").split()[0]
        name = name if name.endswith(".json") else f"{name}.txt"
        yield Part(name=name, make=partial(_own_words, args, folder, words.split()))
    yield Part(name="schema.json", make=lambda: _schema(folder))
    yield from _chunks(folder, clock)


def _versions() -> bytes:
    import platform
    from importlib import metadata

    from gpuguard import __version__

    found: dict[str, str] = {
        "gpuguard": __version__, "python": platform.python_version(), "kernel": platform.release(),
        "machine": platform.machine(),
    }  # fmt: skip
    for package in ("msgspec", "prometheus-client", "structlog", "hyperscan"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    for name, path in (("driver", "/proc/driver/nvidia/version"), ("system", "/etc/os-release")):
        try:
            found[name] = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            found[name] = f"not known: {error.strerror}"
    return _json(found)


def _configuration(args: Namespace) -> bytes:
    """The settings that are in force, without secrets; with mistakes in the file, the mistakes."""
    from gpuguard.errors import ConfigInvalid
    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.known import config_path

    try:
        config = assemble(config_path(args), with_sources=False).config
    except ConfigInvalid as error:
        import re

        # `file: [section] key: what is wrong`, which may repeat the value.
        secret = re.compile(rf"^(.*\[[^]]*\] [^:]*(?:{SECRET})[^:]*: ).*", re.IGNORECASE | re.DOTALL)
        return _json({"invalid": [secret.sub(rf"\1{MASK}", text) for text in error.mistakes]})
    return _json({"file": str(config.path) if config.path else None, "settings": masked(config.as_table())})


def masked(value: object, name: str = "") -> object:
    """The same tables with every value left out whose key may be a secret's."""
    import re

    if isinstance(value, dict):
        return {key: masked(item, str(key)) for key, item in value.items()}
    if re.search(SECRET, name, re.IGNORECASE):
        return MASK
    return value


def _own_words(args: Namespace, folder: Path, words: Sequence[str]) -> bytes:
    """What a command of gpuguard's prints about this memory; its complaint when it fails."""
    import subprocess

    config = ["--config", args.config] if args.config else []
    command = [
        sys.executable,
        "-m",
        "gpuguard.cli",
        *words,
        "--state-dir",
        str(folder.absolute()),
        "--root",
        args.root,
        *config,
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=ANSWER_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _fail(f"`gpuguard {' '.join(words)}` gave no answer within {ANSWER_SECONDS:g} s")
    complaint = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
    if words[0] == "topo" and done.returncode == NOTHING_KNOWN:  # as without a GPU: that is an answer too
        return done.stdout or (_json({"error": complaint}) if "--json" in words else f"{complaint}\n".encode())
    if done.returncode not in (0, 1):
        return _fail(complaint)
    return done.stdout


def _schema(folder: Path) -> bytes:
    """Version of the memory's schema, and the sizes of the files beside it."""
    import contextlib
    import sqlite3

    from gpuguard.store.reader import DATABASE_NAME
    from gpuguard.store.schema import newest

    address = f"{(folder / DATABASE_NAME).absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.Error as error:
        return _fail(f"{folder / DATABASE_NAME}: {error}")
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.is_file()}
    return _json({"schema_version": version, "known_up_to": newest(), "bytes": sizes})


def _chunks(folder: Path, clock: "Clock") -> Iterator[Part]:
    """The story with the kernel's lines behind it, the newest first, some thousand entries a file."""
    from gpuguard.errors import GpuguardError
    from gpuguard.runtime.known import look_up

    try:
        known = look_up(folder, clock)
    except OSError as error:
        reason = str(error)
        yield Part(name="events", make=lambda: _fail(reason))
        return
    try:
        reader, _ = known.memory()
        story = reader.story(limit=STORY)[::-1]
        for number, start in enumerate(range(0, len(story), EVENTS_A_FILE), 1):
            make = partial(_chunk, reader, story[start : start + EVENTS_A_FILE])
            yield Part(name=f"events-{number:04d}.jsonl", make=make)
    except GpuguardError as error:
        reason = str(error)
        yield Part(name="events", make=lambda: _fail(reason))
    finally:
        known.close()


def _chunk(reader: "StoreReader", entries: "Sequence[StoryEntry]") -> bytes:
    import msgspec

    lines = []
    for entry in entries:
        event = reader.event(entry.event_id) if entry.event_id is not None else None
        lines.append(msgspec.json.encode({"entry": entry, "line": event}))
    return b"\n".join(lines) + b"\n"


def _kernel_log(root: str) -> bytes:
    """The kernel's lines that may matter, from the ring as it stands now, the newest kept.

    Reads   /dev/kmsg, without waiting
    Raises  PermissionError and its kin as they come
    """
    import re
    import time

    if root != "/":
        return _fail("a recorded machine has no ring of its own")
    wanted = re.compile(KERNEL_WORDS.encode(), re.IGNORECASE)
    kept: list[bytes] = []
    size = 0
    until = time.monotonic() + KERNEL_SECONDS
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while time.monotonic() < until:
            try:
                record = os.read(descriptor, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the ring went round: the next read goes on behind the hole
                continue
            line = record.partition(b"\n")[0]
            if wanted.search(line):
                kept.append(line)
                size += len(line) + 1
                while size > KERNEL_BYTES:
                    size -= len(kept.pop(0)) + 1
    finally:
        os.close(descriptor)
    return b"\n".join(kept) + b"\n" if kept else b"(no line about a GPU stands in the ring)\n"


def _json(value: object) -> bytes:
    import json

    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def _fail(reason: str) -> bytes:
    """Never returns: the part is missing, for this reason."""
    from gpuguard.errors import ReadFailed

    raise ReadFailed(reason)
