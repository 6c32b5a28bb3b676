"""Ports that are down, gone, slow, or fewer than expected."""

from gpuguard.detectors import ib_port
from tests.support.watched import Watched

SUBJECT = "port:mlx5_0/1"
FAST, SLOW = 400e9, 200e9


def test_what_was_active_and_is_not() -> None:
    port = Watched(ib_port, SUBJECT, down_for=60.0)
    assert port.standing(0.0, ib_state=4, ib_rate_bits_per_second=FAST) == []
    assert port.standing(30.0, ib_state=1) == []
    found = port.see(90.0, ib_state=0)["ib_port_down"]
    assert (found.stands, found.advice) == (True, "watch")
    assert found.reason == "the port was active and is gone"
    assert port.standing(120.0, ib_state=4, ib_rate_bits_per_second=FAST) == []


def test_what_never_was_active_is_no_fault() -> None:
    port = Watched(ib_port, SUBJECT, down_for=0.0, slow_for=0.0)
    for mono, state in enumerate((1, 2, 3, 1, 0)):
        assert port.standing(float(mono), ib_state=state, ib_rate_bits_per_second=10e9) == []


def test_slower_than_it_was() -> None:
    port = Watched(ib_port, SUBJECT, slow_for=300.0)
    assert port.standing(0.0, ib_state=4, ib_rate_bits_per_second=SLOW) == []
    assert port.standing(30.0, ib_state=4, ib_rate_bits_per_second=FAST) == []
    assert port.standing(60.0, ib_state=4, ib_rate_bits_per_second=SLOW) == []
    assert port.standing(200.0, ib_state=4, ib_rate_bits_per_second=None) == []
    assert port.standing(360.0, ib_state=4, ib_rate_bits_per_second=SLOW) == ["ib_port_slow"]
    assert "ib_port_slow" not in port.see(390.0, ib_state=4, ib_rate_bits_per_second=None), "unknown clears nothing"
    assert port.standing(400.0, ib_state=4, ib_rate_bits_per_second=FAST) == []


def test_a_port_that_is_down_is_not_called_slow() -> None:
    port = Watched(ib_port, SUBJECT, slow_for=0.0, down_for=0.0)
    port.see(0.0, ib_state=4, ib_rate_bits_per_second=FAST)
    assert port.standing(1.0, ib_state=4, ib_rate_bits_per_second=SLOW) == ["ib_port_slow"]
    assert port.standing(2.0, ib_state=1, ib_rate_bits_per_second=10e9) == ["ib_port_down"]


def test_fewer_than_the_machine_should_have() -> None:
    node = Watched(ib_port, "node", fewer_for=300.0)
    assert node.standing(0.0, ib_ports_active=7, ib_ports_expected=8) == []
    found = node.see(300.0, ib_ports_active=7, ib_ports_expected=8)["ib_ports_missing"]
    assert (found.stands, found.subject) == (True, "node")
    assert found.reason.startswith("7 InfiniBand or RoCE ports are active of 8")
    assert node.see(310.0, ib_ports_active=None, ib_ports_expected=8) == {}
    assert node.see(320.0, ib_ports_active=0) == {}
    assert node.standing(330.0, ib_ports_active=9, ib_ports_expected=8) == []
    assert node.memory == ib_port.Memory()


def test_nothing_is_said_of_what_is_not_known() -> None:
    port = Watched(ib_port, SUBJECT, down_for=0.0)
    port.see(0.0, ib_state=4)
    assert port.see(1.0, ib_state=None, ib_rate_bits_per_second=FAST) == {}
    assert port.memory.was_active
