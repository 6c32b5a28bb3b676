"""The cards and the processors of a GPU."""

from collections import Counter

import msgspec
import pytest

from gpuguard.errors import UsageError
from gpuguard.model.ids import SubjectId
from gpuguard.model.topology import Device, Level, Topology
from gpuguard.topology.near import cpus_of, nics_of, spread
from tests.support.topo_samples import samples
from tests.support.wirings import CPUS, graph, h100x8, l40sx4, plain


def test_the_card_behind_the_same_switch_comes_first_and_the_other_socket_last() -> None:
    made = graph(h100x8())
    assert nics_of(made, "GPU5")[0] == "NIC5"
    assert set(nics_of(made, "GPU5")[4:]) == {"NIC0", "NIC1", "NIC2", "NIC3"}
    assert spread(made) == {f"GPU{n}": f"NIC{n}" for n in range(8)}


def test_of_equally_near_cards_rdma_then_speed_then_who_needs_it_less() -> None:
    rows = l40sx4()
    rows[SubjectId("nic:mlx5_0")]["nic_rate_bits_per_second"] = 25e9
    made = graph(rows)
    assert nics_of(made, "GPU3") == ("NIC1", "NIC0")
    assert spread(made) == dict.fromkeys(("GPU0", "GPU1", "GPU2", "GPU3"), "NIC1")
    del rows[SubjectId("nic:mlx5_1")]["nic_rdma"]
    assert nics_of(graph(rows), "GPU3") == ("NIC0", "NIC1")  # mlx5_0, slower, with RDMA
    # GPU4 is SYS from all of its cards; two are nearer to others.
    made = samples()["05"]
    devices = [device for device in made.devices if device.name not in ("GPU2", "GPU3")]
    keep = [made.place(device.name) for device in devices]
    fewer = msgspec.structs.replace(
        made, devices=tuple(devices),
        levels=tuple(tuple(made.levels[i][j] for j in keep) for i in keep),
        bonds=tuple(tuple(made.bonds[i][j] for j in keep) for i in keep),
    )  # fmt: skip
    assert nics_of(fewer, "GPU4")[:2] == ("NIC2", "NIC3")


def test_gpus_share_cards_as_little_as_can_be() -> None:
    assert Counter(spread(graph(l40sx4())).values()) == {"NIC0": 2, "NIC1": 2}
    assert spread(samples()["02"], ["GPU0", "GPU1"]) == {"GPU0": "mlx5_0", "GPU1": "mlx5_1"}
    assert spread(samples()["03"]) == dict(
        zip(
            (f"GPU{n}" for n in range(8)),
            ("NIC4", "NIC1", "NIC0", "NIC3", "NIC6", "NIC7", "NIC5", "NIC2"),
            strict=True,
        )
    )


def test_one_makes_room_for_another_that_has_no_choice() -> None:
    """GPU0 would take the first of its two nearest cards, which is the only near one of GPU2."""
    near = {("GPU0", "NIC0"), ("GPU0", "NIC1"), ("GPU1", "NIC1"), ("GPU1", "NIC2"), ("GPU2", "NIC0")}
    names = ("GPU0", "GPU1", "GPU2", "NIC0", "NIC1", "NIC2")

    def level(one: str, other: str) -> Level:
        return "PIX" if (one, other) in near or (other, one) in near else "NODE"

    made = Topology(
        devices=tuple(Device(name=name, kind="gpu" if name.startswith("GPU") else "nic") for name in names),
        levels=tuple(tuple(level(one, other) if one != other else None for other in names) for one in names),
        bonds=((0,) * 6,) * 6,
    )
    assert [spread(made, [name])[name] for name in names[:3]] == ["NIC0", "NIC2", "NIC0"]
    assert spread(made) == {"GPU0": "NIC1", "GPU1": "NIC2", "GPU2": "NIC0"}
    assert spread(made, ["GPU2", "GPU0"]) == {"GPU2": "NIC0", "GPU0": "NIC1"}


def test_where_no_distance_is_known_no_card_is_the_best() -> None:
    made = graph(h100x8())
    blank = msgspec.structs.replace(
        made,
        devices=tuple(msgspec.structs.replace(device, nodes=None) for device in made.devices),
        levels=tuple((None,) * 16 for _ in range(16)),
    )
    assert len(nics_of(blank, "GPU0")) == 8
    assert set(spread(blank).values()) == {None}
    assert spread(samples()["07"], ["GPU0"]) == {"GPU0": None}
    assert nics_of(samples()["07"], "GPU0") == ()


def test_processors_are_the_devices_own_else_the_nodes_and_never_a_guess() -> None:
    made = graph(h100x8())
    assert cpus_of(made, "GPU6") == CPUS[1]
    devices = tuple(msgspec.structs.replace(device, cpus=None) for device in made.devices)
    assert cpus_of(msgspec.structs.replace(made, devices=devices), "GPU6") == CPUS[1]
    placeless = tuple(msgspec.structs.replace(device, nodes=None) for device in devices)
    assert cpus_of(msgspec.structs.replace(made, devices=placeless), "GPU6") is None


def test_who_is_no_gpu_is_refused() -> None:
    for ask in (nics_of, cpus_of):
        with pytest.raises(UsageError, match="'NIC0'"):
            ask(graph(l40sx4()), "NIC0")
    assert spread(plain([])) == {}
