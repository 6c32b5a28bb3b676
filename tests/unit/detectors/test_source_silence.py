"""A blind source makes the node unknown; an absent witness does not."""

from tests.support.stories import told

ONLY = "only=source_silence"


def test_a_blind_kernel_log_is_silence_not_a_fault() -> None:
    _, lines = told("1 source kmsg blind permission denied", given=ONLY)
    assert any("blind_kmsg stands:" in line and "silent" in line for line in lines)


def test_it_ends_when_the_source_watches_again() -> None:
    _, lines = told("1 source kmsg blind gone", "2 source kmsg watching back", given=ONLY)
    assert "node: blind_kmsg stands no longer" in lines[2:]


def test_a_degraded_source_is_worth_a_look_and_sees() -> None:
    _, lines = told("1 source kmsg degraded 3 lines lost", given=ONLY)
    (line,) = [line for line in lines if "stands:" in line]
    assert line.startswith("node: degraded_kmsg")
    assert "silent" not in line


def test_a_full_disk_is_told() -> None:
    _, lines = told("1 source store blind no space left", given=ONLY)
    assert any("blind_store stands:" in line for line in lines)


def test_an_absent_witness_is_no_finding() -> None:
    assert told("1 source pci_config blind no GPU", "2 source journal blind no journald", given=ONLY)[1] == []
