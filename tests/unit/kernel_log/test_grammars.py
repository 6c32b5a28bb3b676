"""Every kind of line, on lines of its own and on traps."""

import pytest

from gpuguard.kernel_log.reader import has_marker, parse_text
from tests.support.kernel_lines import Case, cases, differences, kinds, read_all


def _all(*, traps: bool) -> list[object]:
    return [
        pytest.param(case, id=f"{kind}-{number}")
        for kind in kinds()
        for number, case in enumerate(cases(kind))
        if bool(case.events) != traps
    ]


@pytest.mark.parametrize("case", _all(traps=False))
def test_facts_are_told(case: Case) -> None:
    found = read_all(case.log)
    assert len(found) == len(case.events), [one.parsed for one in found]
    for expected, one in zip(case.events, found, strict=True):
        assert not differences({"fatal": None, "pid": None, "process": None, **expected}, one)


@pytest.mark.parametrize("case", _all(traps=True))
def test_traps_stay_silent(case: Case) -> None:
    assert read_all(case.log) == []


@pytest.mark.parametrize("case", _all(traps=False))
def test_first_line_has_a_marker(case: Case) -> None:
    """The scanner looks at no line without one."""
    first = case.log.split("\n")[case.events[0]["line"] - 1]
    assert has_marker(first.encode())


@pytest.mark.parametrize("case", _all(traps=False))
def test_half_a_line_raises_nothing_and_keeps_its_gpu(case: Case) -> None:
    """Logs end anywhere. What is left may mean less, but never another GPU."""
    whole = read_all(case.log)[0].parsed
    for end in range(0, len(case.log), 3):
        for one in read_all(case.log[:end]):
            if one.parsed.kind == whole.kind and one.line == 1:
                assert one.parsed.pci in (whole.pci, None) or len(one.parsed.pci or "") < len(whole.pci or "")


def test_process_name_cannot_choose_the_code() -> None:
    parsed = parse_text("NVRM: Xid (PCI:0000:c8:00): 43, pid=7, name=): 79, GPU has, Ch 00000001")
    assert parsed is not None
    assert (parsed.xid, parsed.fatal, parsed.pid) == (43, None, 7)


def test_unknown_process_is_none() -> None:
    for name in ("<unknown>", "'<unknown>'", "***", "<redacted>"):
        parsed = parse_text(f"NVRM: Xid (PCI:0000:c8:00): 43, pid={name}, name={name}, Ch 00000001")
        assert parsed is not None
        assert (parsed.pid, parsed.process, parsed.detail) == (None, None, {"channel": 1})


def test_long_invented_name_ends_at_its_comma() -> None:
    parsed = parse_text("NVRM: Xid (PCI:0000:c8:00): 43, pid=7, name=a-name-no-task-can-have, something new")
    assert parsed is not None
    assert parsed.process == "a-name-no-task-can-have"
