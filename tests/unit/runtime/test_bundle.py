import os
import tarfile
from pathlib import Path

from gpuguard.errors import ReadFailed
from gpuguard.runtime.bundle import OVERHEAD, Part, write_bundle

ROOM = 64 * 1024 + 2 * OVERHEAD


def failing() -> bytes:
    raise ReadFailed("no right to read it on rack7")


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        files = {member.name.partition("/")[2]: tar.extractfile(member) for member in tar.getmembers()}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_what_fails_and_what_does_not_fit_is_named_and_the_rest_is_there(tmp_path: Path) -> None:
    path, noise = tmp_path / "b.tar.gz", os.urandom(20_000)
    parts = [
        Part(name="first", make=lambda: b"on rack7 and rack70"),
        Part(name="broken", make=failing),
        Part(name="large", make=lambda: noise),
        Part(name="last", make=lambda: b"small"),
    ]
    held, missing, size = write_bundle(path, iter(parts), ("rack7",), 0.0, ROOM + 10_000)
    found = contents(path)
    assert held == ["first", "last"]
    assert set(missing) == {"broken", "large"}
    assert found["first"] == b"on this-node and rack70"
    assert b"broken: no right to read it on this-node" in found["MANIFEST"]
    assert b"large: no room" in found["MANIFEST"]
    assert size == path.stat().st_size <= ROOM + 10_000


def test_the_size_holds_for_what_cannot_be_packed(tmp_path: Path) -> None:
    path, limit = tmp_path / "b.tar.gz", ROOM + 300_000
    chunks = [os.urandom(30_000) for _ in range(20)]
    parts = (Part(name=f"n{number}", make=lambda data=data: data) for number, data in enumerate(chunks))  # type: ignore[misc]  # a default keeps the loop's value
    held, missing, size = write_bundle(path, parts, (), 0.0, limit)
    assert len(held) + len(missing) == 20
    assert len(held) >= 8
    assert size <= limit


def test_an_older_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_bytes(b"old")
    (tmp_path / ".b.tar.gz.new").write_bytes(b"left by a crash")
    write_bundle(path, iter([Part(name="x", make=lambda: b"y")]), (), 0.0, ROOM + 10_000)
    assert contents(path)["x"] == b"y"
    assert os.listdir(tmp_path) == ["b.tar.gz"]
