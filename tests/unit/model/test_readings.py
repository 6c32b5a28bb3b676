"""A row's values as what they are asked for."""

import pytest

from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, Value
from tests.support.core import instant


@pytest.mark.parametrize(
    ("value", "mask"),
    [(0, 0), (136, 136), (136.0, 136), (-1, None), (0.5, None), (float("nan"), None), (float("inf"), None),
     ("136", None), (True, None), ((1, 1), None), (None, None)],
)  # fmt: skip
def test_a_mask_is_a_whole_number_that_is_not_negative(value: Value, mask: int | None) -> None:
    row = Row(subject=SubjectId("gpu:x"), at=instant(1.0), source="nvml", values={"clock_events": value})
    assert row.bits("clock_events") == mask
    assert row.bits("absent") is None


def test_a_truth_value_is_no_number() -> None:
    # A check that kept one in its memory could not read it back from disk.
    row = Row(subject=SubjectId("gpu:x"), at=instant(1.0), source="nvml", values={"a": True, "b": 1})
    assert (row.number("a"), row.number("b")) == (None, 1)
