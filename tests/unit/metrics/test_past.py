"""Scores on the page: of boards and machines that were faulty lately, and of no others."""

import msgspec

from gpuguard.metrics.past import families
from gpuguard.model.health import Snapshot
from tests.support.snapshots import NOW, PAST, full, node


def series(snapshot: Snapshot) -> dict[tuple[str, str, str], float]:
    return {
        (s.name, s.labels.get("gpu", ""), s.labels.get("uuid", "")): s.value
        for family in families(snapshot) for s in family.samples
    }  # fmt: skip


def after(days: float) -> Snapshot:
    assert NOW.utc is not None
    at = msgspec.structs.replace(NOW, utc=PAST.as_of + days * 86400.0)
    return msgspec.structs.replace(full(), at=at)


def test_a_score_halves_while_nothing_happens() -> None:
    uuid = "GPU-6a1d2c3b-0000-4000-8000-000000000001"
    assert series(after(0)) == {
        ("gpuguard_fault_score", "5", uuid): 1.5, ("gpuguard_node_fault_score", "", ""): 1.5,
    }  # fmt: skip
    assert series(after(20))[("gpuguard_fault_score", "5", uuid)] == 0.375


def test_a_clock_without_a_date_and_one_set_back_make_it_no_greater() -> None:
    at = msgspec.structs.replace(NOW, utc=None)
    assert set(series(msgspec.structs.replace(full(), at=at)).values()) == {1.5}
    assert set(series(after(-400)).values()) == {1.5}


def test_what_is_as_good_as_forgotten_has_no_series() -> None:
    assert series(after(100)) == {}


def test_a_machine_that_never_was_faulty_has_none() -> None:
    assert series(node()) == {}
