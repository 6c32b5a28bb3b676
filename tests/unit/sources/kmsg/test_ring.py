"""The file of a recorded machine as a ring, and the errors that opening the real one gives."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.errors import Absent, ReadFailed
from gpuguard.sources.kmsg.ring import LINE_MAX, DeviceRing, FileRing


@pytest.fixture
def stop() -> Iterator[int]:
    fd = os.eventfd(0)
    yield fd
    os.close(fd)


def test_records_come_with_their_dictionary(tmp_path: Path, stop: int) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"6,1,5,-;one\n SUBSYSTEM=pci\n DEVICE=x\n\n6,2,6,-;two\n")
    ring = FileRing(path, stop, 0.1)
    assert ring.read() == b"6,1,5,-;one\n SUBSYSTEM=pci\n DEVICE=x"
    assert ring.read() == b"6,2,6,-;two"
    assert ring.read() is None
    ring.close()


def test_partial_last_line_waits(tmp_path: Path, stop: int) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"6,1,5,-;on")
    ring = FileRing(path, stop, 0.1)
    assert ring.read() is None
    with path.open("ab") as file:
        file.write(b"e\n")
    assert ring.read() == b"6,1,5,-;one"
    ring.close()


def test_shrunk_file_is_read_from_its_start(tmp_path: Path, stop: int) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"6,1,5,-;one\n6,2,6,-;two\n")
    ring = FileRing(path, stop, 0.1)
    assert ring.read() is not None
    assert ring.read() is not None
    path.write_bytes(b"6,1,5,-;neu\n")
    assert ring.read() == b"6,1,5,-;neu"
    ring.close()


def test_newest_stamp_is_that_of_the_last_whole_record(tmp_path: Path, stop: int) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"6,1,5,-;one\n6,2,77,-;two\n DEVICE=x\n6,3,99,-;thr")
    ring = FileRing(path, stop, 0.1)
    assert ring.newest_micros() == 77
    assert ring.read() == b"6,1,5,-;one"
    ring.close()


def test_line_of_megabytes_costs_no_memory_and_ends_somewhere(tmp_path: Path, stop: int) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"6,1,5,-;" + b"x" * 3_000_000 + b"\n6,2,6,-;two\n")
    ring = FileRing(path, stop, 0.1)
    first = ring.read()
    assert first is not None
    assert len(first) <= 2 * LINE_MAX
    assert ring.read() == b"6,2,6,-;two"
    ring.close()


def test_missing_file_and_device_are_absent(tmp_path: Path, stop: int) -> None:
    with pytest.raises(Absent, match="recorded machine"):
        FileRing(tmp_path / "no", stop, 0.1)
    with pytest.raises(Absent, match="container"):
        DeviceRing(tmp_path / "no", stop)


def test_what_cannot_be_opened_names_the_cause(tmp_path: Path, stop: int) -> None:
    socket = tmp_path / "folder" / "x"
    (tmp_path / "folder").write_text("not a folder")
    with pytest.raises(ReadFailed, match="Not a directory"):
        DeviceRing(socket, stop)


def test_device_gives_records_until_there_are_none(tmp_path: Path, stop: int) -> None:
    # A named pipe behaves as the ring does where it matters here: reads never block, and none means EAGAIN.
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY)
    ring = DeviceRing(path, stop)
    assert ring.read() is None
    os.write(writer, b"6,1,5,-;one\n")
    ring.wait(5.0)
    assert ring.read() == b"6,1,5,-;one\n"
    os.eventfd_write(stop, 1)
    ring.wait(600.0)
    ring.pause(600.0)
    ring.close()
    os.close(writer)
    os.close(reader)
