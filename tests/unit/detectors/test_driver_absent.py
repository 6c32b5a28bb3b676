"""GPUs on the bus that nobody can see."""

import pytest

from gpuguard.detectors.driver_absent import WORDS, DriverAbsent, Settings
from gpuguard.model.findings import Finding
from gpuguard.model.ids import NODE
from gpuguard.model.readings import Row, Value
from tests.support.core import instant


def last(*looks: tuple[float, Value, Value]) -> Finding | None:
    """What the check says of the last of these looks: when, NVML's error, GPUs for the driver."""
    detector, findings = DriverAbsent(Settings()), ()
    memory = detector.start()
    for mono, error, gpus in looks:
        values = {"nvml_init_error": error, "gpus_for_driver": gpus}
        memory, findings = detector.observe(
            memory, NODE, Row(subject=NODE, at=instant(mono), source="nvml", values=values)
        )
    return findings[0] if findings else None


@pytest.mark.parametrize("error", sorted(WORDS))
def test_it_stands_after_the_hold_and_says_why(error: int) -> None:
    early, late = last((0, error, 8), (599, error, 8)), last((0, error, 8), (600, error, 8))
    assert early is not None
    assert not early.stands
    assert late is not None
    assert late.stands
    assert WORDS[error] in late.reason
    assert late.severity == "degraded"


@pytest.mark.parametrize("look", [(600, 0, 8), (600, 9, 0), (600, 18, 8)])
def test_it_does_not_where_nvml_answers_or_nothing_is_left_for_it(look: tuple[float, int, int]) -> None:
    found = last((0, 9, 8), look, (1300, *look[1:]))
    assert found is not None
    assert not found.stands


@pytest.mark.parametrize("look", [(600, None, 8), (600, 9, None)])
def test_what_is_not_known_says_nothing(look: tuple[float, Value, Value]) -> None:
    assert last((0, 9, 8), look) is None
