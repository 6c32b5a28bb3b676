"""Records in, events out: numbers, gaps, pieces, trust, stamps."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import ReadFailed
from gpuguard.model.events import AnyEvent, Cursor, LinesLost, LogLine
from gpuguard.model.ids import BootId
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.kmsg.tail import KNOWN_TEXTS, PIECES_MAX, Tail

BOOT = BootId("b0070000-0000-4000-8000-000000000001")
XID = "NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid={pid}, name=trainer, GPU has fallen off the bus."


def xid(sequence: int, *, code: int = 79, bus: int = 0x7A, pid: int = 4312, micros: int | None = None) -> bytes:
    stamp = sequence * 1000 if micros is None else micros
    return f"4,{sequence},{stamp},-;{XID.format(bus=bus, code=code, pid=pid)}\n".encode()


def noise(sequence: int) -> bytes:
    return f"6,{sequence},{sequence * 1000},-;usb 1-2: new high-speed device\n SUBSYSTEM=usb\n".encode()


def tail(cursor: int | None = None, *, boot: str = BOOT, trust: bool = False, live: bool = False) -> Tail:
    place = None if cursor is None else Cursor(source="kmsg", boot=BootId(boot), position=str(cursor))
    made = Tail(BOOT, place, ManualClock(), trust_user_records=trust)
    if live:
        made.caught_up()
    return made


def fed(reader: Tail, *records: bytes) -> list[AnyEvent]:
    for record in records:
        reader.feed(record)
    reader.flush()
    return list(reader.take())


def ids(events: list[AnyEvent]) -> list[str]:
    return [event.id for event in events]


def test_report_is_known_by_boot_and_sequence() -> None:
    events = fed(tail(), noise(40), xid(41))
    assert ids(events) == ["kmsg:b0070000:41"]
    assert isinstance(events[0], LogLine)
    assert (events[0].parsed.kind, events[0].parsed.xid, events[0].parsed.pci) == ("xid", 79, "0000:7a:00.0")
    assert events[0].raw.startswith("NVRM: Xid (PCI:0000:7a:00): 79")


def test_records_up_to_the_cursor_are_skipped() -> None:
    assert ids(fed(tail(41), xid(40), xid(41), xid(42, pid=9))) == ["kmsg:b0070000:42"]


def test_ring_that_starts_late_is_no_loss_on_the_first_run() -> None:
    assert fed(tail(), noise(5000)) == []


def test_gap_is_counted_exactly() -> None:
    reader = tail()
    events = fed(reader, noise(10), xid(15))
    assert isinstance(events[0], LinesLost)
    assert (events[0].id, events[0].count) == ("kmsg:b0070000:11-14", 4)
    assert isinstance(events[1], LogLine)
    assert reader.tally.lost == 4


def test_gap_behind_the_cursor_counts_too() -> None:
    events = fed(tail(10), noise(100))
    assert isinstance(events[0], LinesLost)
    assert events[0].count == 89
    assert "not reading" in events[0].reason


def test_cursor_of_another_boot_reads_the_whole_ring() -> None:
    assert ids(fed(tail(9000, boot="0ther000-0000"), noise(0), xid(1))) == ["kmsg:b0070000:1"]


def test_ring_overwritten_before_the_start_counts_after_a_reboot() -> None:
    events = fed(tail(9000, boot="0ther000-0000"), noise(7))
    assert isinstance(events[0], LinesLost)
    assert events[0].count == 7
    assert "between boot" in events[0].reason


def test_cursor_beyond_the_ring_blinds_only_until_the_backlog_is_read() -> None:
    reader = tail(5000)
    assert fed(reader, noise(10), xid(11)) == []
    reader.caught_up()
    assert ids(fed(reader, xid(12))) == ["kmsg:b0070000:12"]


def test_cursor_that_is_no_number_is_refused() -> None:
    with pytest.raises(ReadFailed, match="no sequence number"):
        Tail(BOOT, Cursor(source="kmsg", boot=BOOT, position="s=1;i=2"), ManualClock())


def test_what_a_process_wrote_is_not_believed() -> None:
    forged = b"12,3,3000,-;" + XID.format(bus=0x7A, code=79, pid=1).encode()
    reader = tail()
    assert fed(reader, forged) == []
    assert reader.tally.distrusted == 1
    assert ids(fed(tail(trust=True), forged)) == ["kmsg:b0070000:3"]


@pytest.mark.parametrize(
    "record",
    [b"", b";", b"4,5;text", b"4,5,6;NVRM: x", b"x,5,6,-;t", b"4,-5,6,-;t", b"4,5,6,-", b"\x00\xff;\x00", b"4," * 4000],
)
def test_malformed_record_is_counted_and_survived(record: bytes) -> None:
    reader = tail()
    assert ids(fed(reader, record, xid(7))) == ["kmsg:b0070000:7"]
    assert reader.tally.malformed == 1


def test_message_of_several_lines_is_one_report() -> None:
    text = (
        r"NVRM: The NVIDIA GPU 0000:7b:00.0\x0aNVRM: (PCI ID: 10de:2330) installed in this system has"
        r"\x0aNVRM: fallen off the bus and is not responding to commands."
    )
    (event,) = fed(tail(), f"4,9,9000,-;{text}\n".encode())
    assert isinstance(event, LogLine)
    assert (event.parsed.kind, event.parsed.pci) == ("gpu_lost", "0000:7b:00.0")
    assert event.raw.count("\n") == 2


def test_pieces_of_old_kernels_are_joined() -> None:
    pieces = [
        b"4,9,9000,c;NVRM: Xid (PCI:00",
        b"4,10,9001,+;00:7a:00): 79, pid=5, name=a, GPU has",
        b"4,11,9002,+; fallen off",
    ]
    (event,) = fed(tail(), noise(8), *pieces, noise(12))
    assert isinstance(event, LogLine)
    assert (event.id, event.parsed.xid, event.parsed.pid) == ("kmsg:b0070000:9", 79, 5)


def test_piece_of_new_kernels_belongs_to_the_record_before() -> None:
    (event,) = fed(
        tail(), b"4,9,9000,-;NVRM: Xid (PCI:0000:7a:00", b"4,10,9001,c;): 79, pid=5, name=a, gone", noise(11)
    )
    assert isinstance(event, LogLine)
    assert (event.id, event.parsed.xid) == ("kmsg:b0070000:9", 79)


def test_whole_line_with_the_continue_flag_is_read_alone() -> None:
    line = b"4,10,9001,c;" + XID.format(bus=0x7A, code=79, pid=5).encode()
    assert ids(fed(tail(), noise(9), line, noise(11))) == ["kmsg:b0070000:10"]


def test_cursor_stays_before_an_unfinished_line() -> None:
    reader = tail()
    reader.feed(noise(8))
    reader.feed(b"4,9,9000,c;NVRM: Xid (PCI:0000:7a:00): 7")
    assert reader.unfinished
    assert reader.position() == 7
    reader.feed(b"4,10,9001,+;9, pid=5, name=a, gone")
    reader.feed(noise(11))
    (event,) = fed(reader)
    assert isinstance(event, LogLine)
    assert event.parsed.xid == 79
    assert reader.position() == 11


def test_endless_pieces_are_bounded() -> None:
    reader = tail()
    for sequence in range(10 * PIECES_MAX):
        reader.feed(f"4,{sequence},1,+;more".encode())
        assert reader.position() is not None
        assert reader.last is not None
        assert reader.last - int(str(reader.position())) <= PIECES_MAX


def test_serial_number_is_told_which_gpu_it_is_of() -> None:
    events = fed(
        tail(),
        b"4,3,9800010,-;NVRM: GPU at PCI:0000:7a:00: GPU-5a0f91c2-0b37-4e21-8d55-6c10e7a4b9d3",
        b"4,4,9800031,-;NVRM: GPU Board Serial Number: 1653924400712",
    )
    assert [e.parsed.pci for e in events if isinstance(e, LogLine)] == ["0000:7a:00.0"] * 2


def test_repeats_right_behind_each_other_are_one_event() -> None:
    (event,) = fed(tail(), xid(1, micros=5), xid(2, micros=5), xid(3, micros=5))
    assert isinstance(event, LogLine)
    assert (event.id, event.repeated) == ("kmsg:b0070000:1", 3)


def test_repeats_are_not_merged_over_a_loss() -> None:
    events = fed(tail(), xid(1), xid(3))
    assert [type(event) for event in events] == [LogLine, LinesLost, LogLine]


def test_backlog_is_stamped_from_boot_time_and_live_as_read() -> None:
    clock = ManualClock(mono=500.0, utc=2_000_000_000.0)
    reader = Tail(BOOT, None, clock)
    (old,) = fed(reader, xid(1, micros=200_000_000))
    assert (old.at.mono, old.at.utc, old.at.estimated) == (200.0, 2_000_000_000.0 - 300.0, True)
    assert isinstance(old, LogLine)
    assert old.backlog
    reader.caught_up()
    clock.advance(7.0)
    (new,) = fed(reader, xid(2, micros=201_000_000))
    assert (new.at.mono, new.at.utc, new.at.estimated) == (507.0, 2_000_000_007.0, False)
    assert isinstance(new, LogLine)
    assert not new.backlog


def test_backlog_is_never_of_the_future() -> None:
    (event,) = fed(tail(), xid(1, micros=10**15))
    assert event.at.mono == ManualClock().now().mono


def test_flood_of_different_texts_keeps_memory_flat() -> None:
    reader = tail()
    for sequence in range(3 * KNOWN_TEXTS):
        reader.feed(xid(sequence, pid=sequence))
        reader.take()
    assert len(reader._known) <= KNOWN_TEXTS


def test_recorded_ring_is_read_whole(checkout: Path) -> None:
    reader = tail()
    for line in (checkout / "fixtures/sources/kmsg/ring.kmsg").read_bytes().split(b"\n"):
        if line and not line.startswith(b" "):
            reader.feed(line)
    reader.flush()
    kinds = [(e.parsed.kind, e.parsed.pci) for e in reader.take() if isinstance(e, LogLine)]
    assert kinds == [
        ("gpu_identity", "0000:7a:00.0"),
        ("gpu_identity", "0000:7a:00.0"),
        ("gpu_lost", "0000:7b:00.0"),
        ("xid", "0000:7a:00.0"),
        ("gpu_lost", "0000:7a:00.0"),
    ]
    assert reader.tally.distrusted == 1


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(["xid", "noise", "piece", "forged", "junk"])),
        min_size=1,
        max_size=60,
    ),
    st.integers(0, 59),
)
def test_stop_at_any_record_reports_once_and_counts_all(steps: list[tuple[int, str]], stop: int) -> None:
    records, sequence, expected, missing = [], 0, set(), 0
    for index, (step, kind) in enumerate(steps):
        if kind == "junk":
            records.append(b"\x00junk")
            continue
        missing += step - 1 if sequence else 0
        sequence += step
        if kind == "xid":
            expected.add(f"kmsg:b0070000:{sequence}")
            records.append(xid(sequence, pid=index + 1))
        elif kind == "piece":
            records.append(f"6,{sequence},1,c;piece".encode())
        elif kind == "forged":
            records.append(b"12" + xid(sequence)[1:])
        else:
            records.append(noise(sequence))
    first = tail()
    for record in records[:stop]:
        first.feed(record)
    before = list(first.take())  # what is unfinished now dies with the process
    place = first.position()
    second = tail(place)
    after = fed(second, *records)
    seen = [event.id for event in before + after if isinstance(event, LogLine)]
    assert set(seen) == expected
    assert len(seen) == len(set(seen))
    assert sum(event.count for event in before + after if isinstance(event, LinesLost)) == missing


@given(st.lists(st.binary(max_size=200), max_size=30))
def test_no_bytes_raise(records: list[bytes]) -> None:
    reader = tail(trust=True)
    for record in records:
        reader.feed(record)
    reader.flush()
