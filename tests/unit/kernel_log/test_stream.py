"""Bytes in chunks, facts out."""

import pytest

from gpuguard.kernel_log.reader import LONGEST_LINE
from gpuguard.kernel_log.stream import LogStream
from tests.support.kernel_lines import FIXTURES, read_all

XID = b"[    1.000000] NVRM: Xid (PCI:0000:c8:00): 48, pid=5, name=python3, channel 0x00000002\n"


def _read(data: bytes, size: int) -> list[object]:
    stream = LogStream()
    found: list[object] = []
    for at in range(0, len(data), size):
        found += stream.feed(data[at : at + size])
    return found + stream.finish()


@pytest.mark.parametrize("form", sorted(path.stem for path in (FIXTURES / "forms").glob("*.log")))
def test_chunks_make_no_difference(form: str) -> None:
    data = (FIXTURES / "forms" / f"{form}.log").read_bytes()
    wanted = read_all(data.decode())
    for size in (1, 7, 64, 1000, len(data)):
        assert _read(data, size) == wanted


def test_lines_are_counted() -> None:
    stream = LogStream()
    found = stream.feed(b"noise\n" * 1000 + XID + b"noise\n" * 10 + XID)
    found += stream.feed(b"half a li")
    found += stream.finish()
    assert [one.line for one in found] == [1001, 1012]
    assert stream.lines == 1013


def test_a_line_without_an_end_stays_small() -> None:
    stream = LogStream()
    for _ in range(40):
        assert stream.feed(b"x" * 65_536) == []
        assert len(stream._rest) <= LONGEST_LINE
    found = stream.feed(b"Xid (\n" + XID) + stream.finish()
    assert [(one.line, one.parsed.xid) for one in found] == [(2, 48)]


def test_what_stands_far_behind_in_a_long_line_is_passed_over() -> None:
    data = XID.rstrip() + b" " * (LONGEST_LINE * 3) + b"NVRM: Xid (PCI:0000:c8:00): 79\n" + XID
    for size in (1000, len(data)):
        assert [(one.line, one.parsed.xid) for one in _read(data, size)] == [(1, 48), (2, 48)]  # type: ignore[attr-defined]


def test_junk_is_survived() -> None:
    data = bytes(range(256)) * 50 + b"\n\0\0\0" + XID + b"\xff\xfeXid (\n\0\n" + XID[:-1]
    for size in (3, 100, len(data)):
        assert [one.parsed.xid for one in _read(data, size)] == [48, 48]  # type: ignore[attr-defined]


def test_flush_leaves_half_a_line() -> None:
    stream = LogStream()
    assert stream.feed(XID + XID[:40]) == []
    assert [one.line for one in stream.flush()] == [1]
    stream.feed(XID[40:])
    assert [one.line for one in stream.finish()] == [2]


@pytest.mark.parametrize("leader", [b"Nov  9 01:02:03 gpu-3 root: hello\n", b"12,1,1,-;hello\n", b"4,1,1,-;hello\n"])
def test_the_rest_of_a_programs_message_is_no_kernel_line(leader: bytes) -> None:
    """journalctl prints it indented; below a record of kmsg stands its dictionary."""
    data = leader + b"\n    noise\n" + b"    NVRM: Xid (PCI:0000:c8:00): 79, GPU has fallen off the bus.\n" * 2 + b"x\n"
    for size in (1, 5, 50, len(data)):
        assert _read(data, size) == []
    assert read_all(data.decode()) == []


def test_indented_lines_of_a_pasted_log_are_read() -> None:
    data = b"What we saw:\n\n    NVRM: Xid (PCI:0000:c8:00): 79, GPU has fallen off the bus.\n"
    for size in (1, 5, 50, len(data)):
        assert [one.line for one in _read(data, size)] == [3]  # type: ignore[attr-defined]
