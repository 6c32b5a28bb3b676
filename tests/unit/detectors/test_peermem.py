"""nvidia_peermem: missing where it belongs."""

from gpuguard.detectors import peermem
from tests.support.watched import Watched

SUBJECT = "node"


def test_missing_for_as_long_as_the_hold() -> None:
    for expected in (
        {"peermem_expected": 1},
        {"peermem_configured": 1},
        {"peermem_expected": 0, "peermem_configured": 1},
    ):
        node = Watched(peermem, SUBJECT, hold=300.0)
        assert node.standing(0.0, module_nvidia_peermem_loaded=0, ib_ports=8, **expected) == []
        assert node.standing(300.0, module_nvidia_peermem_loaded=0, ib_ports=8, **expected) == ["peermem_missing"]
        assert node.standing(301.0, module_nvidia_peermem_loaded=1, ib_ports=8, **expected) == []


def test_not_expected_or_of_no_use() -> None:
    node = Watched(peermem, SUBJECT, hold=0.0)
    assert node.standing(0.0, module_nvidia_peermem_loaded=0, ib_ports=8, peermem_configured=0) == []
    assert node.standing(1.0, module_nvidia_peermem_loaded=0, ib_ports=0, peermem_configured=1) == []


def test_nothing_is_said_of_what_is_not_known() -> None:
    node = Watched(peermem, SUBJECT, hold=0.0)
    assert node.see(0.0, module_nvidia_peermem_loaded=0, ib_ports=8) == {}
    assert node.see(1.0, module_nvidia_peermem_loaded=0, peermem_expected=1) == {}
    assert node.see(2.0, module_nvidia_peermem_loaded=None, peermem_expected=1, ib_ports=8) == {}
