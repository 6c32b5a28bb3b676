"""The agent: watches this node, decides, writes down, and has what is owed done by another process.

Threads: one for each source, one that carries actions to their target, one for scrapes, one for people's words, one for
each webhook, and the loop, which alone decides. Nothing but the loop touches the health.
"""

import gc
import os
import random
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec
import structlog
from prometheus_client.core import Metric

from gpuguard import __version__
from gpuguard.actuators import delegate, dry_run
from gpuguard.errors import StoreFailed
from gpuguard.health.snapshot import take, without_readings
from gpuguard.model.actions import Action, Question
from gpuguard.model.events import Batch
from gpuguard.model.health import Snapshot, Transition
from gpuguard.model.ids import SubjectId, TokenId
from gpuguard.ports import Actuator, Clock
from gpuguard.runtime import plugins, telling_settings
from gpuguard.runtime.assembly import DATABASE, Parts, build_sources, quantities, remember
from gpuguard.runtime.cache import Cache
from gpuguard.runtime.control import ControlServer
from gpuguard.runtime.course import Course
from gpuguard.runtime.http import LOOPBACK, SNAPSHOT, MetricsServer, Page, metrics_page, parse_address, printed
from gpuguard.runtime.loop import Loop
from gpuguard.runtime.mailbox import Mailbox
from gpuguard.runtime.messenger import Messenger
from gpuguard.runtime.notify import Notifier
from gpuguard.runtime.supervise import Supervisor
from gpuguard.runtime.tally import Tally
from gpuguard.store.sqlite import SqliteStore, open_store

if TYPE_CHECKING:
    from gpuguard.runtime.telling import Telling

log = structlog.get_logger()

# A source that would stand in for another, and for which.
STAND_INS = {"journal": "kmsg"}
# The one source whose absence is news on its own: of the others the machine may have no use.
NEEDED = "kmsg"


