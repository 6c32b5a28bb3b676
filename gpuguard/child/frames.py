"""Messages on a stream: four bytes of length, then that many bytes.

Both ends use this. What a message means is the affair of those who talk; here a message is bytes.
Shape   little-endian unsigned length, then the message
"""

import socket

from gpuguard.errors import NotUnderstood

HEADER = 4
# 16 GPUs with 32 processes each make some 150 KB; a longer message is a stream that lost its place.
LONGEST = 16 * 2**20
CHUNK = 256 * 1024


def framed(message: bytes) -> bytes:
    """The message with its length before it.

    Raises  ValueError for one that the other end would refuse
    """
    if len(message) > LONGEST:
        raise ValueError(f"a message of {len(message)} bytes; at most {LONGEST} can be sent")
    return len(message).to_bytes(HEADER, "little") + message


class Unframer:
    """Takes bytes as they come and gives whole messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, more: bytes) -> None:
        """These bytes came."""
        self._bytes += more

    def next(self) -> bytes | None:
        """The oldest whole message, None while it is not all there.

        Raises  NotUnderstood for a length that no message has: the stream cannot be read on
        """
        if len(self._bytes) < HEADER:
            return None
        length = int.from_bytes(self._bytes[:HEADER], "little")
        if length > LONGEST:
            raise NotUnderstood(f"a message of {length} bytes was announced; at most {LONGEST} are taken")
        end = HEADER + length
        if len(self._bytes) < end:
            return None
        message = bytes(self._bytes[HEADER:end])
        del self._bytes[:end]
        return message


def receive(stream: socket.socket, unframer: Unframer) -> bytes | None:
    """The next message of a blocking stream, None once the other end has closed it.

    Raises  NotUnderstood
    """
    while True:
        message = unframer.next()
        if message is not None:
            return message
        try:
            more = stream.recv(CHUNK)
        except ConnectionError:
            return None
        if not more:
            return None
        unframer.feed(more)
