"""Each file on the shelf topology/formats writes what its how-to promises, and has its proof beside it."""

import inspect
from argparse import ArgumentParser
from pathlib import Path
from types import ModuleType

import pytest

from gpuguard.commands import topo
from gpuguard.errors import Absent, ConfigInvalid, NotUnderstood
from gpuguard.runtime.plugins import shelf
from gpuguard.topology import formats
from gpuguard.topology.formats import Wish
from tests.support.layouts import lost_and_split
from tests.support.wirings import graph, h100x8, l40sx4

CHECKOUT = Path(__file__).resolve().parents[2]
SHELF = shelf("gpuguard.topology.formats")
# For schedulers and NCCL: a site's scripts ask for these by name.
PROMISED = {"gres", "slurm-topology", "nccl-xml", "labels"}
FABRIC = '[switches.leaf1]\nnodes = "node[1-20]"\n'
on_the_shelf = pytest.mark.parametrize("module", [pytest.param(module, id=name) for name, module in SHELF.items()])


def test_each_format_can_be_asked_for_by_its_name() -> None:
    parser = ArgumentParser()
    topo.arguments(parser)
    names = {name.replace("_", "-") for name in SHELF}
    assert names >= PROMISED
    for name in names:
        assert parser.parse_args(["--format", name]).format == name


@on_the_shelf
def test_it_has_the_shape_of_the_shelf(module: ModuleType) -> None:
    assert list(inspect.signature(module.render).parameters) == ["topology", "wish"]
    assert inspect.getdoc(module)
    assert inspect.getdoc(module.render)


@on_the_shelf
def test_it_has_its_proof_beside_it(module: ModuleType) -> None:
    """Unit tests, and a golden text of a machine."""
    name = module.__name__.rpartition(".")[2]
    assert list((CHECKOUT / "tests" / "unit" / "topology").rglob(f"test_{name}.py"))
    assert [path for path in (CHECKOUT / "tests" / "golden").rglob("*") if name in path.name and path.is_file()]


@on_the_shelf
@pytest.mark.parametrize("machine", [h100x8(), l40sx4(), lost_and_split()], ids=["h100x8", "l40sx4", "lost_and_split"])
def test_it_writes_a_whole_text_and_the_same_again(module: ModuleType, machine: object) -> None:
    assert isinstance(machine, dict)
    wish = Wish(node="node17", fabric=FABRIC)
    text = module.render(graph(machine), wish)
    assert text.endswith("\n")
    assert text.strip()
    assert text == module.render(graph(machine), wish)


@on_the_shelf
@pytest.mark.parametrize("wish", [Wish(), Wish(node="a\nb"), Wish(node="node17", fabric="\0")])
def test_what_it_lacks_it_says_and_never_invents(module: ModuleType, wish: Wish) -> None:
    """Of a machine that nobody knows, it writes a text or refuses as the how-to says."""
    assert all(error in (formats.__doc__ or "") for error in ("NotUnderstood", "Absent"))
    try:
        text = module.render(graph({}), wish)
    except (Absent, NotUnderstood, ConfigInvalid) as error:
        text = str(error)
    assert text.strip()
