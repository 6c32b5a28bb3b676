"""Which GPUs of a node: nearest first, the lowest where nobody knows."""

import pytest

from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.wiring import JUDGED, Wirings, two_sockets


def wiring(gpus: int, known: bool = True):  # type: ignore[no-untyped-def]
    return Wirings().of(NodeJoined(at=0, node="n", gpus=gpus, placement=two_sockets(gpus) if known else None))


@pytest.mark.parametrize(
    ("free", "count", "mask"),
    [
        (0xFF, 1, 0b1), (0xFF, 2, 0b11), (0b11110000, 2, 0b110000), (0b00110101, 2, 0b110000), (0b10001, 2, 0b10001),
        (0b11111010, 4, 0b11110000), (0xFF, 8, 0xFF), (0b10101, 2, 0b101), (0, 0, 0),
    ],
)  # fmt: skip
def test_the_nearest_are_picked(free: int, count: int, mask: int) -> None:
    assert wiring(8).pick(free, count) == mask


@pytest.mark.parametrize(("free", "count", "mask"), [(0b1110, 2, 0b110), (0b1000, 1, 0b1000), (0xFF, 0, 0)])
def test_the_lowest_are_picked_where_nobody_knows(free: int, count: int, mask: int) -> None:
    assert wiring(8, known=False).pick(free, count) == mask


def test_a_pair_across_sockets_is_worse_than_one_on_a_socket_and_that_than_one_on_a_switch() -> None:
    of = wiring(8)
    assert 0 == of.penalty(0b11) < of.penalty(0b101) < of.penalty(0b10001)
    assert of.penalties(0b10001, 8)[2] == of.penalty(0b10001)
    assert of.penalty(0b1) == 0


@pytest.mark.parametrize("gpus", [0, 1, 2, 8, 16, 64])
def test_nodes_of_any_size_can_be_asked(gpus: int) -> None:
    of = wiring(gpus, known=gpus <= JUDGED)
    full = (1 << gpus) - 1
    assert of.pick(full, gpus) == full
    assert of.penalties(full, gpus) == [0] * (gpus + 1)


def test_one_wiring_for_all_that_are_alike() -> None:
    known = Wirings()
    one, other, third = (
        NodeJoined(at=0, node=name, gpus=4, placement=placement)
        for name, placement in (("a", two_sockets(4)), ("b", two_sockets(4)), ("c", None))
    )
    assert known.of(one) is known.of(other) is not known.of(third)


def test_what_is_near_is_told_where_the_node_told_it() -> None:
    placement = dict(two_sockets(4)) | {
        "cpus": ["0-7", "0-7", "8-15", None],
        "nics": ["mlx5_0", None, "mlx5_1", "mlx5_1"],
    }
    wiring = Wirings().of(NodeJoined(at=0, node="a", gpus=4, placement=placement))
    assert wiring.near(0b0011) == ("0-7", ("mlx5_0",))
    assert wiring.near(0b1110) == ("0-15", ("mlx5_1",))
    assert Wirings().of(NodeJoined(at=0, node="b", gpus=4)).near(0b0011) == ("", ())
