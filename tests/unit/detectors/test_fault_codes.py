"""The catalogue's word on each line, and the few rules that are no table."""

import pytest

from tests.support.stories import told

ONLY = "only=fault_codes"


def finding(text: str) -> list[str]:
    return told(f"1 kmsg {text}", given=ONLY)[1]


# The list of the codes that need no second witness is a promise to the site: each drains at once, and nothing else.
SELF_EVIDENT = {
    48: "pid=1, name=a, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer",
    62: "pid=1, name=a, 0x2b0a, 0x00000000, 0x00000000",
    64: "Row Remapper Error: (0x1c3a4) - table is full",
    79: "pid=1, name=a, GPU has fallen off the bus.",
    95: "pid=1, name=a, Uncontained: FBHUB. RST: Yes, D-RST: No",
    110: "pid=1, name=a, Sec fault",
    119: "pid=1, name=a, Timeout after 6s of waiting for RPC response from GPU5 GSP! Expected function 76 (X).",
    120: "GSP task exception: load access fault",
    140: "pid=1, name=a, An uncorrectable ECC error detected (possible firmware handling failure)",
    143: "GPU Initialization Failure",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}
WAITS = {
    46: "GPU stopped processing",
    109: "pid=1, name=a, channel 0x10, errorString CTX SWITCH TIMEOUT, Info 0x3c003",
}
NEVER = {
    13: "pid=1, name=a, Graphics Exception: ESR 0x515730=0xc0d000e",
    31: "pid=1, name=a, channel 0x2, intr 0. MMU Fault: ENGINE GRAPHICS faulted @ 0x7f_0. Fault is of type FAULT_PDE",
    43: "channel 0x00000008",
    45: "channel 0x00000008",
    63: "Row Remapper: New row (0x1c3a4) marked for remapping, reset gpu to activate.",
    94: "pid=1, name=a, Contained: SM (0x1). RST: No, D-RST: No",
    231: "something new",
}


@pytest.mark.parametrize("code", SELF_EVIDENT)
def test_a_self_evident_code_drains_without_a_witness(code: int) -> None:
    line = finding(f"NVRM: Xid (PCI:0000:0f:00): {code}, {SELF_EVIDENT[code]}")[0]
    assert f"xid{code} stands: critical, advice drain" in line
    assert "self-evident" in line


@pytest.mark.parametrize("code", WAITS)
def test_other_critical_codes_wait_for_a_witness(code: int) -> None:
    line = finding(f"NVRM: Xid (PCI:0000:0f:00): {code}, {WAITS[code]}")[0]
    assert "critical, advice drain" in line
    assert "self-evident" not in line


@pytest.mark.parametrize("code", NEVER)
def test_codes_that_never_drain(code: int) -> None:
    line = finding(f"NVRM: Xid (PCI:0000:0f:00): {code}, {NEVER[code]}")[0]
    assert "critical" not in line
    assert "advice drain" not in line


def test_a_bus_drop_without_a_number_is_a_lost_gpu() -> None:
    (line,) = finding("NVRM: GPU 0000:0f:00.0: GPU has fallen off the bus.")
    assert "gpu_lost stands: critical, advice drain, remedy reboot, self-evident" in line


def test_recovery_none_after_something_proves_a_reset() -> None:
    (line,) = finding("NVRM: Xid (PCI:0000:0f:00): 154, GPU recovery action changed from 0x1 (X) to 0x0 (None)")
    assert line == "gpu:0000:0f:00.0: xid154 stands no longer, proves reset"


def test_162_ends_163() -> None:
    lines = finding("NVRM: Xid (PCI:0000:0f:00): 162, Power Smoothing is enabled")
    assert "gpu:0000:0f:00.0: xid163 stands no longer" in lines


def test_follow_ups_of_a_switch_error_do_not_count_again() -> None:
    head = "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 24007,"
    assert "x0" in finding(f"{head} Severity 1 Engine instance 44 Sub-engine instance 00")[0]
    assert finding(f"{head} Data {{{', '.join(['0x00000000'] * 9)}}}") == []


def test_the_printed_word_decides_over_a_switch_error() -> None:
    fatal = finding("nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 24007, Fatal, Link 44 sourcetrack timeout error")[0]
    mild = finding("nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 24007, Non-fatal, Link 44 sourcetrack timeout error")[0]
    assert "critical" in fatal
    assert "self-evident" in fatal
    assert "critical" not in mild


def test_lines_of_other_kinds_are_none_of_its() -> None:
    assert finding("INFO: task nvidia-smi:9911 blocked for more than 120 seconds.") == []
