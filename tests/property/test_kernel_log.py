"""Hostile text: a process chooses its name, a crash cuts a log anywhere."""

import re
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import NotUnderstood
from gpuguard.kernel_log.forms.kmsg import parse_record
from gpuguard.kernel_log.matcher import build_finder
from gpuguard.kernel_log.reader import Found, has_marker, parse_text, read_line
from gpuguard.kernel_log.shelves import GRAMMARS, all_markers
from gpuguard.kernel_log.stream import LogStream
from tests.support.kernel_lines import FIXTURES, cases, kinds, read_all

NORMAL = re.compile(r"(?:[0-9a-f]{4}|[1-9a-f][0-9a-f]{4,7}):[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
LOGS = [case.log for kind in kinds() for case in cases(kind)] + [
    path.read_text() for path in sorted((FIXTURES / "forms").glob("*.log"))
]
PIECES = sorted({piece for log in LOGS for piece in re.findall(r"[^ ,:;()\[\]]+|[ ,:;()\[\]]+", log)})

texts = st.one_of(
    st.text(max_size=200),
    st.lists(st.sampled_from(PIECES), max_size=20).map("".join),
    st.tuples(st.sampled_from(LOGS), st.integers(0, 200), st.text(max_size=5)).map(
        lambda made: made[0][: made[1]] + made[2] + made[0][made[1] :]
    ),
)  # fmt: skip
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=15)


@given(texts)
def test_parse_never_raises_and_addresses_are_normal(text: str) -> None:
    parsed = parse_text(text)
    if parsed is not None:
        assert parsed.pci is None or NORMAL.fullmatch(parsed.pci)
        msgspec.json.encode(parsed)


@given(texts)
def test_what_a_grammar_understands_has_one_of_its_markers(text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    for grammar in GRAMMARS:
        if grammar.parse(text) is not None:
            assert any(marker in data for marker in grammar.markers)
            assert has_marker(data)


@given(st.lists(texts, max_size=6).map("\n".join))
def test_reading_never_raises_and_everything_can_be_written(log: str) -> None:
    for found in read_all(log, trust_user=True):
        msgspec.json.encode(found.parsed)
        assert found.line >= 1


@given(st.binary(max_size=300))
def test_a_record_is_read_or_refused(data: bytes) -> None:
    try:
        record = parse_record(data)
    except NotUnderstood:
        return
    assert record.sequence is not None
    assert record.name == "kmsg"


def _read(data: bytes, cuts: list[int]) -> list[Found]:
    stream = LogStream()
    found: list[Found] = []
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(edges):
        found += stream.feed(data[start:end])
    return found + stream.finish()


@given(
    st.lists(st.one_of(st.sampled_from(LOGS).map(str.encode), st.binary(max_size=80)), max_size=8).map(b"\n".join),
    st.lists(st.integers(min_value=0), max_size=12),
)
def test_chunk_boundaries_never_change_the_result(data: bytes, cuts: list[int]) -> None:
    assert _read(data, cuts) == _read(data, [])


@given(st.lists(st.sampled_from(LOGS), max_size=6).map("\n".join))
def test_reading_bytes_equals_reading_every_line(log: str) -> None:
    """Looking only at lines with a marker loses nothing."""
    assert _read(log.encode(), []) == read_all(log)


@given(name=names, pid=st.integers(0, 4_194_304), code=st.sampled_from([13, 31, 43, 45, 48, 79, 94]))
def test_a_process_name_changes_neither_code_nor_gpu_nor_pid(name: str, pid: int, code: int) -> None:
    parsed = parse_text(f"NVRM: Xid (PCI:0000:c8:00): {code}, pid={pid}, name={name}, Ch 00000007")
    assert parsed is not None
    assert (parsed.xid, parsed.pci, parsed.pid) == (code, "0000:c8:00.0", pid)


@given(name=names)
def test_a_process_name_cannot_forge_a_line_of_another_kind(name: str) -> None:
    for text, kind in (
        (f"{name} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0", "oom"),
        (f"INFO: task {name}:77 blocked for more than 120 seconds.", "hung_task"),
        (f"Out of memory: Killed process 77 ({name}) total-vm:1kB, anon-rss:1kB", "oom"),
        (f"watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [{name}:77]", "soft_lockup"),
    ):
        parsed = parse_text(text)
        assert parsed is not None
        assert parsed.kind == kind
        assert "invoked" in text or parsed.pid == 77


@given(st.sampled_from(LOGS))
def test_a_quote_in_another_log_is_silent(log: str) -> None:
    for line in log.split("\n"):
        assert read_all(f"Nov  9 01:02:03 gpu-3 slurmctld[5]: reason: {line}") == []
        assert read_all(f"[   12.000000] audit: comm={line}") == []


@given(st.lists(st.binary(max_size=40), max_size=20).map(b"Xid (".join))
def test_finder_and_test_agree(data: bytes) -> None:
    assert has_marker(data) == bool(build_finder(all_markers())(data))


@pytest.mark.parametrize("size", [100_000, 400_000])
def test_long_hostile_lines_take_linear_time(size: int) -> None:
    """No pattern of ours goes back over its text again and again."""
    for text in (
        "NVRM: Xid (PCI:0000:c8:00): 31, " + "GPC1 " * size,
        "INFO: task " + "a:1 " * size,
        "oom-kill:constraint=X" + ",task=a" * size,
        "pcieport 0000:c0:01.0: DPC: " + "detected status:" * size,
        "[" * size,
        "(" * size,
    ):
        read_line(text[:65_536])
        read_all(text)


PREFIXES = (
    "6,{n},{n}000123,-;",
    "6,{n},{n}000123,-,caller=T{n};",
    "[ {n}.000123] ",
    "<4>[ {n}.000123] ",
    "kern  :warn  : [ {n}.000123] ",
    "[Mon Nov  9 01:02:03 2026] ",
    "2026-11-09T01:02:03,456789+00:00 ",
    "kern  :err   : 2026-11-09T01:02:03,456789+00:00 ",
    "Nov  9 01:02:03 gpu-{n} kernel: ",
    "Nov  9 01:02:03 gpu-{n} kernel: [ {n}.000123] ",
    "<4>Nov  9 01:02:03 gpu-{n} kernel: ",
    "2026-11-09T01:02:03.456789+00:00 gpu-{n} kernel: [ {n}.000123] ",
    "2026-11-09T01:02:03+0000 gpu-{n} kernel: ",
    "<4>1 2026-11-09T01:02:03.456789+00:00 gpu-{n} kernel - - - ",
    "192.0.2.7: kern: warning: [2026-11-09T01:02:03.456789012Z]: ",
    "kernel: [ {n}.000123] ",
    "",
)
BARE = [log for log in LOGS if "\n" not in log and read_line(log).name == "plain" and parse_text(log)]


@given(st.sampled_from(BARE), st.sampled_from(PREFIXES), st.integers(1, 99_999), st.sampled_from(["", " ", "\r"]))
def test_every_form_tells_the_same(text: str, prefix: str, number: int, end: str) -> None:
    (found,) = read_all(prefix.format(n=number) + text + end)
    assert found.parsed == parse_text(text)
