"""Messages come out as they went in, however the stream cuts them."""

import socket

import pytest

from gpuguard.child.frames import LONGEST, Unframer, framed, receive
from gpuguard.errors import NotUnderstood


def test_messages_survive_any_cut() -> None:
    stream = framed(b"one") + framed(b"") + framed(b"three" * 1000)
    for step in (1, 3, 7, len(stream)):
        unframer = Unframer()
        found = []
        for start in range(0, len(stream), step):
            unframer.feed(stream[start : start + step])
            while (message := unframer.next()) is not None:
                found.append(message)
        assert found == [b"one", b"", b"three" * 1000]


def test_a_length_that_no_message_has_is_refused() -> None:
    unframer = Unframer()
    unframer.feed(b"\xff\xff\xff\xff")
    with pytest.raises(NotUnderstood):
        unframer.next()
    with pytest.raises(ValueError, match="can be sent"):
        framed(bytes(LONGEST + 1))


def test_a_blocking_stream_gives_messages_until_it_is_closed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(framed(b"a") + framed(b"b")[:3])
        unframer = Unframer()
        assert receive(ours, unframer) == b"a"
        theirs.sendall(framed(b"b")[3:])
        assert receive(ours, unframer) == b"b"
        theirs.close()
        assert receive(ours, unframer) is None
