"""Bus errors of GPUs, whoever prints them; those of other devices are none of ours."""

from tests.support.stories import told

ONLY = "only=pcie_errors"
FATAL = "kmsg pcieport 0000:0c:01.0: AER: Uncorrectable (Fatal) error message received from 0000:0f:00.0"
CORRECTED = "kmsg pcieport 0000:0c:01.0: AER: Correctable error message received from 0000:0f:00.0"


def test_a_fatal_error_of_a_gpu_is_worth_a_look() -> None:
    _, (line,) = told("0 probe 0000:0f:00.0 answers", f"1 {FATAL}", given=ONLY)
    assert line.startswith("gpu:0000:0f:00.0: pcie_error stands: degraded, advice watch")


def test_a_corrected_error_is_history() -> None:
    _, (line,) = told("0 probe 0000:0f:00.0 answers", f"1 {CORRECTED}", given=ONLY)
    assert "stands: info, advice none" in line


def test_a_device_not_known_as_gpu_is_none_of_ours() -> None:
    assert told(f"1 {FATAL}", given=ONLY)[1] == []


def test_a_gpu_becomes_known_by_any_line_of_the_driver() -> None:
    xid = "1 kmsg NVRM: Xid (PCI:0000:0f:00): 43, channel 0x00000008"
    assert len(told(xid, f"2 {FATAL}", given=ONLY)[1]) == 1


def test_a_device_bound_to_the_driver_is_a_gpu() -> None:
    text = "AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered Agent ID)"
    assert len(told(f"1 kmsg nvidia 0000:47:00.0: {text}", given=ONLY)[1]) == 1
    assert told(f"1 kmsg nvme 0000:21:00.0: {text}", given=ONLY)[1] == []


def test_a_link_down_of_the_slot_alone_names_no_gpu() -> None:
    assert told("1 kmsg pcieport 0000:0c:01.0: pciehp: Slot(9): Link Down", given=ONLY)[1] == []
