"""Names of devices as people list them."""

import pytest

from gpuguard.errors import UsageError
from gpuguard.topology.names import joined, listed, places_of
from tests.support.wirings import graph, l40sx4


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], ""),
        (["GPU0"], "GPU0"),
        (["GPU0", "GPU1"], "GPU0 and GPU1"),
        (["GPU0", "GPU1", "GPU2"], "GPU0 to GPU2"),
        (["GPU0", "GPU2", "GPU3"], "GPU0, GPU2 and GPU3"),
        (["GPU0", "GPU1", "GPU2", "NIC0", "NIC1"], "GPU0 to GPU2, NIC0 and NIC1"),
        (["mlx5_9", "mlx5_10", "mlx5_11"], "mlx5_9 to mlx5_11"),
        (["0", "1", "2", "3"], "0 to 3"),
        (["GPU2", "GPU1", "GPU0"], "GPU2, GPU1 and GPU0"),
        (["eth", "GPU0", "NIC1"], "eth, GPU0 and NIC1"),
    ],
)
def test_a_row_is_told_by_its_ends(names: list[str], words: str) -> None:
    assert listed(names) == words


@pytest.mark.parametrize(
    ("parts", "words"), [([], ""), ([4], "4"), ([4, 4], "4 and 4"), (["GPU0", "GPU1", "GPU2"], "GPU0, GPU1 and GPU2")]
)
def test_parts_are_joined_as_a_sentence_has_them(parts: list[object], words: str) -> None:
    assert joined(parts) == words


def test_names_are_found_and_wrong_ones_refused_with_what_there_is() -> None:
    devices = graph(l40sx4()).gpus
    assert places_of(devices, ["GPU3", "GPU0"]) == [3, 0]
    with pytest.raises(UsageError, match="no 'GPU7' to choose; there is GPU0 to GPU3"):
        places_of(devices, ["GPU7"])
    with pytest.raises(UsageError, match="GPU1 is named twice"):
        places_of(devices, ["GPU1", "GPU1"])
    with pytest.raises(UsageError, match="there is none"):
        places_of((), ["GPU0"])
