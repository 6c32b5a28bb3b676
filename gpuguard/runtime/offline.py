"""A person's word while no agent runs: decided, written down and acted on in this process, as the agent would.

The agent's lock is held meanwhile, so that the memory still has one writer. Only what is about the node's drain is
carried out: a test, a reset or an eviction goes on for longer than a command does, and is the agent's. What stays owed,
as with a scheduler that does not answer, is on disk, and the next agent carries it on.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from gpuguard import __version__
from gpuguard.actuators import delegate, dry_run
from gpuguard.custody.ownership import about_the_drain
from gpuguard.errors import Absent, ConfigInvalid, StoreFailed
from gpuguard.model.actions import Action, Outcome
from gpuguard.model.events import ActionOutcome, AnyEvent, Batch
from gpuguard.model.ids import EventId
from gpuguard.ports import Actuator, Clock, NodeReport
from gpuguard.runtime import targets
from gpuguard.runtime.assembly import DATABASE, Parts, remember
from gpuguard.runtime.control import Answer, Word, as_event
from gpuguard.runtime.loop import Loop
from gpuguard.runtime.tally import Tally
from gpuguard.store.ballast import BALLAST_NAME
from gpuguard.store.lock import LOCK_NAME
from gpuguard.store.sqlite import SqliteStore, open_store

# More than one action follows from one word when an older one is still owed; each has its own deadline of 5 s.
ACTIONS_AT_ONCE = 8
# A state word, as nobody was silent.
FOR_THE_AGENT: Final = Outcome(
    result="deferred", message="no agent runs; it is the agent's, and goes on when one does", node_state="waiting"
)


def say(folder: Path, parts: Parts, word: Word, *, clock: Clock, target: Actuator | None = None) -> Answer:
    """What came of the word: it is on disk, and what it asks for was tried once.

    `target` is where actions go, by itself what the configuration says.
    Raises  StoreFailed when an agent holds the folder, or the disk refuses (nothing was acted on then); Absent when
            there is no such folder; ValueError for a verb that does not exist
    """
    if not folder.is_dir():
        raise Absent(f"no folder {folder}: no agent has run here; start it, or name its folder with --state-dir")
    opened = open_store(folder / DATABASE, clock=clock, settings=parts.config.settings("store"))
    store = opened.store
    try:
        _hand_to_owner(folder)
        run = _Run(store, parts, clock, target or target_of(parts))
        event = as_event(word, clock, f"offline-{os.urandom(6).hex()}")
        run.take(event)
        message = "written down; no agent runs, so this command did what was due"
        return Answer(ok=True, id=event.id, message=f"{message} ({opened.replaced})" if opened.replaced else message)
    finally:
        store.close()
        _hand_to_owner(folder)


def target_of(parts: Parts) -> Actuator:
    """Where actions go as the site has it: nowhere, to gpuguard-actuator, or as root straight to its target."""
    if parts.policy.dry_run:
        return dry_run.build(dry_run.Settings())
    hand = parts.config.settings("actuators.delegate")
    if os.path.exists(hand.socket) or os.geteuid() != 0:
        return delegate.build(hand)
    return targets.guarded(parts.config)


def look(parts: Parts) -> NodeReport:
    """What the scheduler says of this node now, whatever the mode: asking changes nothing.

    gpuguard-actuator is asked; where it gives no answer, its target is asked directly.
    """
    report = delegate.build(parts.config.settings("actuators.delegate")).read_state()
    if report.error is None:
        return report
    if targets.chosen(parts.config) == dry_run.DryRun.name:
        return dry_run.build(dry_run.Settings()).read_state()
    try:
        direct = targets.straight(parts.config).read_state()
    except ConfigInvalid as error:
        return msgspec.structs.replace(report, error=f"{report.error}; {error}")
    return direct if direct.error is None else msgspec.structs.replace(direct, error=f"{direct.error}; {report.error}")


class _Run:
    """One word's worth of the agent's loop."""

    def __init__(self, store: SqliteStore, parts: Parts, clock: Clock, target: Actuator) -> None:
        self._clock, self._target = clock, target
        self._sent: list[Action] = []
        try:
            health, booted, _ = remember(store, parts, clock)
        except msgspec.ValidationError as error:
            raise StoreFailed(
                f"{store.path}: the memory was written by another version ({error}); use that version, or move the "
                "file aside to start with an empty memory"
            ) from error
        self._loop = Loop(
            store=store, health=health, detectors=parts.detectors, clock=clock,
            tally=Tally(version=__version__, mode=parts.policy.mode, policy=parts.policy.name), rules=parts.policy,
            settings=parts.loop, act=self._sent.append, ask=_nobody, told=_nobody,
        )  # fmt: skip
        # A run within the same boot learns nothing from it, and would make the story longer for nothing.
        if booted.previous != booted.at.boot:
            self.take(booted)

    def take(self, event: AnyEvent) -> None:
        """The event is decided and on disk, and the actions due have been tried.

        Raises  StoreFailed when the disk refuses
        """
        self._write([event])
        tried, left = 0, set[str]()
        while self._sent and tried < ACTIONS_AT_ONCE:
            action = self._sent.pop(0)
            if about_the_drain(action.verb):
                tried += 1
                outcome = self._target.perform(action)
            elif action.key not in left:
                left.add(action.key)
                outcome = FOR_THE_AGENT
            else:
                return  # it is due anew, so this has gone on for long enough
            self._write([_answered(action, outcome, self._clock, tried + len(left))])

    def _write(self, events: Iterable[AnyEvent]) -> None:
        self._loop.take(Batch(source="operator", events=tuple(events)))
        self._loop.write_when_due(now=True)
        store = self._loop.health.sources.get("store")
        if store is not None and store.level != "watching":
            raise StoreFailed(store.reason)


def _nobody(_: object) -> None:
    """Nobody is listening: there is no source to ask and no log to tell."""


def _answered(action: Action, outcome: Outcome, clock: Clock, number: int) -> ActionOutcome:
    now = clock.now()
    return ActionOutcome(
        id=EventId(f"outcome:{action.key}:{now.boot[:8]}:{now.mono:.3f}:offline{number}"), at=now, key=action.key,
        result=outcome.result, message=outcome.message, retry_after=outcome.retry_after, node_state=outcome.node_state,
    )  # fmt: skip


def _hand_to_owner(folder: Path) -> None:
    """What root made in the agent's folder belongs to the agent, or its next start could not write there."""
    if os.geteuid() != 0:
        return
    owner = folder.stat()
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", LOCK_NAME, BALLAST_NAME):
        with contextlib.suppress(FileNotFoundError):  # SQLite's side files come and go
            os.chown(folder / name, owner.st_uid, owner.st_gid, follow_symlinks=False)
