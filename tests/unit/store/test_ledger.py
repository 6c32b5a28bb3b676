"""A directory as the fleet's book: compare-and-set by link, and a clear word for whatever can be wrong with it."""

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguard.errors import ReadFailed
from gpuguard.ports import Ledger
from gpuguard.store import ledger as module
from gpuguard.store.ledger import GENERATIONS_KEPT, LEFT_OVER_AFTER, LIMIT, MARKER, DirectoryLedger, _file

ROOT = os.geteuid() == 0


def soon() -> float:
    return time.monotonic() + 20


@pytest.fixture
def book(tmp_path: Path) -> DirectoryLedger:
    (tmp_path / MARKER).touch()
    return DirectoryLedger(str(tmp_path))


def generations(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != MARKER)


def grown(book: DirectoryLedger, times: int) -> None:
    for number in range(times):
        assert book.write(book.read(soon()), f"text {number}".encode(), soon())


def test_it_is_a_ledger(book: DirectoryLedger) -> None:
    ledger: Ledger = book
    assert ledger.name == "directory"


@pytest.mark.parametrize("left", ["nothing", "a book", "a folder of that name", "a link of that name"])
def test_a_directory_without_the_file_that_a_person_makes_is_not_mounted_and_nothing_is_made_in_it(
    book: DirectoryLedger, tmp_path: Path, left: str
) -> None:
    if left == "a book":
        grown(book, 2)
    (tmp_path / MARKER).unlink()
    if left == "a folder of that name":
        (tmp_path / MARKER).mkdir()
    if left == "a link of that name":
        (tmp_path / MARKER).symlink_to("/etc/hostname")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ReadFailed, match=f"is it not mounted on this node.*`touch {tmp_path}/{MARKER}` there once"):
        book.read(soon())
    assert sorted(tmp_path.iterdir()) == before


def test_a_marked_directory_without_a_book_is_an_empty_one(book: DirectoryLedger, tmp_path: Path) -> None:
    page = book.read(soon())
    assert page.text == b""
    assert abs(page.utc - time.time()) < 60
    assert book.write(page, b"first", soon())
    assert book.read(soon()).text == b"first"
    assert generations(tmp_path) == ["book-000000000001", "book-000000000002"]


def test_who_comes_second_has_written_nothing(book: DirectoryLedger, tmp_path: Path) -> None:
    one, two = book.read(soon()), DirectoryLedger(str(tmp_path)).read(soon())
    assert book.write(one, b"one", soon())
    assert not book.write(two, b"two", soon())
    assert not book.write(one, b"one again", soon())
    assert book.read(soon()).text == b"one"
    assert book.write(book.read(soon()), b"three", soon())


def test_old_generations_go_and_some_stay(book: DirectoryLedger, tmp_path: Path) -> None:
    grown(book, 3 * GENERATIONS_KEPT)
    left = generations(tmp_path)
    assert len(left) == GENERATIONS_KEPT
    assert left[-1] == f"book-{3 * GENERATIONS_KEPT + 1:012d}"


def test_who_slept_while_others_went_on_has_lost_even_where_the_name_is_free_again(
    book: DirectoryLedger, tmp_path: Path
) -> None:
    asleep = book.read(soon())
    grown(book, 2 * GENERATIONS_KEPT)
    assert "book-000000000002" not in generations(tmp_path)
    assert not book.write(asleep, b"from the past", soon())
    assert book.read(soon()).text == f"text {2 * GENERATIONS_KEPT - 1}".encode()


def test_a_directory_that_was_emptied_meanwhile_is_another_book(book: DirectoryLedger, tmp_path: Path) -> None:
    page = book.read(soon())
    for path in tmp_path.glob("book-*"):
        path.unlink()
    assert not book.write(page, b"old", soon())
    for path in tmp_path.glob("book-*"):
        path.unlink()
    assert DirectoryLedger(str(tmp_path)).read(soon()).text == b""
    assert not book.write(page, b"old", soon()), "the same name, another file"


