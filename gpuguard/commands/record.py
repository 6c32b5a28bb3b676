"""Records this machine into a folder that `--root` plays: what NVML answers, and the files that host sources read.

Names are replaced the same way in every file: UUIDs, serial numbers, boot id, hosts, processes, control groups, users.
It reads and changes nothing, asks NVML what the agent asks, and takes about half a minute. An existing folder is never
written over. The kernel log needs root; what cannot be read is named in ORIGIN.
Exit codes  0 recorded, 1 recorded with parts missing, 2 not recorded, 64 usage error
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpuguard.runtime.recording import Kept, Pace
    from gpuguard.runtime.redaction import Redaction

EXAMPLE = "gpuguard record /tmp/node7"

PASSES: Final = 6
EVERY: Final = 5.0
PATIENCE: Final = 60.0  # seconds that NVML may take beyond its passes; a wedged driver takes for ever


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("folder", metavar="DIR", help="the folder to make")
    parser.add_argument(
        "--passes", type=_passes, default=PASSES, metavar="N", help=f"times that NVML is asked (default: {PASSES})"
    )
    parser.add_argument(
        "--every", type=_seconds, default=EVERY, metavar="SECONDS", help=f"between two passes (default: {EVERY:g})"
    )
    parser.add_argument("--root", default="/", metavar="DIR", help="record a recorded machine again (default: /)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace) -> int:
    """Records and tells what was kept.

    Raises  ReadFailed when nothing can be written or NVML hangs
    """
    import shutil
    import time

    from gpuguard.errors import ReadFailed
    from gpuguard.runtime.recording import Kept, Pace, copy_host, write_origin
    from gpuguard.runtime.redaction import Redaction

    folder, root = Path(args.folder), Path(args.root)
    if folder.exists():
        raise ReadFailed(f"{folder} exists and is not written over; name a folder that does not exist")
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    names = Redaction(_hosts() if root == Path("/") else ())
    pace = Pace(passes=args.passes, every=args.every, clock=time.monotonic, rest=time.sleep)
    kept = Kept()
    try:
        unfinished.mkdir(parents=True)
        try:
            pids = _record_nvml(unfinished, root, pace, names, kept)
            _tell("files of the host")
            copy_host(root, unfinished, pids, names, kept)
            write_origin(unfinished, kept, root, pace)
            unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    except FileExistsError as error:
        raise ReadFailed(f"{error.filename} is left from a recording that was broken off; remove it first") from error
    except OSError as error:
        raise ReadFailed(f"cannot write {folder}: {error.strerror or error}; name another place") from error
    _report(folder, kept, as_json=args.json)
    return 1 if kept.missing else 0


def _record_nvml(folder: Path, root: Path, pace: "Pace", names: "Redaction", kept: "Kept") -> list[int]:
    """nvml.json lies in the folder; gives the processes on the GPUs.

    Raises  ReadFailed when NVML hangs
    """
    import threading
    import time

    from gpuguard.errors import Absent, NotUnderstood, ReadFailed
    from gpuguard.runtime.recording import NVML, ask_nvml, library_of, write_nvml
    from gpuguard.sources.nvml.library import NvmlError
    from gpuguard.sources.nvml.noted import Noted

    try:
        noted = Noted(library_of(root), time.monotonic)
    except (Absent, NotUnderstood) as error:
        kept.missing[NVML] = str(error)
        return []
    failed: list[NvmlError] = []

    def ask() -> None:
        try:
            ask_nvml(noted, root, pace, _tell)
        except NvmlError as error:
            failed.append(error)

    # In a thread that may be left behind: a call of a wedged driver never returns and cannot be interrupted.
    asking = threading.Thread(target=ask, name="nvml", daemon=True)
    asking.start()
    asking.join(PATIENCE + pace.passes * pace.every)
    if asking.is_alive():
        raise ReadFailed(f"NVML hangs in {noted.current or 'a call'}; nothing was recorded; see `gpuguard check`")
    if failed:
        kept.missing[NVML] = f"{failed[0]}; `gpuguard selftest` tells whether the driver is there"
        return []
    pids = write_nvml(folder, noted, root, pace, names, kept)
    kept.gpus, kept.passes, kept.seconds = noted.gpus, pace.passes, noted.seconds
    kept.files += 1
    return pids


def _report(folder: Path, kept: "Kept", *, as_json: bool) -> None:
    if as_json:
        import json

        told = {
            "folder": str(folder), "gpus": kept.gpus, "passes": kept.passes, "files": kept.files,
            "missing": kept.missing,
        }  # fmt: skip
        sys.stdout.write(json.dumps(told) + "\n")
        return
    from gpuguard.runtime.words import page, paragraph

    lines = [f"{folder}: {kept.gpus} GPUs, {kept.passes} passes, {kept.files} files."]
    for name, why in kept.missing.items():
        lines += paragraph(f"missing: {name}: {why}", indent=2, hanging=2)
    lines += paragraph(f"Look at it with `gpuguard check --root {folder}`, and with `gpus` and `topo` in its place.")
    lines += paragraph("Read it before you give it away: names are replaced where gpuguard knows that they stand.")
    sys.stdout.write(page(lines))


def _tell(what: str) -> None:
    sys.stderr.write(f"gpuguard record: {what}\n")


def _hosts() -> tuple[str, ...]:
    """The host's names."""
    import socket

    full = socket.gethostname()
    return tuple({full, full.partition(".")[0]} - {"localhost"})


def _passes(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 2 <= int(text) <= 1000):
        raise ArgumentTypeError(f"{text!r} is no number of passes; give 2 to 1000, so that what moves is seen to move")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.2 <= seconds <= 600:
        raise ArgumentTypeError(f"{text!r} is no time between passes; give 0.2 to 600 seconds")
    return seconds
