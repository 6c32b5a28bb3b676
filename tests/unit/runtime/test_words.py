import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.numbers import spans
from gpuguard.runtime.words import (
    WIDTH,
    brief,
    cell,
    date,
    listed,
    padded,
    page,
    paragraph,
    row,
    span,
    times,
)


@given(st.text(max_size=400), st.text(alphabet="abc ", max_size=20))
def test_no_text_leaves_the_page_or_moves_a_cursor(text: str, label: str) -> None:
    out = page([*row(label, text, indent=2), *paragraph(text, indent=4, hanging=2)])
    assert all(c.isprintable() or c == "\n" for c in out)
    assert max(map(len, [*row("name", "x" * 500), *paragraph("y" * 500, indent=6)])) <= WIDTH


def test_a_long_label_stands_on_a_line_of_its_own() -> None:
    assert row("a very long label", "text") == ["a very long label", " " * 12 + "text"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 s"), (59.0, "59 s"), (600.0, "10 min"), (7200.0, "2 h"), (200000.0, "2 d")]
)
def test_spans_are_told_in_their_largest_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_moments_are_told_as_far_as_they_are_known() -> None:
    assert date(1_700_000_000.0) == "2023-11-14 22:13:20Z"
    assert date(None) == "at an unknown time"
    assert date(1e30) == "at 1000000000000000019884624838656 s since 1970"


def test_names_and_counts_are_told_as_in_a_sentence() -> None:
    assert (listed([]), listed(["a"]), listed(["a", "b", "c"], "or")) == ("nothing", "a", "a, b or c")
    assert (times(1), times(2), times(1500)) == ("once", "twice", "1,500 times")


@given(st.text(max_size=60), st.integers(min_value=1, max_value=30))
def test_a_cell_is_one_line_and_no_wider_than_its_column(text: str, width: int) -> None:
    assert all(c.isprintable() for c in cell(text, width))
    assert len(cell(text, width)) <= width
    assert padded(text, width).startswith(cell(text, width))


def test_what_is_cut_off_is_marked_and_wide_letters_count_twice() -> None:
    assert cell("llama-70b", 9) == "llama-70b"
    assert cell("llama-70b", 8) == "llama-7~"
    assert cell("a\x1b[2J", 20) == "a\\x1b[2J"
    assert cell("名名名", 5) == "名名~"
    assert padded("名", 4) == "名  "


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1.0, "0s"), (0.4, "0s"), (119.4, "119s"), (120.0, "2m"), (7199.0, "120m"), (7200.0, "2h")]
)
def test_a_table_has_times_in_three_figures(seconds: float, text: str) -> None:
    assert brief(seconds) == text


def test_numbers_that_follow_each_other_are_a_range() -> None:
    assert (spans([]), spans([3]), spans([7, 0, 1, 2, 4, 1])) == ("", "3", "0-2,4,7")
