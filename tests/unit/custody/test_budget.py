"""Who may be drained when, by the book that all nodes share."""

import contextlib
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.custody.budget import (
    ENTRIES_MOST,
    LATE,
    UNSEEN_AFTER,
    Answer,
    Ask,
    Book,
    Limits,
    allowed,
    before,
    common_causes,
    foregone,
    give_back,
    kept,
    noted,
    of_records,
    read_book,
    weigh,
    withdraw,
    write_book,
)
from gpuguard.errors import NotUnderstood, ReadFailed
from gpuguard.model.units import Seconds
from gpuguard.ports import FleetDrain, FleetReport

NOW = 1_800_000_000.0
LIMITS = Limits()


def ask(number: int, code: str = "", *, by: str = "gpuguard", version: str = "") -> Ask:
    """Node n<number> with a finding of its own, unless a code is named."""
    token = f"{number:04x}"
    return Ask(
        node=f"n{number}", key=f"n{number}/drain:{token}:0", token=token, code=code or f"xid{number}", by=by,
        version=version,
    )  # fmt: skip


def fleet(nodes: int = 1000, *drains: FleetDrain) -> FleetReport:
    return FleetReport(target="slurm", nodes=nodes, drains=drains)


def drained(number: int, since: float = NOW, *, by: str = "gpuguard", code: str = "x") -> FleetDrain:
    return FleetDrain(node=f"n{number}", token=f"{number:04x}", code=code, since_utc=since, by=by)


def asked(
    book: Book, numbers: range, code: str = "", *, at: float = NOW, every: float = 0.0, of: FleetReport | None = None
) -> tuple[Book, list[Answer]]:
    answers = []
    for place, number in enumerate(numbers):
        book, answer = weigh(book, ask(number, code), of or fleet(), LIMITS, at + every * place)
        answers.append(answer)
    return book, answers


def whys(answers: list[Answer]) -> list[str]:
    return [answer.why for answer in answers]


@pytest.mark.parametrize(
    ("nodes", "begin", "stand"),
    [(1, 1, 1), (8, 1, 1), (50, 1, 2), (99, 1, 4), (100, 2, 5), (250, 5, 12), (1250, 5, 62), (20_000, 5, 1000)],
)
def test_the_smaller_of_two_per_cent_and_five_may_begin_and_five_per_cent_stand(
    nodes: int, begin: int, stand: int
) -> None:
    _, answers = asked(Book(), range(8), of=fleet(nodes))
    assert [a.granted for a in answers] == [number < begin for number in range(8)]
    assert {a.why for a in answers if not a.granted} == {"window"}
    old = [drained(number, NOW - 1e6) for number in range(100, 100 + stand)]
    assert weigh(Book(), ask(1), fleet(nodes, *old[1:]), LIMITS, NOW)[1].granted
    assert weigh(Book(), ask(1), fleet(nodes, *old), LIMITS, NOW)[1].why == "overall"


def test_a_share_is_counted_as_people_count_it() -> None:
    assert [allowed(0.02, nodes) for nodes in (49, 50, 149, 150)] == [1, 1, 2, 3]
    assert allowed(0.07, 100) == 7  # 0.07 * 100 is a little more than 7, 0.29 * 100 a little less than 29
    assert allowed(0.29, 100) == 29


def test_room_comes_back_when_the_window_is_over() -> None:
    book, _ = asked(Book(), range(5))
    later = NOW + LIMITS.window + LATE
    assert whys(asked(book, range(9, 10), at=later - 1)[1]) == ["window"]
    assert whys(asked(book, range(9, 10), at=later)[1]) == ["granted"]


def test_asked_twice_the_answer_is_the_same_and_room_is_taken_once() -> None:
    book, first = asked(Book(), range(5))
    book, again = asked(book, range(5), at=NOW + 5)
    assert [a.granted for a in first + again] == [True] * 10
    book, refused = asked(book, range(5, 6), at=NOW + 6)
    book, still = asked(book, range(5, 6), at=NOW + 300)
    assert (whys(refused), whys(still)) == (["window"], ["handed_over"])
    assert len(book.entries) == 6


def test_two_nodes_of_one_token_and_key_are_two_nodes() -> None:
    one, two = (msgspec.structs.replace(ask(1), node=node, key="drain:7f3a:0") for node in ("a", "b"))
    book, _ = weigh(Book(), one, fleet(50), LIMITS, NOW)
    book, answer = weigh(book, two, fleet(50), LIMITS, NOW)
    assert answer.why == "window"
    assert [(e.node, e.granted) for e in book.entries] == [("a", True), ("b", False)]


