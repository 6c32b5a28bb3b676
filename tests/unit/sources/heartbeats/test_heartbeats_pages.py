"""Pages: what is one, and what is read of it while it is written."""

import fcntl
import math
import os
from pathlib import Path

import pytest

from gpuguard.progress import wire
from gpuguard.sources.heartbeats.message import Refused
from gpuguard.sources.heartbeats.pages import TRIES, Live, Page, is_page
from tests.support.beats import page, state


def test_only_a_sealed_memfd_of_one_page_is_one(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"\0" * wire.PAGE_SIZE)
    read, write = os.pipe()
    mute = page()
    candidates = {
        "a page": (page(), True),
        "may shrink": (page(seals=fcntl.F_SEAL_GROW), False),
        "may grow": (page(seals=fcntl.F_SEAL_SHRINK), False),
        "longer": (page(size=2 * wire.PAGE_SIZE), False),
        "a file": (os.open(plain, os.O_RDWR), False),
        "a folder": (os.open(tmp_path, os.O_RDONLY), False),
        "a pipe": (read, False), "its end": (write, False), "another": (mute, True),
        "to be written only": (os.open(f"/proc/self/fd/{mute}", os.O_WRONLY), False),
    }  # fmt: skip
    try:
        assert {name: is_page(fd) for name, (fd, _) in candidates.items()} == {
            n: yes for n, (_, yes) in candidates.items()
        }
    finally:
        for fd, _ in candidates.values():
            os.close(fd)


def test_what_it_says_is_told_once() -> None:
    fd = page(state(1, at=5.0, step=7, phase="evaluation", since=4.0, loss=2.5, saved=6, saved_at=3.0, preempt=1))
    one = Page(fd)
    assert one.read() == Live(5.0, 7, "evaluation", 4.0, 2.5, 6, 3.0, False, 1, 0)
    assert one.read() is None
    os.pwrite(fd, state(2, at=6.0, phase="", done=True), 0)
    assert one.read() == Live(6.0, None, None, None, None, None, None, True, 0)
    one.close()
    one.close()
    assert one.read() is None


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not_understood"), (state(9, at=5.0, magic=b"ggpage9\0"), "not_understood"),
        (state(9, at=math.nan), "not_understood"), (state(9, at=5.0, since=math.inf), "not_understood"),
        (state(1, at=5.0), "replayed"), (state(9, at=-1.0), "not_understood"),
        (state(9, at=5.0, since=-1.7e308), "not_understood"), (state(9, at=5.0, saved_at=-1e308), "not_understood"),
        (state(9, at=5.0, saved_at=1e300), "not_understood"),
    ],
)  # fmt: skip
def test_what_is_no_state_is_refused_once(raw: bytes, why: str) -> None:
    fd = page(state(2, at=4.0))
    one = Page(fd)
    assert one.read() is not None
    os.pwrite(fd, raw or b"\0" * wire.PAGE.size, 0)
    with pytest.raises(Refused) as refused:
        one.read()
    assert refused.value.reason == why
    assert one.read() is None
    one.close()


def test_a_page_that_cannot_be_read_is_given_back() -> None:
    """Whatever comes of what somebody else made, it is that page's trouble alone."""
    one = Page(os.open(f"/proc/self/fd/{page(state(1, at=5.0))}", os.O_WRONLY))
    with pytest.raises(Refused, match="page"):
        one.read()
    assert one.read() is None


def test_a_state_that_is_being_written_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that never agree give nothing new, and end; reads that agree at last are believed."""
    one = Page(page(state(1, at=5.0, step=1)))
    reads = [state(n, at=5.0, step=n) for n in range(2, 30)]
    count = 0

    def torn(fd: int, size: int, offset: int) -> bytes:
        nonlocal count
        count += 1
        return reads[count]

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", torn)
        assert one.read() is None
    assert count == TRIES + 1
    answers = iter([reads[0], reads[1], reads[2], reads[2]])
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", lambda fd, size, offset: next(answers))
        live = one.read()
    assert live is not None
    assert live.step == 4
    one.close()