@pytest.mark.parametrize(
    "content",
    [b"", b"gpuguard-book 1", _file(b"whole")[:-1], _file(b"whole") + b"x", b"\0" * 4096, b'{"version": 1}',
     _file(b"whole").replace(b"whole", b"while"), b"x" * (2 * LIMIT + 9)],
)  # fmt: skip
def test_a_file_that_is_not_whole_is_passed_over_and_written_past(
    book: DirectoryLedger, tmp_path: Path, content: bytes
) -> None:
    grown(book, 2)
    (tmp_path / "book-000000000004").write_bytes(content)
    page = book.read(soon())
    assert page.text == b"text 1"
    assert book.write(page, b"past it", soon())
    assert book.read(soon()).text == b"past it"
    assert (tmp_path / "book-000000000005").exists()


def test_what_is_no_file_is_passed_over(book: DirectoryLedger, tmp_path: Path) -> None:
    grown(book, 1)
    (tmp_path / "book-000000000003").mkdir()
    (tmp_path / "book-000000000004").symlink_to(tmp_path / "book-000000000002")
    os.mkfifo(tmp_path / "book-000000000005")
    assert book.read(soon()).text == b"text 0"
    grown(book, 2 * GENERATIONS_KEPT)


def test_foreign_files_are_left_alone(book: DirectoryLedger, tmp_path: Path) -> None:
    names = ["README", "book-7", "book-000000000009.bak", "book-0000000000001", ".nfs0001", "book-0000000000000000042"]
    for name in names:
        (tmp_path / name).write_text("mine")
    grown(book, 2 * GENERATIONS_KEPT)
    assert {name for name in names if (tmp_path / name).read_text() == "mine"} == set(names)


def test_what_a_killed_process_left_goes_after_an_hour(book: DirectoryLedger, tmp_path: Path) -> None:
    old, young = tmp_path / f".gpuguard-{'0' * 16}", tmp_path / f".gpuguard-{'1' * 16}"
    for path in (old, young):
        path.touch()
    os.utime(old, (time.time() - LEFT_OVER_AFTER - 60,) * 2)
    grown(book, GENERATIONS_KEPT)
    assert (old.exists(), young.exists()) == (False, True)


def test_only_damaged_files_are_no_empty_book(book: DirectoryLedger, tmp_path: Path) -> None:
    (tmp_path / "book-000000000001").write_bytes(b"")
    with pytest.raises(ReadFailed, match="none of the 1 files of the fleet's book is whole; look at them"):
        book.read(soon())


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(
        ReadFailed, match=r"No such file or directory; mount or make it, or correct \[fleet\] directory"
    ):
        DirectoryLedger(str(tmp_path / "gone")).read(soon())
    (tmp_path / "file").touch()
    with pytest.raises(ReadFailed, match="Not a directory; mount or make it"):
        DirectoryLedger(str(tmp_path / "file")).read(soon())
    assert not (tmp_path / "gone").exists()


def test_a_directory_that_anybody_may_write_to_is_no_book(book: DirectoryLedger, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ReadFailed, match="anybody could forge the fleet's book; `chmod o-w "):
        book.read(soon())


