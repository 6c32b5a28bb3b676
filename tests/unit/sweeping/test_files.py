"""Files of the kernel: read, absent, unreadable, not understood."""

import errno
import os
from pathlib import Path

import pytest

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.readings import Values
from gpuguard.sweeping.files import listed, read_text, take, whole


def test_absent_is_not_unreadable(tmp_path: Path) -> None:
    (tmp_path / "count").write_bytes(b" 5\xff\n")
    assert read_text(tmp_path / "count") == "5\ufffd"
    with pytest.raises(Absent):
        read_text(tmp_path / "none")
    with pytest.raises(Absent):
        read_text(tmp_path / "count" / "below")
    with pytest.raises(ReadFailed):
        read_text(tmp_path)


def test_a_column_is_absent_unknown_or_known(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("5\n")
    (tmp_path / "words").write_text("N/A (no PMA)\n")
    values: Values = {}
    assert take(values, "known", tmp_path / "count", whole)
    assert take(values, "odd", tmp_path / "words", whole)
    assert take(values, "absent", tmp_path / "none", whole)
    assert not take(values, "refused", tmp_path, whole)
    assert values == {"known": 5, "odd": None, "refused": None}


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("-1", -1), ("", None), ("0x10", None), ("1.5", None), ("9" * 30, None), ("--1", None)],
)
def test_whole_numbers(text: str, number: int | None) -> None:
    assert whole(text) == number


def test_names_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).touch()
    assert listed(tmp_path) == ["a", "b"]
    assert listed(tmp_path / "none") == []
    assert listed(tmp_path / "a") == []
    (tmp_path / os.fsdecode(b"\xff")).touch()
    assert listed(tmp_path) == ["a", "b"], "no name of the kernel's: it could be neither printed nor sent"


def test_a_folder_that_cannot_be_listed_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: object) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "listdir", full)
    with pytest.raises(ReadFailed, match="Too many open files"):
        listed(tmp_path)
