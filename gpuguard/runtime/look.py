"""One look at the node by whoever asks, without a daemon: the same sources, detectors and rules, in memory only."""

import contextlib
from pathlib import Path

import msgspec

from gpuguard import __version__
from gpuguard.errors import Absent, StoreFailed
from gpuguard.health.decide import decide
from gpuguard.health.snapshot import take
from gpuguard.model.health import Snapshot
from gpuguard.ports import Clock, StoreReader
from gpuguard.runtime.assembly import DATABASE, Parts, build_sources, remember
from gpuguard.runtime.mailbox import Mailbox
from gpuguard.runtime.supervise import Supervisor
from gpuguard.runtime.tally import Tally
from gpuguard.store.reader import open_reader


def look(parts: Parts, *, state_dir: Path | None, root: Path, clock: Clock, without: tuple[str, ...] = ()) -> Snapshot:
    """What stands against the node now: the memory on disk, and what the sources say since, less those in `without`.

    Nothing is written and nothing is done. A memory that cannot be read counts as empty, and so does one that is not
    there (`state_dir` None): the kernel's ring still tells of this boot.
    """
    with contextlib.ExitStack() as closing:
        reader: StoreReader | None = None
        try:
            if state_dir is None:
                raise Absent("this machine has no memory")
            reader = open_reader(state_dir / DATABASE)
            closing.callback(reader.close)
            health, booted, cursors = remember(reader, parts, clock)
        except (Absent, StoreFailed, msgspec.ValidationError):
            health, booted, cursors = remember(None, parts, clock)
    mailbox = Mailbox()
    supervisor = Supervisor(clock, mailbox.put, settings=parts.config.settings("supervise"))
    for name, source in build_sources(parts, root, clock).items():
        # The journal would only repeat what the ring says.
        if name != "journal" and name not in without:
            supervisor.add(source, cursors.get(name), optional=name != "kmsg")
    tally = Tally(version=__version__, mode=parts.policy.mode, policy=parts.policy.name)
    health, _ = decide(health, booted, parts.detectors, parts.policy)
    supervisor.start()
    try:
        supervisor.caught_up(parts.agent.settle)
        views = supervisor.views()
    finally:
        supervisor.stop(1.0)
    while (batch := mailbox.get(0.0)) is not None:
        for event in batch.events:
            tally.saw(event)
            health, _ = decide(health, event, parts.detectors, parts.policy)
    return take(health, tally.facts(views, {}, 0), clock.now())
