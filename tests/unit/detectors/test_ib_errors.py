"""Errors of a port, by counter."""

from gpuguard.detectors import ib_errors
from tests.support.watched import Watched

SUBJECT = "port:mlx5_0/1"


def test_each_counter_has_a_limit_of_its_own() -> None:
    for name, limit in (("symbol_error", 100), ("link_error_recovery", 10)):
        port = Watched(ib_errors, SUBJECT)
        column = f"ib_{name}_total"
        assert port.standing(0.0, **{column: 65000}) == []
        assert port.standing(30.0, **{column: 65000 + limit - 1}) == []
        found = port.see(60.0, **{column: 65000 + limit})["ib_errors"]
        assert found.stands
        assert found.reason.endswith(f": {limit} {name}")
        assert port.standing(3700.0, **{column: 65000 + limit}) == []


def test_congestion_is_no_fault_of_the_link() -> None:
    port = Watched(ib_errors, SUBJECT)
    assert port.see(0.0, ib_out_of_sequence_total=0, ib_port_xmit_discards_total=0) == {}
    assert port.see(30.0, ib_out_of_sequence_total=10**6, ib_port_xmit_discards_total=10**6) == {}


def test_one_that_is_unknown_does_not_hide_another() -> None:
    port = Watched(ib_errors, SUBJECT)
    assert port.standing(0.0, ib_symbol_error_total=None, ib_port_rcv_errors_total=0) == []
    assert port.standing(30.0, ib_symbol_error_total=None, ib_port_rcv_errors_total=500) == ["ib_errors"]
    assert port.see(60.0, ib_symbol_error_total=None, ib_port_rcv_errors_total=None) == {}


def test_what_stands_still_changes_no_memory() -> None:
    port = Watched(ib_errors, SUBJECT)
    port.see(0.0, ib_symbol_error_total=5)
    before = port.memory
    port.see(30.0, ib_symbol_error_total=5)
    assert port.memory is before
