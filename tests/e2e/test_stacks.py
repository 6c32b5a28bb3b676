"""Stacks of a process by py-spy: the real one where it is installed, and programs in its name that misbehave."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuguard.child.stacks import OUTPUT, found, stacks
from gpuguard.errors import Absent, GpuguardError, ReadFailed
from tests.support.require import require


def _installed(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A py-spy in PATH, before any other, that does this."""
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_what_it_prints_is_what_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(tmp_path, 'echo "$*"; printf "Thread 1 (idle): \\033[31m x\\n"', monkeypatch)
    assert stacks(77, 20.0) == "dump --pid 77 --nonblocking\nThread 1 (idle): ?[31m x\n"


def test_one_that_hangs_is_ended_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "pids"
    _installed(tmp_path, f"sleep 600 & echo $$ $! > {mark}; echo half; wait", monkeypatch)
    began = time.monotonic()
    with pytest.raises(ReadFailed, match=r"did not end within 1 s"):
        stacks(77, 1.0)
    assert time.monotonic() - began < 10.0
    pids = [int(word) for word in mark.read_text().split()]
    assert len(pids) == 2
    ends = time.monotonic() + 10.0
    while any(_runs(pid) for pid in pids) and time.monotonic() < ends:
        time.sleep(0.02)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def test_one_that_closes_its_output_and_stays_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(tmp_path, "exec >/dev/null 2>&1; exec sleep 600", monkeypatch)
    with pytest.raises(ReadFailed, match="did not end within"):
        stacks(77, 0.5)


def test_a_flood_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(tmp_path, "exec yes", monkeypatch)
    with pytest.raises(ReadFailed, match=f"more than {OUTPUT} bytes"):
        stacks(77, 20.0)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'Permission Denied: Try running again with elevated permissions'; exit 1", "as root or as the process"),
        ("echo 'Error: Operation not permitted (os error 1)' >&2; exit 1", "as root or as the process"),
        ("echo 'Error: Failed to find a python version'; exit 1", "is it a Python process"),
        ("exit 3", "it said nothing"), ("kill -9 $$", "it said nothing"),
    ],
)  # fmt: skip
def test_its_refusals_name_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    _installed(tmp_path, script, monkeypatch)
    with pytest.raises(ReadFailed, match=words):
        stacks(77, 20.0)


def test_where_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(Absent, match="pip install py-spy"):
        stacks(77, 1.0)


def test_one_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(tmp_path, "", monkeypatch)
    (tmp_path / "py-spy").write_bytes(b"\x7fELF and nothing more")
    with pytest.raises(GpuguardError):
        stacks(77, 5.0)


def test_the_real_one_names_the_line_a_process_is_in() -> None:
    require("py-spy", found() is not None, "pip install py-spy")
    lines = ("import threading", "def waits_here():", "    print('ready', flush=True)", "    threading.Event().wait()")
    program = "\n".join((*lines, "waits_here()"))
    with subprocess.Popen((sys.executable, "-S", "-c", program), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            text = stacks(process.pid, 30.0)
        finally:
            process.kill()
    assert "waits_here (<string>:4)" in text
