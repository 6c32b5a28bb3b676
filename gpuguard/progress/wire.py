"""The form in which a job tells its progress; read by the agent, and easily written in any language.

A message is one datagram to a Unix socket: a JSON object of at most 512 bytes with the whole state of one rank, so that
the newest one says all and those before it may be lost. Who sent it the kernel says; what it says of pids and users is
for people. Only `v` and `rank` must be there.

    v         1
    n         a number that grows with every message of this process; an older one is not believed
    job       what the job is called, where its keeper cannot be asked: slurm/8123, or a word
    rank      number of the rank; `world` of how many, `restart` after how many starts before
    host, pid where it runs, as it sees itself
    step      the newest step; `phase` what it does; `since` when that phase began
    at        when it last got on: a step, a phase that began or ended, a word of life
    saved     step of the last complete checkpoint, `saved_at` when it was complete, `blocked` how many seconds the save
              held up the loop, `holds` what it holds, of "model optimizer loader seeds"
    loss      a number, or "nan"; `flat` over how many steps it was told again without having moved at all
    done      true once the work is complete
    preempt   0 nothing known; 1 it will save and end when told to (SIGTERM); 2 it was told; 3 it saved
    devices   its CUDA_VISIBLE_DEVICES; `flight` where its NCCL flight recorder writes, less the number of the rank
    via       how it is known: library, datagram

Times are seconds of CLOCK_MONOTONIC, which is the same for every process of a machine. With a message a file descriptor
may come: a memfd, sealed against growing and shrinking, that holds a page. There the newest state stands without
another message: what changes most, as PAGE has it. It is read until two reads agree.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

VERSION = 1
# Where the agent listens, unless the environment names another place.
SOCKET = "/run/gpuguard/progress.sock"
SOCKET_VARIABLE = "GPUGUARD_SOCKET"
MESSAGE_LIMIT = 512
PHASE_LIMIT = 24  # bytes of a phase's name in a page

# n, at, step, phase, since, loss, saved, saved_at, flags, preempt, flat; a step or save that is none yet is NONE.
PAGE = struct.Struct("<8sQdq24sddqdIIQ")
PAGE_MAGIC = b"ggpage1\0"
PAGE_SIZE = 4096
NONE = -(2**63)
FLAG_DONE = 1  # the work is complete
FLAG_LOSS = 2  # the loss is one; without it none was told

# Phases with a meaning; any other word is a phase as well.
START, STEP, CHECKPOINT, EVALUATION, COMPILE = "start", "step", "checkpoint", "evaluation", "compile"
PARTS = ("model", "optimizer", "loader", "seeds")  # of a complete checkpoint
PREEMPT_UNKNOWN, PREEMPT_READY, PREEMPT_TOLD, PREEMPT_SAVED = 0, 1, 2, 3

# What a message may hold. Of those that may be missing, the last of this tuple goes first where not all of it fits.
OPTIONAL = ("job", "host", "holds", "blocked", "devices", "flight")
_WHOLE = ("n", "rank", "world", "restart", "pid", "step", "saved", "preempt", "flat")
_SECONDS = ("since", "at", "saved_at", "blocked")
_TEXT = ("job", "host", "phase", "holds", "devices", "flight", "via")
_NOT_NEGATIVE = {"n", "rank", "world", "restart", "pid", "preempt", "flat"}


class Page(NamedTuple):
    """What stands in a page. `step` and `saved` are None where there is none yet, `loss` where none was told; a loss
    that is no number is nan."""

    n: int
    at: float
    step: int | None
    phase: str
    since: float
    loss: float | None
    saved: int | None
    saved_at: float
    done: bool
    preempt: int
    flat: int = 0


def encode(message: Mapping[str, object]) -> bytes:
    """One datagram, short enough. A value that is None is left out, a loss that is no number becomes "nan", and where
    all of it is too long what matters least is left out: a list of devices that was cut off would be a wrong one.

    Raises  ValueError where even what must be there does not fit
    """
    kept = {key: value for key, value in message.items() if value is not None}
    loss = kept.get("loss")
    if isinstance(loss, float) and not math.isfinite(loss):
        kept["loss"] = "nan"
    for unwanted in ("", *reversed(OPTIONAL)):
        kept.pop(unwanted, None)
        # What an environment holds need not be text: what cannot be written becomes a question mark.
        data = json.dumps(kept, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        if len(data) <= MESSAGE_LIMIT:
            return data
    raise ValueError(f"a message of {len(data)} bytes; at most {MESSAGE_LIMIT} are read")


def decode(data: bytes) -> dict[str, object]:
    """What a datagram says, every key of the table above of its right type; keys that are not known are left out.

    Raises  ValueError with the reason, on anything else
    """
    if len(data) > MESSAGE_LIMIT:
        raise ValueError(f"longer than {MESSAGE_LIMIT} bytes")
    try:
        told = json.loads(data.decode("utf-8"), parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("brackets without end") from error
    if not isinstance(told, dict):
        raise ValueError("no JSON object")
    version = told.get("v")
    if type(version) is not int or version != VERSION:
        raise ValueError(f"version {version!r:.20}, not {VERSION}")
    if "rank" not in told:
        raise ValueError("no rank")
    message: dict[str, object] = {"v": VERSION}
    for key in _WHOLE:
        if key in told:
            value = told[key]
            if type(value) is not int or not (0 if key in _NOT_NEGATIVE else NONE) <= value < 2**63:
                raise ValueError(f"{key} is no whole number that can be")
            message[key] = value
    for key in _SECONDS:
        if key in told:
            message[key] = _number(key, told[key])
            if message[key] < 0:  # type: ignore[operator]  # it is a float since the line before
                raise ValueError(f"{key} is negative")
    for key in _TEXT:
        if key in told:
            if not isinstance(told[key], str):
                raise ValueError(f"{key} is no text")
            message[key] = told[key]
    if "loss" in told:
        message["loss"] = math.nan if told["loss"] == "nan" else _number("loss", told["loss"])
    if "done" in told:
        if type(told["done"]) is not bool:
            raise ValueError("done is neither true nor false")
        message["done"] = told["done"]
    return message


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300:
        raise ValueError(f"{key} is no number that can be")
    return float(value)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def pack_page(page: Page) -> bytes:
    """The page as it stands in memory, without what fills it up to PAGE_SIZE."""
    flags = (FLAG_DONE if page.done else 0) | (FLAG_LOSS if page.loss is not None else 0)
    return PAGE.pack(
        PAGE_MAGIC, page.n, page.at, NONE if page.step is None else page.step, phase_bytes(page.phase), page.since,
        math.nan if page.loss is None else page.loss, NONE if page.saved is None else page.saved, page.saved_at, flags,
        page.preempt, page.flat,
    )  # fmt: skip


def unpack_page(data: bytes) -> Page:
    """What stands in a page of which two reads agreed.

    Raises  ValueError where it is none, or nothing was ever written there
    """
    if len(data) < PAGE.size:
        raise ValueError(f"{len(data)} bytes are no page")
    magic, n, at, step, phase, since, loss, saved, saved_at, flags, preempt, flat = PAGE.unpack_from(data)
    if magic != PAGE_MAGIC:
        raise ValueError("no page of this form")
    return Page(
        n=n,
        at=at,
        step=None if step == NONE else step,
        phase=phase.rstrip(b"\0").decode("utf-8", "replace"),
        since=since,
        loss=loss if flags & FLAG_LOSS else None,
        saved=None if saved == NONE else saved,
        saved_at=saved_at,
        done=bool(flags & FLAG_DONE),
        preempt=preempt,
        flat=flat,
    )


def phase_bytes(name: str) -> bytes:
    """The name of a phase as a page holds it: as much of it as there is room for, in whole characters."""
    data = name.encode("utf-8", "replace")
    return data if len(data) <= PHASE_LIMIT else data[:PHASE_LIMIT].decode("utf-8", "ignore").encode()
