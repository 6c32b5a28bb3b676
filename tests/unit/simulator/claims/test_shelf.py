"""The shelf of claims: its index, its shape, what it says without traces, and that a seed gives one answer."""

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from gpuguard.errors import UsageError
from gpuguard.scheduler.settings import DAY, HOUR
from gpuguard.simulator import claims
from gpuguard.simulator.claim import Given, Recorded
from gpuguard.simulator.scenes import LONGEST, cluster, mix, run_times, size_of, traced
from gpuguard.simulator.trace import Trace

TOYS = ("S4", "S5", "S9", "A5.2g", "B3.1b", "B3.2b")

# A claim's scenario, cut to what a test has time for.
SMALL: Mapping[str, Mapping[str, object]] = {
    "s01": {"NODES": 20, "SPAN": HOUR, "LOADS": (0.6,)},
    "s06": {"NODES": 2, "SPAN": DAY // 4, "PACES": (0.5,)},
    "s08": {"NODES": 2, "SPAN": DAY},
    "s10": {"SPAN": DAY // 2, "FIGURES": {4: (41, 87, 1.9)}, "LOOKS": (0.5,), "LOADS": (1.2,), "SWEPT": 8},
    "s11": {"NODES": 1, "SPAN": DAY // 2, "SWEEP": ((1.0, 0.5),), "CLEANING": 6},
    "s12": {"NODES": 1, "SPAN": DAY, "PARTS": (0.25,)},
    "s13": {"NODES": 1, "SPAN": DAY // 8},
    "s14": {"NODES": 1, "SPAN": DAY // 4},
    "s15": {"NODES": 128, "WORK": 10 * HOUR},
    "s16": {"NODES": 2, "SPAN": DAY, "LOADS": (0.8,)},
    "data_loading": {"BATCHES": 20, "LOADS": (0.4,)},
}  # fmt: skip


def philly() -> dict[str, Recorded]:
    """A trace of the right days with a few jobs of each size."""
    jobs = tuple(
        traced(f"p{at:03}", 42 * DAY + 600 * at, 3600 + 977 * (at % 7), (1, 2, 4, 8, 16)[at % 5]) for at in range(40)
    )
    return {"philly11vc": Recorded(trace=Trace(jobs=jobs), nodes=tuple(cluster(4)))}


def answer(seed: int, only: tuple[str, ...]) -> bytes:
    return json.dumps(list(claims.run({}, Random(seed), only=only))).encode()


def test_the_index_names_the_files_and_no_others() -> None:
    files = {path.stem for path in Path(claims.__file__).parent.glob("*.py")} - {"__init__"}
    assert set(claims.ORDER) == files
    assert len(claims.ORDER) == len(files)


@pytest.mark.parametrize("name", claims.ORDER)
def test_each_file_has_the_shape(name: str) -> None:
    claim = claims.load(name)
    assert claim.ID
    assert claim.CLAIM.endswith(".")
    assert claim.CLAIMED
    assert set(claim.NEEDS) <= set(claims.TRACES)
    assert claim.__doc__
    assert claim.measure.__doc__
    assert claim.judge.__doc__


def test_the_ids_stand_in_order() -> None:
    ids = [claims.load(name).ID for name in claims.ORDER]
    assert ids == [*(f"S{number}" for number in range(1, 17)), "A5.2g", "B3.1b", "B3.2b", "B4.4d"]


def test_a_claim_without_its_trace_says_so_and_does_not_hold() -> None:
    (found,) = claims.run({}, Random(1), only=("S2",))
    assert found["holds"] is False
    assert found["measured"]["absent"] == ["philly11vc"]
    assert "philly11vc_jobs.csv.gz" in found["measured"]["why"]
    assert found["compared"] == []


def test_an_id_that_nobody_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"S99.*choose among S1, S2"):
        list(claims.run({}, Random(1), only=("S99",)))


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert answer(7, TOYS) == answer(7, TOYS)


def test_a_claim_comes_out_alike_alone_and_after_others() -> None:
    alone = json.loads(answer(7, ("B4.4d",)))
    after = json.loads(answer(7, ("S4", "B4.4d")))
    assert after[1:] == alone


def test_progress_is_told_with_the_claims_name() -> None:
    said: list[str] = []
    list(claims.run({}, Random(1), said.append, ("S4",)))
    assert said
    assert all(text.startswith("S4 ") for text in said)


@pytest.mark.parametrize("name", ["s01", "s02", "s03", "s07", *(name for name in SMALL if name != "s01")])
def test_a_scenario_runs_small_and_twice_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = claims.load(name)
    for word, value in SMALL.get(name, {}).items():
        monkeypatch.setattr(claim, word, value)
    first, second = (
        list(claims.run(philly(), Random(3), only=(claim.ID,))) for _ in range(2)
    )  # fmt: skip
    assert json.dumps(first) == json.dumps(second)
    assert first[0]["assumptions"]
    assert first[0]["compared"]
    assert first[0]["holds"] == all(row["holds"] for row in first[0]["compared"])


@pytest.mark.parametrize("name", TOYS)
def test_the_toys_hold(name: str) -> None:
    (found,) = claims.run({}, Random(0), only=(name,))
    assert found["holds"], found["compared"]


def test_a_mix_asks_for_the_load_within_the_span() -> None:
    jobs = mix(Random(5), capacity=64, load=0.9, span=10 * DAY, longest=DAY)
    asked = sum(one.job.gpus * (one.duration_s or 0) for one in jobs)
    assert 0.9 <= asked / (64 * 10 * DAY) < 0.9 + 8 * DAY / (64 * 10 * DAY)
    assert all(0 <= one.submit_s < 10 * DAY for one in jobs)
    assert [one.submit_s for one in jobs] == sorted(one.submit_s for one in jobs)


def test_run_times_have_their_median_and_end_at_the_longest() -> None:
    dice = Random(5)
    times = sorted(run_times(dice) for _ in range(2001))
    assert 600 < times[1000] < 1300
    assert times[-1] <= LONGEST


def test_sizes_come_as_often_as_told() -> None:
    dice = Random(5)
    drawn = [size_of(dice, ((1, 0.75), (8, 0.25))) for _ in range(2000)]
    assert set(drawn) == {1, 8}
    assert 0.70 < drawn.count(1) / 2000 < 0.80


def test_what_several_claims_need_is_made_once() -> None:
    given = Given(traces={}, dice=Random(1))
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return 5

    assert [given.once("five", make), given.once("five", make)] == [5, 5]
    assert made == [1]
