"""Profiles of how machines are wired extend those of what they have, and agree with them."""

import pytest

from gpuguard.runtime.assembly import RulesFolder
from gpuguard.sources.machine import profiles as machines
from gpuguard.topology.profiles import Expected, parse

RULES = RulesFolder("topology_drift")
WIRED = parse(RULES.texts("topology"))
KNOWN = machines.parse(RULES.texts("machines"))


def test_every_machine_that_is_known_has_a_profile_of_its_wiring() -> None:
    assert set(KNOWN) <= set(WIRED)


@pytest.mark.parametrize("name", WIRED)
def test_a_profile_has_a_source_and_a_machine_or_says_why_not(name: str) -> None:
    profile = WIRED[name]
    assert profile.title
    assert len(profile.source) >= 20 or name == "ec2-p5-4"
    assert (name in KNOWN) != bool(profile.unlike_machines)


@pytest.mark.parametrize("name", sorted(set(KNOWN) & set(WIRED)))
def test_both_say_the_same_where_both_say_anything(name: str) -> None:
    wired, known = WIRED[name], KNOWN[name]
    for mine, theirs in (
        (wired.gpus, known.gpus),
        (wired.nvlinks, known.nvlinks),
        (wired.pcie_width, known.pcie_width),
        (wired.pcie_generation, known.pcie_generation),
        (wired.nics, known.ib_ports),
    ):
        assert None in (mine, theirs) or mine == theirs
    assert (wired.gpus is None) == (known.gpus is None)


@pytest.mark.parametrize("name", WIRED)
def test_a_profile_agrees_with_itself(name: str) -> None:
    profile = WIRED[name]
    assert profile.gpus_per_socket == () or sum(profile.gpus_per_socket) == profile.gpus
    assert len(profile.addresses) in (0, profile.gpus)
    assert list(profile.addresses) == sorted(set(profile.addresses))
    if profile.pairs is not None and profile.nvlinks is not None and profile.gpus is not None:
        links = int(profile.pairs.removeprefix("NV"))
        assert links in (profile.nvlinks, profile.nvlinks // (profile.gpus - 1))  # through switches, or one by one


@pytest.mark.parametrize("name", [name for name in WIRED if name.startswith(("ec2", "google", "azure"))])
def test_a_virtual_machine_is_not_expected_to_show_its_tree(name: str) -> None:
    nothing = Expected()
    for key in ("nic_level", "acs", "p2p", "pcie_width", "pcie_generation"):
        assert getattr(WIRED[name], key) == getattr(nothing, key)
