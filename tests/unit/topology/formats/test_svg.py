"""The SVG: well-formed and alone, each device once, each state visible, and nothing that lies on anything else."""

import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given

from gpuguard.errors import NotUnderstood
from gpuguard.model.topology import Topology
from gpuguard.topology.formats import Wish
from gpuguard.topology.formats.svg import DARK, LEGEND, STYLE, render
from gpuguard.topology.layout import WIDEST, Sheet, lay_out
from gpuguard.topology.picture import picture
from tests.support.drawn import graphs, machines, uniform

MACHINES = machines()
SVG = "{http://www.w3.org/2000/svg}"


def parsed(topology: Topology) -> ElementTree.Element:
    return ElementTree.fromstring(render(topology, Wish()))


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def classes(root: ElementTree.Element, tag: str) -> list[set[str]]:
    return [set(element.get("class", "").split()) for element in root.iter(f"{SVG}{tag}")]


def sheet(topology: Topology) -> Sheet:
    return lay_out(topology, picture(topology))


@pytest.mark.parametrize("name", MACHINES)
def test_it_is_well_formed_stands_alone_and_names_each_device_once(name: str) -> None:
    _is_whole(MACHINES[name])


@given(graphs())
def test_so_it_is_for_any_graph(topology: Topology) -> None:
    _is_whole(topology)
    _nothing_overlaps(sheet(topology))


def _is_whole(topology: Topology) -> None:
    text = render(topology, Wish())
    root = ElementTree.fromstring(text)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg", "title", "desc", "style", "rect", "text", "path", "g",
    }  # fmt: skip
    assert not re.search(r"href|url\(|@import|@font-face", text)
    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "gpuguard-title gpuguard-told")
    plates = [one for one in root.iter(f"{SVG}g") if set(one.get("class", "").split()) & {"gpu", "nic"}]
    assert len(plates) == len(topology.devices)
    for device in topology.devices:
        (own,) = [one for one in plates if one.findtext(f"{SVG}text") == device.name]
        told = own.findtext(f"{SVG}title") or ""
        assert told.startswith(device.name)
        assert own.get("aria-label") == told.split("\n", maxsplit=1)[0]
        for known in (device.pci, None if device.gpu is None else device.gpu.uuid):
            assert known is None or known in told


@pytest.mark.parametrize("name", MACHINES)
def test_nothing_lies_on_anything_else(name: str) -> None:
    _nothing_overlaps(sheet(MACHINES[name]))


