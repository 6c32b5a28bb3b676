"""What was committed is there, whole, whatever happens to the process, the disk or the file."""

import contextlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.errors import StoreFailed
from gpuguard.model.events import Cursor
from gpuguard.model.ids import EventId, SubjectId
from gpuguard.model.story import Change
from gpuguard.runtime.clock import ManualClock
from gpuguard.store.schema import APPLICATION_ID, newest
from gpuguard.store.sqlite import Settings, SqliteStore, open_store
from tests.support.require import require
from tests.support.stored import BOOT, GPU, change, entry, instant, line, owed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "gpuguard.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = open_store(path, clock=ManualClock())
    assert opened.replaced is None
    yield opened.store
    opened.store.close()


def reopened(store: SqliteStore) -> SqliteStore:
    """The same memory in a new process's eyes."""
    store.close()
    return SqliteStore(store.path, clock=ManualClock())


def test_an_empty_memory_answers(store: SqliteStore) -> None:
    assert store.load_state() == {}
    assert store.cursors() == {}
    assert store.actions() == store.owed_actions() == store.story() == ()
    assert store.event(EventId("kmsg:5a1e:1")) is None
    assert not store.has_event(EventId("kmsg:5a1e:1"))


def test_everything_of_a_change_comes_back(path: Path) -> None:
    store = SqliteStore(path, clock=ManualClock())
    store.commit(change(7))
    store = reopened(store)
    assert store.load_state() == {"subject/gpu": b"7", "memory/2": b"7"}
    assert store.cursors() == {"kmsg": Cursor(source="kmsg", boot=BOOT, position="7")}
    assert store.story() == (entry(7, event_id="kmsg:5a1e:7"),)
    assert store.event(EventId("kmsg:5a1e:7")) == line(7)
    assert store.actions() == store.owed_actions() == (owed(7),)
    store.close()


def test_deletes_come_before_puts(store: SqliteStore) -> None:
    store.commit(Change(puts={"drain": b"old", "incident/1": b"x"}))
    store.commit(Change(puts={"drain": b"new"}, deletes=("drain", "incident/1")))
    assert store.load_state() == {"drain": b"new"}


def test_a_fact_is_stored_once(store: SqliteStore) -> None:
    store.commit(Change(events=(line(1),)))
    store.commit(Change(events=(line(1), line(2))))
    assert store.has_event(EventId("kmsg:5a1e:1"))
    assert store.event(EventId("kmsg:5a1e:2")) == line(2)


def test_an_action_is_updated_in_place_and_keeps_its_turn(store: SqliteStore) -> None:
    store.commit(Change(actions=(owed(1), owed(2))))
    store.commit(Change(actions=(owed(1, tries=3, due=60.5),)))
    assert store.owed_actions() == (owed(1, tries=3, due=60.5), owed(2))
    store.commit(Change(actions=(owed(1, state="done", tries=4),)))
    assert store.owed_actions() == (owed(2),)
    assert store.actions() == (owed(1, state="done", tries=4), owed(2))


def test_the_story_is_asked_by_subject_time_and_number(store: SqliteStore) -> None:
    other = SubjectId("gpu:0000:5e:00.0")
    store.commit(Change(story=tuple(entry(number, subject=(GPU, other)[number % 2]) for number in range(10))))
    assert [e.detail["number"] for e in store.story(limit=3)] == [7, 8, 9]
    assert [e.detail["number"] for e in store.story(subject=other)] == [1, 3, 5, 7, 9]
    since = instant(6).utc
    assert [e.detail["number"] for e in store.story(since=since)] == [6, 7, 8, 9]
    assert [e.detail["number"] for e in store.story(subject=GPU, since=since, limit=1)] == [8]


def test_nothing_to_write_is_not_written(store: SqliteStore) -> None:
    before = store.path.with_name("gpuguard.db-wal").stat().st_size
    store.commit(Change())
    assert store.path.with_name("gpuguard.db-wal").stat().st_size == before


def test_text_that_utf8_cannot_carry_is_kept_as_far_as_it_goes(store: SqliteStore) -> None:
    import msgspec

    raw = "comm=\x00\udcff\n\x1b[31m"
    hostile = msgspec.structs.replace(line(1), raw=raw, parsed=msgspec.structs.replace(line(1).parsed, process=raw))
    sentence = msgspec.structs.replace(entry(1), text=raw, detail={"process": raw})
    store.commit(Change(events=(hostile,), story=(sentence,)))
    kept = "comm=\x00\\udcff\n\x1b[31m"
    found = store.event(hostile.id)
    assert found is not None
    assert (found.raw, found.parsed.process) == (kept, kept)
    assert (store.story()[0].text, store.story()[0].detail) == (kept, {"process": kept})


