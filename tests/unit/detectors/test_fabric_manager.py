"""The service nv-fabricmanager: away for how long, stopped, and not expected."""

from gpuguard.detectors import fabric_manager
from tests.support.watched import Watched

SUBJECT = "node"


def test_away_for_as_long_as_the_hold() -> None:
    node = Watched(fabric_manager, SUBJECT, hold=100.0)
    assert node.standing(0.0, fabric_manager_expected=1, fabric_manager_running=0) == []
    assert node.standing(99.0, fabric_manager_expected=1, fabric_manager_running=0) == []
    found = node.see(100.0, fabric_manager_expected=1, fabric_manager_running=0)["fabric_manager_down"]
    assert (found.stands, found.severity, found.advice) == (True, "degraded", "watch")
    assert "nv-fabricmanager does not run" in found.reason
    assert node.standing(101.0, fabric_manager_expected=1, fabric_manager_running=1, fabric_manager_state="S") == []
    assert node.memory == fabric_manager.Memory()


def test_stopped_is_away_and_waiting_is_not() -> None:
    node = Watched(fabric_manager, SUBJECT, hold=0.0)
    assert node.standing(0.0, fabric_manager_expected=1, fabric_manager_running=1, fabric_manager_state="D") == []
    found = node.see(1.0, fabric_manager_expected=1, fabric_manager_running=1, fabric_manager_state="T")
    assert [f.reason.split(",")[0] for f in found.values() if f.stands] == ["nv-fabricmanager is stopped"]


def test_where_it_is_not_expected_it_may_be_away() -> None:
    node = Watched(fabric_manager, SUBJECT, hold=0.0)
    assert node.standing(0.0, fabric_manager_expected=1, fabric_manager_running=0) != []
    assert node.standing(1.0, fabric_manager_expected=0, fabric_manager_running=0) == []


def test_nothing_is_said_of_what_is_not_known() -> None:
    node = Watched(fabric_manager, SUBJECT, hold=0.0)
    assert node.see(0.0, fabric_manager_running=0) == {}
    assert node.see(1.0, fabric_manager_expected=None, fabric_manager_running=0) == {}
    assert node.see(2.0, fabric_manager_expected=1, fabric_manager_running=None) == {}
    assert node.memory == fabric_manager.Memory()
