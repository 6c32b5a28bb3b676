"""Which GPUs a job can be given whole."""

import msgspec

from gpuguard.model.topology import Gpu, Topology
from gpuguard.topology.offered import CUT, SILENT, offered, withheld
from gpuguard.topology.placement import placement
from tests.support.wirings import graph, h100x8, plain


def changed(topology: Topology, **gpus: Gpu) -> Topology:
    devices = tuple(
        msgspec.structs.replace(device, gpu=gpus.get(device.name, device.gpu)) for device in topology.devices
    )
    return msgspec.structs.replace(topology, devices=devices)


def test_all_of_a_healthy_machine_and_of_a_matrix_are_offered() -> None:
    for made in (graph(h100x8()), plain([[0, 4], [4, 0]])):
        assert offered(made) == tuple(gpu.name for gpu in made.gpus)
        assert withheld(made) == {}


def test_one_that_is_silent_is_never_offered() -> None:
    made = changed(graph(h100x8()), GPU3=Gpu())
    assert withheld(made) == {"GPU3": SILENT}
    assert withheld(made, ["GPU1", "GPU3"]) == {"GPU3": SILENT}
    assert offered(made, ["GPU1", "GPU3"]) == ("GPU1",)
    assert withheld(made, ["GPU1"]) == {}
    placed = placement(made)
    assert placed["offered"] == [f"GPU{number}" for number in range(8) if number != 3]
    best = placed["best"]
    assert isinstance(best, dict)
    assert "8" not in best
    assert "GPU3" not in best["7"]


def test_one_in_mig_mode_is_offered_where_it_is_named_or_all_are() -> None:
    made = graph(h100x8())
    cut = {gpu.name: msgspec.structs.replace(gpu.gpu or Gpu(), mig=True) for gpu in made.gpus}
    one = changed(made, GPU0=cut["GPU0"])
    assert withheld(one) == {"GPU0": CUT}
    assert offered(one, ["GPU7", "GPU0"]) == ("GPU0", "GPU7")
    assert len(offered(changed(made, **cut))) == 8
