"""Whatever a person wrote is read at once, or refused as what it is."""

import pytest

from gpuguard.topology.tables import MOST_PARTS, load


@pytest.mark.parametrize("text", [
    "a." * 60000 + "a = 1", "x = {" + "a . " * 60000 + "a = 1}", "x = {" + "'a'." * 40000 + "a = 1}",
    "a = " + "[" * 20000, "a = " + "9" * 5000, "[a", "\0",
])  # fmt: skip
def test_what_no_person_writes_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        load(text)


def test_dots_of_texts_and_of_remarks_are_no_parts_of_keys() -> None:
    dots = "." * (MOST_PARTS + 1)
    assert load(f"# {dots}\na = 'x{dots}' # {dots}\nb.c = [\"{dots}\"]") == {"a": f"x{dots}", "b": {"c": [dots]}}
