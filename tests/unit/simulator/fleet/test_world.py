"""A fleet of a few nodes in busy days: what must hold whatever happens, and what each kind of event leads to."""

import json
from collections import Counter

import pytest

from gpuguard.custody.budget import Limits
from gpuguard.simulator.fleet.faults import Recipe
from gpuguard.simulator.fleet.noise import RATES, Kind
from gpuguard.simulator.fleet.world import World
from tests.support.fleet import BUSY, QUIET, SILENT, ran


def only(kind: Kind, rate: float) -> dict[Kind, float]:
    return {**SILENT, kind: rate}


def verbs(world: World) -> Counter[str]:
    return Counter(f"{verb} {result}" for _, _, verb, result, _ in world.journal or ())


@pytest.fixture(scope="module")
def busy() -> World:
    return ran(nodes=8, days=20.0, seed=3)


def test_nothing_is_written_over_a_foreign_drain(busy: World) -> None:
    found = busy.figures()
    assert found["drains"] > 10
    assert found["drains_by_hand"] > 10
    assert found["foreign_writes"] == 0


def test_no_evident_fault_is_missed_and_no_check_crashes(busy: World) -> None:
    found = busy.figures()
    assert found["evident"] > 20
    assert (found["missed"], found["failed_checks"]) == (0, [])


def test_no_action_is_sent_again_once_it_was_answered(busy: World) -> None:
    """But for what an agent that was killed in between sends again, which is harmless."""
    told = [entry[1:4] for entry in busy.journal or () if entry[3] == "done"]
    owed = [entry[1:3] for entry in busy.journal or () if entry[3] == "owed"]
    assert len(owed) <= len(told) <= 1.1 * len(owed)


def test_what_is_doubtful_is_shown_to_people(busy: World) -> None:
    doubtful = busy.figures()["doubtful"]
    assert doubtful["faults"] > 3
    # One that falls on a node that people took out already may be mended before anybody looks.
    assert doubtful["watched"] >= 0.7 * doubtful["faults"]


def test_nodes_that_were_repaired_are_given_back(busy: World) -> None:
    found = busy.figures()
    assert found["releases"] >= 0.5 * found["drains"]
    idle = [node for node, seen in enumerate(busy.open) if not seen]
    held = [node for node in idle if busy.scheduler.holdings[node].drained]
    assert len(held) <= 2


def test_the_figures_add_up(busy: World) -> None:
    found = busy.figures()
    assert sum(found["faults_by_cause"].values()) == found["faults"]
    kinds = found["evident"] + found["doubtful"]["faults"] + found["program"] + sum(found["unseen"].values())
    assert kinds == found["faults"]
    assert sum(found["false_drains_by_cause"].values()) == found["false_drains"]
    hours = found["nodes"] * found["gpus_per_node"] * 24 * 20
    assert found["availability"] == pytest.approx(1 - found["lost_gpu_hours"] / hours, abs=1e-3)
    assert found["detection_s"]["p50"] <= found["detection_s"]["p99"] <= found["detection_s"]["max"]


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    one, two, other = (ran(seed=seed, days=5.0) for seed in (4, 4, 5))
    assert json.dumps(one.figures()) == json.dumps(two.figures())
    assert one.journal == two.journal
    assert one.journal != other.journal


def test_programs_drain_nothing_by_default_and_much_under_any_xid() -> None:
    rates = only("burst", 3000.0)
    ours, strict = (ran(name, recipe=QUIET, rates=rates, days=10.0) for name in ("gpuguard", "any-xid"))
    assert ours.figures()["drains"] == 0
    found = strict.figures()
    assert found["false_drains_by_cause"]["program_xid"] == found["drains"] > 5
    assert found["releases"] > 0


@pytest.mark.parametrize("kind", [kind for kind in RATES if kind != "burst"])
def test_noise_alone_drains_nothing(kind: Kind) -> None:
    world = ran(recipe=QUIET, rates=only(kind, 1000.0 if kind == "rotation" else 800.0), days=10.0)
    assert verbs(world) == Counter()
    assert world.figures()["false_drains"] == 0


@pytest.mark.parametrize("kind", ["blind", "crash", "config_error", "rotation", "clock_step"])
def test_what_blinds_the_agent_for_a_while_costs_no_fault(kind: Kind) -> None:
    """Lines wait in the ring, and hardware that is broken is still measured afterwards; what was mended before any
    agent ran again is told apart."""
    world = ran(rates=only(kind, 1000.0 if kind == "rotation" else 800.0), nodes=6, seed=9)
    found = world.figures()
    assert (found["missed"], found["false_drains"], found["foreign_writes"]) == (0, 0, 0)


def test_what_the_fleets_book_refuses_is_a_persons_and_not_missed() -> None:
    world = ran(
        limits=Limits(share=1.0, overall=0.1, most=99, cause_nodes=99),
        nodes=8,
        rates=SILENT,
        recipe=BUSY,
        days=10.0,
        seed=2,
    )
    found = world.figures()
    assert found["held"] > 0
    assert 0 < found["handed_over"] <= found["evident"]
    assert found["missed"] == 0


def test_a_reboot_that_clears_all_brings_faults_back() -> None:
    ours, robot = (ran(name, nodes=8, days=15.0, rates=SILENT, seed=5) for name in ("gpuguard", "reboot-clears"))
    assert ours.figures()["shown_again"] == 0
    assert robot.figures()["shown_again"] > 5
    assert robot.figures()["interruptions"] > ours.figures()["interruptions"]
    assert robot.figures()["foreign_writes"] == 0


def test_a_fleet_without_faults_is_in_service() -> None:
    found = ran(recipe=QUIET, rates=SILENT, days=3.0).figures()
    assert (found["availability"], found["faults"], found["detection_s"]["p50"]) == (1.0, 0, None)


def test_policies_meet_the_same_faults() -> None:
    recipe = Recipe(rate=100.0)
    worlds = [ran(name, recipe=recipe, days=5.0) for name in ("gpuguard", "any-xid", "reboot-clears")]
    assert len({json.dumps(world.figures()["faults_by_cause"]) for world in worlds}) == 1
