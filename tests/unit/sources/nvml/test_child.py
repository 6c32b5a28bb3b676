"""The program: it answers over its socket, tells events as they come, and ends when the other end is closed."""

import socket
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest

from gpuguard.child.frames import Unframer, framed, receive
from gpuguard.model.quantities import NVML_CALL_BOUNDS
from gpuguard.sources.nvml import child
from gpuguard.sources.nvml.child import Served
from gpuguard.sources.nvml.library import Noticed, NvmlError
from gpuguard.sources.nvml.played import Machine, Player
from gpuguard.sources.nvml.protocol import (
    Begin,
    Begun,
    Doing,
    InCall,
    Look,
    Refused,
    Report,
    Request,
    Seen,
    Xid,
    decode_report,
    encode,
)

RECORDING = {
    "system": {}, "devices": [{"uuid": "GPU-1", "pci": "00000000:1B:00.0", "calls": {"nvmlDeviceGetPowerUsage": 1000}}],
    "events": [{"after": 0.0, "uuid": "GPU-1", "data": 94}, {"after": 0.0, "uuid": "GPU-1", "data": 1, "type": 4}],
}  # fmt: skip


class Agent:
    """The other end of the socket."""

    def __init__(self, served: Callable[[socket.socket], Served]) -> None:
        self.socket, self.theirs = socket.socketpair()
        self.unframer = Unframer()
        self.thread = Thread(target=served(self.theirs).run)
        self.thread.start()

    def ask(self, request: Request) -> Report:
        self.socket.sendall(framed(encode(request)))
        return self.hear()

    def hear(self) -> Report:
        message = receive(self.socket, self.unframer)
        assert message is not None
        return decode_report(message)

    def leave(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)
        self.thread.join(5.0)
        assert not self.thread.is_alive()
        self.socket.close()
        self.theirs.close()


def _agent(player: Player | None = None) -> Agent:
    library = player or Player(msgspec.convert(RECORDING, Machine), lambda: 0.0)
    return Agent(lambda stream: Served(stream, library, Path("/nonexistent"), end=lambda: None))


def test_it_answers_each_class_and_tells_xids() -> None:
    agent = _agent()
    try:
        assert isinstance(agent.ask(Begin()), Begun)
        first = agent.ask(Look("fast"))
        assert isinstance(first, Seen)
        assert first.rows["gpu:0000:1b:00.0"]["power_watts"] == 1.0  # type: ignore[index]
        assert (first.known, first.changed) == ({"GPU-1": "0000:1b:00.0"}, True)
        assert first.calls[0] == "call"
        assert first.calls[len(NVML_CALL_BOUNDS) + 1] > 5  # type: ignore[operator]  # how many there were
        assert agent.hear() == Xid(94, "0000:1b:00.0")  # type: ignore[arg-type]
        for rate in ("medium", "slow", "fast"):
            report = agent.ask(Look(rate))  # type: ignore[arg-type]
            assert isinstance(report, Seen)
            assert (report.rate, report.known) == (rate, None)
        held = agent.ask(Look("fast", ("0000:1b:00.0",)))  # type: ignore[arg-type]
        assert isinstance(held, Seen)
        assert set(held.rows) == {"node"}
        assert agent.ask(Doing()) == InCall("")
    finally:
        agent.leave()


def test_the_call_it_is_stuck_in_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    player = Player(msgspec.convert(RECORDING, Machine), lambda: 0.0)
    entered, leave = Event(), Event()

    def stuck(device: Any, call: str, *arguments: int) -> int:
        entered.set()
        assert leave.wait(5.0)
        return 0

    agent = _agent(player)
    try:
        assert isinstance(agent.ask(Begin()), Begun)
        monkeypatch.setattr(player, "call", stuck)
        agent.socket.sendall(framed(encode(Look("fast"))))
        assert entered.wait(5.0)
        assert agent.ask(Doing()) == InCall("nvmlDeviceGetPciInfo_v3")
    finally:
        leave.set()
        agent.leave()


def test_nvml_that_refuses_is_told() -> None:
    recording = {"system": {"nvmlInitWithFlags": {"error": 18}}, "devices": []}
    agent = _agent(Player(msgspec.convert(recording, Machine), lambda: 0.0))
    try:
        refused = agent.ask(Begin())
        assert isinstance(refused, Refused)
        assert refused.code == 18
    finally:
        agent.leave()


def test_events_that_end_do_not_end_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    player = Player(msgspec.convert(RECORDING, Machine), lambda: 0.0)
    answers = iter([NvmlError(15), Noticed("GPU-9", 8, 1), Noticed("GPU-1", 8, 48), NvmlError(999)])

    def wait(seconds: float) -> Noticed:
        answer = next(answers)
        if isinstance(answer, NvmlError):
            raise answer
        return answer

    monkeypatch.setattr(child, "EVENT_WAIT", 0.0)
    monkeypatch.setattr(player, "wait", wait)
    agent = _agent(player)
    try:
        agent.ask(Begin())
        agent.ask(Look("fast"))
        assert agent.hear() == Xid(48, "0000:1b:00.0")  # type: ignore[arg-type]
        assert isinstance(agent.ask(Look("fast")), Seen)
    finally:
        agent.leave()


def test_a_message_of_another_version_ends_it() -> None:
    agent = _agent()
    agent.socket.sendall(framed(b"\xc1"))
    agent.thread.join(5.0)
    agent.leave()
