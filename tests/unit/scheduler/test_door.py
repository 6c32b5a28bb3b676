"""The scheduler's door: what it shows of each node, what a write becomes, and what is refused."""

import msgspec
import pytest

from gpuguard.model.door import (
    BODY_LIMIT,
    BOOK,
    FLEET,
    NODES,
    REASON_LIMIT,
    BookPage,
    BookWrite,
    DrainWrite,
    FleetPage,
    Trouble,
    Wanted,
)
from gpuguard.scheduler.door import booted, swept
from gpuguard.scheduler.events import DrainAsked, DrainLifted
from gpuguard.scheduler.plan import Drain, Undrain
from tests.support.bundled_scheduler import Scheduler
from tests.support.node_lives import LIVES, NODE

REASON = "gpuguard:7f3a gpu3 lost xid79"
HERE = f"{NODES}n1"


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler("n1", "n2")


def put(
    scheduler: Scheduler, drain: Wanted | None, revision: str | None = None, by: str = "gpuguard"
) -> tuple[int, str]:
    wish = DrainWrite(revision=revision or scheduler.page("n1").revision, by=by, drain=drain)
    status, body = scheduler.ask("PUT", f"{HERE}/drain", msgspec.json.encode(wish))
    return status, "" if status == 200 else msgspec.json.decode(body, type=Trouble).error


def test_a_drain_takes_the_node_out_and_says_whose_it_is(scheduler: Scheduler) -> None:
    assert scheduler.page("n1").words == ("OPEN",)
    assert put(scheduler, Wanted(reason=REASON)) == (200, "")
    page = scheduler.page("n1")
    assert page.words == ("OPEN", "DRAIN")
    assert page.drain is not None
    assert (page.drain.reason, page.drain.by, page.drain.since) == (REASON, "gpuguard", scheduler.now)
    assert scheduler.lives["n1"].state == "maintenance"
    assert [type(decision) for decision in scheduler.decisions] == [Drain]
    assert scheduler.page("n2").words == ("OPEN",)


def test_a_lifted_drain_gives_the_node_back(scheduler: Scheduler) -> None:
    put(scheduler, Wanted(reason=REASON))
    assert put(scheduler, None) == (200, "")
    assert scheduler.page("n1").drain is None
    assert scheduler.lives["n1"].state == "up"
    assert [type(decision) for decision in scheduler.decisions] == [Drain, Undrain]
    assert scheduler.door.notes == {}
    assert put(scheduler, None) == (200, ""), "to lift what does not stand changes nothing"


def test_each_drain_is_a_new_one_to_the_core(scheduler: Scheduler) -> None:
    seen = set()
    for _ in range(2):
        put(scheduler, Wanted(reason=REASON))
        page = scheduler.page("n1")
        assert page.drain is not None
        seen.add((page.drain.id, page.revision))
        assert scheduler.lives["n1"].state == "maintenance"
        put(scheduler, None)
    assert len(seen) == 2


def test_a_write_on_another_revision_changes_nothing(scheduler: Scheduler) -> None:
    before = scheduler.page("n1").revision
    put(scheduler, Wanted(reason="bob: fan"), by="bob")
    for drain in (Wanted(reason=REASON), None):
        status, why = put(scheduler, drain, revision=before)
        assert status == 409
        assert "read it again" in why
    page = scheduler.page("n1")
    assert page.drain is not None
    assert page.drain.reason == "bob: fan"


def test_a_revision_holds_what_a_judgement_rests_on(scheduler: Scheduler) -> None:
    revisions = [scheduler.page("n1").revision]
    scheduler.mark("n1", "MAINTENANCE")
    revisions.append(scheduler.page("n1").revision)
    scheduler.mark("n1")
    assert scheduler.page("n1").revision == revisions[0]
    assert scheduler.page("n2").revision != revisions[0]
    for reason in (REASON, "bob: fan"):
        put(scheduler, Wanted(reason=reason))
        revisions.append(scheduler.page("n1").revision)
    assert len(set(revisions)) == 4


def test_another_reason_is_no_second_drain(scheduler: Scheduler) -> None:
    put(scheduler, Wanted(reason=REASON))
    bars = scheduler.lives["n1"].bars
    assert put(scheduler, Wanted(reason="gpuguard:7f3a gpu3 lost xid95")) == (200, "")
    page = scheduler.page("n1")
    assert page.drain is not None
    assert page.drain.reason.endswith("xid95")
    assert scheduler.lives["n1"].bars == bars


