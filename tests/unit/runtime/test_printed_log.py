"""The logs that people give, and what is said of those that cannot be read."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from gpuguard.errors import ReadFailed
from gpuguard.runtime.printed_log import opened, printable, rfc3339


def test_plain_and_packed_logs_are_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"a\nb\n")
    (tmp_path / "packed").write_bytes(gzip.compress(b"a\nb\n"))
    for name in ("plain", "packed"):
        with opened(str(tmp_path / name)) as log:
            assert log.read() == b"a\nb\n"


def test_what_cannot_be_read_is_told_with_a_next_step(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "name the files"), (tmp_path / "none", "standard input")):
        with pytest.raises(ReadFailed, match=words), opened(str(path)):
            pass


def test_a_damaged_archive_ends_where_the_damage_is(tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(gzip.compress(b"line\n" * 10_000)[:-20])
    read: list[bytes] = []

    def read_all() -> None:
        with opened(str(tmp_path / "cut")) as log:
            while part := log.read1(4096):
                read.append(part)

    with pytest.raises(ReadFailed, match="damaged"):
        read_all()
    assert read[0].startswith(b"line\n")


@pytest.mark.parametrize("command", ["scan", "replay"])
def test_a_closed_standard_input_is_told(command: str) -> None:
    line = f"{sys.executable} -m gpuguard.cli {command} - <&-"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "standard input is closed" in done.stderr


def test_nothing_that_a_terminal_would_obey_is_printed() -> None:
    assert printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\x0a"


@pytest.mark.parametrize(("utc", "text"), [(0.5, "1970-01-01T00:00:00.500000Z"), (None, None), (1e300, None)])
def test_moments_are_written_as_the_rfc_has_it(utc: float | None, text: str | None) -> None:
    assert rfc3339(utc) == text
