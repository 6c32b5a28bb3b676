"""A matrix says the same in every form, in any order, and never less than nothing where it was cut or garbled."""

from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import NotUnderstood
from gpuguard.topology.facts import facts
from gpuguard.topology.formats import Wish
from gpuguard.topology.formats.matrix import render, render_as
from gpuguard.topology.matrix import read
from tests.support.matrices import WHOLE, Form, Made, broken, folded, machines, marked, squeezed, tabs, terminal

MARKS = ("", "> ", "| ", ">> ", "    ")
BREAKABLE = (tabs, terminal, squeezed)


def _is_read(text: str, made: Made) -> None:
    found = read(text)
    told = facts(found.topology, found.layout)
    assert told["devices"] == list(made.names)
    assert told["matrix"] == [list(row) for row in made.cells]
    assert told["affinity"] == made.affinity
    assert render_as(found.topology, found.layout) == text
    assert found.topology.notes == ()


@given(machines(), st.sampled_from(WHOLE), st.sampled_from(MARKS), st.sampled_from(("\n", "\r\n")))
def test_every_form_is_read_and_printed_again(made: Made, form: Form, mark: str, end: str) -> None:
    _is_read(marked(form(made), mark).replace("\n", end), made)


@given(machines(), st.sampled_from(BREAKABLE), st.integers(48, 160), st.sampled_from(MARKS), st.integers(0, 2))
def test_lines_may_be_broken_anywhere(made: Made, form: Form, width: int, mark: str, how: int) -> None:
    text = form(made)
    text = folded(text, width) if how == 2 else broken(text, width, trimmed=how == 1)
    _is_read(marked(text, mark), made)


@given(machines(), st.data())
def test_the_order_of_the_devices_changes_nothing(made: Made, data: st.DataObject) -> None:
    gpus = [place for place, name in enumerate(made.names) if name.startswith("GPU")]
    nics = [place for place in range(len(made.names)) if place not in gpus]
    order = (*data.draw(st.permutations(gpus)), *data.draw(st.permutations(nics)))
    _is_read(tabs(made.turned(order)), made.turned(order))


@given(machines(most=4))
def test_what_was_read_is_drawn_and_read_again(made: Made) -> None:
    first = read(tabs(made)).topology
    again = read(render(first, Wish())).topology
    assert (again.levels, again.bonds, facts(again)) == (first.levels, first.bonds, facts(first))


@given(machines(most=4), st.sampled_from(WHOLE), st.data())
def test_half_a_matrix_tells_nothing_that_the_whole_does_not(made: Made, form: Form, data: st.DataObject) -> None:
    text = form(made)
    cut = data.draw(st.integers(0, len(text)))
    try:
        found = read(text[:cut])
    except NotUnderstood:
        return
    known = {name: place for place, name in enumerate(made.names)}
    topology = found.topology
    for one, device in enumerate(topology.devices):
        for other, peer in enumerate(topology.devices):
            cell = topology.cell(one, other)
            if cell is not None and device.name in known and peer.name in known:
                assert cell == made.cells[known[device.name]][known[peer.name]]


@given(machines(most=4), st.sampled_from(WHOLE), st.data())
def test_a_garbled_text_is_read_or_refused(made: Made, form: Form, data: st.DataObject) -> None:
    text = form(made)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text)))
        size = data.draw(st.integers(0, 40))
        put = data.draw(st.one_of(st.text("\t\n |>:\r\x1b[4mGPUNICX018,-\0", max_size=8), st.just(text[at : at + 60])))
        text = text[:at] + put + text[at + size :]
    try:
        found = read(text)
    except NotUnderstood:
        return
    size = len(found.topology.devices)
    assert size > 0
    assert all(found.topology.cell(i, j) == found.topology.cell(j, i) for i in range(size) for j in range(i))
    render_as(found.topology, found.layout)
    render(found.topology, Wish())
