"""The arrays of the cluster, by hand; and that they are what a cluster built anew has."""

import numpy as np
import pytest

from gpuguard.errors import InvariantBroken
from gpuguard.scheduler.cluster import NEVER, NOTHING, Ask, Cluster, Place
from gpuguard.scheduler.events import NodeJoined


def node(name: str, gpus: int = 4, **more: object) -> NodeJoined:
    return NodeJoined(at=0, node=name, gpus=gpus, **more)  # type: ignore[arg-type]


def ask(gpus: int = 0, milli: int = 0, **more: object) -> Ask:
    fields: dict[str, object] = {
        "amounts": NOTHING, "card_memory": 0, "kinds": (), "pool": "", "alone": False, "spares": 0, **more,
    }  # fmt: skip
    return Ask(gpus, milli, **fields)  # type: ignore[arg-type]


def able(cluster: Cluster, wanted: Ask) -> list[str]:
    return [cluster.names[place] for place in np.nonzero(cluster.fits(wanted))[0]]


def test_what_is_taken_comes_back() -> None:
    cluster, fresh = Cluster([node("a", cpus=8.0)]), Cluster([node("a", cpus=8.0)])
    cluster.take("x", Place(0, 0b11, 1000, (4000, 0, 0, 0)), 50)
    assert cluster.count[0] == 2
    assert cluster.spare[0, 0] == 4000
    assert cluster.free_at(0, 49)[0] == 2
    assert cluster.free_at(0, 50)[:2] == [4, 8000]
    cluster.give("x", 0)
    for array in ("count", "milli", "partial", "spare", "busy", "last", "ends", "frees", "penalty"):
        assert np.array_equal(getattr(cluster, array), getattr(fresh, array)), array


@pytest.mark.parametrize(
    "second",
    [Place(0, 0b10, 1000, NOTHING), Place(0, 0b10, 300, NOTHING), Place(0, 0b100, 800, NOTHING),
     Place(0, 0b100, 1000, NOTHING), Place(0, 0b10000, 1000, NOTHING)],
)  # fmt: skip
def test_nobody_gets_what_another_has(second: Place) -> None:
    cluster = Cluster([node("a")])
    cluster.take("x", Place(0, 0b11, 1000, NOTHING), 50)
    cluster.take("y", Place(0, 0b100, 300, NOTHING), 50)
    with pytest.raises(InvariantBroken):
        cluster.take("z", second, 50)


def test_a_job_has_one_place_on_a_node() -> None:
    cluster = Cluster([node("a")])
    cluster.take("x", Place(0, 0b1, 1000, NOTHING), 50)
    with pytest.raises(InvariantBroken):
        cluster.take("x", Place(0, 0b10, 1000, NOTHING), 50)


def test_a_shared_gpu_is_whole_when_the_last_has_left() -> None:
    cluster = Cluster([node("a", 1)])
    cluster.take("x", Place(0, 1, 400, NOTHING), 50)
    cluster.take("y", Place(0, 1, 600, NOTHING), 90)
    assert [cluster.free_at(0, at)[0] for at in (0, 50, 89, 90)] == [0, 0, 0, 1]
    assert able(cluster, ask(milli=100)) == []
    cluster.give("x", 0)
    assert able(cluster, ask(milli=400)) == ["a"]
    assert able(cluster, ask(milli=401)) == []
    assert able(cluster, ask(1)) == []


def test_memory_of_a_card_counts_among_those_who_share_it() -> None:
    cluster = Cluster([node("a", 1, gpu_memory=80)])
    cluster.take("x", Place(0, 1, 100, NOTHING, 60), 50)
    assert able(cluster, ask(milli=100, card_memory=20)) == ["a"]
    assert able(cluster, ask(milli=100, card_memory=21)) == []
    cluster.give("x", 0)
    assert able(cluster, ask(milli=100, card_memory=80)) == ["a"]


