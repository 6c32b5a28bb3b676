"""The rule of each claim, both ways: figures by hand with which it holds, and one that breaks each of its rows."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest

from gpuguard.simulator import claims


def s10(used: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    return {
        "sizes": {
            gpus: {"used_before": before, "used_after": after, "throughput": after / before}
            for gpus, (before, after) in used.items()
        }
    }


def step(used: float, wait: float, epochs: float, crashes: float, length: float) -> dict[str, float]:
    return {
        "used": used, "wait_h": wait, "epochs_a_week": epochs, "out_of_memory_a_week": crashes, "epoch_min": length,
    }  # fmt: skip


def run13(jobs: float, share: float, robbed: float) -> dict[str, float]:
    return {"finished_an_hour": jobs, "finished_gpu_share": share, "robbed_share": robbed}


def run15(way: str, interval: int, useful: float) -> dict[str, Any]:
    return {"way": way, "interval_s": interval, "useful_share": useful, "expected_useful_share": useful}


def run16(load: float, sizes: str, policy: str, queued: float) -> dict[str, Any]:
    return {"load_of_use": load, "sizes": sizes, "policy": policy, "queued_share": queued}


HOLDS: dict[str, dict[str, Any]] = {
    "s01": {"job_gpus": 128, "runs": [
        {"placement": "spread", "load": 0.6, "free_gpus": 4000.0, "room_for_wide_share": 0.0},
        {"placement": "pack", "load": 0.6, "free_gpus": 3900.0, "room_for_wide_share": 1.0},
    ]},
    "s02": {"factor_9_and_more": 18.0, "policies": {
        "fifo-spread": {"wait_9_and_more_s": 18000.0, "wait_up_to_8_s": 500.0},
        "gpuguard": {"wait_9_and_more_s": 1000.0, "wait_up_to_8_s": 500.0},
    }},
    "s03": {"policies": {
        "fifo-spread": {"utilisation": 0.80, "ended_in_window": 100},
        "gpuguard": {"utilisation": 0.82, "ended_in_window": 110},
    }},
    "s04": {
        "free_gpus": 24, "whole_nodes_free": 0, "wide_starts_on_3_nodes": False, "wide_starts_on_6_nodes": True,
        "packed": {"wide_starts_on_3_nodes": True},
    },
    "s05": {"short_job_starts_at_once": True, "long_job_starts_at_once": False, "wide_job_late_s": 0},
    "s06": {"least_speed_by_communication": 0.5, "sweep": [{
        "speed_far": 0.5, "by_numbers": {"far_share_2_gpus": 0.4}, "two_gpus_faster": 1.3,
        "by_wiring": {"far_share_2_gpus": 0.05, "far_though_nearer_free_share": 0.0},
    }]},
    "s07": {
        "high_wait_factor_from_fifo_pack": 4.0, "low_throughput_factor_from_fifo_pack": 2.0,
        "utilisation_factor_from_fifo_pack": 1.35,
        "policies": {"fifo-pack": {"utilisation": 0.6}, "gpuguard": {"utilisation": 0.81}},
    },
    "s08": {
        "without_limit": {"wait_s_by_gpus": {"1": 100.0, "2-4": 200.0, "8": 300.0}, "session_wait_s": 60.0},
        "limit_and_they_come_back": {"wait_s_by_gpus": {"1": 10.0, "2-4": 20.0, "8": 30.0}, "session_wait_s": 60.0},
    },
    "s09": {
        "fifo": {
            "starts_s": {"A": 0, "B": 1800, "C": 1800},
            "with_4_gpus_taken": {"starts_s": {"A": 3600, "B": 5400, "C": 5400}},
        },
        "with_4_gpus_taken": {"starts_s": {"A": 3600, "B": 0, "C": 5400}},
    },
    "s10": s10({"4": (0.45, 0.87), "8": (0.43, 0.91), "32": (0.30, 0.89), "128": (0.19, 0.84)}),
    "s11": {"steps": {"by_hand": step(0.31, 3.6, 47, 22, 58), "and_scheduler": step(0.84, 0.7, 119, 3, 41)}},
    "s12": {"reference": 0.25, "sweep": [{"preparing_to_training": 0.25, "gain": 1.4}]},
    "s13": {"runs": {
        "longest_robbed_not_saving": run13(0.1, 0.01, 0.9), "newest_robbed_not_saving": run13(5.0, 0.4, 0.5),
        "all_high_gpuguard": run13(9.0, 0.8, 0.0), "a_fifth_high_gpuguard": run13(10.0, 0.8, 0.1),
    }},
    "s14": {"gpu_faults_a_day_at_10000": {"one": 1.4, "other": 3.0}, "delays": [
        {"noticed_after_s": 60, "crashes_by_fault": 0.3}, {"noticed_after_s": 300, "crashes_by_fault": 0.7},
        {"noticed_after_s": 86400, "crashes_by_fault": 30.0},
    ]},
    "s15": {"runs": [
        run15("asynchronous", 300, 0.98), run15("asynchronous", 600, 0.96), run15("asynchronous", 3600, 0.80),
        run15("standing_still", 300, 0.80), run15("standing_still", 600, 0.88), run15("standing_still", 3600, 0.79),
    ]},
    "s16": {"mark": 0.3, "moderate_load": 0.8, "runs": [
        run16(0.8, "right", "gpuguard", 0.1), run16(1.0, "right", "gpuguard", 0.2),
        run16(0.8, "doubled", "gpuguard", 0.6), run16(0.8, "right", "fifo-pack", 0.2),
    ]},
    "exit_zero": {
        "by_exit_code": {"taken_for": "completed", "lost_gpu_hours": 576.0}, "by_proof": {"lost_gpu_hours": 1.0},
    },
    "two_on_a_card": {
        "together": {"throughput": 0.7, "utilisation": 1.0, "mean_end_s": 10286},
        "alone": {"throughput": 1.0, "mean_end_s": 5400},
    },
    "card_packing": {
        "whole_cards": {"wasted_gb": 72, "waiting": ["20"]},
        "parts_of_cards": {"small_ones_together": True, "waiting": []}, "orders": {"of": 6, "parts_all_start": 6},
    },
    "data_loading": {"sweep": [
        {"loading_to_computing": 0.1, "faster_than_no_workers": 1.1},
        {"loading_to_computing": 0.4, "faster_than_no_workers": 1.38},
    ]},
}  # fmt: skip

# Where a figure stands, what it is instead, and the numbers of the rows that then do not hold.
BREAKS: list[tuple[str, tuple[str | int, ...], object, set[int]]] = [
    ("s01", ("runs", 0, "room_for_wide_share"), 0.2, {0}),
    ("s01", ("runs", 0, "free_gpus"), 1000.0, {0}),
    ("s01", ("runs", 1, "room_for_wide_share"), 0.8, {1}),
    ("s02", ("factor_9_and_more",), 17.9, {0}),
    ("s02", ("factor_9_and_more",), None, {0}),
    ("s02", ("policies", "gpuguard", "wait_up_to_8_s"), 501.0, {1}),
    ("s03", ("policies", "gpuguard", "utilisation"), 0.805, {0}),
    ("s03", ("policies", "gpuguard", "ended_in_window"), 100, {1}),
    ("s04", ("free_gpus",), 23, {0}),
    ("s04", ("whole_nodes_free",), 1, {1}),
    ("s04", ("wide_starts_on_3_nodes",), True, {2}),
    ("s04", ("packed", "wide_starts_on_3_nodes"), False, {3}),
    ("s05", ("short_job_starts_at_once",), False, {0}),
    ("s05", ("long_job_starts_at_once",), True, {1}),
    ("s05", ("wide_job_late_s",), 60, {2}),
    ("s06", ("sweep", 0, "by_numbers", "far_share_2_gpus"), 0.05, {0}),
    ("s06", ("sweep", 0, "by_wiring", "far_though_nearer_free_share"), 0.03, {1}),
    ("s06", ("least_speed_by_communication",), 0.6, {2}),
    ("s06", ("sweep", 0, "two_gpus_faster"), 1.0, {3}),
    ("s07", ("high_wait_factor_from_fifo_pack",), 3.9, {0}),
    ("s07", ("low_throughput_factor_from_fifo_pack",), 1.9, {1}),
    ("s07", ("utilisation_factor_from_fifo_pack",), 1.3, {2}),
    ("s08", ("limit_and_they_come_back", "wait_s_by_gpus", "2-4"), 200.0, {1}),
    ("s08", ("limit_and_they_come_back", "session_wait_s"), 121.0, {3}),
    ("s09", ("fifo", "starts_s", "C"), 0, {0}),
    ("s09", ("fifo", "with_4_gpus_taken", "starts_s", "B"), 0, {1}),
    ("s09", ("with_4_gpus_taken", "starts_s", "A"), 3601, {2}),
    ("s10", ("sizes", "4", "used_before"), 0.52, {0}),
    ("s10", ("sizes", "8", "used_after"), 0.85, {2}),
    ("s10", ("sizes", "32", "throughput"), 2.7, {5}),
    ("s10", ("sizes", "128", "throughput"), 2.9, {7, 8}),
    ("s11", ("steps", "by_hand", "used"), 0.42, {0}),
    ("s11", ("steps", "and_scheduler", "wait_h"), 1.0, {1}),
    ("s11", ("steps", "and_scheduler", "epochs_a_week"), 100, {2}),
    ("s11", ("steps", "by_hand", "out_of_memory_a_week"), 1000, {3}),
    ("s11", ("steps", "and_scheduler", "out_of_memory_a_week"), 4, {3}),
    ("s11", ("steps", "by_hand", "epoch_min"), 50, {4}),
    ("s12", ("sweep", 0, "gain"), 1.39, {0}),
    ("s13", ("runs", "longest_robbed_not_saving", "finished_gpu_share"), 0.2, {0}),
    ("s13", ("runs", "longest_robbed_not_saving", "finished_an_hour"), 1.5, {1}),
    ("s13", ("runs", "longest_robbed_not_saving", "robbed_share"), 0.15, {2}),
    ("s13", ("runs", "all_high_gpuguard", "finished_gpu_share"), 0.6, {3}),
    ("s14", ("gpu_faults_a_day_at_10000", "one"), 0.9, {0}),
    ("s14", ("delays", 1, "crashes_by_fault"), 2.1, {1}),
    ("s14", ("delays", 2, "crashes_by_fault"), 1.4, {2}),
    ("s15", ("runs", 1, "useful_share"), 0.94, {0, 3}),
    ("s15", ("runs", 4, "useful_share"), 0.93, {1, 3}),
    ("s15", ("runs", 2, "useful_share"), 0.97, {2}),
    ("s15", ("runs", 0, "expected_useful_share"), 0.90, {3}),
    ("s16", ("runs", 0, "queued_share"), 0.31, {0, 2}),
    ("s16", ("runs", 2, "queued_share"), 0.3, {1}),
    ("s16", ("runs", 1, "queued_share"), 0.31, {2}),
    ("s16", ("runs", 3, "queued_share"), 0.31, {3}),
    ("exit_zero", ("by_exit_code", "taken_for"), "failed", {0}),
    ("exit_zero", ("by_exit_code", "lost_gpu_hours"), 150.0, {1}),
    ("exit_zero", ("by_proof", "lost_gpu_hours"), 100.0, {2}),
    ("two_on_a_card", ("together", "throughput"), 0.8, {0}),
    ("two_on_a_card", ("together", "utilisation"), 0.9, {1}),
    ("two_on_a_card", ("alone", "throughput"), 0.7, {2}),
    ("two_on_a_card", ("together", "mean_end_s"), 5400, {3}),
    ("card_packing", ("whole_cards", "waiting"), [], {0}),
    ("card_packing", ("parts_of_cards", "small_ones_together"), False, {1}),
    ("card_packing", ("orders", "parts_all_start"), 5, {2}),
    ("data_loading", ("sweep", 1, "faster_than_no_workers"), 1.3, {0, 1}),
]  # fmt: skip


def failing(name: str, measured: dict[str, Any]) -> set[int]:
    return {at for at, row in enumerate(claims.load(name).judge(measured)) if not row.holds}


def test_every_rule_is_tried() -> None:
    assert set(HOLDS) == set(claims.ORDER) == {name for name, *_ in BREAKS}


@pytest.mark.parametrize("name", claims.ORDER)
def test_a_claim_holds_with_the_figures_that_were_claimed(name: str) -> None:
    assert failing(name, HOLDS[name]) == set()


@pytest.mark.parametrize(
    ("name", "place", "value", "rows"), BREAKS, ids=[f"{name}-{place[-1]}-{value}" for name, place, value, _ in BREAKS]
)
def test_a_figure_that_is_not_as_claimed_breaks_its_row(
    name: str, place: tuple[str | int, ...], value: object, rows: set[int]
) -> None:
    measured = deepcopy(HOLDS[name])
    inner: Any = measured
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    assert failing(name, measured) == rows


@pytest.mark.parametrize("name", claims.ORDER)
def test_what_people_read_is_short(name: str) -> None:
    for row in claims.load(name).judge(HOLDS[name]):
        assert len(row.what) <= 80
        assert len(row.claimed) <= 40
        assert len(row.measured) <= 40
