"""Files packed into one, up to a size: the writing half of `gpuguard support-bundle`.

What cannot be had and what does not fit is named with the reason, and the rest is there all the same.
"""

import io
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuguard.errors import GpuguardError

LIMIT: Final = 50 * 1000 * 1000
# tar's own block for each member, and what gzip adds.
OVERHEAD: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One file of the bundle, and how to get it; what `make` raises is the reason why it is missing."""

    name: str
    make: Callable[[], bytes]


def write_bundle(
    path: Path, parts: Iterator[Part], names: Sequence[str], utc: float, limit: int
) -> tuple[list[str], dict[str, str], int]:
    """The bundle stands at `path`, whole; the parts in it, those that are missing with the reason, its size."""
    fresh = path.with_name(f".{path.name}.new")
    held: list[str] = []
    missing: dict[str, str] = {}
    fresh.unlink(missing_ok=True)
    try:
        with open(fresh, "xb", opener=_for_me_alone) as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            room = limit - 2 * OVERHEAD - 64 * 1024  # for MANIFEST, which comes last
            for part in parts:
                data = _made(part, missing)
                if data is None:
                    continue
                data = _without(data, names)
                needs = _packed(data) + OVERHEAD
                if needs > room:
                    missing[part.name] = f"no room: it would make the bundle larger than {limit:,} bytes"
                    continue
                room -= needs
                _add(tar, part.name, data, utc)
                held.append(part.name)
            _add(tar, "MANIFEST", _without(_manifest(held, missing), names), utc)
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    return held, missing, path.stat().st_size


def _for_me_alone(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _made(part: Part, missing: dict[str, str]) -> bytes | None:
    try:
        return part.make()
    except (GpuguardError, OSError, ValueError) as error:
        missing[part.name] = str(error)
        return None


def _without(data: bytes, names: Sequence[str]) -> bytes:
    for name in names:
        data = re.sub(rb"(?<![A-Za-z0-9])" + re.escape(name.encode()) + rb"(?![A-Za-z0-9])", b"this-node", data)
    return data


def _packed(data: bytes) -> int:
    """At most this many bytes in the bundle."""
    return len(zlib.compress(data, 6))


def _add(tar: tarfile.TarFile, name: str, data: bytes, utc: float) -> None:
    member = tarfile.TarInfo(f"gpuguard-support/{name}")
    member.size, member.mtime, member.mode = len(data), int(utc), 0o600
    tar.addfile(member, io.BytesIO(data))


def _manifest(held: Sequence[str], missing: dict[str, str]) -> bytes:
    lines = ["in this bundle:", *(f"  {name}" for name in held), "left out:"]
    lines += [f"  {name}: {why}" for name, why in missing.items()] or ["  nothing"]
    lines += ["never in it: the environment, and settings whose name suggests a secret"]
    return ("\n".join(lines) + "\n").encode(errors="backslashreplace")
