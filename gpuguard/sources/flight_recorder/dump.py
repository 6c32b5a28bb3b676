"""A dump of PyTorch's flight recorder understood: what each process group has done, and what it waits for.

Reads   the file that ProcessGroupNCCL writes when a collective times out, or is told to: a pickle; and the same as
        JSON, as `dump_nccl_trace_json` and torchcomms give it
Shape   {version, pg_config: {name: {name, desc, ranks}}, entries: [{process_group: (name, desc), collective_seq_id,
        p2p_seq_id, profiling_name, state, retired, is_p2p, time_created_ns, input_sizes, frames, ...}]}
Raises  NotUnderstood for what is no dump, or of a version that means something else
Source  PyTorch 2.13 torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, versions 2.0 to 2.10 of the dump; the files
        in fixtures/sources/flight_recorder

`state` is completed where an event of the device was seen to be over. gloo has no such events: a call of it is done
when it is `retired`. With NCCL a call that is retired and not completed has timed out.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, Literal

import msgspec

from gpuguard.errors import NotUnderstood
from gpuguard.model.flight import FlightSummary, GroupFlight, Waiting
from gpuguard.model.numbers import spans
from gpuguard.sources.flight_recorder.pickled import read_pickle

GROUPS = 64  # told of one rank, those first that wait: a rank of a job with every kind of parallelism is in a dozen
GROUPS_SEEN = 4096  # of one dump; more are no groups of a job
NAME, SHAPE, WHERE = 64, 120, 120  # letters that are kept of each
TENSORS, SIZES = 4, 8  # of a shape
FRAMES = 64  # are looked through for one outside of PyTorch
ENTRY = frozenset({"process_group", "collective_seq_id", "state"})
_OUR_OWN = re.compile(r"(^|/)torch/|^<|/(lightning|accelerate|deepspeed)/")


def read_dump(stream: BinaryIO) -> FlightSummary:
    """What the dump says.

    Raises  NotUnderstood
    """
    calls = _Calls()
    begin = stream.read(1)
    stream.seek(0)
    if begin == b"\x80":
        top = read_pickle(stream, calls.fold)
    elif begin == b"{":
        top = _read_json(stream, calls)
    elif begin == b"":
        raise NotUnderstood("the file is empty: it is still being written, or the disk is full")
    else:
        raise NotUnderstood("neither a pickle nor JSON; is that a dump of the flight recorder?")
    if not isinstance(top, dict) or not isinstance(top.get("version"), str) or "pg_config" not in top:
        raise NotUnderstood("no dump of the flight recorder: it has no version and no pg_config")
    version = str(top["version"])
    if version.partition(".")[0] != "2":
        raise NotUnderstood(f"version {_clean(version, 16)} of the flight recorder; 2 is understood", version)
    return calls.summary(version, top)


def _read_json(stream: BinaryIO, calls: "_Calls") -> object:
    try:
        top = msgspec.json.decode(stream.read())
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotUnderstood(f"no JSON: {error}") from error
    entries = top.get("entries") if isinstance(top, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            calls.fold(entry)
    return top


@dataclass(slots=True)
class _Group:
    """What is known of one group so far. `first` is the oldest number that the dump still holds."""

    first: int | None = None
    enqueued: int = 0
    completed: int = 0
    waiting: Waiting | None = None
    peer: Waiting | None = None  # the oldest call between two ranks that is not completed

    def is_idle(self) -> bool:
        """Whether nothing of it waits."""
        return self.waiting is None and self.peer is None

    def told(self, name: str, about: str, ranks: str) -> GroupFlight:
        before = self.first - 1 if self.first is not None else 0
        return GroupFlight(
            name=name, about=about, ranks=ranks, enqueued=self.enqueued, completed=max(self.completed, before),
            waiting=self.waiting or self.peer,
        )  # fmt: skip


class _Calls:
    """Every call of a dump, taken in as it is read: of those that are done only the number is kept."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _Group] = {}
        self._entries = self._strange = 0

    def fold(self, found: dict[object, object]) -> object:
        """None in the place of a call, which was taken in; any other dict as it is."""
        if not found.keys() >= ENTRY:
            return found
        self._entries += 1
        if not self._take(found):
            self._strange += 1
        found.clear()  # the pickle's memo may hold it
        return None

    def _take(self, entry: Mapping[object, object]) -> bool:
        names, called = entry["process_group"], entry.get("profiling_name")
        p2p = entry.get("is_p2p") is True
        number = entry.get("p2p_seq_id") if p2p else entry["collective_seq_id"]
        if not isinstance(names, list | tuple) or len(names) != 2 or not isinstance(called, str):
            return False
        if not isinstance(number, int) or not 0 <= number < 2**62:
            return False
        key = (_clean(names[0], NAME), _clean(names[1], NAME))
        if key not in self._groups and len(self._groups) >= GROUPS_SEEN:
            return False
        group = self._groups.setdefault(key, _Group())
        library, _, call = called.rpartition(":")
        done = entry["state"] == "completed" or (library == "gloo" and entry.get("retired") is True)
        if not p2p:
            group.first = number if group.first is None else min(group.first, number)
            group.enqueued = max(group.enqueued, number)
            if done:
                group.completed = max(group.completed, number)
        if not done:
            waiting = _waiting(entry, number, _clean(call, NAME), p2p=p2p)
            if p2p:
                group.peer = group.peer or waiting
            elif group.waiting is None or number < group.waiting.number:
                group.waiting = waiting
        return True

    def summary(self, version: str, top: Mapping[object, object]) -> FlightSummary:
        order = sorted(
            self._groups, key=lambda key: (self._groups[key].is_idle(), key[1] != "default_pg", key)
        )[:GROUPS]  # fmt: skip
        members = _members(top["pg_config"], {name for name, _ in order})
        told = [self._groups[key].told(*key, members.get(key[0], "")) for key in order] or _silent(top)
        return FlightSummary(
            version=_clean(version, 16), entries=self._entries, strange=self._strange, groups=tuple(told)
        )


