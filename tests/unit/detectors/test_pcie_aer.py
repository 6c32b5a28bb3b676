"""Errors of the link that were not corrected."""

import pytest

from gpuguard.detectors import pcie_aer
from tests.support.watched import Watched

SUBJECT = "gpu:0000:1b:00.0"


def test_one_fatal_and_many_others() -> None:
    gpu = Watched(pcie_aer, SUBJECT, nonfatal=10, within=3600.0)
    assert gpu.standing(0.0, pcie_aer_fatal_total=7, pcie_aer_nonfatal_total=100) == []
    assert gpu.standing(30.0, pcie_aer_fatal_total=8, pcie_aer_nonfatal_total=109) == ["pcie_aer_fatal"]
    found = gpu.see(60.0, pcie_aer_fatal_total=8, pcie_aer_nonfatal_total=110)
    assert [code for code, one in found.items() if one.stands] == ["pcie_aer_fatal", "pcie_aer_nonfatal"]
    assert found["pcie_aer_nonfatal"].reason == "nonfatal errors on the PCIe link within 1 h: 10"
    assert {one.advice for one in found.values()} == {"watch"}
    assert gpu.standing(4000.0, pcie_aer_fatal_total=8, pcie_aer_nonfatal_total=110) == []


def test_a_reboot_begins_anew() -> None:
    gpu = Watched(pcie_aer, SUBJECT)
    assert gpu.standing(0.0, pcie_aer_fatal_total=7) == []
    assert gpu.standing(30.0, pcie_aer_fatal_total=0) == []


def test_nothing_is_said_of_what_is_not_known() -> None:
    gpu = Watched(pcie_aer, SUBJECT)
    assert gpu.see(0.0, pcie_aer_fatal_total=None) == {}
    assert set(gpu.see(1.0, pcie_aer_fatal_total=None, pcie_aer_nonfatal_total=1)) == {"pcie_aer_nonfatal"}
    with pytest.raises(ValueError, match="at least 1"):
        pcie_aer.Settings(fatal=0)