@pytest.mark.skipif(ROOT, reason="root may do everything")
def test_without_the_right_to_write_it_says_so(book: DirectoryLedger, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(ReadFailed, match=r"Permission denied; root of this node .* root_squash"):
        book.read(soon())


@pytest.mark.parametrize(
    ("call", "number", "said"),
    [
        ("write", errno.ENOSPC, "its disk or quota is full; make room"),
        ("fsync", errno.EDQUOT, "its disk or quota is full; make room"),
        ("open", errno.EACCES, "Permission denied; root of this node .* root_squash"),
        ("open", errno.EROFS, "Read-only file system; root of this node"),
        ("link", errno.EPERM, "Operation not permitted; root of this node"),
        ("link", errno.EOPNOTSUPP, "this file system has no hard links; name a directory on NFS"),
        ("listdir", errno.EIO, "Input/output error; look at the mount"),
        ("listdir", errno.ESTALE, "Stale file handle; look at the mount"),
    ],
)
def test_every_failure_says_what_to_do_and_leaves_nothing(
    book: DirectoryLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, said: str
) -> None:
    grown(book, 1)
    before = generations(tmp_path)

    def failing(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(f"gpuguard.store.ledger.os.{call}", failing)
        with pytest.raises(ReadFailed, match=f"the fleet's book in {tmp_path} cannot be used: .*{said}"):
            book.write(book.read(soon()), b"x", soon())
    assert generations(tmp_path) == before
    assert book.read(soon()).text == b"text 0"


def test_a_link_that_was_made_though_it_failed_was_made(
    book: DirectoryLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS may send a request twice, and answer the second."""
    page, link = book.read(soon()), os.link

    def twice(*names: str, **folders: int) -> None:
        link(*names, **folders)
        link(*names, **folders)

    monkeypatch.setattr("gpuguard.store.ledger.os.link", twice)
    assert book.write(page, b"made", soon())


@pytest.mark.parametrize("swept", ["once", "always"])
def test_a_book_that_is_swept_while_it_is_read_is_looked_for_again(
    book: DirectoryLedger, monkeypatch: pytest.MonkeyPatch, swept: str
) -> None:
    grown(book, 1)
    load, gone = module._Folder.load, []

    def missing(self: module._Folder, generation: int) -> tuple[str, bytes] | None:
        if swept == "always" or not gone:
            gone.append(generation)
            raise FileNotFoundError
        return load(self, generation)

    monkeypatch.setattr(module._Folder, "load", missing)
    if swept == "once":
        assert book.read(soon()).text == b"text 0"
    else:
        with pytest.raises(ReadFailed, match="changed faster than it could be read"):
            book.read(soon())


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> "Callable[[], None]":
    """The file server hangs until the function is called."""
    mended, listdir = threading.Event(), os.listdir

    def hanging(folder: int) -> list[str]:
        mended.wait(60)
        return listdir(folder)

    monkeypatch.setattr("gpuguard.store.ledger.os.listdir", hanging)
    return mended.set


def test_a_server_that_hangs_holds_one_thread_and_never_the_caller(
    book: DirectoryLedger, tmp_path: Path, stuck: Callable[[], None]
) -> None:
    began, threads = time.monotonic(), threading.active_count()
    with pytest.raises(ReadFailed, match=f"gave no answer in time; see whether `ls {tmp_path}` hangs"):
        book.read(began + 0.05)
    for _ in range(20):
        with pytest.raises(ReadFailed, match="gave no answer in time"):
            book.read(soon())
    assert time.monotonic() - began < 10
    assert threading.active_count() == threads + 1
    left = book._hanging
    stuck()
    assert left is not None
    left.join(20)
    assert book.read(soon()).text == b""


def test_a_write_whose_time_is_over_writes_nothing(book: DirectoryLedger) -> None:
    page = book.read(soon())
    with pytest.raises(ReadFailed, match="no time was left"):
        book.write(page, b"late", time.monotonic() - 1)
    assert book.read(soon()).text == b""


def test_a_name_that_nothing_can_follow_is_told(book: DirectoryLedger, tmp_path: Path) -> None:
    (tmp_path / "book-999999999999").touch()
    with pytest.raises(ReadFailed, match="nothing can follow book-999999999999; remove it"):
        book.read(soon())


def test_a_book_too_large_is_not_written(book: DirectoryLedger) -> None:
    page = book.read(soon())
    with pytest.raises(ReadFailed, match="nothing was written"):
        book.write(page, b"x" * (LIMIT + 1), soon())
