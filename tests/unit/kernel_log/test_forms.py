"""How each tool prints a record."""

import pytest

from gpuguard.errors import NotUnderstood
from gpuguard.kernel_log.forms.kmsg import parse_record, unescape
from gpuguard.kernel_log.reader import Found, LogReader, read_line
from tests.support.kernel_lines import FIXTURES, read_all

NOVEMBER = 1794186123.0  # 2026-11-09T01:02:03Z


def _form(name: str) -> list[Found]:
    return read_all((FIXTURES / "forms" / f"{name}.log").read_text())


def _codes(found: list[Found]) -> list[int | None]:
    return [one.parsed.xid for one in found]


def test_kmsg() -> None:
    first, second = _form("kmsg")
    assert (first.record.sequence, first.record.boot_seconds, first.record.name) == (502, 1.0002, "kmsg")
    assert first.parsed.process == "café"
    assert (second.parsed.xid, second.line, second.record.text) == (
        79, 4, "NVRM: Xid (PCI:0000:c8:00): 79, GPU has fallen off the bus.",
    )  # fmt: skip
    assert second.raw.count("\n") == 1


def test_dmesg() -> None:
    found = _form("dmesg")
    assert _codes(found) == [43, 48, 62, 63, 64, 92, 94, 95, 31, 32]
    assert [one.record.boot_seconds for one in found[:7]] == [1.0002, 1.0003, 1.0005, 1.0007, 1.0008, 1.0009, None]
    assert {one.record.name for one in found} == {"dmesg"}


def test_dmesg_time() -> None:
    found = _form("dmesg_time")
    assert _codes(found) == [43, 48, 62]
    assert [one.record.utc for one in found] == [NOVEMBER, None, NOVEMBER]


def test_dmesg_iso() -> None:
    found = _form("dmesg_iso")
    assert [one.parsed.kind for one in found] == ["xid", "pcie_hotplug", "xid"]
    assert [one.record.utc for one in found] == pytest.approx([NOVEMBER + 0.456789] * 3)


def test_journal_short() -> None:
    found = _form("journal_short")
    assert _codes(found) == [43, 48, 62, 63, 64]
    assert [one.record.utc for one in found] == [NOVEMBER, NOVEMBER, NOVEMBER + 0.456789, None, None]
    assert [one.record.boot_seconds for one in found] == [None, None, None, 12.345678, 12.345678]


def test_journal_json() -> None:
    text, array = _form("journal_json")
    assert text.record.utc == pytest.approx(NOVEMBER + 0.456789)
    assert text.record.boot_seconds == 12.345678
    assert array.parsed.process == "\\xff\x02x"


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"MESSAGE":{}}',
        '{"MESSAGE":[999]}',
        '{"MESSAGE":[1,"a"]}',
        "[" * 5000 + '"MESSAGE"',
        '{"a":' * 5000 + '"MESSAGE"',
    ],
)
def test_broken_json_is_nothing(line: str) -> None:
    assert read_all(line) == []


def test_syslog() -> None:
    found = _form("syslog")
    assert _codes(found) == [43, 48, 62, 63, 64, 92]
    assert {one.record.utc for one in found} == {None}
    assert found[4].parsed.detail["repeated"] == 4
    assert found[4].record.repeated == 4


def test_syslog_iso_and_5424_and_talos_and_fabric_manager() -> None:
    assert _codes(_form("syslog_iso")) == [43]
    assert _codes(_form("syslog_5424")) == [43, 48]
    assert _codes(_form("talos")) == [43]
    (fabric,) = _form("fabric_manager")
    assert (fabric.parsed.kind, fabric.record.utc) == ("fm_sxid", NOVEMBER)
    for name in ("syslog_iso", "talos"):
        assert _form(name)[0].record.utc == pytest.approx(NOVEMBER + 0.456789)


def test_plain_lines_join_only_while_they_tell_more() -> None:
    (one,) = _form("plain")
    assert one.parsed.detail["access_type"] == "ACCESS_TYPE_VIRT_READ"
    assert one.raw.count("\n") == 2


def test_user_records_are_reported_on_request() -> None:
    line = "12,88,99000000,-;NVRM: Xid (PCI:0000:c8:00): 79, GPU has fallen off the bus."
    assert read_all(line) == []
    assert [one.parsed.xid for one in read_all(line, trust_user=True)] == [79]


def test_impossible_dates_are_no_time() -> None:
    for line in ("2026-13-45T99:99:99+00:00 gpu-3 kernel: x", "[Xxx Foo 99 99:99:99 2026] x"):
        assert read_line(line).utc is None


def test_parse_record_takes_what_read_returns() -> None:
    record = parse_record(
        b"4,502,1000200,-,caller=T77;NVRM: hello\\x0aworld\n SUBSYSTEM=pci\n DEVICE=+pci:0000:c8:00.0\n"
    )
    assert (record.text, record.sequence, record.boot_seconds, record.trusted) == (
        "NVRM: hello\nworld",
        502,
        1.0002,
        True,
    )


@pytest.mark.parametrize("data", [b"", b"junk", b"4,5", b";", b"4,5,6,-", b"\xff\x00", b"-1,5,6,-;x"])
def test_parse_record_refuses_the_rest(data: bytes) -> None:
    with pytest.raises(NotUnderstood) as error:
        parse_record(data)
    assert error.value.text == data.decode("utf-8", "backslashreplace")


def test_unescape_keeps_what_is_no_utf8() -> None:
    assert unescape("a\\x5cb\\xc3\\xa9\\xffc\\xzz") == "a\\bé\\xffc\\xzz"


def test_syslog_times_get_the_year_in_which_the_log_was_last_written() -> None:
    def moment(line: str, last_written: float) -> float | None:
        reader = LogReader(last_written=last_written)
        (found,) = reader.feed(line, 1) or reader.flush()
        return found.record.utc

    line = "Nov  9 01:02:03 gpu-3 kernel: NVRM: Xid (PCI:0000:c8:00): 48"
    assert moment(line, NOVEMBER + 60) == NOVEMBER
    assert moment(line, NOVEMBER - 3600) == NOVEMBER
    assert moment(line, NOVEMBER + 60 * 86_400) == NOVEMBER
    assert moment(line, NOVEMBER - 40 * 86_400) == NOVEMBER - 365 * 86_400
    assert moment("kernel: NVRM: Xid (PCI:0000:c8:00): 48", NOVEMBER) is None