def test_what_stands_is_granted_again_whatever_else_happened() -> None:
    book, _ = asked(Book(), range(5))
    shown = fleet(1000, *(drained(number) for number in range(5)))
    book, _ = asked(book, range(100, 110), "xid79", at=NOW + 30, of=shown)
    _, answer = weigh(book, ask(0), shown, LIMITS, NOW + UNSEEN_AFTER + 1)
    assert answer.granted


def test_the_fourth_node_with_one_finding_and_all_after_it_are_refused() -> None:
    book, answers = asked(Book(), range(8), "xid79", every=10)
    assert whys(answers) == ["granted"] * 3 + ["common_cause"] * 5
    assert "common cause" in answers[3].text
    assert common_causes(book, LIMITS, NOW + 70) == ("xid79",)
    assert whys(asked(book, range(20, 21), "xid48", at=NOW + 80)[1]) == ["granted"]


def test_a_common_cause_holds_while_nodes_go_on_asking_and_ten_minutes_longer() -> None:
    book, _ = asked(Book(), range(4), "xid79")
    book, answers = asked(book, range(10, 15), "xid79", at=NOW + 599, every=599)
    assert set(whys(answers)) == {"common_cause"}
    last = NOW + 599 * 5
    assert whys(asked(book, range(30, 31), "xid79", at=last + 599)[1]) == ["common_cause"]
    assert whys(asked(book, range(31, 32), "xid79", at=last + 601)[1]) == ["granted"]


def test_nodes_that_ask_slowly_have_no_cause_in_common() -> None:
    _, answers = asked(Book(), range(12), "xid79", every=240)
    assert whys(answers) == ["granted", "granted", "granted"] * 4
    _, answers = asked(Book(), range(4), "xid79", every=20.5)
    assert whys(answers) == ["granted"] * 4


def test_one_node_with_many_words_is_no_common_cause() -> None:
    book = Book()
    for number in range(9):
        book, answer = weigh(book, msgspec.structs.replace(ask(1, "xid79"), key=str(number)), fleet(), LIMITS, NOW)
        assert answer.granted
        book = withdraw(book, str(number))


def test_a_withdrawn_drain_takes_no_room_and_still_tells_of_a_common_cause() -> None:
    book = Book()
    for number in range(3):
        book, _ = weigh(book, ask(number, "xid79"), fleet(50), LIMITS, NOW)
        book = withdraw(book, ask(number).key)
    assert weigh(book, ask(8), fleet(50), LIMITS, NOW)[1].granted
    assert weigh(book, ask(9, "xid79"), fleet(50), LIMITS, NOW)[1].why == "common_cause"
    assert weigh(book, ask(1, "xid79"), fleet(50), LIMITS, NOW)[1].granted, "asked again, it is weighed anew"
    assert withdraw(book, "unheard") is book


def test_a_person_is_never_refused() -> None:
    book, _ = asked(Book(), range(4), "xid79")
    stuffed = fleet(10, *(drained(number) for number in range(200, 210)))
    for number in range(300, 320):
        book, answer = weigh(book, ask(number, "xid79", by="mia"), stuffed, LIMITS, NOW)
        assert answer == Answer(granted=True, why="person", text="mia wants it; a person is not limited")
    assert weigh(book, ask(0, by="mia"), FleetReport(target="slurm", error="away"), LIMITS, NOW)[1].granted


def test_what_was_refused_gpuguard_a_person_gets() -> None:
    book, _ = asked(Book(), range(6))
    assert weigh(book, ask(5, by="mia"), fleet(), LIMITS, NOW)[1].why == "person"


def test_the_drains_of_people_take_no_room_of_a_window_but_stand() -> None:
    book = Book()
    for number in range(100, 106):
        book, _ = weigh(book, ask(number, by="mia"), fleet(), LIMITS, NOW)
    shown = fleet(1000, *(drained(number) for number in range(100, 106)))
    assert weigh(book, ask(1), shown, LIMITS, NOW)[1].granted
    by_record = fleet(1000, *(drained(number, by="mia") for number in range(100, 106)))
    assert weigh(Book(), ask(1), by_record, LIMITS, NOW)[1].granted
    many = fleet(1000, *(drained(number, by="mia") for number in range(100, 150)))
    assert weigh(Book(), ask(1), many, LIMITS, NOW)[1].why == "overall"