def test_the_pragmas_that_durability_rests_on(store: SqliteStore) -> None:
    asked = {name: store._ask(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous", "user_version")}
    assert asked == {"journal_mode": "wal", "synchronous": 2, "user_version": newest()}


def test_a_second_agent_is_told_who_is_first(store: SqliteStore) -> None:
    code = (
        "import sys; from pathlib import Path; from gpuguard.runtime.clock import ManualClock; "
        "from gpuguard.store.sqlite import SqliteStore; SqliteStore(Path(sys.argv[1]), clock=ManualClock())"
    )
    second = subprocess.run([sys.executable, "-c", code, str(store.path)], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"another agent (pid {os.getpid()})" in second.stderr
    assert "--state-dir" in second.stderr


def test_a_failed_change_leaves_nothing_behind_and_can_be_committed_again(store: SqliteStore) -> None:
    store.commit(change(1))
    used = int(str(store._ask("PRAGMA page_count")[0][0]))
    store._ask(f"PRAGMA max_page_count = {used + 1}")
    big = Change(puts={"subject/gpu": b"x" * 100_000}, story=(entry(2),), actions=(owed(2),))
    with pytest.raises(StoreFailed, match=r"SQLITE_FULL.*free space"):
        store.commit(big)
    assert store.load_state()["subject/gpu"] == b"1"
    assert len(store.story()) == len(store.actions()) == 1
    store._ask("PRAGMA max_page_count = 1000000")
    store.commit(big)
    assert len(store.load_state()["subject/gpu"]) == 100_000
    assert len(store.story()) == len(store.actions()) == 2


def test_the_ballast_carries_the_verdict_over_a_full_disk(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = os.geteuid() == 0 and (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
        == 0
    )
    require("tmpfs", mounted, "mounting a file system needs root")
    try:
        _fill_and_commit(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _fill_and_commit(folder: Path) -> None:
    store = SqliteStore(folder / "gpuguard.db", clock=ManualClock())
    store.commit(change(1))
    _fill(folder / "somebody-elses-log")
    number = 2
    # What owes nothing may fail: the room is for a drain.
    faults = 0
    while not (refused := _refusal(store, fault(faults))):
        faults += 1
    assert "free space on its file system" in refused
    assert (folder / "ballast").exists()
    while (folder / "ballast").exists():
        store.commit(change(number))
        number += 1
    assert store.owed_actions()[-1] == owed(number - 1)
    while not (refused := _refusal(store, change(number))):
        number += 1
    assert "free space on its file system" in refused
    assert store.load_state()["subject/gpu"] == b"%d" % (number - 1)
    assert len(store.story()) == number - 1 + faults
    (folder / "somebody-elses-log").unlink()
    store.commit(change(number))
    _fill(folder / "somebody-elses-log")
    store = reopened(store)
    assert store.load_state()["subject/gpu"] == b"%d" % number
    numbers = [e.detail["number"] for e in store.story() if e.kind != "note"]
    assert numbers == list(range(1, number + 1))
    (folder / "somebody-elses-log").unlink()
    store = reopened(store)
    assert (folder / "ballast").exists()
    store.close()
    _fill(folder / "somebody-elses-log")
    store = SqliteStore(folder / "gpuguard.db", clock=ManualClock())
    assert not (folder / "ballast").exists(), "the start itself needed the room"
    assert store.load_state()["subject/gpu"] == b"%d" % number
    store.close()


def fault(number: int) -> Change:
    """A fault that nothing is done about."""
    return Change(events=(line(100_000 + number),), story=(entry(100_000 + number, kind="note"),))


def _refusal(store: SqliteStore, refused: Change) -> str:
    try:
        store.commit(refused)
    except StoreFailed as error:
        return str(error)
    return ""


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"\x89PNG not a database at all" * 40, id="another file"),
        pytest.param(lambda data: data[:100], id="cut after the header"),
        pytest.param(lambda data: data[: len(data) // 2], id="cut in half"),
        pytest.param(lambda data: data[:8192] + b"\xa5" * 8192 + data[16384:], id="two pages overwritten"),
        pytest.param(lambda data: data.replace(b'"verb":"drain"', b'"verb":12345.0'), id="an action nobody knows"),
    ],
)
def test_a_damaged_file_is_moved_aside_with_its_bytes(path: Path, damage: object) -> None:
    store = SqliteStore(path, clock=ManualClock())
    for number in range(50):
        store.commit(change(number))
    store.close()
    damaged = damage(path.read_bytes())  # type: ignore[operator]  # the lambdas above
    path.write_bytes(damaged)

    opened = open_store(path, clock=ManualClock(utc=1_700_000_000.0))

    aside = path.with_name("gpuguard.db.corrupt-20231114T221320Z")
    assert opened.replaced is not None
    assert str(aside) in opened.replaced
    assert "resume --adopt" in opened.replaced
    assert aside.read_bytes() == damaged
    assert opened.store.actions() == ()
    opened.store.commit(change(1))
    opened.store.close()


@pytest.mark.parametrize("state", ["owed", "done"])
def test_the_memory_is_not_replaced_for_a_verb_of_a_newer_version(path: Path, state: str) -> None:
    store = SqliteStore(path, clock=ManualClock())
    for number in range(3):
        store.commit(change(number))
    keys = [owed.action.key for owed in store.actions()]
    store.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            'UPDATE actions SET state = ?, body = replace(body, \'"verb":"drain"\', \'"verb":"blast"\') WHERE key = ?',
            (state, keys[1]),
        )
    if state == "owed":
        with pytest.raises(
            StoreFailed, match=r"verb 'blast', .*still owed; .*install the newer gpuguard again, or move"
        ):
            open_store(path, clock=ManualClock())
        assert [found.name for found in path.parent.glob("*.corrupt-*")] == []
        return
    opened = open_store(path, clock=ManualClock())
    assert opened.replaced is None
    assert [owed.action.key for owed in opened.store.actions()] == [keys[0], keys[2]]
    opened.store.close()


def test_a_second_damaged_file_does_not_replace_the_first(path: Path) -> None:
    for content in (b"first" * 100, b"second" * 100):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        open_store(path, clock=ManualClock()).store.close()
    kept = sorted(part.read_bytes()[:5] for part in path.parent.glob("*.corrupt-*"))
    assert kept == [b"first", b"secon"]


def test_the_log_goes_aside_with_its_file(path: Path, tmp_path: Path) -> None:
    store = SqliteStore(path, clock=ManualClock())
    store.commit(change(1))
    store._ask("PRAGMA wal_checkpoint(RESTART)")
    store.commit(Change(puts={"drain": b"only this page is in the log"}))
    torn = tmp_path / "torn"
    torn.mkdir()
    wal = path.with_name("gpuguard.db-wal").read_bytes()
    (torn / "gpuguard.db").write_bytes(b"not a database" * 100)
    (torn / "gpuguard.db-wal").write_bytes(wal)
    store.close()
    opened = open_store(torn / "gpuguard.db", clock=ManualClock())
    assert opened.store.story() == ()
    assert [part.read_bytes() for part in torn.glob("*.corrupt-*-wal")] == [wal]
    opened.store.close()


def test_a_newer_schema_is_left_untouched(path: Path) -> None:
    SqliteStore(path, clock=ManualClock()).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {newest() + 3}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreFailed, match=rf"version {newest() + 3}.*up to {newest()}.*install the newer"):
        open_store(path, clock=ManualClock())
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*.corrupt-*"))


def test_a_database_of_another_program_is_left_untouched(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreFailed, match=r"another program.*--state-dir"):
        open_store(path, clock=ManualClock())
    assert path.read_bytes() == before


def test_a_failure_to_open_lets_the_folder_go(path: Path) -> None:
    path.parent.mkdir()
    path.mkdir()
    with pytest.raises(StoreFailed, match="cannot open"):
        open_store(path, clock=ManualClock())
    path.rmdir()
    open_store(path, clock=ManualClock()).store.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreFailed, match=r"cannot make .*/file/state.*--state-dir"):
        open_store(tmp_path / "file" / "state" / "gpuguard.db", clock=ManualClock())


def test_a_folder_without_the_right_to_write_is_named(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o555)
    code = (
        "import os, sys; from pathlib import Path; from gpuguard.errors import StoreFailed\n"
        "from gpuguard.runtime.clock import ManualClock; from gpuguard.store.sqlite import open_store\n"
        "from gpuguard.store.schema import newest; newest()\n"
        "os.geteuid() == 0 and os.setuid(65534)\n"
        "try: open_store(Path(sys.argv[1]), clock=ManualClock())\n"
        "except StoreFailed as error: print(error)"
    )
    _open_to_all(path.parent)
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert "make it writable for the agent's user" in ran.stdout, ran.stderr


def _open_to_all(folder: Path) -> None:
    """Another user can reach the folder: pytest makes its own folders for one user alone."""
    for above in folder.parents:
        if above.stat().st_uid == os.getuid() and "pytest-" in str(above):
            above.chmod(0o755)


def test_a_file_of_application_id_only_is_ours(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.close()
    opened = open_store(path, clock=ManualClock())
    assert opened.replaced is None
    opened.store.close()


def test_a_flood_does_not_grow_the_file_beyond_its_bounds(path: Path) -> None:
    settings = Settings(story_rows=300, event_rows=300, action_rows=100)
    store = SqliteStore(path, clock=ManualClock(), settings=settings)
    sizes = []
    for batch in range(12):
        numbers = range(batch * 500, batch * 500 + 500)
        store.commit(Change(events=tuple(map(line, numbers)), story=tuple(entry(n, kind="note") for n in numbers)))
        sizes.append(path.stat().st_size + path.with_name("gpuguard.db-wal").stat().st_size)
    assert len(store.story(limit=10_000)) == 300
    assert store.has_event(line(5999).id)
    assert not store.has_event(line(5000).id)
    assert max(sizes) < 3 * sizes[1]
    store.close()


def test_a_failure_to_forget_is_counted_and_the_change_stands(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("gpuguard.store.sqlite.forget", refuse)
    store = SqliteStore(path, clock=ManualClock())
    store.commit(Change(story=tuple(entry(number) for number in range(600))))
    assert store.forgetting_failed == 1
    assert len(store.story()) == 600
    store.commit(change(1))
    store.close()


def test_who_holds_the_file_is_asked_for(store: SqliteStore) -> None:
    store._ask("PRAGMA busy_timeout = 5")
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailed, match=r"SQLITE_BUSY.*`fuser .*gpuguard\.db` names it"):
        store.commit(change(1))
    other.close()
    store.commit(change(1))
    assert len(store.story()) == 1


def test_a_copy_of_the_files_taken_at_any_moment_opens(path: Path, tmp_path: Path) -> None:
    store = SqliteStore(path, clock=ManualClock())
    for number in range(1, 6):
        store.commit(change(number))
        copy = tmp_path / f"copy-{number}"
        copy.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", copy / f"gpuguard.db{suffix}")
        opened = open_store(copy / "gpuguard.db", clock=ManualClock())
        assert opened.replaced is None
        assert opened.store.load_state() == store.load_state()
        assert opened.store.owed_actions() == store.owed_actions()
        opened.store.close()
    store.close()


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077])
def test_nobody_else_may_open_the_files_whatever_the_umask_is(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = SqliteStore(path, clock=ManualClock())
        store.commit(change(1))
        assert modes(path) == dict.fromkeys(("agent.lock", "ballast", *SIDES), 0o640)
        store.close()
    finally:
        os.umask(before)


def test_files_of_an_earlier_version_are_closed_to_others(path: Path, tmp_path: Path) -> None:
    """As after a kill: with a log and its index beside the database."""
    store = SqliteStore(path, clock=ManualClock())
    store.commit(change(1))
    dead = tmp_path / "dead"
    dead.mkdir()
    for name in (*SIDES, "ballast"):
        shutil.copy(path.with_name(name), dead / name)
        (dead / name).chmod(0o644)
    store.close()
    store = SqliteStore(dead / "gpuguard.db", clock=ManualClock())
    assert store.owed_actions() == (owed(1),)
    assert modes(store.path) == dict.fromkeys(("agent.lock", "ballast", *SIDES), 0o640)
    store.close()


SIDES = ("gpuguard.db", "gpuguard.db-wal", "gpuguard.db-shm")


def modes(path: Path) -> dict[str, int]:
    """The permissions of every file in the database's folder."""
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}


# What any user could do to a -shm that it may read: hold the byte that a writer must lock.
HOLD = """
import fcntl, os, struct, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
shared = os.open(sys.argv[1] + "-shm", os.O_RDONLY)
fcntl.fcntl(shared, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 120, 1, 0))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("mode", "told"), [(0o640, b"PermissionError"), (0o644, b"held")])
def test_another_user_cannot_hold_up_a_commit(path: Path, mode: int, told: bytes) -> None:
    """The second case shows that the first is the mode's doing."""
    require("root", os.geteuid() == 0, "only root can act as another user")
    store = SqliteStore(path, clock=ManualClock())
    store.commit(change(1))
    store._ask("PRAGMA busy_timeout = 5")
    _open_to_all(path.parent)
    path.with_name("gpuguard.db-shm").chmod(mode)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        first = holder.stdout.readline()
        if told == b"held":
            assert told in first
            with pytest.raises(StoreFailed, match="SQLITE_BUSY"):
                store.commit(change(2))
        else:
            assert told in holder.stdout.read()
            store.commit(change(2))
            assert store.owed_actions()[-1] == owed(2)
        holder.stdin.close()
        holder.wait(10)
    store.close()
