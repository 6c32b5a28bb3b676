"""Processes: names that hold anything, and threads of the kernel that are asked once."""

import errno
import os
from pathlib import Path

import pytest

from gpuguard.errors import ReadFailed
from gpuguard.sweeping import processes
from gpuguard.sweeping.processes import Process, Processes, comm_of, parse_stat, sees_host, state_of
from tests.support.trees import host, process


@pytest.mark.parametrize(
    ("comm", "shown"),
    [
        (b"python3", "python3"), (b"a b", "a?b"), (b") S 1 (", ")?S?1?("), (b"x\ny", "x?y"), (b"\xff\xfe", "??"),
        ("é".encode(), "?"), (b"", ""), (b"\x1b[31m", "?[31m"), (b"((((", "(((("),
    ],
)  # fmt: skip
def test_names_may_hold_anything(tmp_path: Path, comm: bytes, shown: str) -> None:
    text = (process(tmp_path, 41, comm, "D", parent=7, started=99, cpu=3) / "stat").read_bytes()
    assert parse_stat(text) == Process(41, shown, "D", 7, 99, 3, 1, 0)
    assert state_of(text) == "D"
    assert comm_of(text) == comm


@pytest.mark.parametrize(
    "text", [b"", b"12", b"12 (x", b"12 (x) S 1 2 3", b"x (y) S " + b"1 " * 30, b"1 (y) S " + b"a " * 30]
)
def test_what_is_cut_off_is_no_process(text: bytes) -> None:
    assert parse_stat(text) is None


def test_a_container_does_not_see_the_host(tmp_path: Path) -> None:
    assert not sees_host(tmp_path / "proc")
    process(tmp_path, 2, "bash")
    assert not sees_host(tmp_path / "proc")
    assert sees_host(host(tmp_path) / "proc")


def test_threads_of_the_kernel_are_known_by_their_pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host(tmp_path)
    process(tmp_path, 30, "kworker/0:1", "I", parent=2)
    process(tmp_path, 31, "nv_queue", "D", parent=2)
    process(tmp_path, 32, "python3", parent=1)
    (tmp_path / "proc/self").mkdir()
    looks = Processes(tmp_path / "proc")
    assert {comm_of(stat) for stat in looks.stats()} == {b"kthreadd", b"nv_queue", b"python3"}
    process(tmp_path, 30, "python3", parent=1)
    assert {comm_of(stat) for stat in looks.stats()} == {b"kthreadd", b"nv_queue", b"python3"}
    assert len([stat for stat in looks.stats() if comm_of(stat) == b"python3"]) == 1
    monkeypatch.setattr(processes, "ANEW", 2)
    assert len([stat for stat in looks.stats() if comm_of(stat) == b"python3"]) == 2


def test_one_process_and_none(tmp_path: Path) -> None:
    process(tmp_path, 32, "python3")
    looks = Processes(tmp_path / "proc")
    one = looks.stat(32)
    assert one is not None
    assert one.comm == "python3"
    assert looks.stat(33) is None
    with pytest.raises(ReadFailed):
        list(Processes(tmp_path / "none").stats())


@pytest.mark.parametrize(("number", "seen"), [(errno.EACCES, False), (errno.ENOENT, False), (errno.EMFILE, None)])
def test_nobody_seen_for_want_of_files_is_not_nobody_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, seen: bool | None
) -> None:
    looks = Processes(host(tmp_path) / "proc")

    def refuse(path: object, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    if seen is None:
        with pytest.raises(ReadFailed):
            sees_host(tmp_path / "proc")
        with pytest.raises(ReadFailed):
            list(looks.stats())
    else:
        assert sees_host(tmp_path / "proc") is seen
        assert list(looks.stats()) == []