def test_what_is_held_or_bad_is_not_free_nor_will_be() -> None:
    cluster = Cluster([node("a")])
    cluster.take("x", Place(0, 0b11, 1000, NOTHING), 50)
    cluster.hold(Place(0, 0b10, 1000, NOTHING))
    assert cluster.judge(0, True, 0b100)
    assert not cluster.judge(0, True, 0b100)
    assert cluster.count[0] == 1
    assert cluster.free_at(0, 50)[0] == 2
    assert dict(cluster.gpus_by_state()) == {"free": 1, "used": 2, "held": 0, "out": 1}
    cluster.give("x", 0)
    assert dict(cluster.gpus_by_state()) == {"free": 2, "used": 0, "held": 1, "out": 1}
    cluster.judge(0, False, 0)
    assert dict(cluster.gpus_by_state()) == {"free": 0, "used": 0, "held": 0, "out": 4}
    assert able(cluster, ask(1)) == []


def test_nodes_that_do_not_tell_cores_give_any() -> None:
    cluster = Cluster([node("a", cpus=4.0), node("b")])
    assert able(cluster, ask(1, amounts=(5000, 0, 0, 0))) == ["b"]
    cluster.take("x", Place(1, 0b1, 1000, (5000, 0, 0, 0)), 9)
    assert able(cluster, ask(1, amounts=(9000, 0, 0, 0))) == ["b"]


def test_work_for_cores_leaves_those_of_free_gpus() -> None:
    cluster = Cluster([node("a", cpus=10.0)])
    assert able(cluster, ask(amounts=(2000, 0, 0, 0), spares=2000)) == ["a"]
    assert able(cluster, ask(amounts=(2001, 0, 0, 0), spares=2000)) == []
    assert able(cluster, ask(amounts=(10000, 0, 0, 0))) == ["a"]


@pytest.mark.parametrize("held", [False, True])
def test_where_one_is_alone_nobody_comes(held: bool) -> None:
    cluster = Cluster([node("a"), node("b")])
    place = Place(0, 0b1, 1000, NOTHING, alone=True)
    cluster.hold(place) if held else cluster.take("x", place, 50)
    assert able(cluster, ask(1)) == able(cluster, ask(amounts=(1, 0, 0, 0))) == ["b"]
    cluster.unhold(place) if held else cluster.give("x", 0)
    assert able(cluster, ask(1, alone=True)) == ["a", "b"]
    cluster.take("y", Place(0, 0b1, 1000, NOTHING), 50)
    assert able(cluster, ask(1, alone=True)) == ["b"]


def test_many_releases_of_one_node_fit() -> None:
    cluster = Cluster([node("a", 16)])
    for card in range(16):
        for part in range(2):
            cluster.take(f"{card}.{part}", Place(0, 1 << card, 500, NOTHING), 10 * card + part + 1)
    assert [cluster.free_at(0, at)[0] for at in (0, 1, 2, 151, 152)] == [0, 0, 1, 15, 16]
    assert cluster.ready(None, 3, (0, 0, 0, 0)).tolist() == [22]
    assert cluster.ready(None, 17, (0, 0, 0, 0)).tolist() == [NEVER]


def test_kinds_and_pools() -> None:
    cluster = Cluster(
        [node("a", gpu_type="A10", pool="x"), node("b", gpu_type="H100"), node("c", gpu_type="A10", pool="y")]
    )
    assert able(cluster, ask(1, kinds=("A10",))) == []
    assert able(cluster, ask(1, kinds=("A10",), pool="x")) == ["a"]
    assert able(cluster, ask(1, kinds=("none",))) == []
    assert able(cluster, ask(1, pool="y")) == ["b", "c"]


@pytest.mark.parametrize("gpus", [0, 1, 2, 16, 64])
def test_nodes_of_any_size(gpus: int) -> None:
    cluster = Cluster([node("a", gpus)])
    full = (1 << gpus) - 1
    cluster.take("x", Place(0, full, 1000, NOTHING), 7)
    assert cluster.count[0] == 0
    assert cluster.free_at(0, 7)[0] == gpus


def test_no_nodes() -> None:
    cluster = Cluster()
    assert able(cluster, ask(1)) == []
    assert cluster.gpus == 0
    assert sum(cluster.gpus_by_state().values()) == 0
