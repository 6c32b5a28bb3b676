"""The driver's flag needs a second witness."""

import pytest

from gpuguard.detectors.memory_unrepairable import MemoryUnrepairable, Settings
from gpuguard.model.ids import BootId
from tests.support.core import BOOT, Core, booted, sweep, xid
from tests.support.looks import GPU, Looks


def look() -> Looks:
    return Looks(MemoryUnrepairable(Settings()))


def test_the_flag_is_believed_when_two_looks_agree() -> None:
    looks = look()
    told = [
        looks.stands(mono, memory_unrepairable=flag)["memory_unrepairable"]
        for mono, flag in ((1.0, 0), (2.0, 1), (31.0, 1), (32.0, 1), (33.0, 0), (34.0, 1))
    ]
    assert told == [False, False, False, True, False, False]


def test_how_grave_it_is() -> None:
    looks = look()
    looks(1.0, memory_unrepairable=1)
    finding = looks(31.0, memory_unrepairable=1)["memory_unrepairable"]
    assert finding.stands
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
    core.tell(*(sweep({GPU: {"memory_unrepairable": 1}}, mono) for mono in (1.0, 31.0)), xid("0000:1b:00", 48, 32.0))
    assert core.owed() == ["drain"]
    assert core.health.subject(GPU).remedy == "replace"


def test_one_odd_answer_is_no_witness() -> None:
    core = Core()
    core.tell(
        sweep({GPU: {"memory_unrepairable": 1}}, 1.0),
        xid("0000:1b:00", 109, 2.0),
        sweep({GPU: {"memory_unrepairable": 0}}, 31.0),
    )
    assert core.owed() == []
    assert "memory_unrepairable" not in core.codes("0000:1b:00.0")
