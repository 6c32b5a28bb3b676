"""Heartbeats refused by the hundred."""

from gpuguard.detectors import heartbeats_refused
from tests.support.watched import Watched


def test_a_flood_is_told_with_its_reasons_and_ends() -> None:
    node = Watched(heartbeats_refused, "node")
    assert node.standing(0.0, heartbeats_refused_total=("foreign", 500, "replayed", 0)) == []
    assert node.standing(1.0, heartbeats_refused_total=("foreign", 560, "replayed", 39)) == []
    found = node.see(2.0, heartbeats_refused_total=("foreign", 560, "replayed", 40))["heartbeats_refused"]
    assert (found.stands, found.severity) == (True, "info")
    assert "100 heartbeats were refused within 5 min: foreign 60 replayed 40;" in found.reason
    assert node.standing(400.0, heartbeats_refused_total=("foreign", 560, "replayed", 40)) == []


def test_what_was_refused_before_anybody_looked_is_no_flood() -> None:
    node = Watched(heartbeats_refused, "node")
    for mono in (0.0, 200.0, 400.0):
        assert node.standing(mono, heartbeats_refused_total=("version", 90_000 + int(mono) // 8)) == []


def test_an_agent_that_began_anew_counts_from_nothing() -> None:
    node = Watched(heartbeats_refused, "node")
    node.see(0.0, heartbeats_refused_total=("foreign", 99_000))
    assert node.standing(1.0, heartbeats_refused_total=("foreign", 3)) == []


def test_of_what_is_not_known_nothing_is_said() -> None:
    node = Watched(heartbeats_refused, "node")
    for value in (None, 5000, "many", (), ("foreign", None), (5, 6)):
        assert node.see(0.0, heartbeats_refused_total=value) == {}


def test_the_memory_is_bounded_and_names_are_made_safe() -> None:
    node = Watched(heartbeats_refused, "node", many=1)
    first = tuple(part for n in range(500) for part in (f"r{n:03}\n" * 50, 0))
    later = tuple(part for n in range(500) for part in (f"r{n:03}\n" * 50, n + 1))
    node.see(0.0, heartbeats_refused_total=first)
    assert node.see(1.0, heartbeats_refused_total=later)["heartbeats_refused"].reason.isprintable()
    assert len(node.memory.counters) == heartbeats_refused.REASONS_KEPT
