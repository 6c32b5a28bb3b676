"""Many real processes that change one book: no change is lost, whatever they do to each other."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuguard.ports import LedgerPage
from gpuguard.store.ledger import MARKER, DirectoryLedger

# Each adds its name to the book so often as it is told, and prints a line for each that it was told to be in it.
WRITER = """
import sys, time
from gpuguard.store.ledger import DirectoryLedger
book, name, times = DirectoryLedger(sys.argv[1]), sys.argv[2], int(sys.argv[3])
done = 0
while done < times:
    page = book.read(time.monotonic() + 60)
    line = f"{name}.{done}"
    lines = page.text.decode().split()
    if book.write(page, " ".join([*lines, line]).encode(), time.monotonic() + 60):
        print(line, flush=True)
        done += 1
"""


def start(folder: Path, checkout: Path, name: str, times: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name, str(times)], cwd=checkout, text=True,
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(checkout)},
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return marked(tmp_path)


def marked(folder: Path) -> Path:
    (folder / MARKER).touch()
    return folder


def text(folder: Path) -> list[str]:
    return DirectoryLedger(str(folder)).read(time.monotonic() + 60).text.decode().split()


def test_no_change_of_many_processes_is_lost(folder: Path, checkout: Path) -> None:
    writers = [start(folder, checkout, f"w{number}", 40) for number in range(8)]
    told = [line for writer in writers for line in writer.communicate()[0].split()]
    assert {writer.returncode for writer in writers} == {0}
    assert len(told) == 320
    assert sorted(text(folder)) == sorted(told)


def test_a_process_that_is_killed_or_stopped_at_any_instruction_loses_nothing_of_the_others(
    folder: Path, checkout: Path
) -> None:
    victims = [start(folder, checkout, f"v{number}", 10_000) for number in range(4)]
    steady = [start(folder, checkout, f"s{number}", 60) for number in range(3)]
    for place, victim in enumerate(victims):
        victim.stdout.readline()  # type: ignore[union-attr]
        victim.send_signal(signal.SIGSTOP if place % 2 else signal.SIGKILL)
    told = [line for writer in steady for line in writer.communicate()[0].split()]
    for victim in victims:
        victim.send_signal(signal.SIGCONT)
    for victim in victims:
        if victim.poll() is None:
            victim.stdout.readline()  # type: ignore[union-attr]
        victim.kill()
        told += victim.communicate()[0].split()
    found = text(folder)
    assert len(found) == len(set(found)), "something was written twice"
    assert set(told) <= set(found)


@pytest.mark.parametrize("writers", [3])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["read", "write", "sweep"])), max_size=60))
def test_in_any_order_of_steps_what_was_written_stays(
    tmp_path_factory: pytest.TempPathFactory, writers: int, steps: list[tuple[int, str]]
) -> None:
    """Pages may be as old as they like, the directory may have been swept any number of times since."""
    folder = marked(tmp_path_factory.mktemp("book"))
    books = [DirectoryLedger(str(folder)) for _ in range(writers)]
    pages: list[LedgerPage | None] = [None] * writers
    written: list[str] = []
    for number, (who, step) in enumerate(steps):
        until = time.monotonic() + 60
        page = pages[who]
        if step == "read" or page is None:
            pages[who] = books[who].read(until)
        elif step == "write":
            line = f"{who}.{number}"
            if books[who].write(page, " ".join([*page.text.decode().split(), line]).encode(), until):
                written.append(line)
        else:
            for _ in range(33):
                fresh = books[who].read(until)
                assert books[who].write(fresh, fresh.text, until)
    assert text(folder) == written
