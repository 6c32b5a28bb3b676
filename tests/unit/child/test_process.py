"""A child is talked to with a deadline, and is never waited for."""

import os
import sys
import time

import pytest

from gpuguard.child.process import Child, Ended
from gpuguard.errors import ReadFailed

ECHO = """
import os, socket
s = socket.socket(fileno=0)
while data := s.recv(65536):
    s.sendall(data)
"""
DEAF = "import socket, threading; s = socket.socket(fileno=0); s.sendall(b'\\x01\\0\\0\\0.'); threading.Event().wait()"


def _child(program: str) -> Child:
    return Child((sys.executable, "-S", "-c", program))


def test_it_answers_and_ends_when_its_socket_is_closed() -> None:
    child = _child(ECHO)
    child.send(b"hello")
    assert child.receive(10.0) == b"hello"
    assert child.state() in ("S", "R")
    assert child.stop(10.0)
    assert child.gone()
    assert child.state() == ""


def test_one_that_does_not_answer_is_abandoned_without_waiting() -> None:
    child = _child(DEAF)
    assert child.receive(10.0) == b"."
    child.send(b"hello")
    began = time.monotonic()
    assert child.receive(0.0) is None
    child.abandon()
    assert time.monotonic() - began < 1.0
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.gone()


def test_a_wake_ends_the_wait() -> None:
    child = _child(DEAF)
    assert child.receive(10.0) == b"."
    wake = os.eventfd(1)
    try:
        assert child.receive(60.0, wake) is None
    finally:
        os.close(wake)
        assert not child.stop(0.0)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("import os; os.write(0, b'\\xff' * 8)", "protocol"),
    ],
)
def test_its_end_is_told(program: str, words: str) -> None:
    child = _child(program)
    with pytest.raises(Ended, match=words):
        child.receive(10.0)
    child.abandon()
    with pytest.raises(Ended):
        child.send(b"x")


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(ReadFailed, match="cannot start"):
        Child(("/nonexistent/program",))


def test_the_end_of_one_that_did_not_read_what_it_was_sent_is_told() -> None:
    child = _child("import select; select.select([0], [], []); raise SystemExit(4)")
    child.send(b"x")
    with pytest.raises(Ended, match="exit code 4"):
        child.receive(10.0)
    child.abandon()
