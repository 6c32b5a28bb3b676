"""The agent's side of the wire: whatever the other end does, an outcome comes back in time."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.actuators import bundled, kubernetes, processes, slurm
from gpuguard.actuators.delegate import (
    LENGTH,
    MESSAGE_LIMIT,
    SHARES,
    Delegate,
    Reply,
    Request,
    Settings,
    build,
    frame,
    unframed,
)
from gpuguard.actuators.dry_run import DryRun
from gpuguard.errors import NotUnderstood
from gpuguard.model.actions import Outcome
from gpuguard.model.units import Seconds
from gpuguard.runtime import guard, person
from gpuguard.runtime.fleet_book import SECOND_OVER
from tests.support.serving import serving
from tests.support.wishes import wish


def agent(path: Path, deadline: float = 2.0) -> Delegate:
    return build(Settings(socket=str(path), deadline=Seconds(deadline)))


@contextmanager
def peer(path: Path, behave: Callable[[socket.socket], None]) -> Iterator[None]:
    """Another end that takes one connection and does as told."""

    def take_one() -> None:
        link, _ = listener.accept()
        with link:
            behave(link)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        thread = threading.Thread(target=take_one)
        thread.start()
        try:
            yield
        finally:
            thread.join(10)


def answering(data: bytes) -> Callable[[socket.socket], None]:
    def behave(link: socket.socket) -> None:
        link.recv(MESSAGE_LIMIT)
        link.sendall(data)

    return behave


def test_an_action_and_its_outcome_cross_the_wire(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(path, DryRun(), frozenset({os.geteuid()})):
        assert agent(path).perform(wish("drain")) == DryRun().perform(wish("drain"))
        assert agent(path).read_state() == DryRun().read_state()


def test_nobody_there_is_owed_still(tmp_path: Path) -> None:
    outcome = agent(tmp_path / "absent").perform(wish("drain"))
    assert (outcome.result, "actuator.socket" in outcome.message) == ("deferred", True)
    assert outcome.retry_after is not None
    assert agent(tmp_path / "absent").read_state().error is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(tmp_path / "dead"))
    assert agent(tmp_path / "dead").perform(wish("drain")).result == "deferred"


def test_silence_ends_with_the_deadline(tmp_path: Path) -> None:
    release = threading.Event()
    with peer(tmp_path / "s", lambda link: release.wait(10) and None):
        started = time.monotonic()
        outcome = agent(tmp_path / "s", deadline=0.1).perform(wish("drain"))
        took = time.monotonic() - started
        release.set()
    assert (outcome.result, took < 1.0) == ("deferred", True)


def test_a_trickle_ends_with_the_deadline(tmp_path: Path) -> None:
    over = threading.Event()

    def trickle(link: socket.socket) -> None:
        link.sendall(LENGTH.pack(4000))
        while not over.wait(0.01):
            try:
                link.sendall(b"x")
            except OSError:
                return

    with peer(tmp_path / "s", trickle):
        outcome = agent(tmp_path / "s", deadline=0.2).perform(wish("drain"))
        over.set()
    assert outcome.result == "deferred"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        LENGTH.pack(10) + b"half",
        LENGTH.pack(MESSAGE_LIMIT + 1),
        frame(b""),
        frame(b"nonsense"),
        frame(b'{"version":1,"outcome":{"result":"perhaps","message":""}}'),
        frame(b'{"version":1}'),
        frame(b"\xff\xfe"),
        frame(msgspec.json.encode(Reply(version=1, error="busy"))),
        frame(msgspec.json.encode(Reply(version=1, report=DryRun().read_state()))),
    ],
)
def test_an_answer_that_is_none_is_owed_still(tmp_path: Path, data: bytes) -> None:
    with peer(tmp_path / "s", answering(data)):
        outcome = agent(tmp_path / "s").perform(wish("drain"))
    assert outcome.result == "deferred"
    assert outcome.retry_after is not None


def test_an_answer_to_another_question_is_no_state(tmp_path: Path) -> None:
    reply = Reply(version=1, outcome=Outcome(result="done", message="drained"))
    with peer(tmp_path / "s", answering(frame(msgspec.json.encode(reply)))):
        assert agent(tmp_path / "s").read_state().error is not None


def test_being_turned_away_is_for_a_person(tmp_path: Path) -> None:
    with serving(tmp_path / "s", DryRun(), frozenset()):
        outcome = agent(tmp_path / "s").perform(wish("drain"))
        assert (outcome.result, "may not ask" in outcome.message) == ("refused", True)
        assert "may not ask" in (agent(tmp_path / "s").read_state().error or "")


def test_the_longest_honest_request_fits() -> None:
    action = msgspec.structs.replace(wish("update_reason"), key="k" * 500, reason="r" * 60)
    assert len(msgspec.json.encode(Request(version=1, perform=action))) < MESSAGE_LIMIT // 2


@given(st.lists(st.binary(max_size=80), max_size=4), st.integers(min_value=1, max_value=7))
def test_frames_come_out_as_they_went_in_however_they_are_cut(messages: list[bytes], step: int) -> None:
    stream = b"".join(frame(message) for message in messages)
    buffer, found = bytearray(), []
    for start in range(0, len(stream), step):
        buffer += stream[start : start + step]
        while (message := unframed(buffer)) is not None:
            found.append(message)
            del buffer[: len(frame(message))]
    assert (found, bytes(buffer)) == (messages, b"")


def test_a_message_over_the_limit_goes_neither_way() -> None:
    with pytest.raises(NotUnderstood):
        frame(b"x" * (MESSAGE_LIMIT + 1))
    with pytest.raises(NotUnderstood):
        unframed(LENGTH.pack(MESSAGE_LIMIT + 1))
    assert unframed(frame(b"x" * MESSAGE_LIMIT)) == b"x" * MESSAGE_LIMIT


def test_by_itself_each_deadline_is_longer_than_all_that_can_happen_behind_it() -> None:
    """Against the settings as they ship; who raises one of them without the other is told here."""
    within = Settings().deadline
    book = guard.Settings().deadline
    slurms, kubes, bundleds = slurm.Settings(), kubernetes.Settings(), bundled.Settings()
    for wish_of, fleet in (
        (slurms.deadline, slurms.fleet_deadline), (kubes.deadline, kubes.deadline),
        (bundleds.deadline, bundleds.deadline),
    ):  # fmt: skip
        with_a_book = 3 * wish_of + fleet + 3 * book
        by_records = 3 * wish_of + 2 * fleet + SECOND_OVER
        assert within * SHARES["drain"] >= max(with_a_book, by_records) + 2.0
        assert within * SHARES["else"] >= 2 * wish_of + book + 2.0
        assert within * SHARES["look"] >= wish_of + 2.0
    assert within * SHARES["else"] >= processes.Settings().deadline + 2.0
    assert within * SHARES["drain"] < person.PATIENCE


@pytest.mark.parametrize(("share", "least"), [("look", 0.1), ("else", 0.15), ("drain", 0.3)])
def test_only_a_drain_is_waited_for_as_long_as_a_drain_may_take(tmp_path: Path, share: str, least: float) -> None:
    release = threading.Event()
    with peer(tmp_path / "s", lambda link: release.wait(10) and None):
        here, started = agent(tmp_path / "s", deadline=0.3), time.monotonic()
        if share == "look":
            assert "0.1 s" in (here.read_state().error or "")
        else:
            said = here.perform(wish("drain" if share == "drain" else "release")).message
            assert f"within {least:g} s" in said
        assert time.monotonic() - started >= least
        release.set()


@pytest.mark.parametrize("deadline", [0.0, 301.0])
def test_a_deadline_out_of_range_names_its_key(deadline: float) -> None:
    with pytest.raises(ValueError, match=r"^deadline: "):
        Settings(deadline=Seconds(deadline))
