"""The driver's flag needs a second witness."""

import pytest

from gpuguard.detectors.memory_unrepairable import MemoryUnrepairable
from gpuguard.model.ids import BootId
from tests.support.core import BOOT, Core, booted, sweep, xid
from tests.support.looks import GPU, Looks


def look() -> Looks:
    return Looks(MemoryUnrepairable())


def test_the_flag_is_told_each_time() -> None:
    looks = look()
    told = [
        looks.stands(mono, memory_unrepairable=flag)["memory_unrepairable"]
        for mono, flag in ((1.0, 0), (2.0, 1), (3.0, 0))
    ]
    assert told == [False, True, False]


def test_how_grave_it_is() -> None:
    finding = look()(1.0, memory_unrepairable=1)["memory_unrepairable"]
    assert (finding.severity, finding.advice, finding.remedy) == ("critical", "drain", "replace")
    assert (finding.latched, finding.clears) == (True, ("replace", "ack"))
    assert not finding.self_evident


@pytest.mark.parametrize("bad", [None, "N/A", (1, 2)])
def test_what_is_not_known_is_not_judged(bad: object) -> None:
    assert look()(1.0, memory_unrepairable=bad) == {}
    assert look()(1.0) == {}


def test_alone_it_drains_nothing_and_a_reboot_ends_it_no_more_than_a_good_look() -> None:
    core = Core()
    core.tell(sweep({GPU: {"memory_unrepairable": 1}}, 1.0), sweep({GPU: {"memory_unrepairable": 1}}, 5000.0))
    assert core.owed() == []
    core.tell(sweep({GPU: {"memory_unrepairable": 0}}, 5001.0), booted(1.0, BootId("b"), BOOT))
    assert core.codes("0000:1b:00.0") == {"memory_unrepairable"}


def test_with_a_witness_the_node_drains_for_a_new_board() -> None:
    core = Core()
    core.tell(sweep({GPU: {"memory_unrepairable": 1}}, 1.0), xid("0000:1b:00", 48, 2.0))
    assert core.owed() == ["drain"]
    assert core.health.subject(GPU).remedy == "replace"
