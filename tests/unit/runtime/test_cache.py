"""The file that answers hooks, and how a reader knows that somebody still stands behind it."""

import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuguard.runtime import cache
from gpuguard.store.lock import AgentLock
from tests.support.require import require


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


def test_a_time_far_ahead_is_as_strange_as_one_far_back(tmp_path: Path) -> None:
    """The clock was set back: were it taken for young, an agent that hangs would not be noticed for all that time."""
    cache.Cache(str(tmp_path)).write(b"{}")
    future = (tmp_path / cache.NAME).stat().st_mtime + 1e6
    os.utime(tmp_path / cache.NAME, (future, future))
    read = cache.read(str(tmp_path))
    assert read is not None
    assert read[1] > cache.STALE_AFTER


def test_nothing_or_half_of_something_is_none(tmp_path: Path) -> None:
    assert cache.read(str(tmp_path)) is None
    for content in (b"", b'{"level": ', b"\xff\x00", b"[1, 2]"):
        (tmp_path / cache.NAME).write_bytes(content)
        assert cache.read(str(tmp_path)) is None


def test_lists_in_lists_without_end_are_none(tmp_path: Path) -> None:
    (tmp_path / cache.NAME).write_bytes(b'{"a": ' + b"[" * 200_000)
    assert cache.read(str(tmp_path)) is None


def test_what_is_no_file_that_ends_is_none(tmp_path: Path) -> None:
    path = tmp_path / cache.NAME
    os.mkfifo(path)
    assert cache.read(str(tmp_path)) is None
    path.unlink()
    path.symlink_to("/dev/zero")
    assert cache.read(str(tmp_path)) is None
    path.unlink()
    with path.open("wb") as file:
        file.write(b'{"level": 0}')
        file.truncate(cache.LIMIT + 1)
    assert cache.read(str(tmp_path)) is None


def test_a_write_that_fails_takes_the_old_one_along(tmp_path: Path) -> None:
    """What it says may no longer hold, and nobody could tell."""
    writer = cache.Cache(str(tmp_path))
    writer.write(b'{"level": 1}')
    (tmp_path / f"{cache.NAME}.new").mkdir()
    assert not writer.write(b'{"level": 2}')
    assert cache.read(str(tmp_path)) is None
    assert not writer.touch()
    (tmp_path / f"{cache.NAME}.new").rmdir()
    assert writer.write(b'{"level": 2}')
    assert not cache.Cache(str(tmp_path / "nowhere")).write(b"{}")


def test_a_full_disk_leaves_nothing_to_quote(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for the disk: the file is made, and its content refused."""
    writer = cache.Cache(str(tmp_path))
    writer.write(b'{"level": 1}')
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        assert not writer.write(b'{"level": 2}')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077])
def test_everybody_may_read_it_whatever_the_umask_is(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        cache.Cache(str(tmp_path)).write(b"{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / cache.NAME).stat().st_mode) == 0o644


def test_a_leftover_of_a_killed_agent_is_no_hindrance(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{cache.NAME}.new")
    assert cache.Cache(str(tmp_path)).write(b"{}")
    assert [path.name for path in tmp_path.iterdir()] == [cache.NAME]


# As another user: whether an agent seems to run.
AS_NOBODY = """
import os, sys
from gpuguard.runtime import cache
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(cache.agent_runs(sys.argv[1]))
"""


@pytest.mark.parametrize(("age", "runs"), [(0.0, "True"), (2 * cache.STALE_AFTER, "False")])
def test_who_may_not_open_the_lock_judges_by_the_snapshot(tmp_path: Path, age: float, runs: str) -> None:
    require("root", os.geteuid() == 0, "only root can look through another user's eyes")
    lock = AgentLock(tmp_path)
    cache.Cache(str(tmp_path)).write(b"{}")
    then = (tmp_path / cache.NAME).stat().st_mtime - age
    os.utime(tmp_path / cache.NAME, (then, then))
    for folder in tmp_path.parents:
        if "pytest-" in str(folder):
            folder.chmod(0o755)
    tmp_path.chmod(0o755)
    told = subprocess.run([sys.executable, "-c", AS_NOBODY, str(tmp_path)], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == runs
    lock.release()


def test_an_agent_runs_while_it_holds_the_lock(tmp_path: Path) -> None:
    assert not cache.agent_runs(str(tmp_path))
    lock = AgentLock(tmp_path)
    assert cache.agent_runs(str(tmp_path))
    lock.release()
    assert not cache.agent_runs(str(tmp_path))
