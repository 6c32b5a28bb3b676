"""One agent a folder; the lock dies with its process."""

import os
from pathlib import Path

import pytest

from gpuguard.errors import StoreFailed
from gpuguard.store.lock import LOCK_NAME, AgentLock, holder_of


def test_the_second_is_refused_and_the_next_is_not(tmp_path: Path) -> None:
    first = AgentLock(tmp_path)
    assert holder_of(tmp_path) == os.getpid()
    with pytest.raises(StoreFailed, match=rf"pid {os.getpid()}.*systemctl stop gpuguard-agent"):
        AgentLock(tmp_path)
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