def _nothing_overlaps(made: Sheet) -> None:
    plates = [(plate.x, plate.y, plate.x + plate.width, plate.y + plate.height, plate) for plate in made.plates]
    for one, other in combinations(plates, 2):
        inside = {one[4].kind, other[4].kind} == {"fabric", "nvswitch"}
        assert inside or not _meet(one[:4], other[:4]), (one[4], other[4])
    labels = [
        (label.x - label.width / 2, label.y - label.height / 2, label.x + label.width / 2, label.y + label.height / 2)
        for label in made.labels
    ]
    for label in labels:
        assert not [plate for *box, plate in plates if _meet(label, tuple(box))]
        assert label[0] >= 0
        assert label[2] <= made.width
    assert not [pair for pair in combinations(labels, 2) if _meet(*pair)]
    for *box, _ in plates:
        assert box[0] >= 0
        assert box[2] <= made.width
        assert box[3] <= made.height
    for wire in made.wires:
        for (x1, y1), (x2, y2) in pairwise(wire.points):
            assert x1 == x2 or y1 == y2
            line = (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
            assert not [plate for *box, plate in plates if _meet(line, tuple(box))]


def _meet(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two boxes, or a line and a box, have more than an edge in common."""
    slack = 0.01
    return (
        one[0] < other[2] - slack and other[0] < one[2] - slack and one[1] < other[3] - slack
        and other[1] < one[3] - slack
    )  # fmt: skip


@pytest.mark.parametrize("name", [name for name in MACHINES if name not in ("hostile", "empty")])
def test_no_wire_runs_through_a_label_of_another_and_no_two_lie_on_each_other(name: str) -> None:
    made = sheet(MACHINES[name])
    runs = [
        (number, (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)))
        for number, wire in enumerate(made.wires) for (x1, y1), (x2, y2) in pairwise(wire.points)
    ]  # fmt: skip
    for (one, a), (other, b) in combinations(runs, 2):
        if one != other:
            upright = a[0] == a[2] == b[0] == b[2] and a[1] < b[3] - 0.01 and b[1] < a[3] - 0.01
            level = a[1] == a[3] == b[1] == b[3] and a[0] < b[2] - 0.01 and b[0] < a[2] - 0.01
            assert not upright
            assert not level
    for label in made.labels:
        half, high = label.width / 2, label.height / 2
        box = (label.x - half, label.y - high, label.x + half, label.y + high)
        through = {number for number, run in runs if _meet(run, box)}
        assert len(through) == 1
        assert {(made.wires[number].group, made.wires[number].state) for number in through} == {
            (label.group, label.state)
        }


def test_eight_gpus_and_ten_cards_fit_a_window_of_1400_pixels() -> None:
    for name in ("h100x8", "ten_cards", "cube_mesh", "link_down"):
        width = float(parsed(MACHINES[name]).get("width", "inf"))
        assert width <= WIDEST < 1400


def test_each_state_has_its_colour_its_dashes_and_its_words() -> None:
    root = parsed(MACHINES["link_down"])
    wires, words = classes(root, "path"), texts(root)
    for state, text in (("up", "NV18"), ("some", "17 of 18"), ("down", "0 of 18"), ("unknown", "NV18?")):
        assert {"wire", "nvlink", state} in wires
        assert text in words
        assert LEGEND["nvlink", state] in words  # type: ignore[index]
    for state, text in (("full", "x16"), ("narrow", "x8 of x16"), ("slow", "Gen1 of 5")):
        assert {"wire", "pcie", state} in wires
        assert text in words
        assert LEGEND["pcie", state] in words  # type: ignore[index]
    assert LEGEND["pcie", "unknown"] not in words
    assert sum({"box", "redirects"} <= kinds for kinds in classes(root, "g")) == 1
    assert [text for text in words if text.startswith("• GPU2")] == ["• GPU2: 17 of 18 NVLinks up, down: link 6"]
    dashes = {
        state: re.search(r"dasharray: ([\d ]+)", declarations)
        for selectors, declarations in STYLE for state in ("some", "down", "unknown", "open")
        if f".wire.{state}" in selectors and "dash" in declarations
    }  # fmt: skip
    assert len({found[1] for found in dashes.values() if found}) == 4


def test_the_dark_drawing_changes_all_colours_that_the_light_one_has() -> None:
    text = render(MACHINES["h100x8"], Wish())
    assert "@media (prefers-color-scheme: dark)" in text
    coloured = {part for selectors, how in STYLE if "#" in how for part in selectors.split(", ")}
    assert coloured == {part for selectors, how in DARK if "#" in how for part in selectors.split(", ")}
    rules = re.findall(r"^(\S.*?) \{ ", text, flags=re.MULTILINE)
    assert rules
    assert all(part.startswith(".gpuguard-wiring") for rule in rules for part in rule.split(", "))


def test_names_are_text_and_nothing_else() -> None:
    topology = MACHINES["hostile"]
    text = render(topology, Wish())
    assert "<script" not in text
    assert not [sign for sign in text if not sign.isprintable() and sign != "\n"]
    root = ElementTree.fromstring(text)
    assert 'NIC0 (<&">\ufffd\ufffd)' in [(title.text or "").split("\n")[0] for title in root.iter(f"{SVG}title")]


def test_what_is_not_known_is_not_drawn() -> None:
    root = parsed(MACHINES["hidden"])
    assert not [kinds for kinds in classes(root, "g") if kinds & {"side", "box", "nvswitch"}]
    assert "NVLink through NVSwitches that show no address" in texts(root)
    root = parsed(MACHINES["kernel_only"])
    assert texts(root).count("NVLink?") == 8
    assert "4 NVSwitches" in texts(root)
    root = parsed(MACHINES["l40sx4"])
    assert "• NVLink: none between these GPUs" in texts(root)
    assert not [kinds for kinds in classes(root, "path") if "nvlink" in kinds]


def test_a_lost_gpu_differs_and_instances_are_named() -> None:
    root = parsed(MACHINES["lost"])
    assert sum({"gpu", "silent"} <= kinds for kinds in classes(root, "g")) == 1
    assert "7 x 1g.10gb" in texts(parsed(MACHINES["mig"]))


def test_a_mesh_shows_which_pairs_have_more() -> None:
    root = parsed(MACHINES["cube_mesh"])
    wires = classes(root, "path")
    assert wires.count({"wire", "nvlink", "up", "thick"}) == 8
    assert wires.count({"wire", "nvlink", "up"}) == 8 + 1  # one in the legend
    assert texts(root).count("NV2") == texts(root).count("NV1") == 8


def test_more_gpus_than_a_node_has_are_refused_with_a_next_step() -> None:
    with pytest.raises(NotUnderstood, match=r"65 GPUs .* --format matrix"):
        render(uniform(65, "NV18"), Wish())