def _silent(top: Mapping[object, object]) -> list[GroupFlight]:
    """The one group of a rank that recorded no call of it: its status tells how far it got. Which status is whose
    cannot be told of several."""
    config, status = top["pg_config"], top.get("pg_status")
    if not isinstance(config, dict) or not isinstance(status, dict) or len(config) != 1 or len(status) != 1:
        return []
    about, told = next(iter(config.values())), next(iter(status.values()))
    if not isinstance(about, dict) or not isinstance(told, dict):
        return []
    name = _clean(about.get("name"), NAME)
    enqueued, completed = (_number(told.get(f"last_{what}_collective")) for what in ("enqueued", "completed"))
    return [GroupFlight(
        name=name, about=_clean(about.get("desc"), NAME), ranks=_members(config, {name}).get(name, ""),
        enqueued=max(0, enqueued), completed=max(0, completed),
    )]  # fmt: skip


def _waiting(entry: Mapping[object, object], number: int, call: str, *, p2p: bool) -> Waiting:
    state: Literal["scheduled", "started"] = "started" if entry["state"] == "started" else "scheduled"
    created = entry.get("time_created_ns")
    since = created / 1e9 if isinstance(created, int) and 0 < created < 2**63 else None
    return Waiting(
        number=number, call=call, state=state, shape=_shape(entry), where=_where(entry.get("frames")), since=since,
        p2p=p2p,
    )  # fmt: skip


def _shape(entry: Mapping[object, object]) -> str:
    """What goes in and what comes out: `4x8 -> 4x8 Float`."""
    types = entry.get("input_dtypes")
    kind = _clean(types[0], 16) if isinstance(types, list | tuple) and types else ""
    words = f"{_sizes(entry.get('input_sizes'))} -> {_sizes(entry.get('output_sizes'))} {kind}"
    return words.strip()[:SHAPE]


def _sizes(tensors: object) -> str:
    if not isinstance(tensors, list | tuple):
        return "?"
    shapes = [
        "x".join(str(size) if isinstance(size, int) and abs(size) < 2**63 else "?" for size in tensor[:SIZES]) or "1"
        if isinstance(tensor, list | tuple) else "?"
        for tensor in tensors[:TENSORS]
    ]  # fmt: skip
    more = f" and {len(tensors) - TENSORS} more" if len(tensors) > TENSORS else ""
    return (", ".join(shapes) or "nothing") + more


def _where(frames: object) -> str:
    """The innermost line of the program that is not PyTorch's own: `train.py:118 in step`."""
    for frame in frames[:FRAMES] if isinstance(frames, list | tuple) else ():
        if not isinstance(frame, dict):
            continue
        file, line = frame.get("filename"), frame.get("line")
        if isinstance(file, str) and isinstance(line, int) and 0 <= line < 2**31 and not _OUR_OWN.search(file):
            return _clean(f"{file.rpartition('/')[2]}:{line} in {_clean(frame.get('name'), NAME)}", WHERE)
    return ""


def _members(config: object, names: Set[str]) -> dict[str, str]:
    """The ranks of these groups, by name."""
    found: dict[str, str] = {}
    for group in islice(config.values(), GROUPS_SEEN) if isinstance(config, dict) else ():
        name = _clean(group.get("name"), NAME) if isinstance(group, dict) else None
        if name is None or name in found or name not in names:
            continue
        ranks = group.get("ranks")
        if isinstance(ranks, str):  # "[0, 1]", which is how libtorch has it
            found[name] = spans(int(number) for number in re.findall(r"[0-9]{1,9}", ranks))
        elif isinstance(ranks, list | tuple):
            found[name] = spans(rank for rank in ranks if isinstance(rank, int) and 0 <= rank < 2**31)
    return found


def _number(value: object) -> int:
    """A number that JSON gives as text and a pickle as a number."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and abs(value) < 2**62 else 0


def _clean(value: object, limit: int) -> str:
    """A text that a job chose, short and printable."""
    text = value[:limit] if isinstance(value, str) else ""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
