import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.errors import Absent, StoreFailed
from gpuguard.model.actions import Action, Outcome
from gpuguard.model.story import Change
from gpuguard.ports import Clock
from gpuguard.runtime import offline
from gpuguard.runtime.assembly import assemble
from gpuguard.runtime.control import Word
from gpuguard.store import sqlite
from gpuguard.store.reader import DATABASE_NAME, open_reader
from gpuguard.store.sqlite import SqliteStore, StoreOpened
from tests.support.incidents import LOST, Machine, Scheduler, config_text, lost_gpu

DRAIN = Word(verb="drain", by="mia", reason="fans")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.stop()


def say(node: Machine, word: Word = DRAIN) -> str:
    return offline.say(node.state_dir, node.parts, word, clock=node.clock, target=node.scheduler).id


def kinds(node: Machine) -> list[str]:
    reader = open_reader(node.state_dir / DATABASE_NAME)
    try:
        return [entry.kind for entry in reader.story()]
    finally:
        reader.close()


def test_a_word_is_written_down_acted_on_and_kept_for_the_next_agent(node: Machine) -> None:
    node.stop()
    say(node)
    assert kinds(node) == ["operator", "drain", "outcome"]
    assert node.scheduler.flags == ("IDLE", "DRAIN")
    node.start()
    assert node.loop.health.drain is not None
    assert node.loop.health.drain.state == "standing"
    assert node.loop.owed == {}


def test_within_a_boot_no_start_is_invented(node: Machine) -> None:
    node.line(LOST)
    node.stop()
    say(node, Word(verb="ack", by="mia", reason="x", code="xid79"))
    assert "boot" not in kinds(node)


def test_after_a_reboot_the_memory_learns_of_it_first(node: Machine) -> None:
    node.line(LOST)
    node.stop()
    node.clock.reboot("b0070002-0000-4000-8000-000000000001")
    say(node)
    assert kinds(node).index("boot") < kinds(node).index("operator")
    node.start()
    assert {s.state for s in node.loop.health.subjects.values()} == {"returning"}, "the reboot ended what stood"


def test_an_empty_folder_gets_a_memory_of_its_own(node: Machine, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    answer = offline.say(empty, node.parts, DRAIN, clock=node.clock, target=node.scheduler)
    assert answer.ok
    assert (empty / DATABASE_NAME).exists()


def test_a_folder_that_is_not_there_is_not_made(node: Machine, tmp_path: Path) -> None:
    with pytest.raises(Absent, match="--state-dir"):
        offline.say(tmp_path / "typo", node.parts, DRAIN, clock=node.clock, target=node.scheduler)
    assert not (tmp_path / "typo").exists()


def test_beside_a_running_agent_nothing_is_written(node: Machine) -> None:
    with pytest.raises(StoreFailed, match=f"another agent \\(pid {os.getpid()}\\)"):
        say(node)
    assert node.scheduler.flags == ("IDLE",)


def test_an_action_that_waited_is_tried_along_the_way(node: Machine) -> None:
    node.scheduler.error = "slurmctld does not answer"
    lost_gpu(node)
    node.stop()
    node.clock.advance(60.0)
    node.scheduler.error = None
    say(node, Word(verb="ack", by="mia", reason="x", code="xid31"))
    assert node.scheduler.reason.endswith("lost xid79")


class Recording(Scheduler):
    """A scheduler that keeps what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def perform(self, action: Action) -> Outcome:
        self.asked.append(action.verb)
        return super().perform(action)


def test_what_is_not_about_the_drain_is_left_to_the_agent(tmp_path: Path) -> None:
    scheduler = Recording()
    node = Machine(tmp_path, scheduler=scheduler)
    scheduler.error = "slurmctld does not answer"
    lost_gpu(node)
    node.stop()
    node.clock.advance(60.0)
    scheduler.error, scheduler.asked = None, []
    config = tmp_path / "evicts.toml"
    config.write_text(config_text("drain").replace('mode = "drain"', 'mode = "drain"\nevict_pods = true'))
    parts = assemble(config)
    offline.say(
        node.state_dir, parts, Word(verb="ack", by="mia", reason="x", code="xid31"), clock=node.clock, target=scheduler
    )
    assert scheduler.asked == ["drain"], "no eviction"
    assert "DRAIN" in scheduler.flags
    reader = open_reader(node.state_dir / DATABASE_NAME)
    try:
        (owed,) = reader.owed_actions()
    finally:
        reader.close()
    assert (owed.action.verb, owed.state, "no agent runs" in owed.message) == ("evict", "owed", True)


class Full(SqliteStore):
    """A memory on a full disk."""

    def commit(self, change: Change) -> None:
        raise StoreFailed("no room left; free space on its file system")


def test_on_a_full_disk_nothing_is_acted_on(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    node.stop()

    def opened(path: Path, *, clock: Clock, settings: sqlite.Settings | None = None) -> StoreOpened:
        return StoreOpened(store=Full(path, clock=clock, settings=settings))

    monkeypatch.setattr(offline, "open_store", opened)
    with pytest.raises(StoreFailed, match="free space"):
        say(node)
    assert node.scheduler.flags == ("IDLE",)


def test_a_newer_memory_is_left_untouched(node: Machine) -> None:
    import sqlite3

    node.stop()
    path = node.state_dir / DATABASE_NAME
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreFailed, match="install the newer gpuguard"):
        say(node)
    assert path.read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="root is missing: only root can give files away")
def test_what_root_makes_belongs_to_the_agent(node: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    offline.say(folder, node.parts, DRAIN, clock=node.clock, target=node.scheduler)
    assert {path.stat().st_uid for path in folder.iterdir()} == {65534}


@pytest.mark.parametrize("mode", ["observe", "drain"])
def test_where_actions_go_follows_the_mode(tmp_path: Path, mode: str) -> None:
    machine = Machine(tmp_path, mode=mode)  # type: ignore[arg-type]  # pytest gives plain text
    machine.stop()
    target = offline.target_of(machine.parts)
    expected = "dry_run" if mode == "observe" else "slurm" if os.geteuid() == 0 else "delegate"
    assert target.name == expected


@pytest.mark.parametrize("token", [None, "everything", "BEEF"])
def test_an_adoption_needs_a_token(node: Machine, token: str | None) -> None:
    node.stop()
    with pytest.raises(ValueError, match="token"):
        say(node, Word(verb="adopt", by="mia", reason="x", token=token))
    assert kinds(node) == []
