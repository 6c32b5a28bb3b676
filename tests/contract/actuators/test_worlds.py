"""The Slurm in memory, the one that is a script, and what each world promises to the suite."""

import time
from pathlib import Path

import pytest

from gpuguard.actuators.slurm.node import parse_node
from gpuguard.actuators.slurm.scontrol import Scontrol
from gpuguard.custody.ownership import Holder
from tests.support.custody_world import REASONS
from tests.support.custody_worlds import WORLDS, InSlurm
from tests.support.fake_scontrol import FakeScontrol

SHOW = ("-o", "show", "node", "here")
UPDATE = ("update", "nodename=here")
COMMANDS = [
    SHOW,
    (*UPDATE, "state=drain", "reason=gpuguard:7f3a gpu3 lost xid79"),
    SHOW,
    (*UPDATE, "reason=bob: a = b"),
    SHOW,
    (*UPDATE, "state=undrain"),
    SHOW,
    (*UPDATE, "state=undrain"),
    (*UPDATE, "state=resume"),
    (*UPDATE, "color=red"),
    SHOW,
]


def test_the_slurm_in_memory_answers_as_the_script_does(tmp_path: Path) -> None:
    script, world = Scontrol(str(FakeScontrol(tmp_path).path), ""), InSlurm()
    for command in COMMANDS:
        printed, said = script.run(command, time.monotonic() + 30.0), world.run(command, 0.0)
        assert printed.code == said.code, command
        if command == SHOW:
            assert parse_node(printed.out, "here") == parse_node(said.out, "here")
        else:
            assert printed.said == said.said


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("holder", REASONS)
def test_what_others_do_is_seen_and_no_write_of_the_actuators(name: str, holder: Holder) -> None:
    world = WORLDS[name]()
    world.put("settled", holder)
    assert world.standing() == REASONS[holder]
    world.drain("bob: fan")
    assert world.standing() == "bob: fan"
    world.reboot("boot-2")
    world.settle()
    world.lift()
    assert world.standing() is None
    assert (world.writes, world.trampled) == ([], [])
