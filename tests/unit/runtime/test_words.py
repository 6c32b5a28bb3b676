import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.runtime.words import WIDTH, date, listed, page, paragraph, row, span, times


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
