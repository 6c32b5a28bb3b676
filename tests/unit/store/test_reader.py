"""Whoever may read the file, its owner and its group, gets an answer, whether the agent runs, ended or died."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gpuguard.errors import Absent, NotUnderstood, StoreFailed
from gpuguard.model.ids import EventId
from gpuguard.runtime.clock import ManualClock
from gpuguard.store.reader import open_reader
from gpuguard.store.schema import newest
from gpuguard.store.sqlite import SqliteStore
from tests.support.require import require
from tests.support.stored import change, entry, line, owed

# What another user sees: as nobody, the number of entries and of actions.
NOBODY = 65534
AS_NOBODY = """
import os, sys
from pathlib import Path
from gpuguard.store.reader import open_reader
from gpuguard.store.schema import newest
newest()  # nobody may not be allowed into the checkout
os.setgroups([]); os.setgid(65534); os.setuid(65534)
reader = open_reader(Path(sys.argv[1]))
print(len(reader.story()), len(reader.owed_actions()))
reader.close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpuguard.db"


def write(path: Path, count: int = 3) -> SqliteStore:
    store = SqliteStore(path, clock=ManualClock())
    for number in range(count):
        store.commit(change(number))
    return store


def die(path: Path, into: Path) -> Path:
    """The files as a killed agent leaves them."""
    into.mkdir()
    store = write(path)
    for suffix in ("", "-wal", "-shm"):
        shutil.copy(f"{path}{suffix}", into / f"gpuguard.db{suffix}")
    store.close()
    return into / "gpuguard.db"


def test_a_reader_sees_each_commit_of_a_running_agent(path: Path) -> None:
    store = write(path)
    reader = open_reader(path)
    assert reader.story() == store.story()
    store.commit(change(3))
    assert reader.story()[-1] == entry(3, event_id="kmsg:5a1e:3")
    assert reader.owed_actions() == tuple(map(owed, range(4)))
    assert reader.event(EventId("kmsg:5a1e:2")) == line(2)
    assert reader.cursors()["kmsg"].position == "3"
    assert reader.load_state()["subject/gpu"] == b"3"
    reader.close()
    store.close()


def test_a_reader_changes_nothing(path: Path) -> None:
    write(path).close()
    before = path.read_bytes()
    reader = open_reader(path)
    with pytest.raises(StoreFailed, match="readonly"):
        reader._ask("DELETE FROM story")
    reader.close()
    assert path.read_bytes() == before


def test_what_a_killed_agent_committed_is_seen(path: Path, tmp_path: Path) -> None:
    reader = open_reader(die(path, tmp_path / "dead"))
    assert len(reader.story()) == 3
    reader.close()


def as_nobody(path: Path, *, of_the_group: bool = True) -> str:
    require("root", os.geteuid() == 0, "only root can look through another user's eyes")
    for file in path.parent.glob(f"{path.name}*"):
        os.chown(file, -1, NOBODY if of_the_group else 0)
    for above in path.parents:
        if "pytest-" in str(above):
            above.chmod(0o755)
    ran = subprocess.run([sys.executable, "-c", AS_NOBODY, str(path)], capture_output=True, text=True, check=False)
    return ran.stdout.strip() or ran.stderr


def test_a_member_of_the_group_reads_beside_a_running_agent(path: Path) -> None:
    store = write(path)
    assert as_nobody(path) == "3 3"
    store.close()


def test_a_member_of_the_group_reads_after_a_good_end(path: Path) -> None:
    write(path).close()
    assert not path.with_name("gpuguard.db-wal").exists()
    assert as_nobody(path) == "3 3"


def test_a_member_of_the_group_reads_after_a_kill(path: Path, tmp_path: Path) -> None:
    assert as_nobody(die(path, tmp_path / "dead")) == "3 3"


def test_a_member_of_the_group_reads_a_log_without_its_index(path: Path, tmp_path: Path) -> None:
    dead = die(path, tmp_path / "dead")
    dead.with_name("gpuguard.db-shm").unlink()
    assert as_nobody(dead) == "3 3"


def test_a_user_who_may_not_read_is_told(path: Path) -> None:
    store = write(path)
    assert "ask as root or as a member of that group" in as_nobody(path, of_the_group=False)
    store.close()


def test_no_memory_is_told_from_a_broken_one(path: Path) -> None:
    with pytest.raises(Absent, match=r"no agent has run here; start it"):
        open_reader(path)
    path.touch()
    with pytest.raises(Absent, match="try again in a moment"):
        open_reader(path)
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreFailed, match=r"SQLITE_NOTADB.*restart the agent"):
        open_reader(path)


def test_another_schema_is_named(path: Path) -> None:
    write(path).close()
    for version, words in ((newest() + 1, "install the newer gpuguard"), (0, "restart the agent")):
        with sqlite3.connect(path) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
        with pytest.raises(StoreFailed, match=words):
            open_reader(path)


def test_a_record_in_a_form_nobody_knows_is_not_guessed_at(path: Path) -> None:
    store = write(path)
    store._ask("UPDATE events SET body = '{\"event\": \"poem\"}' WHERE event_id = 'kmsg:5a1e:1'")
    store._ask("UPDATE story SET detail = '[1]', at_mono = 'noon'")
    store._ask("UPDATE actions SET tries = 'many'")
    reader = open_reader(path)
    with pytest.raises(NotUnderstood, match="event is damaged") as caught:
        reader.event(EventId("kmsg:5a1e:1"))
    assert "poem" in caught.value.text
    with pytest.raises(NotUnderstood, match="story entry of kind 'verdict' is damaged"):
        reader.story()
    with pytest.raises(NotUnderstood, match="action is damaged"):
        reader.actions()
    reader.close()
    store.close()
