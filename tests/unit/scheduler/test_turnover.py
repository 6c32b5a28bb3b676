"""Racks that are turned over: how many, which, and who stays out."""

import numpy as np

from gpuguard.scheduler.cluster import NOTHING, Ask, Cluster, Place
from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.settings import DAY, HOUR, Turning
from gpuguard.scheduler.turnover import Turnover

RULES = Turning(share=2.0, most=0.25, length=2 * DAY, expected=0.1, half_life=7 * DAY)


def racks(count: int, nodes: int = 2, first: int = 0, **told: object) -> list[NodeJoined]:
    return [
        NodeJoined(at=0, node=f"n{rack:02}-{node}", gpus=8, rack=f"r{rack:02}", pod="p", **told)  # type: ignore[arg-type]
        for rack in range(first, first + count)
        for node in range(nodes)
    ]


def turned(cluster: Cluster) -> list[str]:
    return sorted({cluster.nodes[node].rack for node in np.nonzero(cluster.turned)[0].tolist()})


def asked(stays: bool, gpus: int = 8, card_memory: int = 0) -> Ask:
    return Ask(gpus, 0, NOTHING, card_memory, (), "training", False, 0, stays)


def settled(nodes: list[NodeJoined], rules: Turning = RULES) -> tuple[Turnover, Cluster]:
    cluster, turnover = Cluster(nodes), Turnover(rules)
    turnover.settle(cluster, 0)
    return turnover, cluster


def past(turnover: Turnover, cluster: Cluster, several: bool, days: int) -> None:
    """Every node was used for so many days by jobs of one sort."""
    places = [Place(node, 0xFF, 1000, NOTHING) for node in range(len(cluster.nodes))]
    turnover.ended(cluster, places, several, days * DAY, 0)


def test_before_anything_is_known_it_is_twice_the_part_expected_of_the_first_racks() -> None:
    _, cluster = settled(racks(10))
    assert turned(cluster) == ["r00", "r01"]


def test_where_there_are_few_racks_none_is() -> None:
    for count in (1, 2, 3, 4):
        _, cluster = settled(racks(count))
        assert turned(cluster) == []


def test_where_no_job_takes_several_nodes_there_are_none_in_the_end() -> None:
    turnover, cluster = settled(racks(10))
    past(turnover, cluster, several=False, days=100)
    assert turnover.turn(cluster, grows=True)
    assert turned(cluster) == []
    assert not turnover.turn(cluster, grows=True)


def test_there_are_never_more_than_the_most() -> None:
    turnover, cluster = settled(racks(12))
    past(turnover, cluster, several=True, days=100)
    turnover.turn(cluster, grows=True)
    assert turned(cluster) == ["r00", "r01", "r02"]


def test_there_are_no_more_while_a_plan_might_be_moved_by_it() -> None:
    turnover, cluster = settled(racks(12))
    past(turnover, cluster, several=True, days=100)
    assert not turnover.turn(cluster, grows=False)
    assert turned(cluster) == ["r00", "r01"]
    assert turnover.turn(cluster, grows=True)


def test_a_number_just_over_a_whole_one_changes_nothing() -> None:
    turnover, cluster = settled(racks(10))
    # 7 days of 10 % and 0.05 day of jobs of one node: 1.99 racks.
    turnover.ended(cluster, [Place(node, 0xFF, 1000, NOTHING) for node in range(20)], False, HOUR, 0)
    assert not turnover.turn(cluster, grows=True)
    assert turned(cluster) == ["r00", "r01"]


def test_racks_of_another_sort_are_counted_apart() -> None:
    _, cluster = settled([*racks(5, gpu_type="A"), *racks(10, first=5, gpu_type="B")])
    assert turned(cluster) == ["r00", "r05", "r06"]


def test_what_is_known_outlives_a_node_that_joins() -> None:
    turnover, cluster = settled(racks(10))
    past(turnover, cluster, several=False, days=100)
    turnover.turn(cluster, grows=True)
    anew = Cluster([*racks(10), *racks(1, first=10)])
    turnover.settle(anew, DAY)
    assert turned(anew) == []


def test_who_stays_long_is_kept_out_and_others_are_not() -> None:
    _, cluster = settled(racks(10))
    assert int(cluster.fits(asked(stays=True)).sum()) == 16
    assert int(cluster.fits(asked(stays=False)).sum()) == 20


def test_where_nothing_else_is_up_who_stays_long_may_go_there() -> None:
    _, cluster = settled(racks(10))
    assert int(cluster.fits(asked(stays=True)).sum()) == 16
    for node in range(4, 20):
        cluster.judge(node, False, 0)
    assert np.nonzero(cluster.fits(asked(stays=True)))[0].tolist() == [0, 1, 2, 3]
    cluster.judge(9, True, 0)
    assert np.nonzero(cluster.fits(asked(stays=True)))[0].tolist() == [9]


def test_without_a_share_there_are_none() -> None:
    turnover, cluster = settled(racks(10), Turning(share=0.0))
    past(turnover, cluster, several=True, days=100)
    turnover.turn(cluster, grows=True)
    assert turned(cluster) == []
