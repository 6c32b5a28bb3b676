"""When nodes break: by the recipe, within what chance allows at fixed seeds."""

import pytest

from gpuguard.simulator.fleet.causes import BY_NAME, CAUSES, SIGHT, drawn, shown
from gpuguard.simulator.fleet.faults import DAY, HOUR, Clustering, Fault, Recipe, clustering, faults

# The trace that the recipe was fitted to: 400 nodes, 349 days, 584 faults.
NODES, DAYS = 400, 348.98
TRACE_ONLY = Recipe(common_days=0.0, storms=0.0)


@pytest.fixture(scope="module")
def courses() -> list[Clustering]:
    return [clustering(faults(seed, NODES, 8, DAYS * DAY, TRACE_ONLY), NODES, DAYS) for seed in range(8)]


def mean(courses: list[Clustering], name: str) -> float:
    return sum(float(getattr(one, name)) for one in courses) / len(courses)


@pytest.mark.parametrize(
    ("name", "expected", "within"),
    [
        # 4 a 1,000 node-days give 558; the spread of one course is 40, of the mean of eight 14.
        ("faults", 558, 42),
        ("nodes_hit", 231, 12),
        ("top_tenth_share", 0.41, 0.03),
        ("again_within_7_days", 0.249, 0.025),
        ("again_within_30_days", 0.416, 0.035),
        ("repeats_alike", 0.5, 0.06),
        ("worst_node", 14, 3),
    ],
)
def test_faults_gather_as_in_the_trace(courses: list[Clustering], name: str, expected: float, within: float) -> None:
    assert abs(mean(courses, name) - expected) <= within


def test_a_fleet_without_repeats_has_none_but_by_chance() -> None:
    found = clustering(faults(1, NODES, 8, DAYS * DAY, Recipe(background=1.0, again=0.0, common_days=0)), NODES, DAYS)
    assert found.again_within_7_days < 0.06


def test_the_mix_is_that_of_the_first_source() -> None:
    assert sum(cause.count for cause in CAUSES) == 419
    found = faults(3, 2000, 8, 400 * DAY, TRACE_ONLY)
    for cause in CAUSES:
        share = sum(1 for fault in found if fault.cause == cause.name) / len(found)
        # Repeats have their cause in common, so the count of a cause spreads about twice as far as by chance alone.
        spread = 2 * (cause.count / 419 / len(found)) ** 0.5
        assert abs(share - cause.count / 419) <= 3 * spread, cause.name


def test_down_times_are_those_of_the_trace() -> None:
    downs = sorted(fault.down for fault in faults(5, 2000, 8, 400 * DAY, TRACE_ONLY))
    assert downs[len(downs) // 2] == pytest.approx(20 * HOUR, rel=0.08)
    # A sigma of 1.9 gives a mean that spreads widely.
    assert sum(downs) / len(downs) == pytest.approx(133 * HOUR, rel=0.35)
    assert Recipe().sigma == pytest.approx(1.9, abs=0.06)


def test_a_day_with_one_cause_hits_some_of_a_hundred_nodes() -> None:
    common = [fault for fault in faults(2, 500, 8, 350 * DAY, Recipe()) if fault.common]
    days: dict[str, list[Fault]] = {}
    for fault in common:
        days.setdefault(f"{fault.cause}", []).append(fault)
    ids = {fault.node for fault in common}
    assert len(ids) <= len(common)
    assert 10 * 10 <= len(common) <= 10 * 25
    first = min(common, key=lambda fault: fault.at)
    day = [fault for fault in common if fault.at - first.at < DAY]
    assert {fault.cause for fault in day} == {first.cause}
    soon = sum(1 for fault in day if fault.at - first.at <= 600.0)
    assert len(day) / 4 <= soon < len(day)


def test_storms_come_on_top() -> None:
    found = faults(4, 500, 8, 100 * DAY, Recipe(rate=0.0, common_days=0.0))
    assert {fault.cause for fault in found} == {"xid95_storm"}
    assert len([fault for fault in found if fault.at >= 0]) == pytest.approx(50, abs=21)


def test_who_led_to_whom_is_told_and_ids_follow_time() -> None:
    found = faults(6, 200, 8, 200 * DAY, Recipe())
    assert [fault.id for fault in found] == list(range(len(found)))
    assert [fault.at for fault in found] == sorted(fault.at for fault in found)
    led = [fault for fault in found if fault.after is not None]
    assert led
    for fault in led:
        parent = found[fault.after or 0]
        assert (parent.node, parent.at < fault.at) == (fault.node, True)
        assert parent.cause != fault.cause or parent.gpu == fault.gpu or fault.cause in BY_NAME


def test_more_nodes_leave_those_that_were_there_alone() -> None:
    few, many = faults(7, 50, 8, 100 * DAY, TRACE_ONLY), faults(7, 60, 8, 100 * DAY, TRACE_ONLY)
    assert [(f.node, f.at, f.cause) for f in few] == [(f.node, f.at, f.cause) for f in many if f.node < 50]


def test_shares_lead_to_causes_and_ways_to_show() -> None:
    assert drawn(0.0).name == "faulty_gpu"
    assert drawn(0.999999).name == "host_memory"
    assert shown(BY_NAME["hbm3"], 0.0) == "double_bit"
    assert shown(BY_NAME["ssd"], 0.5) == "unseen"
    assert {signature for cause in CAUSES for signature, _ in cause.shows} <= SIGHT.keys()
