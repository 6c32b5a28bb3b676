"""Lines that are one report, and lines that are not."""

from gpuguard.kernel_log.assemble import LONGEST_REPORT, PATIENCE, is_fuller
from gpuguard.kernel_log.reader import LogReader
from gpuguard.model.events import Parsed
from tests.support.kernel_lines import read_all

HEAD = "NVRM: The NVIDIA GPU 0000:d1:00.0"
MIDDLE = "NVRM: (PCI ID: 10de:2335) installed in this system has"
TAIL = "NVRM: fallen off the bus and is not responding to commands."


def test_reports_come_out_with_the_next_line() -> None:
    reader = LogReader()
    assert reader.feed("[ 1.000000] NVRM: Xid (PCI:0000:c8:00): 48", 1) == []
    assert reader.waiting
    (found,) = reader.feed("[ 1.100000] usb 1-1: new device", 2)
    assert (found.line, found.parsed.xid) == (1, 48)
    assert not reader.waiting
    assert reader.flush() == []


def test_flush_gives_what_waits() -> None:
    reader = LogReader()
    reader.feed("[ 1.000000] NVRM: Xid (PCI:0000:c8:00): 48", 1)
    assert [found.parsed.xid for found in reader.flush()] == [48]
    assert reader.flush() == []


def test_head_waits_for_its_tail_but_not_for_ever() -> None:
    noise = ["Nov  9 01:02:03 gpu-3 kernel: usb 1-1: new device"] * PATIENCE
    line = "Nov  9 01:02:03 gpu-3 kernel: "
    near = read_all("\n".join([line + HEAD, *noise[:2], line + MIDDLE, *noise[:2], line + TAIL]))
    assert [(one.parsed.pci, one.line) for one in near] == [("0000:d1:00.0", 1)]
    far = read_all("\n".join([line + HEAD, *noise, line + MIDDLE, line + TAIL]))
    assert [(one.parsed.pci, one.line) for one in far] == [(None, PATIENCE + 3)]


def test_tail_of_another_message_is_not_taken() -> None:
    other = "NVRM: GPU 0000:d2:00.0: GPU has fallen off the bus."
    assert [one.parsed.pci for one in read_all(f"{HEAD}\n{other}")] == ["0000:d2:00.0"]


def test_forged_line_between_fragments_is_passed_over() -> None:
    forged = "12,2,2,-;NVRM: Xid (PCI:0000:c9:00): 79"
    (found,) = read_all(f"4,1,1,c;NVRM: Xid (PCI:0000:c8:00): 79, GPU\n{forged}\n4,3,3,c; has fallen off the bus.")
    assert (found.parsed.pci, found.raw.count("\n")) == ("0000:c8:00.0", 1)


def test_fragment_with_a_meaning_of_its_own_stays_apart() -> None:
    log = "4,1,1,c;NVRM: Xid (PCI:0000:c8:00): 79\n4,2,2,c;NVRM: Xid (PCI:0000:c9:00): 79"
    assert [one.parsed.pci for one in read_all(log)] == ["0000:c8:00.0", "0000:c9:00.0"]


def test_split_inside_the_header_is_joined() -> None:
    assert [one.parsed.xid for one in read_all("4,1,1,c;NVRM: Xi\n4,2,2,+;d (PCI:0000:c8:00): 79, GPU")] == [79]


def test_endless_fragments_stay_small() -> None:
    reader = LogReader()
    for number in range(LONGEST_REPORT * 3):
        found = reader.feed(f"4,{number},{number},c;piece", number + 1)
        assert found == []
    assert reader.flush() == []


def test_serial_is_told_which_gpu_it_is_about_only_right_behind_the_uuid() -> None:
    uuid = "NVRM: GPU at PCI:0000:d1:00: GPU-0a1b2c3d-1111-2222-3333-444455556666"
    serial = "NVRM: GPU Board Serial Number: 1650012345678"
    assert [one.parsed.pci for one in read_all(f"{uuid}\n{serial}")] == ["0000:d1:00.0"] * 2
    between = "NVRM: Xid (PCI:0000:d2:00): 48"
    assert [one.parsed.pci for one in read_all(f"{uuid}\n{between}\n{serial}")][-1] is None


def test_follow_up_of_a_failed_init_names_the_gpu() -> None:
    first, second = read_all(
        "NVRM: GPU 0000:d1:00.0: RmInitAdapter failed! (0x1:0x2:3)\nNVRM: rm_init_adapter failed, device minor number 1"
    )
    assert "part" not in first.parsed.detail
    assert (second.parsed.pci, second.parsed.detail["part"]) == ("0000:d1:00.0", "follow_up")


def test_fuller_takes_nothing_back() -> None:
    short = Parsed(kind="xid", xid=154, detail={"from": 0, "words": ["a"]})
    assert is_fuller(None, short)
    assert not is_fuller(short, None)
    assert not is_fuller(short, short)
    assert is_fuller(short, Parsed(kind="xid", xid=154, fatal=True, detail={"from": 0, "words": ["a", "b"]}))
    assert not is_fuller(short, Parsed(kind="xid", xid=154, detail={"from": 1, "words": ["a"], "to": 2}))
    assert not is_fuller(short, Parsed(kind="xid", xid=79, detail=short.detail, fatal=True))
    assert not is_fuller(Parsed(kind="xid", fatal=True), Parsed(kind="xid", fatal=False, detail={"to": 0}))
