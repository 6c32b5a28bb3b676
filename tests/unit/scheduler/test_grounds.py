"""The table of grounds: whole, and true of the machine."""

import pytest

from gpuguard.scheduler.grounds import (
    FOR_PEOPLE,
    ROWS,
    STATE_OF,
    STATES,
    TABLE,
    WORDS,
    Bar,
    Ground,
    Word,
    after,
    gpus_of,
    gravest,
    mask_of,
)
from gpuguard.scheduler.nodes import NodeLife, fold, tick
from tests.support.node_lives import (
    CARE,
    LIVES,
    NOW,
    OWN,
    asked,
    back,
    joined,
    life_of,
    lifted,
    looked,
)

LIFE_OF: dict[Ground, str] = {
    "silence": "diagnosing: silence",
    "suspected": "diagnosing: suspected",
    "rejoined": "diagnosing: rejoined",
    "confirmed": "maintenance: confirmed",
    "failed": "maintenance: failed",
    "lost": "maintenance: lost",
    "flaps": "maintenance: flaps",
}


def grounds(life: NodeLife) -> list[Ground]:
    return [bar.ground for bar in life.bars]


def test_every_ground_has_a_state_and_something_that_ends_it() -> None:
    assert set(STATE_OF.values()) == set(STATES) - {"up"}
    for ground, row in TABLE.items():
        assert set(row) == set(WORDS)
        assert None in row.values(), ground
        assert {left for left in row.values() if left} <= set(ROWS)


def test_what_is_known_is_not_ended_by_evidence_and_people_hear_of_maintenance_alone() -> None:
    for ground, row in TABLE.items():
        if STATE_OF[ground] == "maintenance":
            assert row["passed"] == row["heard"] == ground
            assert row["joined"] in (ground, "rejoined")
    assert {STATE_OF[ground] for ground in FOR_PEOPLE} == {"maintenance"}


@pytest.mark.parametrize("ground", LIFE_OF)
@pytest.mark.parametrize("word", ["heard", "passed", "joined", "lifted"])
def test_the_machine_does_as_the_table_says(ground: Ground, word: Word) -> None:
    name = LIFE_OF[ground]
    life = LIVES[name][1]
    assert grounds(life) == [ground]
    event = {
        "heard": back(NOW),
        "passed": looked(NOW, passed=True),
        "joined": joined(NOW),
        "lifted": lifted(NOW, OWN.get(name, "own"), by="anna"),
    }[word]
    left = TABLE[ground][word]
    assert grounds(fold(life, event, CARE).life) == ([left] if left else [])


@pytest.mark.parametrize("severity", ["suspect", "confirmed"])
def test_a_drain_lapses_at_its_second(severity: str) -> None:
    life = life_of(asked(100, "d", severity=severity, expires=500))
    assert grounds(tick(life, 499, CARE)[0]) != []
    assert grounds(tick(life, 500, CARE)[0]) == []


def test_masks_and_numbers() -> None:
    assert mask_of((0, 3)) == 0b1001
    assert gpus_of(0b1001) == (0, 3)
    assert gpus_of(0) == ()
    assert mask_of(()) == mask_of((-1, 10**12)) == 0


def test_the_gravest_bar_is_the_first_of_the_worst_and_none_of_a_gpu() -> None:
    doubt = Bar(id="a", ground="suspected", at=1, seen=1)
    late, early = (Bar(id=f"{at}", ground="confirmed", at=at, seen=at) for at in (9, 5))
    of_gpu = Bar(id="g", ground="confirmed", at=0, seen=0, mask=1)
    assert gravest((doubt, late, early, of_gpu)) == early
    assert gravest((of_gpu,)) is None


def test_a_bar_that_becomes_another_counts_from_then() -> None:
    bar = Bar(id="lost@5", ground="lost", at=5, seen=5)
    again = after(bar, "joined", 9)
    assert again is not None
    assert (again.id, again.ground, again.at, again.seen) == ("lost@5", "rejoined", 9, 5)
    assert after(bar, "passed", 9) is bar
    assert after(again, "passed", 12) is None
