"""The wiring as people see it, of a machine of rows with faults and of a mesh from cells alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguard.topology.formats import Wish, drawing, svg
from tests.support.drawn import machines

Golden = Callable[[Path, str], None]
FOLDER = Path(__file__).parent / "topology"


@pytest.mark.parametrize("name", ["link_down", "cube_mesh"])
def test_a_node_is_drawn(golden: Golden, name: str) -> None:
    topology = machines()[name]
    golden(FOLDER / f"{name}.txt", drawing.render(topology, Wish()))
    golden(FOLDER / f"{name}.svg", svg.render(topology, Wish()))