class Agent:
    """One run of the daemon on the machine under `root`.

    Raises  StoreFailed when the state directory cannot be used; ReadFailed when an address cannot be listened on
    """

    def __init__(
        self, parts: Parts, *, state_dir: Path, root: Path, listen: str | None, clock: Clock, compat: str = ""
    ) -> None:
        # Whatever looks after the state directory is to look after the one in use.
        parts = replace(parts, agent=replace(parts.agent, state_dir=str(state_dir)))
        self._parts, self._clock, self._root = parts, clock, root
        opened = open_store(state_dir / DATABASE, clock=clock, settings=parts.config.settings("store"))
        self._store: SqliteStore = opened.store
        self._mailbox = Mailbox()
        self._cache = Cache(str(state_dir))
        self._metric_shelf = plugins.shelf("gpuguard.metrics")
        self._quantities = tuple(quantities(parts.source_modules).values())
        self._notifier = Notifier()
        self._stopping = False
        self._tally = Tally(version=__version__, mode=parts.policy.mode, policy=parts.policy.name)
        self._supervisor = Supervisor(clock, self._mailbox.put, settings=parts.config.settings("supervise"))
        self._messenger = Messenger(
            self._target(), clock, self._mailbox, let_go=self._supervisor.let_go, standing=self._drain_stands
        )
        kept = [quantity.name for quantity in self._quantities if quantity.keep]
        self._samples_refused = False
        self._course = Course(self._store, kept, self._whose, self._course_refused)
        self._telling = self._build_telling(state_dir)
        self._loop, self._first = self._make_loop(opened.replaced)
        self._control = ControlServer(str(state_dir), clock, self._mailbox.put)
        self._server = None
        if listen:
            pages = {"/metrics": metrics_page(self._families)}
            if compat:
                pages[f"/metrics/{compat}"] = self._compat_page(compat)
            address = parse_address(listen)
            if address[0] in LOOPBACK:
                # It names processes: for this node's users alone, who see them anyway.
                pages[SNAPSHOT] = self._whole_snapshot
            self._server = MetricsServer(address, pages)
            self._tally.listen = "{}:{}".format(*self._server.address)

    def _target(self) -> Actuator:
        """Where actions go: nowhere, unless the site set the node to act, or has what it only observes told to DRA."""
        config = self._parts.config
        tells = config.settings("actuator").target == "kubernetes"
        tells = tells and config.settings("actuators.kubernetes").device_taints != "off"
        if self._parts.policy.dry_run and not tells:
            return dry_run.build(dry_run.Settings())
        return delegate.build(config.settings("actuators.delegate"))

    def _build_telling(self, state_dir: Path) -> "Telling | None":
        """Who tells people; without a webhook nobody, and nothing is loaded that they would need."""
        forms, counts = plugins.shelf("gpuguard.notices"), self._tally.notices
        if not telling_settings.configured(self._parts.config, forms):
            return None
        from gpuguard.runtime import telling

        return telling.build(self._parts.config, forms, state_dir, self._clock, counts, host_name())

    def _make_loop(self, replaced: str | None) -> tuple[Loop, Batch]:
        if replaced:
            log.error("store.replaced", reason=replaced)
        try:
            health, booted, cursors = remember(self._store, self._parts, self._clock)
        except msgspec.ValidationError as error:
            self._store.close()
            raise StoreFailed(
                f"{self._store.path}: the memory was written by another version ({error}); run that version, or move "
                "the file aside to start with an empty memory"
            ) from error
        for name, source in build_sources(self._parts, self._root, self._clock).items():
            stands_in_for = STAND_INS.get(name) if STAND_INS.get(name) in self._parts.agent.sources else None
            self._supervisor.add(source, cursors.get(name), optional=name != NEEDED, stands_in_for=stands_in_for)
        loop = Loop(
            store=self._store, health=health, detectors=self._parts.detectors, clock=self._clock, tally=self._tally,
            rules=self._parts.policy, settings=self._parts.loop, act=self._send, ask=self._ask, told=_tell,
            heard=self._supervisor.overheard, measured=self._course.take, chance=random.random,
            **({"decided": self._telling.take} if self._telling else {}),
        )  # fmt: skip
        return loop, Batch(source="agent", events=(booted,))

    def _drain_stands(self) -> TokenId | None:
        """The token of our drain while it stands for real. Comes from another thread: what it reads never changes."""
        drain = self._loop.health.drain
        return drain.token if drain is not None and drain.state == "standing" and not drain.dry_run else None

    def _whose(self, subject: SubjectId) -> str:
        """The name under which the course of a GPU is kept: its own, wherever it is plugged in."""
        return self._loop.health.subject(subject).uuid or subject

    def _course_refused(self, failure: str) -> None:
        """A node on which nothing happens writes nothing but this: so it is told here that the disk refuses."""
        if failure:
            self._tally.store_errors += 1
        if bool(failure) == self._samples_refused:
            return
        self._samples_refused = bool(failure)
        if failure:
            log.warning("samples.not_kept", reason=failure)
        else:
            log.info("samples.kept_again", lost=self._course.lost)

    def _send(self, action: Action) -> None:
        log.info("action.sent", key=action.key, reason=action.reason)
        self._messenger.send(action)

    def _ask(self, question: Question) -> None:
        log.info("witness.asked", subject=question.subject, code=question.code)
        failed = self._supervisor.ask(question)
        if failed:
            log.warning("witness.failed", sources=failed)

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self, *, once: bool = False) -> int:
        """Exit code, when told to stop or, with `once`, when everything there was has been read and done."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        log.info("agent.started", version=__version__, mode=self._parts.policy.mode, root=str(self._root))
        self._messenger.start()
        self._take(self._first)
        self._supervisor.start()
        if once:
            return self._run_once()
        self._control.start()
        if self._telling:
            self._telling.start(self._loop.health)
        if self._server:
            self._server.start()
            log.info("metrics.served", address=":".join(map(str, self._server.address)))
        self._settle()
        # What is there by now stays; without this, looking through it again and again made one page in a hundred
        # take 13 ms more than the others.
        gc.collect()
        gc.freeze()
        self._notifier.ready(self._snapshot().line)
        try:
            self._turn()
        finally:
            self._end()
        return 0

    def _settle(self) -> None:
        """What was in the ring at start is decided before anybody is told that the agent is ready."""
        deadline = self._clock.now().mono + self._parts.agent.settle
        while not self._stopping and not self._supervisor.caught_up(0.0) and self._clock.now().mono < deadline:
            self._take_next(0.05)
        while (batch := self._mailbox.get(0.0)) is not None:
            self._take(batch)
        self._publish()

    def _turn(self) -> None:
        every = self._notifier.watchdog_every
        alive_at = self._clock.now().mono
        while not self._stopping:
            wait = self._loop.idle_for()
            if every is not None:
                wait = min(wait, max(0.0, alive_at + every - self._clock.now().mono))
            self._take_next(wait)
            ticked = self._loop.tick_when_due()
            self._loop.write_when_due()
            self._loop.send_owed()
            if self._loop.changed:
                self._publish()
            elif ticked:
                self._cache.touch()
            if every is not None and self._clock.now().mono >= alive_at + every:
                alive_at = self._clock.now().mono
                self._notifier.alive()

    def _run_once(self) -> int:
        self._settle()
        deadline = self._clock.now().mono + self._parts.agent.settle
        while self._loop.owed and self._clock.now().mono < deadline and not self._stopping:
            self._loop.send_owed()
            self._take_next(min(0.2, self._loop.idle_for()))
        snapshot = self._publish()
        self._end()
        return 0 if snapshot.level == 0 else 1

    def _take_next(self, wait: float) -> None:
        batch = self._mailbox.get(wait)
        if batch is not None:
            self._take(batch)

    def _take(self, batch: Batch) -> None:
        self._loop.take(batch)
        self._control.taken(batch, written=not self._loop.disk_refuses)

    def _end(self) -> None:
        self._notifier.stopping()
        stuck = self._supervisor.stop(2.0)
        if stuck:
            log.warning(
                "source.stuck", sources=stuck, reason="a read hangs in the kernel; only the process's end frees it"
            )
        while (batch := self._mailbox.get(0.0)) is not None:
            self._loop.take(batch)
        self._loop.write_when_due(now=True)
        self._course.end_minute()
        if self._telling:
            self._telling.stop()
        self._control.stop()
        if self._server:
            self._server.stop()
        self._store.close()
        log.info("agent.ended")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        self._mailbox.close()

    # --- being seen --------------------------------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        facts = self._tally.facts(self._supervisor.views(), self._loop.action_counts(), self._mailbox.depth())
        return take(self._loop.health, facts, self._clock.now(), self._quantities)

    def _publish(self) -> Snapshot:
        snapshot = self._snapshot()
        if self._cache.write(msgspec.json.encode(without_readings(snapshot))):
            self._loop.changed = False
        self._notifier.status(snapshot.line)
        return snapshot

    def _whole_snapshot(self) -> tuple[str, bytes]:
        """Verdicts and what was measured last, as JSON: what `gpuguard gpus` shows."""
        return "application/json", msgspec.json.encode(msgspec.structs.replace(self._snapshot(), quantities=()))

    def _compat_page(self, name: str) -> Page:
        """The page that speaks the names of another exporter."""
        module = plugins.shelf("gpuguard.compat")[name]
        settings = self._parts.config.settings(f"compat.{name}")
        hostname = host_name()
        return printed(lambda: module.page(self._snapshot(), settings, hostname))

    def _families(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        for module in self._metric_shelf.values():
            yield from module.families(snapshot)


def host_name() -> str:
    """What this machine is called: in a pod, whose own name changes with each of them, what its Node is called."""
    return os.environ.get("NODE_NAME", "") or socket.gethostname()


def _tell(transition: Transition) -> None:
    log.info(
        "verdict.changed", subject=transition.subject, finding=transition.finding, severity=transition.severity,
        before=transition.before, state=transition.state, action=transition.action, remedy=transition.remedy,
        reason=transition.reason,
    )  # fmt: skip