def test_work_that_has_to_end_is_ended_once(scheduler: Scheduler) -> None:
    """The drain keeps what runs; a wish to end it is one more bar, which goes with the drain."""
    put(scheduler, Wanted(reason=REASON))
    reply = DrainWrite(
        revision=scheduler.page("n1").revision, by="gpuguard", drain=Wanted(reason=REASON, running="end")
    )
    before = list(scheduler.lives["n1"].bars)
    scheduler.ask("PUT", f"{HERE}/drain", msgspec.json.encode(reply))
    added = [bar for bar in scheduler.lives["n1"].bars if bar not in before]
    assert [bar.id.endswith("/end") for bar in added] == [True]
    put(scheduler, Wanted(reason=REASON))
    page = scheduler.page("n1")
    assert page.drain is not None
    assert page.drain.running == "end"
    assert len(scheduler.lives["n1"].bars) == 2
    put(scheduler, None)
    assert scheduler.lives["n1"].bars == ()


def test_a_reboot_that_was_asked_for_is_granted_by_another_boot(scheduler: Scheduler) -> None:
    put(scheduler, Wanted(reason=REASON, reboot="boot-1"))
    same = booted(scheduler.door, scheduler.lives["n1"], "boot-1")
    assert same == scheduler.door
    scheduler.door = booted(scheduler.door, scheduler.lives["n1"], "boot-2")
    page = scheduler.page("n1")
    assert page.drain is not None
    assert (page.drain.reason, page.drain.reboot) == (REASON, None)


def test_a_lift_by_gpuguard_vouches_for_nothing(scheduler: Scheduler) -> None:
    for by, vouched in (("gpuguard", None), ("anna", scheduler.now)):
        put(scheduler, Wanted(reason=REASON))
        put(scheduler, None, by=by)
        assert scheduler.lives["n1"].vouched == vouched


def test_a_drain_that_came_by_another_way_is_shown_with_its_cause(scheduler: Scheduler) -> None:
    at = scheduler.now
    scheduler.tell(DrainAsked(at=at, id="a1", node="n1", severity="suspect", cause="slow", seen=at))
    page = scheduler.page("n1")
    assert page.drain is not None
    assert (page.words, page.drain.id, page.drain.reason, page.drain.by) == (("OPEN", "DRAIN"), "a1", "slow", "")
    put(scheduler, None, by="anna")
    assert scheduler.page("n1").drain is None


def test_the_first_of_two_drains_holds(scheduler: Scheduler) -> None:
    put(scheduler, Wanted(reason=REASON))
    at = scheduler.now + 5
    scheduler.tell(DrainAsked(at=at, id="a1", node="n1", severity="confirmed", cause="fan", seen=at))
    page = scheduler.page("n1")
    assert page.drain is not None
    assert page.drain.reason == REASON
    put(scheduler, None)
    page = scheduler.page("n1")
    assert page.drain is not None
    assert page.drain.reason == "fan"


def test_a_drain_that_was_lifted_by_another_way_is_not_shown(scheduler: Scheduler) -> None:
    put(scheduler, Wanted(reason=REASON))
    page = scheduler.page("n1")
    assert page.drain is not None
    scheduler.tell(DrainLifted(at=scheduler.now, id=page.drain.id, node="n1", by="anna"))
    assert scheduler.page("n1").words == ("OPEN",)
    assert swept(scheduler.door, scheduler.lives).notes == {}


def test_gpus_alone_are_no_drain_of_the_node(scheduler: Scheduler) -> None:
    at = scheduler.now
    scheduler.tell(DrainAsked(at=at, id="a1", node="n1", gpus=(3,), severity="confirmed", cause="fan", seen=at))
    assert scheduler.page("n1").words == ("OPEN",)


WORDS = {
    "up": ("OPEN",),
    "up, one GPU drained": ("OPEN",),
    "suspect: silent": ("OPEN", "SILENT"),
    "diagnosing: silence": ("OPEN", "SILENT", "MAINTENANCE"),
    "diagnosing: suspected": ("OPEN", "DRAIN"),
    "diagnosing: rejoined": ("OPEN", "MAINTENANCE"),
    "maintenance: confirmed": ("OPEN", "DRAIN"),
    "maintenance: failed": ("OPEN", "MAINTENANCE"),
    "maintenance: lost": ("DOWN",),
    "maintenance: flaps": ("OPEN", "MAINTENANCE"),
}


