"""Holes in the record are told and never drain."""

from tests.support.stories import told

ONLY = "only=log_loss"


def test_lines_that_a_source_missed_are_counted() -> None:
    _, (line,) = told("1 lost kmsg 171 overwritten", given=ONLY)
    assert "degraded" in line
    assert "x171" in line
    assert "advice watch" in line


def test_what_the_kernel_held_back_for_a_talker_is_no_loss() -> None:
    _, (line,) = told("1 kmsg nvidia_probe: 14 callbacks suppressed", given=ONLY)
    assert "info, advice none" in line


def test_rate_limited_gsp_errors_belong_to_their_gpu() -> None:
    text = "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:0f:00 (printing 1 of every 30)."
    _, (line,) = told(f"1 kmsg {text}", given=ONLY)
    assert line.startswith("gpu:0000:0f:00.0: log_loss stands")


def test_other_lines_are_none_of_its() -> None:
    assert told("1 kmsg NVRM: Xid (PCI:0000:0f:00): 43, channel 0x00000008", given=ONLY)[1] == []
