"""One agent a folder; the lock dies with its process."""

import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from gpuguard.errors import StoreFailed
from gpuguard.store.lock import LOCK_NAME, AgentLock, holder_of


def test_the_second_is_refused_and_the_next_is_not(tmp_path: Path) -> None:
    first = AgentLock(tmp_path)
    assert holder_of(tmp_path) == os.getpid()
    with pytest.raises(StoreFailed, match=rf"pid {os.getpid()}.*systemctl stop gpuguard-agent"):
        AgentLock(tmp_path, patience=0.0)
    first.release()
    first.release()
    AgentLock(tmp_path).release()


def test_a_lock_file_left_by_a_dead_agent_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("4194304\n")
    lock = AgentLock(tmp_path)
    assert holder_of(tmp_path) == os.getpid()
    lock.release()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"-1", b"many"])
def test_a_file_without_a_pid_names_nobody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LOCK_NAME).write_bytes(content)
    assert holder_of(tmp_path) is None


def test_no_folder_is_named(tmp_path: Path) -> None:
    assert holder_of(tmp_path / "gone") is None
    with pytest.raises(StoreFailed, match=r"cannot open .*agent\.lock.*--state-dir"):
        AgentLock(tmp_path / "gone")


def test_the_lock_is_not_inherited(tmp_path: Path) -> None:
    lock = AgentLock(tmp_path)
    assert lock._file is not None
    assert not os.get_inheritable(lock._file)
    lock.release()


def test_somebody_who_only_looks_does_not_keep_an_agent_from_starting(tmp_path: Path) -> None:
    AgentLock(tmp_path).release()
    looks = os.open(tmp_path / LOCK_NAME, os.O_RDONLY)
    fcntl.flock(looks, fcntl.LOCK_SH)
    leaves = threading.Timer(0.05, os.close, (looks,))
    leaves.start()
    lock = AgentLock(tmp_path, patience=30.0)
    assert holder_of(tmp_path) == os.getpid()
    lock.release()
    leaves.join()


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077])
def test_nobody_else_may_open_it_whatever_the_umask_is(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        AgentLock(tmp_path).release()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / LOCK_NAME).stat().st_mode) == 0o640
    (tmp_path / LOCK_NAME).chmod(0o666)
    AgentLock(tmp_path).release()
    assert stat.S_IMODE((tmp_path / LOCK_NAME).stat().st_mode) == 0o640
