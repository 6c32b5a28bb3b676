"""Modules that are hot or receive too little light."""

from gpuguard.detectors import optics
from tests.support.watched import Watched

SUBJECT = "port:mlx5_0/1"


def test_the_modules_own_limit_comes_before_ours() -> None:
    port = Watched(optics, SUBJECT, hot=75.0, hold=0.0)
    assert port.standing(0.0, optics_temperature_celsius=79.0, optics_temperature_limit_celsius=80.0) == []
    assert port.standing(1.0, optics_temperature_celsius=80.0, optics_temperature_limit_celsius=80.0) == ["optics_hot"]
    assert port.standing(2.0, optics_temperature_celsius=75.0) == ["optics_hot"]
    assert port.standing(3.0, optics_temperature_celsius=74.9) == []
    assert port.standing(4.0, optics_temperature_celsius=79.0, optics_temperature_limit_celsius=None) == ["optics_hot"]


def test_a_short_peak_is_no_fault() -> None:
    port = Watched(optics, SUBJECT, hold=300.0)
    assert port.standing(0.0, optics_temperature_celsius=90.0) == []
    assert port.standing(299.0, optics_temperature_celsius=90.0) == []
    assert port.standing(300.0, optics_temperature_celsius=90.0) == ["optics_hot"]


def test_light_is_judged_while_the_port_is_active() -> None:
    port = Watched(optics, SUBJECT, hold=0.0)
    assert port.standing(0.0, optics_received_power_watts=0.0, ib_state=1) == []
    assert port.standing(1.0, optics_received_power_watts=1e-5, ib_state=4) == ["optics_dim"]
    assert port.standing(2.0, optics_received_power_watts=1e-3, ib_state=4) == []
    assert port.standing(3.0, optics_received_power_watts=1e-5, ib_state=4) == ["optics_dim"]
    assert port.standing(4.0, optics_received_power_watts=0.0, ib_state=1) == []


def test_an_active_port_without_any_light_is_one_that_does_not_measure_it() -> None:
    port = Watched(optics, SUBJECT, hold=0.0)
    assert port.see(0.0, optics_received_power_watts=0.0, ib_state=4) == {}


def test_nothing_is_said_of_what_is_not_known() -> None:
    port = Watched(optics, SUBJECT, hold=0.0)
    assert port.see(0.0, optics_temperature_celsius=None, optics_received_power_watts=None, ib_state=4) == {}
    assert port.see(1.0, optics_received_power_watts=0.0) == {}
    assert port.memory == optics.Memory()
