"""The file that answers hooks, and how a reader knows that somebody still stands behind it."""

import os
from pathlib import Path

from gpuguard.runtime import cache
from gpuguard.store.lock import AgentLock


def test_what_is_written_is_read_and_its_age_is_told(tmp_path: Path) -> None:
    assert cache.Cache(str(tmp_path)).write(b'{"level": 0}')
    path = tmp_path / cache.NAME
    os.utime(path, (path.stat().st_mtime - 50, path.stat().st_mtime - 50))
    read = cache.read(str(tmp_path))
    assert read is not None
    assert read[0] == {"level": 0}
    assert 49 < read[1] < 60


def test_a_touch_makes_it_young_again(tmp_path: Path) -> None:
    writer = cache.Cache(str(tmp_path))
    writer.write(b"{}")
    os.utime(tmp_path / cache.NAME, (1, 1))
    assert writer.touch()
    read = cache.read(str(tmp_path))
    assert read is not None
    assert read[1] < 10


def test_a_clock_that_was_set_back_does_not_make_it_old(tmp_path: Path) -> None:
    cache.Cache(str(tmp_path)).write(b"{}")
    future = (tmp_path / cache.NAME).stat().st_mtime + 1e6
    os.utime(tmp_path / cache.NAME, (future, future))
    read = cache.read(str(tmp_path))
    assert read is not None
    assert read[1] == 0.0


def test_nothing_or_half_of_something_is_none(tmp_path: Path) -> None:
    assert cache.read(str(tmp_path)) is None
    for content in (b"", b'{"level": ', b"\xff\x00", b"[1, 2]"):
        (tmp_path / cache.NAME).write_bytes(content)
        assert cache.read(str(tmp_path)) is None


def test_a_write_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    writer = cache.Cache(str(tmp_path))
    writer.write(b'{"level": 1}')
    (tmp_path / f"{cache.NAME}.new").mkdir()
    assert not writer.write(b'{"level": 2}')
    read = cache.read(str(tmp_path))
    assert read is not None
    assert read[0] == {"level": 1}
    assert not cache.Cache(str(tmp_path / "nowhere")).touch()


def test_an_agent_runs_while_it_holds_the_lock(tmp_path: Path) -> None:
    assert not cache.agent_runs(str(tmp_path))
    lock = AgentLock(tmp_path)
    assert cache.agent_runs(str(tmp_path))
    lock.release()
    assert not cache.agent_runs(str(tmp_path))
