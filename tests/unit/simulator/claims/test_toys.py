"""The toy cases of the claims, counted by hand."""

from random import Random

import pytest

from gpuguard.scheduler.settings import DAY, HOUR, MINUTE
from gpuguard.simulator import claims
from gpuguard.simulator.claim import Measured
from gpuguard.simulator.claims import data_loading, s01, s11, s12, s13, s15
from gpuguard.simulator.course import Segment
from gpuguard.simulator.engine import Engine
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, traced


def measured(name: str) -> Measured:
    (found,) = claims.run({}, Random(1), only=(name,))
    return found["measured"]  # type: ignore[no-any-return] # JSON


def test_s4_ten_jobs_of_4_on_8_nodes_of_8() -> None:
    found = measured("S4")
    assert found["free_gpus"] == 64 - 10 * 4 == 24
    assert found["whole_nodes_free"] == 0
    assert sorted(found["free_by_node"]) == [0, 0, 4, 4, 4, 4, 4, 4]  # two full, six half full
    assert found["packed"]["free_gpus"] == 24
    assert found["packed"]["whole_nodes_free"] == 3
    assert (found["wide_starts_on_3_nodes"], found["wide_starts_on_6_nodes"]) == (False, True)
    assert (found["packed"]["wide_starts_on_3_nodes"], found["packed"]["wide_starts_on_6_nodes"]) == (True, False)


def test_s5_a_gap_of_an_hour_takes_30_minutes_and_not_61() -> None:
    found = measured("S5")
    assert found["short_job_starts_at_once"] is True
    assert found["long_job_starts_at_once"] is False
    assert found["wide_job_late_s"] == 0
    assert found["easy-pack"] == {
        "short_job_starts_at_once": True, "long_job_starts_at_once": False, "wide_job_late_s": 0,
    }  # fmt: skip


def test_s9_on_idle_gpus_all_wait_for_a_under_both() -> None:
    found = measured("S9")
    by_hand = {"A": 0, "B": 30 * MINUTE, "C": 30 * MINUTE}
    assert found["order"] == ["A", "B", "C"]
    assert found["starts_s"] == by_hand
    assert found["fifo"]["starts_s"] == by_hand


def test_s9_with_4_gpus_taken_b_goes_first_and_c_may_not() -> None:
    found = measured("S9")
    # X ends after 60 min; A takes 30. B (10 min) fits before A. C (10 h on 4 GPUs) would hold up A.
    ours = {"A": 60 * MINUTE, "B": 0, "C": 90 * MINUTE}
    first_come = {"A": 60 * MINUTE, "B": 90 * MINUTE, "C": 90 * MINUTE}
    assert found["with_4_gpus_taken"] == {"order": ["B", "A", "C"], "starts_s": ours}
    assert found["fifo"]["with_4_gpus_taken"] == {"order": ["A", "B", "C"], "starts_s": first_come}


def test_exit_zero_64_gpus_idle_from_23_to_8() -> None:
    found = measured("A5.2g")
    assert found["by_exit_code"]["taken_for"] == "completed"
    assert found["by_exit_code"]["lost_gpu_hours"] == 64 * 9
    assert found["by_proof"] == {"taken_for": "suspicious", "started_again_after_s": 0, "lost_gpu_hours": 0.0}


def test_two_on_a_card_take_1_h_over_035() -> None:
    found = measured("B3.1b")
    assert found["together"]["mean_end_s"] == pytest.approx(HOUR / 0.35, abs=1)
    assert found["together"]["throughput"] == pytest.approx(0.70, abs=0.001)
    assert found["alone"] == {"throughput": 1.0, "mean_end_s": 1.5 * HOUR, "utilisation": 1.0}
    assert {row["pace"]: row["throughput"] for row in found["sweep"]}[0.5] == pytest.approx(1.0)


def test_card_packing_80_8_20() -> None:
    found = measured("B3.2b")
    assert found["whole_cards"]["waiting"] == ["20"]
    assert found["whole_cards"]["wasted_gb"] == 80 - 8
    parts = found["parts_of_cards"]
    assert parts["cards"]["8"] == parts["cards"]["20"] != parts["cards"]["80"]
    assert parts["wasted_gb"] == 160 - 80 - 8 - 20


def test_loading_in_the_loop_adds_up_and_workers_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_loading, "BATCHES", 4)

    class Even(Random):
        def lognormvariate(self, mu: float = 0.0, sigma: float = 1.0) -> float:
            return 1.0

    # 0.5 s to compute, 0.2 to load: 4 x 0.7 in the loop; else the first load, and then computing alone.
    assert data_loading._epoch(Even(), 0.0, 0.2, 0, 0) == pytest.approx(2.8)
    assert data_loading._epoch(Even(), 0.0, 0.2, 2, 4) == pytest.approx(0.2 + 4 * 0.5)
    # Two workers of 2 s each give two batches after 2 s and two after 4: these two take 0.5 s each.
    assert data_loading._epoch(Even(), 0.0, 2.0, 2, 4) == pytest.approx(5.0)


def test_an_unready_training_holds_its_gpus_until_the_data_stands() -> None:
    jobs = [traced("prepare0000", 0, 600, 2), traced("train0000", 0, 1000, 4, walltime=DAY)]
    engine = Engine(
        cluster(1), jobs, policies()["fifo-pack"], models=[s12.Unready({"train0000": "prepare0000"})], sampled=False
    )
    for _ in engine.run():
        pass
    train = engine.lives["train0000"].record
    assert train.first_start == 0
    assert train.end == 600 + 1000


def test_a_job_that_fails_now_and_then_gets_done() -> None:
    failing = s15.Failing(Random(2), 1000.0)
    job = traced("large", 0, 5000, 8, walltime=DAY, checkpoints=True, requeues=1000)
    engine = Engine(cluster(1), [job], policies()["fifo-pack"], models=[failing], saves=100, sampled=False)
    for _ in engine.run():
        pass
    assert failing.failures > 0
    assert engine.lives["large"].record.outcome == "completed"
    assert 5000 < engine.course.last <= 5000 + 100 * failing.failures


def test_whoever_grabs_makes_others_submit_again() -> None:
    grabbing = s13.Grabbing(HOUR, oldest=True, saves=None)
    jobs = [traced("a", 0, 3000, 8), traced("b", 1, 3000, 8)]
    engine = Engine(cluster(1), jobs, policies()["easy-pack"], models=[grabbing], end=HOUR, sampled=False)
    for _ in engine.run():
        pass
    assert grabbing.grabbed > 0
    assert {"a", "b"} & grabbing.first
    assert engine.lives["a"].record.outcome == "failed"
    assert "a~1" in engine.lives


def test_a_cluster_at_work_holds_what_it_should() -> None:
    jobs = [traced("short", 0, 600, 1), traced("long", 0, 6000, 1)]
    found = s01.at_work(Random(1), jobs, 200.0)
    held = [one for one in found if one.submit_s == 0]
    assert sum(one.job.gpus for one in held) == 200
    assert len({one.job.id for one in found}) == len(found)
    # Met at work: the long one ten times as often; so what is left is mostly more than a short one ever has.
    assert sum((one.duration_s or 0) > 600 for one in held) > 150


def test_the_start_of_the_run_that_ended_well() -> None:
    crashed = Segment(0, 100, (), "failed", 0.0)
    slow, fast = Segment(500, 600, (), "running"), Segment(600, 700, (), "ended")
    assert s11._last_start([crashed, slow, fast]) == 500
    assert s11._last_start([fast]) == 600