def test_what_the_book_forgot_the_scheduler_shows() -> None:
    shown = fleet(1000, *(drained(number, NOW - 100) for number in range(5)))
    assert weigh(Book(), ask(9), shown, LIMITS, NOW)[1].why == "window"
    assert weigh(Book(), ask(9), shown, LIMITS, NOW + 501)[1].granted
    undated = fleet(1000, *(FleetDrain(node=f"n{number}", token="7f3a") for number in range(5)))
    assert weigh(Book(), ask(9), undated, LIMITS, NOW)[1].why == "window"


def test_a_drain_that_is_given_back_still_began() -> None:
    book, _ = asked(Book(), range(5))
    back = give_back(book, "n0", "0000", NOW + 60)
    assert whys(asked(back, range(9, 10), at=NOW + 61)[1]) == ["window"]
    assert give_back(back, "n0", "0000", NOW + 61) is back
    assert give_back(back, "n7", "0000", NOW + 61) is back
    room = replace(LIMITS, overall=0.001)
    assert weigh(book, ask(9), fleet(1000), replace(room, most=9), NOW)[1].why == "overall"
    for number in range(5):
        book = give_back(book, f"n{number}", f"{number:04x}", NOW)
    assert weigh(book, ask(9), fleet(1000), replace(room, most=9), NOW)[1].granted


def test_a_node_that_began_is_not_forgotten_for_asking_again() -> None:
    book, _ = asked(Book(), range(5))
    book = give_back(book, "n0", "0000", NOW)
    book, _ = asked(book, range(1), at=NOW + 1)
    assert [e.node for e in book.entries].count("n0") == 2
    assert whys(asked(book, range(9, 10), at=NOW + 2)[1]) == ["window"]


def test_an_entry_that_the_scheduler_does_not_show_after_a_minute_has_ended() -> None:
    book, _ = asked(Book(), range(1))
    assert kept(book, LIMITS, NOW + 59, fleet()) == book
    (entry,) = kept(book, LIMITS, NOW + 61, fleet()).entries
    assert entry.ended == NOW + 61
    assert kept(book, LIMITS, NOW + 61, fleet(1000, drained(0))) == book
    assert kept(book, LIMITS, NOW + 61, FleetReport(target="slurm", error="away")) == book


def test_what_is_old_is_dropped_and_without_a_word_of_the_fleet_what_stands_is_kept() -> None:
    book, _ = asked(Book(), range(6))
    later = NOW + 5000
    assert len(kept(book, LIMITS, later).entries) == 5
    assert kept(book, LIMITS, later, fleet()).entries == ()
    assert kept(book, LIMITS, later, fleet(1000, drained(0))).entries == ()


def test_a_date_ahead_of_the_clock_is_one_of_now_and_ages_from_then_on() -> None:
    book, _ = asked(Book(), range(5), at=NOW + 1e6)
    book = kept(book, LIMITS, NOW)
    assert {e.at for e in book.entries} == {NOW}
    assert whys(asked(book, range(9, 10), at=NOW + 1)[1]) == ["window"]
    assert whys(asked(book, range(9, 10), at=NOW + LIMITS.window + LATE)[1]) == ["granted"]


@pytest.mark.parametrize("report", [FleetReport(target="slurm", error="slurmctld does not answer"), fleet(0)])
def test_a_fleet_of_unknown_size_grants_nothing_and_refuses_nothing_for_good(report: FleetReport) -> None:
    with pytest.raises(ReadFailed, match="how large the fleet is"):
        weigh(Book(), ask(1), report, LIMITS, NOW)


def test_where_the_book_alone_decides_the_fleet_is_not_looked_at() -> None:
    away = FleetReport(target="slurm", error="away")
    book, _ = asked(Book(), range(4), "xid79")
    assert weigh(book, ask(9, "xid79"), away, LIMITS, NOW)[1].why == "common_cause"
    assert weigh(book, ask(1, "xid79"), away, LIMITS, NOW)[1].granted
    book, _ = asked(book, range(20, 23))
    assert weigh(book, ask(30), away, LIMITS, NOW)[1].why == "window"
    assert foregone(Book(), ask(1), LIMITS, NOW) is None


