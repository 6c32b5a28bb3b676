"""What people read, whatever a job calls itself."""

import pytest

from gpuguard.jobs.wording import clean, counted, lasting, size


def test_a_name_stays_on_its_line_and_is_cut() -> None:
    assert clean("train\n\x1b[31mred\u2028x") == "train??[31mred?x"
    assert clean("größe") == "größe"
    assert clean("a" * 200, 10) == "aaaaaaa..."
    assert clean("a" * 10, 10) == "a" * 10


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (119.0, "119 s"), (120.0, "2 min"), (7140.0, "119 min"), (9000.0, "2.5 h")]
)
def test_a_span_is_told_in_its_unit(seconds: float, words: str) -> None:
    assert lasting(seconds) == words


def test_sizes_and_counts() -> None:
    assert [size(2**20), size(2**30), size(1.5 * 2**36)] == ["1 MiB", "1.0 GiB", "96.0 GiB"]
    assert [counted(1, "GPU"), counted(8, "GPU"), counted(0, "process", "processes")] == [
        "1 GPU",
        "8 GPUs",
        "0 processes",
    ]
