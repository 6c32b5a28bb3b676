"""A reboot is asked for once, only under our own drain, and is done when the machine has booted."""

import os
from pathlib import Path

import msgspec
import pytest

from gpuguard.actuators.slurm import Settings, Slurm
from gpuguard.actuators.slurm.reboot import this_boot
from gpuguard.errors import ActionDeferred
from tests.support.fake_scontrol import FakeScontrol
from tests.support.wishes import remedy

OURS = "gpuguard:7f3a gpu3 lost xid79"
WISH = remedy("reboot")


def here(fake: FakeScontrol, *, reboot: bool = True, boot: str = "3f6c") -> Slurm:
    return Slurm(Settings(scontrol=str(fake.path), node=fake.node, reboot=reboot), os.environ, lambda: boot)


@pytest.fixture
def fake(tmp_path: Path) -> FakeScontrol:
    return FakeScontrol(tmp_path, "IDLE+DRAIN", OURS)


def test_it_is_asked_for_once_however_often_it_is_wished(fake: FakeScontrol) -> None:
    outcomes = [here(fake).perform(WISH) for _ in range(3)]
    assert [outcome.result for outcome in outcomes] == ["deferred"] * 3
    assert fake.writes == ["reboot here"]
    assert "once it has booted" in outcomes[0].message


def test_it_is_done_once_the_machine_runs_in_another_boot(fake: FakeScontrol) -> None:
    assert here(fake, boot="a0b1").perform(WISH).result == "done"
    assert here(fake, boot="a0b1", reboot=False).perform(WISH).result == "done"
    assert fake.calls == []


def test_it_is_off_until_a_site_switches_it_on(fake: FakeScontrol) -> None:
    outcome = here(fake, reboot=False).perform(WISH)
    assert (outcome.result, "reboot = true" in outcome.message) == ("refused", True)
    assert fake.calls == []


@pytest.mark.parametrize(
    ("state", "reason", "result"),
    [
        ("IDLE", "", "foreign"),
        ("IDLE+DRAIN", "Bob: fan", "foreign"),
        ("IDLE+DRAIN", "", "foreign"),
        ("IDLE+DRAIN", "gpuguard:0001 gpu3 lost xid79", "foreign"),
        ("MIXED+DRAIN", OURS, "deferred"),
        ("ALLOCATED+DRAIN", OURS, "deferred"),
        ("IDLE+COMPLETING+DRAIN", OURS, "deferred"),
        ("DOWN+DRAIN", OURS, "deferred"),
        ("IDLE+DRAIN+MAINTENANCE", OURS, "deferred"),
        ("IDLE+DRAIN+STRANGE", OURS, "deferred"),
    ],
)
def test_where_our_drain_does_not_stand_alone_nothing_is_asked(
    fake: FakeScontrol, state: str, reason: str, result: str
) -> None:
    fake.set(state, reason)
    assert here(fake).perform(WISH).result == result
    assert fake.writes == []


def test_a_wish_that_names_no_drain_is_a_bug(fake: FakeScontrol) -> None:
    assert here(fake).perform(msgspec.structs.replace(WISH, drain=None)).result == "refused"
    assert fake.writes == []


def test_a_slurm_that_cannot_reboot_says_what_to_set(fake: FakeScontrol) -> None:
    fake.trap("reboot", 'echo "scontrol: error: RebootProgram isn\'t defined" >&2; exit 1')
    outcome = here(fake).perform(WISH)
    assert (outcome.result, "RebootProgram in slurm.conf" in outcome.message) == ("refused", True)


def test_without_the_right_a_person_is_told(fake: FakeScontrol) -> None:
    fake.trap("reboot", "echo 'scontrol_reboot_nodes error: Permission denied' >&2; exit 1")
    assert here(fake).perform(WISH).result == "refused"


def test_the_boot_is_the_kernels_word(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("4a1c0000-0000-4000-8000-000000000001\n")
    assert this_boot(tmp_path / "boot_id") == "4a1c0000-0000-4000-8000-000000000001"
    with pytest.raises(ActionDeferred, match="which boot"):
        this_boot(tmp_path / "none")
