"""Everything the core remembers, and the names under which it is kept on disk."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from gpuguard.health.errands import Errand, Errands
from gpuguard.health.past import Past
from gpuguard.model.health import Drain, Incident, Pause, SourceHealth, SubjectHealth
from gpuguard.model.ids import BootId, GpuUuid, IncidentId, SubjectId, TokenId, pci_of
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Readings
from gpuguard.ports import AnyDetector

# Any: every detector brings a memory type of its own; the detector that wrote it is the one that reads it.
Memories = dict[tuple[str, SubjectId], Any]


# A node has some ten drains a year. There are 65,536 tokens, so without a look at those used two of 300 would be alike.
TOKENS_KEPT = 1024


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that this node's drains had, oldest first: none is given out twice."""

    used: tuple[TokenId, ...] = ()

    def given(self, token: TokenId) -> "Tokens":
        """With one more."""
        return self if token in self.used else Tokens(used=(*self.used, token)[-TOKENS_KEPT:])


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The core's whole memory. `now` is the newest moment it was told of; `identified` the GPU named last, and when;
    `readings` what was measured last, which no restart needs; `folds` what each deriver remembers, by its name;
    `errands` what is owed, or was, for jobs, processes and the way back; `began` when this run of the agent did;
    `pause` that a person keeps gpuguard's hands off; `released` when the node was given back by itself, oldest first.
    """

    now: Instant
    subjects: dict[SubjectId, SubjectHealth] = {}
    retired: dict[GpuUuid, SubjectHealth] = {}
    incidents: dict[IncidentId, Incident] = {}
    sources: dict[str, SourceHealth] = {}
    drain: Drain | None = None
    tokens: Tokens = Tokens()
    identified: tuple[SubjectId, Instant] | None = None
    memory: Memories = {}
    folds: dict[str, Any] = {}  # Any: each deriver has a memory type of its own
    readings: Readings = {}
    errands: Errands = {}
    began: Instant | None = None
    pause: Pause | None = None
    released: tuple[Instant, ...] = ()
    past: Past = Past()

    @property
    def boot(self) -> BootId:
        return self.now.boot

    def subject(self, name: SubjectId) -> SubjectHealth:
        """The record of a subject; a new one when nothing was known of it."""
        known = self.subjects.get(name)
        return known or SubjectHealth(id=name, since=self.now, pci=pci_of(name))


class _Released(msgspec.Struct, frozen=True, kw_only=True):
    at: tuple[Instant, ...]


class _Meta(msgspec.Struct, frozen=True, kw_only=True):
    now: Instant
    identified: tuple[SubjectId, Instant] | None


def kept(health: Health) -> dict[str, msgspec.Struct]:
    """Every part of the memory that goes to disk, by its key; parts that did not change are the same objects."""
    parts: dict[str, msgspec.Struct] = {
        **{f"subject/{name}": subject for name, subject in health.subjects.items()},
        **{f"retired/{uuid}": subject for uuid, subject in health.retired.items()},
        **{f"incident/{name}": incident for name, incident in health.incidents.items()},
        **{f"memory/{check}/{name}": memory for (check, name), memory in health.memory.items()},
        **{f"fold/{name}": fold for name, fold in health.folds.items()},
        **{f"errand/{name}": errand for name, errand in health.errands.items()},
    }
    if health.drain is not None:
        parts["drain"] = health.drain
    if health.tokens.used:
        parts["tokens"] = health.tokens
    if health.pause is not None:
        parts["pause"] = health.pause
    if health.released:
        parts["released"] = _released(health.released)
    if health.past != Past():
        parts["past"] = health.past
    return parts


@lru_cache(maxsize=4)
def _released(at: tuple[Instant, ...]) -> _Released:
    """The same object for the same instants, by which `difference` knows that nothing changed."""
    return _Released(at=at)


def difference(before: Health, after: Health) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """What to write and what to delete so that the disk says `after` where it said `before`."""
    old, new = kept(before), kept(after)
    changed = {key: part for key, part in new.items() if old.get(key) is not part}
    if not changed and len(old) == len(new) and before.boot == after.boot:
        return {}, ()
    puts = {key: msgspec.msgpack.encode(part) for key, part in changed.items()}
    puts["meta"] = msgspec.msgpack.encode(_Meta(now=after.now, identified=after.identified))
    return puts, tuple(key for key in old if key not in new)


def restore(state: Mapping[str, bytes], detectors: Iterable[AnyDetector], now: Instant) -> Health:
    """The memory as it was written last; `now` where nothing was ever written.

    Raises  msgspec.ValidationError when a part does not decode: the caller treats the memory as damaged
    """
    memories = {detector.name: detector.memory for detector in detectors}
    meta = msgspec.msgpack.decode(state["meta"], type=_Meta) if "meta" in state else _Meta(now=now, identified=None)
    subjects: dict[SubjectId, SubjectHealth] = {}
    retired: dict[GpuUuid, SubjectHealth] = {}
    incidents: dict[IncidentId, Incident] = {}
    memory: Memories = {}
    folds: dict[str, Any] = {}  # Any: as in Health
    errands: dict[str, Errand] = {}
    for key, value in state.items():
        shelf, _, name = key.partition("/")
        if shelf == "subject":
            subjects[SubjectId(name)] = msgspec.msgpack.decode(value, type=SubjectHealth)
        elif shelf == "retired":
            retired[GpuUuid(name)] = msgspec.msgpack.decode(value, type=SubjectHealth)
        elif shelf == "incident":
            incidents[IncidentId(name)] = msgspec.msgpack.decode(value, type=Incident)
        elif shelf == "memory":
            check, _, subject = name.partition("/")
            # A check that was removed leaves its memory behind; it is dropped with the next change.
            if check in memories:
                memory[(check, SubjectId(subject))] = msgspec.msgpack.decode(value, type=memories[check])
        elif shelf == "fold" and name in memories:
            folds[name] = msgspec.msgpack.decode(value, type=memories[name])
        elif shelf == "errand":
            errands[name] = msgspec.msgpack.decode(value, type=Errand)
    return Health(
        now=meta.now, subjects=subjects, retired=retired, incidents=incidents, memory=memory,
        folds=folds, errands=errands, identified=meta.identified,
        drain=msgspec.msgpack.decode(state["drain"], type=Drain) if "drain" in state else None,
        tokens=msgspec.msgpack.decode(state["tokens"], type=Tokens) if "tokens" in state else Tokens(),
        pause=msgspec.msgpack.decode(state["pause"], type=Pause) if "pause" in state else None,
        released=msgspec.msgpack.decode(state["released"], type=_Released).at if "released" in state else (),
        past=msgspec.msgpack.decode(state["past"], type=Past) if "past" in state else Past(),
    )  # fmt: skip
