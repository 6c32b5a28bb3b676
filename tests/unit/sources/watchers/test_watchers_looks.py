"""Looks at files, logs and folders as a job writes them."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguard.errors import ReadFailed
from gpuguard.sources.watchers import looks
from gpuguard.sources.watchers.looks import TAIL, CheckpointsLook, FileLook, LogLook, Sight
from gpuguard.sources.watchers.patterns import Pattern

UTC = 1_700_000_000.0


def dated(path: Path, seconds_ago: float) -> None:
    os.utime(path, (UTC - seconds_ago, UTC - seconds_ago))


def test_a_file_that_is_touched_or_holds_the_step(tmp_path: Path) -> None:
    path = tmp_path / "step"
    path.write_text("41\n")
    dated(path, 30)
    one = FileLook(str(path), None)
    assert one.look(UTC) == Sight(0, 30.0, 41)
    assert one.look(UTC) == Sight(0, 30.0, 41)
    dated(path, 5)
    assert one.look(UTC) == Sight(1, 5.0, 41)
    path.write_text("42\n")
    dated(path, 5)
    assert one.look(UTC) == Sight(2, 5.0, 42)
    path.write_text("epoch 3 of 7 " * 20)
    dated(path, 0)
    assert one.look(UTC) == Sight(3, 0.0, None)


def test_a_log_that_grows_is_turned_over_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("begin\n")
    one = LogLook(str(path), None, None)
    moves = [one.look(UTC).moves, one.look(UTC).moves]
    with path.open("a") as log:
        log.write("more\n")
    moves.append(one.look(UTC).moves)
    path.write_text("")
    moves.append(one.look(UTC).moves)
    moves.append(one.look(UTC).moves)
    path.unlink()
    path.write_text("a new one")
    moves.append(one.look(UTC).moves)
    assert moves == [0, 0, 1, 2, 2, 3]


def test_a_pattern_that_recurs(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("loading\n")
    one = LogLook(str(path), None, Pattern(r"step (\d+)"))
    assert one.look(UTC)[2:] == (None, False)
    with path.open("a") as log:
        for text, found in (
            ("noise\n", (0, None, False)), ("step 1\nstep 2\n", (1, 2, True)), ("noise\n", (1, 2, True)),
            ("step ", (1, 2, True)), ("37", (1, 2, True)), ("1\n", (2, 371, True)),
        ):  # fmt: skip
            log.write(text)
            log.flush()
            sight = one.look(UTC)
            assert (sight.moves, sight.step, sight.seen) == found


def test_at_first_the_end_of_a_long_log_is_read_and_later_what_is_too_much_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"step 1\n" + b"x\n" * TAIL + b"step 7\n")
    one = LogLook(str(path), None, Pattern(r"step (\d+)"))
    assert (one.look(UTC).step, one.look(UTC).moves) == (7, 0)
    with path.open("ab") as log:
        log.write(b"step 8\n" + b"x\n" * TAIL)
    assert (one.look(UTC).step, one.look(UTC).moves) == (7, 0)
    with path.open("ab") as log:
        log.write(b"\0\xff" * 50_000 + b"\nstep 9\n")
    assert one.look(UTC) == Sight(1, UTC - path.stat().st_mtime, 9)


def test_a_pattern_that_takes_long_is_looked_for_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_text("x\nx\n")
    monkeypatch.setattr(looks, "SLOW", -1.0)
    one = LogLook(str(path), None, Pattern("x"))
    one.look(UTC)
    with pytest.raises(ReadFailed, match="took too long"):
        one.look(UTC)


def test_a_checkpoint_is_complete_when_it_stays_as_it_is(tmp_path: Path) -> None:
    one = CheckpointsLook(str(tmp_path), None)
    assert one.look(UTC) == Sight(0, 0.0, None, seen=False)
    for name in ("step_300.tmp", ".step_300", "tmp-300", "_300", "step_300.incomplete"):
        (tmp_path / name).mkdir()
    assert not one.look(UTC).seen
    folder = tmp_path / "step_300"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"x" * 10)
    dated(folder / "model.pt", 3)
    dated(folder, 3)
    assert not one.look(UTC).seen
    (folder / "model.pt").write_bytes(b"x" * 20)
    dated(folder / "model.pt", 2)
    assert not one.look(UTC).seen
    assert one.look(UTC) == Sight(1, 3.0, 300)
    assert one.look(UTC + 5) == Sight(1, 8.0, 300)
    (tmp_path / "epoch2-step400.pt").write_bytes(b"x")
    dated(tmp_path / "epoch2-step400.pt", -6)
    assert one.look(UTC + 6).step == 300
    assert one.look(UTC + 6) == Sight(2, 0.0, 400)


def test_a_checkpoint_that_was_there_before_is_known_at_once(tmp_path: Path) -> None:
    (tmp_path / "step_300").write_bytes(b"x")
    dated(tmp_path / "step_300", 500)
    assert CheckpointsLook(str(tmp_path), None).look(UTC) == Sight(0, 500.0, 300)


def links_to(target: Path) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize(
    "make", [Path.mkdir, os.mkfifo, links_to(Path("/dev/null")), lambda path: os.mknod(path, stat.S_IFSOCK)],
    ids=["folder", "pipe", "device", "socket"],
)  # fmt: skip
def test_what_is_no_file_is_not_touched(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "log"
    make(path)
    for one in (FileLook(str(path), None), LogLook(str(path), None, None)):
        with pytest.raises(ReadFailed, match="not of the kind"):
            one.look(UTC)


def test_what_belongs_to_somebody_else_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("secret 5\n")
    for one in (
        FileLook(str(path), os.getuid() + 1), LogLook(str(path), os.getuid() + 1, Pattern(r"secret (\d)")),
        CheckpointsLook(str(tmp_path), os.getuid() + 1),
    ):  # fmt: skip
        with pytest.raises(ReadFailed, match="belongs to user"):
            one.look(UTC)
    assert FileLook(str(path), os.getuid()).look(UTC).moves == 0


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    for one in (FileLook(str(tmp_path / "x"), None), CheckpointsLook(str(tmp_path / "x"), None)):
        with pytest.raises(FileNotFoundError):
            one.look(UTC)
