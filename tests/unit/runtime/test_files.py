"""What is no file that ends is refused at once: no read here waits, and none grows without bounds."""

import os
from pathlib import Path

import pytest

from gpuguard.runtime.files import CONFIG_LIMIT, read_regular, read_toml


def test_a_file_is_read_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 700_000)
    os.utime(path, (5, 7))
    assert read_regular(path, 700_000) == (b"x" * 700_000, 7.0)


def test_more_than_the_limit_is_refused_by_what_is_read_not_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(path, 4)
    assert read_regular(path, 5)[0] == b"12345"


def test_a_pipe_does_not_make_anybody_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        read_regular(tmp_path / "pipe", 10)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full"])
def test_a_device_without_end_is_refused_behind_a_link_too(tmp_path: Path, device: str) -> None:
    (tmp_path / "link").symlink_to(device)
    with pytest.raises(OSError, match="no regular file"):
        read_regular(tmp_path / "link", 10)


def test_a_folder_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, 10)


def test_the_null_device_is_an_empty_file() -> None:
    assert read_regular("/dev/null", 10)[0] == b""
    assert read_toml("/dev/null") == {}


def test_toml_however_its_lines_end(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"\xef\xbb\xbf[agent]\r\nlisten = 'x'\r\n")
    assert read_toml(tmp_path / "c.toml") == {"agent": {"listen": "x"}}


@pytest.mark.parametrize("text", ["x = " + "[" * 20_000, "x = " + "{a=" * 20_000, "[agent", "\x00"])
def test_what_is_no_toml_is_one_kind_of_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ValueError, match=r"."):
        read_toml(tmp_path / "c.toml")


def test_a_configuration_has_an_end(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("#" * (CONFIG_LIMIT + 1))
    with pytest.raises(OSError, match="more than 1048576 bytes"):
        read_toml(tmp_path / "c.toml")
