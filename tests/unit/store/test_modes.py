"""The agent's files are closed to everybody but its user and its group."""

import os
import stat
from pathlib import Path

import pytest

from gpuguard.store.modes import close_to_others, create_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_what_is_made_has_the_mode_whatever_the_umask_is(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        os.close(create_private(tmp_path / "file", os.O_RDWR))
    finally:
        os.umask(before)
    assert mode(tmp_path / "file") == 0o640


@pytest.mark.parametrize(("found", "left"), [(0o644, 0o640), (0o666, 0o640), (0o640, 0o640), (0o600, 0o600)])
def test_what_is_there_is_closed_and_never_opened(tmp_path: Path, found: int, left: int) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(found)
    close_to_others(tmp_path / "file")
    assert mode(tmp_path / "file") == left


def test_nothing_is_made(tmp_path: Path) -> None:
    close_to_others(tmp_path / "file")
    assert not (tmp_path / "file").exists()
