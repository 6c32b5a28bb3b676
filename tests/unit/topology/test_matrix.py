"""What people have of a machine is its matrix, in whatever state it reached them."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from gpuguard.errors import NotUnderstood
from gpuguard.model.topology import Topology
from gpuguard.topology.facts import facts
from gpuguard.topology.formats.matrix import render_as
from gpuguard.topology.matrix import read
from tests.support.matrices import WHOLE, Form, Made, broken, folded, marked, tabs, terminal
from tests.support.shared_data import shared

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "topology"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.txt"))
# What the graph prints otherwise than the text: it knows more than a row that was cut off, or makes two rows agree.
BETTER = {"half", "contradiction"}
PAIR = Made(
    names=("GPU0", "GPU1", "NIC0"), cells=(("X", "NV4", "PIX"), ("NV4", "X", "SYS"), ("PIX", "SYS", "X")),
    cpus=("0-7,16-23", "8-15,24-31"), nodes=("0", "1"),
)  # fmt: skip
WIDE = Made(
    names=tuple(f"GPU{n}" for n in range(16)),
    cells=tuple(
        tuple("X" if i == j else "NV12" if i // 8 == j // 8 else "SYS" for j in range(16)) for i in range(16)
    ),
    cpus=("0-63,128-191",) * 8 + ("64-127,192-255",) * 8, nodes=("0",) * 8 + ("1",) * 8,
)  # fmt: skip


def _text(name: str) -> str:
    with (FIXTURES / f"{name}.txt").open(newline="") as file:
        return file.read()


def _matrix(text: str) -> list[list[str | None]]:
    found = read(text)
    told = facts(found.topology, found.layout)["matrix"]
    assert isinstance(told, list)
    return told


def _told(text: str) -> dict[str, object]:
    found = read(text)
    return {
        **facts(found.topology, found.layout),
        "memory": {gpu.name: gpu.gpu and gpu.gpu.memory_node for gpu in found.topology.gpus},
        "p2p": [list(row) for row in found.topology.p2p],
        "line": found.line,
        "notes": list(found.topology.notes),
    }


@pytest.mark.parametrize("name", NAMES)
def test_each_form_is_read(name: str, request: pytest.FixtureRequest) -> None:
    golden = FIXTURES / f"{name}.json"
    told = _told(_text(name))
    if request.config.getoption("--rewrite"):
        lines = [
            json.dumps(key) + ": " + json.dumps(value) for key, value in told.items() if key not in ("matrix", "p2p")
        ]
        for key in ("matrix", "p2p"):
            rows = told[key]
            assert isinstance(rows, list)
            lines.append(json.dumps(key) + ": [\n  " + ",\n  ".join(map(json.dumps, rows)) + "\n ]")
        golden.write_text("{\n " + ",\n ".join(lines) + "\n}\n")
    assert told == json.loads(golden.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_each_form_is_printed_again(name: str) -> None:
    found = read(_text(name))
    assert (render_as(found.topology, found.layout) == _text(name)) is (name not in BETTER)


def test_a_broken_matrix_says_what_the_whole_one_says() -> None:
    whole = _told(_text("driver_570"))
    for name in ("broken_at_80", "mail"):
        told = _told(_text(name))
        assert all(told[key] == whole[key] for key in ("devices", "matrix", "affinity", "notes"))


# --- real ones -------------------------------------------------------------------------------------------------------


@cache
def _published() -> dict[str, str]:
    text = shared("reference", "topo-samples.txt").read_text()
    found = re.finditer(
        r"^### SAMPLE (\d+)\n.*?^--- BEGIN MATRIX\n(.*?)^--- END MATRIX$", text, re.DOTALL | re.MULTILINE
    )
    return {each[1]: each[2] for each in found}


def test_every_published_matrix_is_read() -> None:
    """None is refused, and nothing in them is strange but what they say of themselves: rows that were cut away."""
    assert len(_published()) == 26
    for number, text in _published().items():
        for note in read(text).topology.notes:
            assert note.startswith(("the text has no row for ", "the CPU affinity of ")), f"{number}: {note}"


def _words(text: str) -> Iterator[tuple[str, list[str]]]:
    """The rows of a matrix by a way of reading that knows no more than this: words between blanks."""
    for line in text.split("\n\n", maxsplit=1)[0].splitlines():
        words = line.split()
        if len(words) > 1 and re.fullmatch(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS", words[1]):
            yield words[0], words[1:]


def test_every_published_matrix_gives_the_same_cells() -> None:
    for number, text in _published().items():
        found = read(text)
        told = facts(found.topology, found.layout)
        devices, matrix = told["devices"], told["matrix"]
        assert isinstance(devices, list)
        assert isinstance(matrix, list)
        rows = dict(_words(text))
        assert rows, number
        for name, words in rows.items():
            assert matrix[devices.index(name)] == words[: len(devices)], f"{number}: {name}"
        assert all(matrix[i][j] == matrix[j][i] for i in range(len(devices)) for j in range(i)), number


def test_every_published_matrix_is_printed_byte_for_byte() -> None:
    for number, text in _published().items():
        found = read(text)
        assert render_as(found.topology, found.layout) == text, number
        # The cells in it are slots for the graph, not text.
        words = sum(len(words[: len(found.topology.devices)]) for _, words in _words(text))
        slots = [piece for piece in found.layout.pieces if not isinstance(piece, str) and piece.what == "cell"]
        assert len(slots) == words, number


# --- the cells come from the graph -----------------------------------------------------------------------------------


def _with_bond(topology: Topology, one: int, other: int, bond: int) -> Topology:
    bonds = [list(row) for row in topology.bonds]
    bonds[one][other] = bonds[other][one] = bond
    return msgspec.structs.replace(topology, bonds=tuple(map(tuple, bonds)))


def test_a_bond_that_changes_in_the_graph_changes_in_the_text() -> None:
    for form in (tabs, terminal):
        text = form(PAIR)
        found = read(text)
        changed = Made(
            names=PAIR.names, cells=(("X", "NV18", "PIX"), ("NV18", "X", "SYS"), ("PIX", "SYS", "X")), cpus=PAIR.cpus,
            nodes=PAIR.nodes,
        )  # fmt: skip
        assert render_as(_with_bond(found.topology, 0, 1, 18), found.layout) == form(changed)


def test_a_graph_that_knows_nothing_prints_nothing_that_it_was_told() -> None:
    found = read(_text("driver_570"))
    size = len(found.topology.devices)
    nothing = msgspec.structs.replace(
        found.topology,
        devices=tuple(msgspec.structs.replace(d, cpus=None, nodes=None) for d in found.topology.devices),
        levels=((None,) * size,) * size, bonds=((None,) * size,) * size,
    )  # fmt: skip
    matrix = render_as(nothing, found.layout).split("\n\n")[0]
    assert not re.search(r"NV\d|PIX|PXB|NODE|SYS|0-47|96-143", matrix)
    assert matrix.count("N/A") == size * (size - 1) + 8 * 3


def test_an_old_word_is_kept_for_its_text_alone() -> None:
    found = read(_text("driver_361"))
    assert found.topology.cell(0, 2) == "SYS"
    assert facts(found.topology)["matrix"] != facts(found.topology, found.layout)["matrix"]
    levels = [list(row) for row in found.topology.levels]
    levels[0][1] = levels[1][0] = "SYS"
    changed = msgspec.structs.replace(found.topology, levels=tuple(map(tuple, levels)))
    assert "GPU0\t X \tSOC\tSOC\t" in render_as(changed, found.layout)


# --- what a cell means -----------------------------------------------------------------------------------------------


def test_nvlink_does_not_tell_how_far_it_is_over_pcie() -> None:
    topology = read(tabs(PAIR)).topology
    assert (topology.bonds[0][1], topology.levels[0][1]) == (4, None)
    assert (topology.bonds[0][2], topology.levels[0][2]) == (0, "PIX")
    assert topology.devices[0].gpu is not None
    assert topology.devices[0].gpu.index == 0
    assert topology.devices[2].nic is None


@pytest.mark.parametrize(("word", "level"), [("SOC", "SYS"), ("PSB", "PIX"), ("CPU", "NODE"), ("node", "NODE")])
def test_a_word_of_another_time_means_one_of_today(word: str, level: str) -> None:
    text = f"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{word}\t0-3\nGPU1\t{word}\t X \t0-3\n"
    found = read(text)
    assert found.topology.levels[0][1] == level
    assert render_as(found.topology, found.layout) == text
    assert _matrix(text)[0] == ["X", word]


def test_a_row_that_is_missing_is_filled_from_the_others() -> None:
    text = tabs(PAIR)
    shorter = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("NIC0"))
    assert _matrix(shorter) == [list(row) for row in PAIR.cells]
    (note,) = read(shorter).topology.notes
    assert note.startswith("the text has no row for NIC0")


def test_a_cell_that_no_row_gives_is_not_known() -> None:
    text = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \t\tPIX\t0-3\n"
    topology = read(text).topology
    assert [topology.cell(0, 1), topology.cell(1, 2)] == [None, None]
    assert topology.bonds[0][1] is None  # whether there are NVLinks, nobody told
    assert topology.bonds[1][2] == 0  # a network card has none


def test_rows_that_differ_give_what_both_promise() -> None:
    topology = read(_text("contradiction")).topology
    assert [topology.cell(0, 1), topology.cell(1, 2)] == ["NV2", "PHB"]
    assert any("line 2 says NV4, line 3 NV2" in note for note in topology.notes)


def test_a_word_that_nobody_knows_is_named_with_its_line() -> None:
    topology = read("\tGPU0\tGPU1\nGPU0\t X \tWARP\nGPU1\tWARP\t X \n").topology
    assert topology.cell(0, 1) is None
    assert [note for note in topology.notes if "line 2 says 'WARP' of GPU0 and GPU1" in note]


def test_many_strange_words_make_few_notes() -> None:
    text = tabs(WIDE).replace("NV12", "WARP")
    notes = read(text).topology.notes
    assert len(notes) < 12
    assert notes[-1].endswith("more words of this text are not known")


def test_pcie_alone_does_not_tell_of_nvlinks() -> None:
    text = tabs(PAIR).replace("NV4", "SYS")
    silent, told = (read(f"$ nvidia-smi topo {option}\n{text}").topology for option in ("-mp", "-m"))
    assert (silent.bonds[0][1], silent.levels[0][1]) == (None, "SYS")
    assert (told.bonds[0][1], told.levels[0][1]) == (0, "SYS")


def test_statuses_alone_do_not_tell_how_far() -> None:
    text = " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n"
    found = read(text)
    assert found.topology.p2p == ((None, "OK"), ("OK", None))
    assert found.topology.cell(0, 1) is None
    assert render_as(found.topology, found.layout) == text
    p2p = ((None, "NS"), ("NS", None))
    assert render_as(msgspec.structs.replace(found.topology, p2p=p2p), found.layout) == text.replace("OK", "NS")


# --- forms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", WHOLE, ids=lambda form: form.__name__)
@pytest.mark.parametrize("before", ["", "\ufeff", "user@node:~# nvidia-smi topo -m\n", "GPU0 is slow, see:\n\n"])
def test_whatever_stands_around_it(form: Form, before: str) -> None:
    text = before + form(PAIR) + "\nand that is all of GPU0 and GPU1\n"
    found = read(text)
    assert found.topology.notes == ()
    assert facts(found.topology)["devices"] == list(PAIR.names)
    assert facts(found.topology)["affinity"] == PAIR.affinity
    assert _matrix(text) == [list(row) for row in PAIR.cells]
    assert render_as(found.topology, found.layout) == text
    assert found.line == 1 + before.count("\n")


@pytest.mark.parametrize("mark", ["> ", ">> ", "| ", "    ", "# ", "node17: ", "[12:00:01] INFO "])
def test_marks_before_each_line(mark: str) -> None:
    for form in (tabs, terminal):
        text = marked(form(PAIR), mark)
        assert _matrix(text) == [list(row) for row in PAIR.cells]


@pytest.mark.parametrize("width", range(40, 130))
def test_a_terminal_of_any_width(width: int) -> None:
    for form in (tabs, terminal):
        for text in (broken(form(WIDE), width), broken(form(WIDE), width, trimmed=True), folded(form(WIDE), width)):
            found = read(text)
            assert facts(found.topology)["devices"] == list(WIDE.names)
            assert _matrix(text) == [list(row) for row in WIDE.cells]
            assert facts(found.topology)["affinity"] == WIDE.affinity
            assert render_as(found.topology, found.layout) == text


def test_lines_of_something_else_may_stand_between() -> None:
    lines = tabs(PAIR).splitlines(keepends=True)
    text = "".join(f"{line}kernel: something else happened\n\n" for line in lines)
    assert _matrix(text) == [list(row) for row in PAIR.cells]


def test_a_cell_that_is_missing_between_blanks_is_seen_by_its_column() -> None:
    lines = terminal(PAIR).splitlines(keepends=True)
    lines[1] = lines[1].replace("NV4", "   ")
    text = "".join(lines)
    found = read(text)
    assert _matrix(text) == [list(row) for row in PAIR.cells]  # the other row tells
    assert render_as(found.topology, found.layout) == text
    lines[3] = lines[3].replace("PIX", "   ").replace("SYS", "   ")
    assert _matrix("".join(lines)) == [list(row) for row in PAIR.cells]


def test_words_that_are_not_below_theirs_are_not_taken_for_others() -> None:
    text = "GPU0 GPU1 GPU2\nGPU0 X PIX SYS\nGPU1 X SYS\nGPU2 SYS SYS X\n"
    topology = read(text).topology
    assert [topology.cell(0, 1), topology.cell(1, 2)] == ["PIX", "SYS"]
    assert any(note.startswith("line 3 does not have X below GPU1") for note in topology.notes)


def test_affinities_between_blanks_are_seen_by_their_columns() -> None:
    lines = terminal(PAIR).splitlines(keepends=True)
    lines[2] = lines[2].replace("8-15,24-31", " " * 10)
    gpus = read("".join(lines)).topology.gpus
    assert [(gpu.cpus, gpu.nodes) for gpu in gpus] == [("0-7,16-23", "0"), (None, "1")]
    squeezed = re.sub(" +", " ", "".join(lines))
    topology = read(squeezed).topology
    assert [(gpu.cpus, gpu.nodes) for gpu in topology.gpus] == [("0-7,16-23", "0"), (None, None)]
    assert any(note.startswith("line 3 has 2 of 3 affinities") for note in topology.notes)


def test_what_is_neither_gpu_nor_network_card_is_left_in_the_text() -> None:
    text = "\tGPU0\tGPU1\tNVME0\nGPU0\t X \tPIX\tSYS\nGPU1\tPIX\t X \tPHB\nNVME0\tSYS\tPHB\t X \n"
    found = read(text)
    assert [device.name for device in found.topology.devices] == ["GPU0", "GPU1"]
    assert render_as(found.topology, found.layout) == text


def test_a_list_of_processors_may_have_blanks_behind_its_commas() -> None:
    for form in (tabs, terminal):
        text = form(PAIR).replace("7,16", "7, 16")
        found = read(text)
        assert found.topology.gpus[0].cpus == "0-7,16-23"
        assert found.topology.gpus[0].nodes == "0"
        assert render_as(found.topology, found.layout) == text


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", " \n\n", "hello", "\0\1\2", "GPU0 fell off the bus", "GPU0 GPU1\n", "GPU0: NVIDIA H100\nGPU1: NVIDIA H100\n",
     "\t".join(f"GPU{n}" for n in range(9000)) + "\tCPU Affinity\nGPU0\t X \n"],
    ids=["empty", "blank", "text", "binary", "log", "names", "list", "too_many"],
)  # fmt: skip
def test_where_there_is_no_matrix_it_says_what_to_give(text: str) -> None:
    with pytest.raises(NotUnderstood, match="give the output of `nvidia-smi topo -m`"):
        read(text)


def test_a_header_alone_tells_who_is_there() -> None:
    topology = read("\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Aff").topology
    assert [device.name for device in topology.devices] == ["GPU0", "GPU1", "NIC0"]
    assert topology.notes == (
        "the text has the header of the matrix alone: nothing is known of the devices that it names",
    )


def test_a_name_that_stands_twice_is_read_once() -> None:
    text = "\tGPU0\tGPU0\tGPU1\nGPU0\t X \tPIX\tSYS\nGPU1\tSYS\tPHB\t X \nGPU1\tNV1\tNV1\t X \n"
    topology = read(text).topology
    assert [device.name for device in topology.devices] == ["GPU0", "GPU1"]
    assert topology.cell(0, 1) == "SYS"
    assert any("GPU0 twice" in note for note in topology.notes)
    assert any("line 4 gives GPU1 a second time" in note for note in topology.notes)


def test_the_first_of_two_nodes_is_read() -> None:
    topology = read(_text("two_nodes")).topology
    assert [device.name for device in topology.devices] == ["GPU0", "GPU1"]
    assert topology.notes == ("a second matrix begins in line 14: it and what follows is not read",)
    # Without a header of its own it is seen all the same.
    rows = tabs(PAIR) + tabs(PAIR).replace("NV4", "SYS").split("\n", 1)[1]
    assert _matrix(rows) == [list(row) for row in PAIR.cells]
    assert any("a second time, as of another node" in note for note in read(rows).topology.notes)


@pytest.mark.parametrize(
    "junk",
    ["kernel: nothing of interest\n", "GPU0 GPU1\n", "GPU0\t X \tNV1\n", "GPU0 ", "\t", "\0", "\n", "\x1b[4m", "> "],
    ids=["log", "headers", "rows", "line", "tabs", "nul", "empty", "escapes", "marks"],
)
def test_a_long_text_around_it_is_gone_through(junk: str) -> None:
    text = f"{tabs(PAIR)}\n{junk * 20000}\n"
    assert _matrix(text) == [list(row) for row in PAIR.cells]
