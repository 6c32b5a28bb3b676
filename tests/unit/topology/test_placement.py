"""What a scheduler gets of a node, and reads again."""

from typing import Any

import msgspec
import pytest

from gpuguard.errors import NotUnderstood
from gpuguard.topology.placement import masks, placement
from gpuguard.topology.subsets import Subsets
from tests.support.topo_samples import samples
from tests.support.wirings import graph, h100x8, l40sx4, plain


def through_json(value: dict[str, object]) -> dict[str, Any]:  # Any: as JSON is
    return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, Any])


def test_it_holds_one_entry_for_each_gpu() -> None:
    placed = placement(graph(l40sx4()))
    assert placed["gpus"] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert placed["numa"] == ["0", "0", "1", "1"]
    assert placed["nics"] == ["mlx5_0", "mlx5_1", "mlx5_0", "mlx5_1"]
    assert placed["cpus"] == ["0-31,64-95"] * 2 + ["32-63,96-127"] * 2
    assert placed["wires"] == [[0] * 4] * 4
    assert placed["far"] == [[0, 3, 6, 6], [3, 0, 6, 6], [6, 6, 0, 3], [6, 6, 3, 0]]
    assert placed["exact"] is True
    best = placed["best"]
    assert isinstance(best, dict)
    assert best["2"] == ["GPU0", "GPU1"]
    assert (placed["host"], placed["machine"]) == ("node17", "l40s")


def test_what_is_not_known_is_null() -> None:
    placed = through_json(placement(plain([[0, None], [None, 0]])))
    for key in ("uuids", "pci", "cliques", "numa", "cpus", "nics"):
        assert placed[key] == [None, None]
    assert placed["far"] == [[0, 5], [5, 0]]


@pytest.mark.parametrize("number", ["24", "14", "33"])
def test_read_from_json_it_chooses_the_same(number: str) -> None:
    made = samples()[number]
    read, subsets = masks(through_json(placement(made))), Subsets(made)
    for free in range(1, 1 << len(made.gpus)):
        assert read.table_mask(free) == subsets.masks.table_mask(free)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2"),
        ({"version": None}, "version None"),
        ({"wires": None}, "not 8 rows of 8"),
        ({"wires": [[0] * 8] * 7}, "not 8 rows of 8"),
        ({"far": [[0] * 7] * 8}, "not 8 rows of 8"),
        ({"far": [[7] * 8] * 8}, "not 8 rows of 8"),
        ({"wires": [[-1] * 8] * 8}, "not 8 rows of 8"),
        ({"wires": [[True] * 8] * 8}, "not 8 rows of 8"),
        ({"wires": [[0.5] * 8] * 8}, "not 8 rows of 8"),
        ({"numa": "00001111"}, "not a list of nodes"),
        ({"numa": [[]] * 8}, "not a list of nodes"),
    ],
)
def test_what_is_no_placement_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(NotUnderstood, match=words):
        masks({**placement(graph(h100x8())), **change})
