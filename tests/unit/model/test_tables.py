import tomllib

from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.tables import codes_in, lookup_text

TEXT = """# head
[unknown]
name = "unknown"

[7]
name = "seven"

[[7.variants]]
contains = "[8]"

[7.sub]
x = 1

[77]
name = "seventy-seven"
list = [
  1,
]

[8]
name = "eight"
"""


def test_a_table_is_cut_with_its_sub_tables_and_nothing_else() -> None:
    cut = lookup_text(TEXT, 7)
    assert cut is not None
    assert tomllib.loads(cut) == {"7": {"name": "seven", "variants": [{"contains": "[8]"}], "sub": {"x": 1}}}


def test_a_code_is_not_found_inside_a_longer_one_or_a_string() -> None:
    cut = lookup_text(TEXT, 8)
    assert cut is not None
    assert tomllib.loads(cut) == {"8": {"name": "eight"}}
    assert lookup_text(TEXT, 78) is None
    assert lookup_text(TEXT, "7.sub.x") is None


def test_the_first_and_the_last_table_are_found() -> None:
    assert lookup_text("[1]\na = 1\n", 1) == "[1]\na = 1\n"
    assert lookup_text("[1]\na = 1\n[2]\nb = 2", 2) == "[2]\nb = 2"
    assert lookup_text("[1]", 1) is None, "a header without its newline is half a file"
    assert lookup_text("", 1) is None


def test_codes_are_listed_in_the_order_of_the_file() -> None:
    assert codes_in(TEXT) == (7, 77, 8)


@given(
    st.dictionaries(st.integers(0, 40_000), st.text(st.characters(codec="ascii", categories=["L", "N"])), min_size=1)
)
def test_every_cut_equals_what_the_whole_file_says(entries: dict[int, str]) -> None:
    text = "".join(f'[{code}]\nname = "{name}"\n\n' for code, name in entries.items())
    whole = tomllib.loads(text)
    for code in entries:
        cut = lookup_text(text, code)
        assert cut is not None
        assert tomllib.loads(cut) == {str(code): whole[str(code)]}
    assert codes_in(text) == tuple(entries)