def test_a_new_version_begins_slowly() -> None:
    def of(book: Book, number: int, version: str, at: float) -> tuple[Book, str]:
        book, answer = weigh(book, ask(number, version=version), fleet(), LIMITS, at)
        return book, answer.why

    book, why = of(Book(), 1, "0.5.0", NOW)
    assert [why, *(of(book, 2, "0.5.0", NOW)[1] for _ in range(1))] == ["granted", "granted"], "no upgrade was seen"
    book = noted(book, "0.6.0", NOW + 1000)
    book, first = of(book, 3, "0.6.0", NOW + 2000)
    held, second = of(book, 4, "0.6.0", NOW + 2001)
    assert (first, second) == ("granted", "settling")
    assert of(book, 5, "0.5.0", NOW + 2002)[1] == "granted", "what is not upgraded yet is as it was"
    assert of(held, 6, "0.6.0", NOW + 2000 + LIMITS.window + LATE)[1] == "granted"
    grown = NOW + 1000 + LIMITS.settling
    book, _ = of(held, 7, "0.6.0", grown - 1)
    assert of(book, 8, "0.6.0", grown - 1)[1] == "settling"
    assert of(book, 8, "0.6.0", grown)[1] == "granted"


def test_going_back_to_a_version_that_is_known_is_no_upgrade() -> None:
    book = noted(noted(noted(Book(), "1", NOW), "2", NOW + 1), "1", NOW + 2)
    assert [k.version for k in book.versions] == ["1", "2"]
    book, _ = weigh(book, ask(1, version="1"), fleet(), LIMITS, NOW + 3)
    assert weigh(book, ask(2, version="1"), fleet(), LIMITS, NOW + 3)[1].granted


def test_a_site_may_have_no_slow_start() -> None:
    book = noted(noted(Book(), "1", NOW), "2", NOW)
    quick = replace(LIMITS, settling=Seconds(0.0))
    for number in range(3):
        book, answer = weigh(book, ask(number, version="2"), fleet(), quick, NOW)
        assert answer.granted


def test_a_flood_of_asks_never_pushes_out_what_began() -> None:
    book, _ = asked(Book(), range(5))
    for number in range(ENTRIES_MOST + 50):
        book, answer = weigh(book, ask(1000 + number, by="mia" if number % 2 else "gpuguard"), fleet(), LIMITS, NOW)
        assert answer.granted is bool(number % 2)
    assert len(book.entries) == ENTRIES_MOST
    assert {f"n{number}" for number in range(5)} <= {e.node for e in book.entries if e.granted}
    assert len(write_book(book)) < 256 * 1024


def test_records_are_a_book() -> None:
    shown = fleet(1000, *(drained(number, NOW - number, code="xid79") for number in range(3)))
    book = of_records(shown)
    assert [e.node for e in book.entries] == ["n2", "n1", "n0"]
    assert weigh(book, ask(9, "xid79"), shown, LIMITS, NOW)[1].why == "common_cause"
    assert weigh(book, ask(9, "xid48"), shown, LIMITS, NOW)[1].granted


def test_all_nodes_put_drains_into_the_same_order() -> None:
    drains = [drained(3, NOW), drained(1, NOW), drained(2, NOW - 1)]
    shown = fleet(50, *drains)
    seen = {d.node: sorted(e.node for e in before(shown, d).drains) for d in drains}
    assert seen == {"n2": [], "n1": ["n2"], "n3": ["n1", "n2"]}


def test_the_book_comes_back_as_it_was_written() -> None:
    book, _ = asked(noted(Book(), "0.6.0", NOW), range(7), "xid79", every=0.25)
    assert read_book(write_book(book)) == book
    assert read_book(b" \n") == Book()


@pytest.mark.parametrize(
    "text",
    [
        b"{}", b"[]", b"null", b"7", b"\xff\xfe", b'{"version": 2}', b'{"version": 2, "entries": 5}',
        b'{"version": "1"}', b'{"version": 1, "entries": [{"node": "n1"}]}', write_book(Book())[:-3], b"[" * 100_000,
    ],
)  # fmt: skip
def test_garbage_and_an_unknown_version_grant_nothing(text: bytes) -> None:
    with pytest.raises(NotUnderstood):
        read_book(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_book_or_not_understood(text: bytes) -> None:
    with contextlib.suppress(NotUnderstood):
        assert isinstance(read_book(text), Book)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share", 0.0), ("share", 1.5), ("overall", float("nan")), ("most", 0), ("cause_nodes", 0), ("window", 0.0),
        ("cause_window", float("nan")), ("cause_holds", float("inf")), ("settling", -1.0), ("settling_most", 0),
    ],
)  # fmt: skip
def test_limits_that_are_none_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        replace(LIMITS, **{name: value})
