"""The actuator of the bundled scheduler over real sockets: its words, its errors, and what lies beside the drain."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuguard.actuators.bundled import TRIES, Bundled, Settings, build
from gpuguard.custody.budget import Limits
from gpuguard.errors import ConfigInvalid, ReadFailed, ReadRefused
from gpuguard.model.actions import Action, Verb
from gpuguard.model.ids import TokenId
from gpuguard.ports import FleetDrain, FleetReport, Ledger, LedgerPage, NodeReport, Overseer
from gpuguard.runtime import guard
from gpuguard.runtime.guard import guarded
from gpuguard.scheduler.events import DrainAsked
from tests.support.bundled_scheduler import Scheduler
from tests.support.door_server import DoorServer, door_at
from tests.support.wishes import requeue, wish

NODE = "here"
OURS = "gpuguard:7f3a gpu3 lost xid79"
SHORT = 0.5


@pytest.fixture(params=["unix", "tcp"])
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DoorServer]:
    scheduler = Scheduler(NODE, "n2", "n3")
    (tmp_path / "token").write_text("sesame\n")
    place, token = (tmp_path / "d", "") if request.param == "unix" else (None, "sesame")
    with door_at(place, scheduler, token) as served:
        yield served


@pytest.fixture
def here(door: DoorServer, tmp_path: Path) -> Bundled:
    return make(door, tmp_path)


def make(door: DoorServer, folder: Path, deadline: float = 5.0) -> Bundled:
    token = str(folder / "token") if door.token else ""
    return build(Settings(address=door.address, token_file=token, node=NODE, deadline=deadline))  # type: ignore[arg-type]


def remedy(verb: Verb, drain: str | None = "7f3a") -> Action:
    return msgspec.structs.replace(wish(verb), drain=TokenId(drain) if drain else None)


def test_a_drain_and_its_release_go_through_the_door(here: Bundled, door: DoorServer) -> None:
    assert isinstance(here, Overseer)
    done = here.perform(wish("drain"))
    assert (done.result, done.node_state) == ("done", "OPEN")
    assert here.read_state() == NodeReport(
        target="bundled", node=NODE, state="OPEN+DRAIN", flags=("OPEN", "DRAIN"), drained=True, reason=OURS, ours="7f3a"
    )
    assert here.perform(wish("drain")).result == "done"
    assert len(door.scheduler.writes) == 1
    assert here.perform(wish("release")).message == "our drain is lifted: was OPEN+DRAIN, is OPEN"
    assert here.read_state().flags == ("OPEN",)
    assert door.connections == 1, "the connection is kept"


def test_the_fleet_is_all_nodes_and_the_drains_that_are_gpuguards(here: Bundled, door: DoorServer) -> None:
    here.perform(wish("drain"))
    now = door.scheduler.now
    door.scheduler.tell(DrainAsked(at=now, id="x", node="n2", severity="confirmed", cause="fan", seen=now))
    drains = (FleetDrain(node=NODE, token="7f3a", code="xid79", since_utc=float(now)),)
    assert here.read_fleet() == FleetReport(target="bundled", nodes=3, drains=drains)
    door.trouble = lambda method: b"HTTP/1.1 503 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    assert here.read_fleet().error is not None


def test_the_book_is_kept_by_the_scheduler(here: Bundled, door: DoorServer) -> None:
    book: Ledger = here.ledger()
    until = time.monotonic() + 5.0
    first = book.read(until)
    assert (first.text, first.utc) == (b"", door.scheduler.now)
    assert book.write(first, b"one", until)
    assert not book.write(first, b"two", until)
    assert book.read(until).text == b"one"
    door.trouble = lambda method: b"HTTP/1.1 503 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(ReadFailed, match="503"):
        book.read(until)
    with pytest.raises(ReadFailed, match="503"):
        book.write(first, b"three", until)


def test_who_is_not_let_in_is_refused_behind_the_budget_too(here: Bundled, door: DoorServer) -> None:
    target = guarded(here, guard.Settings(), Limits())
    no = b"HTTP/1.1 401 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    door.trouble = lambda method: no
    assert here.read_state().refused
    assert here.read_fleet().refused
    outcome = target.perform(wish("drain"))
    assert (outcome.result, "token_file" in outcome.message) == ("refused", True)
    book, until = here.ledger(), time.monotonic() + 5.0
    with pytest.raises(ReadRefused, match="token_file"):
        book.read(until)
    with pytest.raises(ReadRefused, match="token_file"):
        book.write(LedgerPage(version="1", text=b"", utc=0.0), b"", until)
    door.trouble = lambda method: b"HTTP/1.1 503 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    assert not here.read_state().refused
    assert target.perform(wish("drain")).result == "deferred"


def test_what_runs_is_ended_and_a_reboot_asked_for_within_our_drain(here: Bundled, door: DoorServer) -> None:
    here.perform(wish("drain"))
    for verb, message in (("evict", "checkpoints"), ("reboot", "operator")):
        for _ in range(2):
            outcome = here.perform(remedy(verb))  # type: ignore[arg-type]
            assert outcome.result == "done"
            assert message in outcome.message
    assert len(door.scheduler.writes) == 3
    drain = door.scheduler.page(NODE).drain
    assert drain is not None
    assert (drain.running, drain.reboot, drain.reason) == ("end", "3f6c", OURS)
    assert here.perform(wish("update_reason", code="xid95")).result == "done"
    drain = door.scheduler.page(NODE).drain
    assert drain is not None
    assert (drain.running, drain.reboot) == ("end", "3f6c"), "another reason takes nothing back"


@pytest.mark.parametrize("verb", ["evict", "reboot"])
def test_nothing_more_is_done_than_our_drain_carries(here: Bundled, door: DoorServer, verb: Verb) -> None:
    assert here.perform(remedy(verb)).result == "foreign", "nobody drained"
    here.perform(wish("drain"))
    assert here.perform(remedy(verb, drain=None)).result == "refused"
    assert here.perform(remedy(verb, drain="0b0b")).result == "foreign"
    door.scheduler.mark(NODE, "MAINTENANCE")
    assert here.perform(remedy(verb)).result == "deferred"
    assert len(door.scheduler.writes) == 1


@pytest.mark.parametrize("action", [requeue(), wish("test"), wish("reset")], ids=lambda action: action.verb)
def test_what_is_not_the_schedulers_is_refused(here: Bundled, door: DoorServer, action: Action) -> None:
    outcome = here.perform(action)
    assert outcome.result == "refused"
    assert action.verb in outcome.message
    assert door.scheduler.asked == []


def test_a_node_that_never_joined_is_waited_for_with_a_hint(door: DoorServer, tmp_path: Path) -> None:
    token = str(tmp_path / "token") if door.token else ""
    elsewhere = build(Settings(address=door.address, token_file=token, node="n9"))
    outcome = elsewhere.perform(wish("drain"))
    assert outcome.result == "deferred"
    assert "[actuators.bundled]" in outcome.message


ANSWERS = {
    b"HTTP/1.1 401 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n": ("refused", "token_file"),
    b'HTTP/1.1 400 No\r\nContent-Length: 14\r\n\r\n{"error": "x"}': ("refused", "'x'"),
    b"HTTP/1.1 404 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n": ("deferred", "address"),
    b"HTTP/1.1 503 No\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n": ("deferred", "503"),
    b"HTTP/1.1 302 No\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n": ("deferred", "302"),
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n": ("deferred", "not understood"),
    b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{": ("deferred", "no answer"),
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe": ("deferred", "not understood"),
    b'HTTP/1.1 200 OK\r\nContent-Length: 44\r\n\r\n{"node":"n2","words":["OPEN"],"revision":"1"}'[:-1]: (
        "deferred",
        "not understood",
    ),
    b"": ("deferred", "no answer"),
    b"SSH-2.0-OpenSSH_9.6\r\n": ("deferred", "no answer"),
}


@pytest.mark.parametrize("raw", ANSWERS, ids=range(len(ANSWERS)))
def test_each_strange_answer_is_an_outcome_and_nothing_is_written(here: Bundled, door: DoorServer, raw: bytes) -> None:
    result, said = ANSWERS[raw]
    door.trouble = lambda method: raw
    outcome = here.perform(wish("drain"))
    assert outcome.result == result
    assert said in outcome.message
    assert outcome.message.isprintable()
    assert (outcome.retry_after is not None) == (result == "deferred")
    assert here.read_state().error == outcome.message
    assert door.scheduler.writes == []
    door.trouble = lambda method: None
    assert here.perform(wish("drain")).result == "done"


@pytest.mark.parametrize(
    "page",
    [
        {"node": "n2", "words": ["OPEN"], "revision": "1"},
        {"node": NODE, "words": ["OPEN", "DRAIN"], "revision": "1"},
        {"node": NODE, "words": ["OPEN"], "drain": {"reason": "x", "id": "x", "since": 1.0}, "revision": "1"},
        {"node": NODE, "words": ["OPEN"]},
    ],
)
def test_a_page_that_contradicts_itself_is_no_reason_to_write(
    here: Bundled, door: DoorServer, page: dict[str, object]
) -> None:
    body = msgspec.json.encode(page)
    door.trouble = lambda method: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    outcome = here.perform(wish("drain"))
    assert outcome.result == "deferred"
    assert "not understood" in outcome.message


def test_a_door_that_hangs_is_left_at_the_deadline(door: DoorServer, tmp_path: Path) -> None:
    here, over = make(door, tmp_path, SHORT), threading.Event()
    door.trouble = lambda method: b"" if over.wait(30.0) else None
    started = time.monotonic()
    outcome = here.perform(wish("drain"))
    took = time.monotonic() - started
    over.set()
    assert outcome.result == "deferred"
    assert took >= SHORT * 0.9


def test_a_page_that_is_always_another_is_put_off(here: Bundled, door: DoorServer) -> None:
    here.perform(wish("drain"))
    boots = iter(range(100))

    def meanwhile(method: str) -> None:
        if method == "PUT":
            (bar,) = door.scheduler.lives[NODE].bars
            note = msgspec.structs.replace(door.scheduler.door.notes[bar.id], reboot=str(next(boots)))
            door.scheduler.door = msgspec.structs.replace(door.scheduler.door, notes={bar.id: note})

    door.trouble = meanwhile
    outcome = here.perform(wish("update_reason", code="xid95"))
    assert (outcome.result, outcome.retry_after) == ("deferred", 1.0)
    assert f"changed {TRIES} times" in outcome.message


def test_a_conflict_is_read_anew_and_judged_anew(here: Bundled, door: DoorServer) -> None:
    def meanwhile(method: str) -> None:
        if method == "PUT" and not door.scheduler.page(NODE).drain:
            now = door.scheduler.now
            door.scheduler.tell(DrainAsked(at=now, id="x", node=NODE, severity="confirmed", cause="bob: fan", seen=now))

    door.trouble = meanwhile
    outcome = here.perform(wish("drain"))
    assert outcome.result == "foreign"
    assert "bob: fan" in outcome.message
    assert door.scheduler.writes == []


def test_the_token_is_read_anew_for_each_question(tmp_path: Path) -> None:
    with door_at(None, Scheduler(NODE), "sesame") as door:
        file = tmp_path / "token"
        here = make(door, tmp_path)
        assert "cannot be read" in here.perform(wish("drain")).message
        for word, result in (("", "refused"), ("two words", "refused"), ("wrong", "refused"), ("sesame\n", "done")):
            file.write_text(word)
            outcome = here.perform(wish("drain"))
            assert outcome.result == result
            assert "sesame" not in outcome.message


def test_a_scheduler_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    here = build(Settings(address=f"unix:{tmp_path}/none", node=NODE))
    outcome = here.perform(wish("drain"))
    assert outcome.result == "deferred"
    assert "gpuguard-scheduler" in outcome.message


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"address": "door.sock"}, "address"),
        ({"address": "unix:door.sock"}, "address"),
        ({"address": "https://head:9401"}, "token_file"),
        ({"address": "https://head:9401", "token_file": "token"}, "token_file"),
        ({"node": "a/b"}, "node"),
        ({"deadline": 0.1}, "deadline"),
        ({"deadline": 60.0}, "deadline"),
    ],
)
def test_settings_that_cannot_work_are_told(settings: dict[str, object], key: str) -> None:
    with pytest.raises(ValueError, match=f"^{key}: "):
        Settings(**settings)  # type: ignore[arg-type]


def test_a_token_is_never_sent_where_all_can_read_it() -> None:
    with pytest.raises(ConfigInvalid, match="https"):
        build(Settings(address="http://head:9401", token_file="/etc/gpuguard/token", node=NODE))


def test_the_nodes_own_name_is_its_short_host_name() -> None:
    assert Bundled(Settings(), lambda: "gpu-a17.example.org").node == "gpu-a17"
    with pytest.raises(ConfigInvalid, match=r"\[actuators.bundled\] node"):
        Bundled(Settings(), lambda: "")