@pytest.mark.parametrize("life", LIVES)
def test_each_state_of_a_node_has_its_words(life: str) -> None:
    scheduler = Scheduler()
    scheduler.lives[NODE] = LIVES[life][1]
    assert scheduler.page(NODE).words == WORDS[life]


def test_a_node_that_never_joined_is_shown_and_not_written(scheduler: Scheduler) -> None:
    page = scheduler.page("n9")
    assert page.words == ("UNREGISTERED",)
    wish = DrainWrite(revision=page.revision, by="gpuguard", drain=Wanted(reason=REASON))
    status, body = scheduler.ask("PUT", f"{NODES}n9/drain", msgspec.json.encode(wish))
    assert status == 404
    assert b"joined" in body


@pytest.mark.parametrize(
    ("drain", "by"),
    [
        (Wanted(reason=""), "anna"),
        (Wanted(reason=" "), "anna"),
        (Wanted(reason="a\nb"), "anna"),
        (Wanted(reason="x" * (REASON_LIMIT + 1)), "anna"),
        (Wanted(reason=REASON, reboot=""), "anna"),
        (Wanted(reason=REASON), "x" * 65),
        (Wanted(reason=REASON), "\x1b[31m"),
        (None, "\n"),
    ],
)
def test_a_drain_says_why_and_by_whom(scheduler: Scheduler, drain: Wanted | None, by: str) -> None:
    status, why = put(scheduler, drain, by=by)
    assert status == 400
    assert why.isprintable()
    assert scheduler.page("n1").words == ("OPEN",)


def test_the_fleet_is_every_node_with_gpus_that_is_switched_on(scheduler: Scheduler) -> None:
    put(scheduler, Wanted(reason=REASON))
    scheduler.mark("n2", "POWERED")
    page = msgspec.json.decode(scheduler.ask("GET", FLEET)[1], type=FleetPage)
    assert page.nodes == 1
    assert [(d.node, d.reason, d.since) for d in page.drains] == [("n1", REASON, scheduler.now)]


def test_the_book_is_kept_by_compare_and_set(scheduler: Scheduler) -> None:
    def read() -> BookPage:
        return msgspec.json.decode(scheduler.ask("GET", BOOK)[1], type=BookPage)

    def write(revision: str, text: bytes) -> int:
        return scheduler.ask("PUT", BOOK, msgspec.json.encode(BookWrite(revision=revision, text=text)))[0]

    first = read()
    assert (first.text, first.utc) == (b"", scheduler.now)
    assert write(first.revision, b"one\x00\xff") == 200
    assert write(first.revision, b"two") == 409
    second = read()
    assert second.text == b"one\x00\xff"
    assert write(second.revision, b"three") == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/", b"", 404),
        ("GET", "/v2/nodes/n1", b"", 404),
        ("GET", NODES, b"", 404),
        ("GET", f"{HERE}/drain", b"", 404),
        ("GET", f"{NODES}../x", b"", 404),
        ("GET", f"{NODES}n1%0a", b"", 404),
        ("GET", f"{NODES}{'n' * 65}", b"", 404),
        ("PUT", HERE, b"{}", 404),
        ("PUT", FLEET, b"{}", 404),
        ("DELETE", f"{HERE}/drain", b"", 405),
        ("BREW", "\u2615\n", b"", 405),
        ("PUT", f"{HERE}/drain", b"", 400),
        ("PUT", f"{HERE}/drain", b"{", 400),
        ("PUT", f"{HERE}/drain", b"[]", 400),
        ("PUT", f"{HERE}/drain", b'{"revision": 1, "by": "a", "drain": null}', 400),
        ("PUT", f"{HERE}/drain", b'{"revision": "1", "by": "a"}', 400),
        ("PUT", f"{HERE}/drain", b'"\xff"', 400),
        ("PUT", BOOK, b'{"revision": "0", "text": "*"}', 400),
        ("PUT", BOOK, b" " * (BODY_LIMIT + 1), 413),
    ],
)
def test_what_is_not_understood_is_told_and_changes_nothing(
    scheduler: Scheduler, method: str, path: str, body: bytes, status: int
) -> None:
    door, lives = scheduler.door, dict(scheduler.lives)
    answered, said = scheduler.ask(method, path, body)
    assert answered == status
    assert msgspec.json.decode(said, type=Trouble).error.isprintable()
    assert (scheduler.door, scheduler.lives) == (door, lives)
