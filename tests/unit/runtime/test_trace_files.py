"""Opening traces: plain and packed, and every way in which a file is not one."""

import gzip
import os
from pathlib import Path

import pytest

from gpuguard.errors import GpuguardError, NotUnderstood, ReadFailed
from gpuguard.runtime import trace_files
from gpuguard.runtime.trace_files import trace_lines

TEXT = "job_id,gpus\na,1\nb,2\n"


def _file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def _refusal(path: Path, kind: type[GpuguardError] = NotUnderstood) -> str:
    with pytest.raises(kind) as told:
        list(trace_lines(path))
    assert str(path) in str(told.value)
    return str(told.value)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "packed.csv"])
def test_lines_of_a_plain_and_of_a_packed_file(tmp_path: Path, name: str) -> None:
    packed = name != "t.csv"
    path = _file(tmp_path, name, gzip.compress(TEXT.encode()) if packed else TEXT.encode())
    assert list(trace_lines(path)) == ["job_id,gpus\n", "a,1\n", "b,2\n"]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    assert next(trace_lines(_file(tmp_path, "t.csv", b"\xef\xbb\xbfjob_id\r\n"))) == "job_id\r\n"


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    assert list(trace_lines(_file(tmp_path, "t.csv", b""))) == []


def test_a_packed_file_that_was_cut_short(tmp_path: Path) -> None:
    packed = gzip.compress(("".join(f"{at},{at * 7919 % 1000}\n" for at in range(3000))).encode(), mtime=0)
    said = _refusal(_file(tmp_path, "t.csv.gz", packed[: len(packed) // 2]))
    assert "cut short after line" in said
    assert "copy it again" in said
    assert "cut short" in _refusal(_file(tmp_path, "u.csv.gz", packed[:-4]))


def test_a_packed_file_that_was_damaged(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(TEXT.encode() * 100, mtime=0))
    packed[-6] ^= 0xFF  # the checksum
    assert "is damaged after line" in _refusal(_file(tmp_path, "t.csv.gz", bytes(packed)))
    packed[10] = 0x07  # a block of a kind that does not exist
    assert "is damaged after line" in _refusal(_file(tmp_path, "t.csv.gz", bytes(packed)))


def test_a_name_that_promises_gzip(tmp_path: Path) -> None:
    assert "is named .gz and is no gzip file" in _refusal(_file(tmp_path, "t.csv.gz", TEXT.encode()))
    assert "is named .gz and is no gzip file" in _refusal(_file(tmp_path, "t.csv.gz", b""))


def test_what_is_no_text_names_line_and_byte(tmp_path: Path) -> None:
    assert "line 2, byte 2: it is not UTF-8" in _refusal(_file(tmp_path, "t.csv", b"job_id\nM\xc3\xff,1\n"))


def test_a_file_that_unpacks_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_line = gzip.compress(b"0" * 200_000)
    assert "line 1 has more than 65536 bytes" in _refusal(_file(tmp_path, "t.csv.gz", one_line))
    monkeypatch.setattr(trace_files, "LIMIT", 2**20)
    rows = gzip.compress((b"a" * 1023 + b"\n") * 2**11)
    assert "more than 1 MiB, reached at line 1025" in _refusal(_file(tmp_path, "t.csv.gz", rows))


def test_a_file_of_nothing_but_line_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "MOST_LINES", 1000)
    assert len(list(trace_lines(_file(tmp_path, "t.csv", b"\n" * 1000)))) == 1000
    assert "more than 1,000 lines" in _refusal(_file(tmp_path, "u.csv.gz", gzip.compress(b"\n" * 1001)))


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    assert "no regular file" in _refusal(tmp_path / "pipe.csv", ReadFailed)
    assert "no regular file" in _refusal(tmp_path, ReadFailed)
    assert "No such file" in _refusal(tmp_path / "absent.csv", ReadFailed)
