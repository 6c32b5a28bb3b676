"""What the mailbox keeps, merges and drops when the loop falls behind."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.events import AnyEvent, Batch, Cursor, GpuProbed, LinesLost, LogLine, Parsed, SourceChanged
from gpuguard.model.ids import BootId, EventId, PciAddress
from gpuguard.model.instants import Instant
from gpuguard.runtime.mailbox import KEPT_OF_A_CLASS, Mailbox, merge_repeats, thin_classes

AT = Instant(boot=BootId("b"), mono=1.0)


def line(number: int, raw: str = "", *, xid: int = 13, source: str = "kmsg", repeated: int = 1) -> LogLine:
    return LogLine(
        id=EventId(f"{source}:{number}"),
        at=AT,
        source=source,
        parsed=Parsed(kind="xid", xid=xid, pci=PciAddress("0000:7a:00.0")),
        raw=raw or f"line {number}",
        repeated=repeated,
    )


def probe(number: int, *, answers: bool) -> GpuProbed:
    return GpuProbed(
        id=EventId(f"p:{number}"),
        at=AT,
        source="pci_config",
        pci=PciAddress("0000:7a:00.0"),
        present=True,
        answers=answers,
    )


def batch(*events: AnyEvent, cursor: int | None = None, source: str = "kmsg") -> Batch:
    place = None if cursor is None else Cursor(source=source, boot=BootId("b"), position=str(cursor))
    return Batch(source=source, events=events, cursor=place)


def emptied(mailbox: Mailbox) -> list[Batch]:
    batches = []
    while (taken := mailbox.get(0)) is not None:
        batches.append(taken)
    return batches


def reports(batches: list[Batch]) -> int:
    total = 0
    for taken in batches:
        for event in taken.events:
            if isinstance(event, LogLine):
                total += event.repeated
            elif isinstance(event, LinesLost):
                total += event.count
    return total


def test_nothing_waits_in_an_empty_mailbox() -> None:
    assert Mailbox().get(0) is None


def test_batches_of_a_source_are_joined_with_the_newest_cursor() -> None:
    mailbox = Mailbox()
    mailbox.put(batch(line(1), cursor=1))
    mailbox.put(batch(line(2), cursor=2))
    mailbox.put(batch(line(3, source="journal"), source="journal"))
    mailbox.put(batch(line(4), cursor=4))
    first, second, third = emptied(mailbox)
    assert [event.id for event in first.events] == ["kmsg:1", "kmsg:2"]
    assert first.cursor is not None
    assert first.cursor.position == "2"
    assert second.source == "journal"
    assert [event.id for event in third.events] == ["kmsg:4"]


def test_empty_batch_without_cursor_wakes_nobody() -> None:
    mailbox = Mailbox()
    mailbox.put(batch())
    assert mailbox.get(0) is None


def test_repeats_are_merged_first_and_nothing_is_lost() -> None:
    mailbox = Mailbox(limit=100)
    for number in range(1000):
        mailbox.put(batch(line(number, f"text {number % 5}"), cursor=number))
    taken = emptied(mailbox)
    assert reports(taken) == 1000
    assert mailbox.lost() == {}
    assert taken[-1].cursor is not None
    assert taken[-1].cursor.position == "999"


def test_what_came_last_stays_last() -> None:
    merged = merge_repeats([line(1, "up"), line(2, "down"), line(3, "up"), line(4, "down"), line(5, "up")])
    assert [(e.raw, e.repeated) for e in merged if isinstance(e, LogLine)] == [
        ("up", 1),
        ("down", 1),
        ("down", 1),
        ("up", 2),
    ]


def test_only_the_newest_probe_is_kept() -> None:
    merged = merge_repeats([probe(1, answers=True), probe(2, answers=False), probe(3, answers=True)])
    assert [event.id for event in merged] == ["p:3"]


def test_losses_of_one_reason_become_one_count() -> None:
    losses = [LinesLost(id=EventId(f"l:{n}"), at=AT, source="kmsg", count=n, reason="gap") for n in (1, 2, 3)]
    (lost,) = merge_repeats(losses)
    assert isinstance(lost, LinesLost)
    assert lost.count == 6


def test_largest_class_is_thinned_and_the_rare_report_survives() -> None:
    mailbox = Mailbox(limit=400)
    for number in range(5000):
        mailbox.put(batch(line(number, xid=79 if number == 2500 else 13), cursor=number))
    taken = emptied(mailbox)
    assert [e.id for b in taken for e in b.events if isinstance(e, LogLine) and e.parsed.xid == 79] == ["kmsg:2500"]
    assert reports(taken) == 5000
    assert mailbox.lost()["kmsg"] > 0
    assert "xid 13" in next(e.reason for b in taken for e in b.events if isinstance(e, LinesLost))


def test_first_and_last_of_a_thinned_class_are_kept() -> None:
    events = [line(number) for number in range(1000)]
    thinned, lost = thin_classes(events, 100)
    kept = [event.id for event in thinned if isinstance(event, LogLine)]
    assert (kept[0], kept[-1], len(kept)) == ("kmsg:0", "kmsg:999", KEPT_OF_A_CLASS)
    assert lost == {"kmsg": 1000 - KEPT_OF_A_CLASS}


def test_many_small_classes_are_bounded_too() -> None:
    mailbox = Mailbox(limit=400)
    for number in range(5000):
        mailbox.put(batch(line(number, xid=1000 + number), cursor=number))
        assert mailbox.depth() <= 400
    assert reports(emptied(mailbox)) == 5000


def test_a_lone_report_survives_a_flood_of_many_classes() -> None:
    mailbox = Mailbox()
    for number in range(100):
        for xid in range(200, 248):
            mailbox.put(batch(line(number * 100 + xid, xid=xid)))
        if number == 50:
            mailbox.put(batch(line(1, xid=79)))
    kept = [event for taken in emptied(mailbox) for event in taken.events]
    assert any(isinstance(event, LogLine) and event.parsed.xid == 79 for event in kept)


def test_what_is_no_report_is_never_dropped() -> None:
    mailbox = Mailbox(limit=50)
    changes = [
        SourceChanged(id=EventId(f"c:{n}"), at=AT, source="kmsg", level="watching", reason="") for n in range(200)
    ]
    for change in changes:
        mailbox.put(batch(change))
    assert [event for taken in emptied(mailbox) for event in taken.events] == changes


def test_waiting_ends_with_a_batch_or_when_closed() -> None:
    mailbox = Mailbox()
    taken: list[Batch | None] = []
    thread = threading.Thread(target=lambda: taken.extend([mailbox.get(), mailbox.get()]))
    thread.start()
    mailbox.put(batch(line(1)))
    while not taken and mailbox.depth():
        thread.join(0.01)
    mailbox.close()
    thread.join(10)
    assert not thread.is_alive()
    assert taken[0] is not None
    assert taken[1] is None
    assert mailbox.closed


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.booleans()), max_size=400), st.integers(4, 60))
def test_every_report_is_handed_over_or_counted(steps: list[tuple[int, int, bool]], limit: int) -> None:
    mailbox = Mailbox(limit=limit)
    taken: list[Batch] = []
    put = 0
    for number, (text, xid, take) in enumerate(steps):
        mailbox.put(batch(line(number, f"t{text}-{xid}", xid=xid), cursor=number))
        put += 1
        if take and (got := mailbox.get(0)) is not None:
            taken.append(got)
    taken += emptied(mailbox)
    assert reports(taken) == put
    cursors = [int(b.cursor.position) for b in taken if b.cursor is not None]
    assert cursors == sorted(cursors)
    assert not steps or cursors[-1] == len(steps) - 1
    assert mailbox.depth() == 0
