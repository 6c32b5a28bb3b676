"""Room is kept, given back once, and kept again."""

import stat
from pathlib import Path

from gpuguard.store.ballast import BALLAST_BYTES, BALLAST_NAME, Ballast


def test_made_once_of_real_bytes(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path)
    assert not ballast.standing()
    assert ballast.make()
    file = tmp_path / BALLAST_NAME
    assert file.stat().st_blocks * 512 >= BALLAST_BYTES
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    first = file.read_bytes()
    file.chmod(0o644)
    assert ballast.make()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert file.read_bytes() == first


def test_given_back_once(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path)
    ballast.make()
    assert ballast.free()
    assert not ballast.free()
    assert not ballast.standing()


def test_kept_again_when_there_is_room(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path)
    ballast.restore()
    assert not ballast.standing(), "what was never given back is not kept again"
    ballast.make()
    ballast.free()
    ballast.restore()
    assert ballast.standing()


def test_where_it_cannot_stand_it_does_not(tmp_path: Path) -> None:
    assert not Ballast(tmp_path / "gone").make()
    (tmp_path / BALLAST_NAME).mkdir()
    assert not Ballast(tmp_path).make()
