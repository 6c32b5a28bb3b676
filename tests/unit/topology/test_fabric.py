"""The fabric file: what it tells, and every mistake in it at once."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import ConfigInvalid
from gpuguard.topology.fabric import MOST_MISTAKES, expand, read

TREE = """
[switches.core]
switches = "spine[1-2]"
[switches.spine1]
switches = ["leaf1", "leaf2"]
[switches.spine2]
switches = "leaf3"
speed = 400
[switches.leaf1]
nodes = "gpu[01-04]"
[switches.leaf2]
nodes = "gpu[05-08],login"
[switches.leaf3]
nodes = "gb[1-2]"
[blocks.rack1]
nodes = "gb[1-2]"
clique = "7ec9d7a4-5a5b-4b6e-9f1c-0b6a2c1d3e4f.1"
"""


def mistakes(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigInvalid) as caught:
        read(text)
    return caught.value.mistakes


def test_switches_come_leaves_first_and_know_what_is_above_a_node() -> None:
    told = read(TREE)
    names = [switch.name for switch in told.switches]
    assert all(
        names.index(child) < names.index(switch.name) for switch in told.switches for child in switch.switches
    )  # fmt: skip
    assert told.above("gpu03") == ("leaf1", "spine1", "core")
    assert told.above("login") == ("leaf2", "spine1", "core")
    assert told.above("gpu3") == ()
    block = told.block("gb2")
    assert block is not None
    assert (block.name, told.block("gpu01")) == ("rack1", None)
    assert (told.form, told.plugin, told.block_sizes) == ("conf", "tree", ())


def test_without_switches_it_is_about_blocks() -> None:
    told = read('block_sizes = [18, 36, 144]\nform = "yaml"\n[blocks.r]\nnodes = "g[1-18]"')
    assert (told.form, told.plugin, told.block_sizes) == ("yaml", "block", (18, 36, 144))


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ("a", ["a"]), ("a[1-3]", ["a1", "a2", "a3"]), ("a[08-11]", ["a08", "a09", "a10", "a11"]),
        ("a[1-2,7],b", ["a1", "a2", "a7", "b"]), ("r[1-2]n[1-2]x", ["r1n1x", "r1n2x", "r2n1x", "r2n2x"]),
        ("a[001]", ["a001"]),
    ],
)  # fmt: skip
def test_a_host_list_stands_for_names(told: str, names: list[str]) -> None:
    assert list(expand(told)) == names


@pytest.mark.parametrize(
    "told",
    ["", "a,", "a[1-2", "a]1[", "a[2-1]", "a[x]", "a[]", "a[[1]]", "a b", "a[1-99999999]", "a[1-400]b[1-400]", "-a",
     "a[1-2]" * 40, ",".join(["a[1-9999]"] * 9), "a\0", "a[-3]", "a[1-]", "[" * 5000, "," * 5000],
)  # fmt: skip
def test_what_slurm_does_not_print_is_refused_with_a_next_step(told: str) -> None:
    with pytest.raises(ValueError, match=r"write for example|lower number|host list of Slurm is not"):
        expand(told)


def test_every_mistake_is_told_at_once_with_a_next_step() -> None:
    found = mistakes("""
form = "xml"
plug = 1
block_sizes = [3, 9]
[switches.a]
switches = "b,c"
[switches.b]
switches = "a"
[switches.d]
nodes = "n[1-4]"
speed = 0
[switches.e]
nodes = "n[4-5],n5"
[switches.f]
nodes = "n[9-1]"
[switches."x y"]
nodes = "n"
[switches.g]
[switches.h]
nodes = "m"
switches = "d"
[switches.i]
switches = "d"
[switches.j]
switches = "d"
[blocks.q]
[blocks.r]
nodes = "n1"
clique = 7
[blocks.s]
nodes = "n1"
""")
    for part in (
        "form: is 'xml'; write conf or yaml",
        "unknown key 'plug'; there are form,",
        "block_sizes: is '[3, 9]'; each must be",
        "switches.a: has an unknown child c; add [switches.c] or drop it",
        "switches: a, b are below each other in a circle",
        "switches.d.speed: is no whole number",
        "n4: is in 2 leaf switches, d, e; leave it in one",
        "switches.e.nodes: names n5 twice; name it once",
        "switches.f.nodes: ['9-1'] is no range",
        "switches.'x y': is no name for Slurm",
        "switches.g: needs either nodes",
        "switches.h: needs either nodes",
        "switches.d: is below i, j; Slurm's tree wants one",
        "blocks.q: has no nodes",
        "blocks.r.clique: is no text",
        "n1: is in 2 blocks, r, s; leave it in one",
    ):
        assert [line for line in found if part in line], part
    assert all(line.startswith("fabric file: ") for line in found)
    assert len(found) == 16


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "neither switches nor blocks"), ("[switches", "not TOML"), ("a\0", "not TOML"),
        ("switches = 1", "is no table"),
        ("[switches]\na = 1", "is no table"), ('plugin = "block"\n[switches.a]\nnodes = "n"', "has no blocks"),
        ('[switches.a]\nnodes = 3', "is no host list"), ('[switches.a]\nnodes = ["n", 3]', "is no host list"),
        ('[switches.a]\nnodes = []', "is no host list"), ("a = " + "[" * 3000, "not TOML"),
        ('block_sizes = 4\n[blocks.a]\nnodes = "n"', "no list of whole numbers"),
        ('block_sizes = [0, 2]\n[blocks.a]\nnodes = "n"', "block_sizes"),
        ('[switches.a]\nswitches = "a"', "in a circle"),
        ('[switches.a]\nnodes = "n"\nform = "yaml"', "above the first table"),
    ],
)  # fmt: skip
def test_half_a_file_is_told_as_such(text: str, part: str) -> None:
    assert part in "\n".join(mistakes(text))


def test_a_thousand_mistakes_are_told_by_the_first() -> None:
    found = mistakes("\n".join(f"key{n} = {n}" for n in range(1000)))
    assert len(found) == MOST_MISTAKES + 1
    assert found[-1] == "and 950 more"


def test_a_long_chain_of_switches_is_put_in_order() -> None:
    text = "".join(f'[switches.s{n}]\nswitches = "s{n + 1}"\n' for n in range(3000)) + '[switches.s3000]\nnodes = "n"\n'
    assert len(read(text).above("n")) == 3001


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigInvalid):
        assert read(text).switches or read(text).blocks
