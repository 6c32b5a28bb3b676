"""Not registered, refused, unwell; the worst of all words counts; no fabric is no fault."""

import pytest

from tests.support.stories import told

ONLY = "only=fabric_state"
GPU = "gpu:0000:1b:00.0"


def looked(*rows: str) -> list[str]:
    """What is told of one GPU after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep nvml/medium {GPU} {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


WELL = "fabric_state=3 fabric_status=0 fabric_health=1 fabric_health_mask=426"


@pytest.mark.parametrize("state", [1, 2])
def test_registration_has_its_time(state: int) -> None:
    row = f"fabric_state={state} fabric_status=0"
    assert looked(f"0 {row}", f"299 {row}") == []
    assert looked(f"0 {row}", f"300 {row}")[0].startswith("fabric_unregistered stands: degraded, advice watch")


def test_completed_with_an_error_is_refused() -> None:
    row = "fabric_state=3 fabric_status=999"
    assert looked(f"0 {row}", f"59 {row}") == []
    (told_of,) = looked(f"0 {row}", f"60 {row}")
    assert told_of.startswith("fabric_refused stands: critical, advice drain, remedy reset;")
    assert looked(f"0 {row}", f"60 {row}", f"120 {WELL}")[1:] == ["fabric_refused stands no longer"]


def test_refused_alone_drains_nothing() -> None:
    lines = [f"{t} sweep nvml/medium {GPU} fabric_state=3 fabric_status=999" for t in (1, 61, 121)]
    assert not any("owed" in line for line in told("0 boot A", *lines)[1])


@pytest.mark.parametrize("state", ["0", "?", "4"])
def test_without_a_fabric_nothing_is_said(state: str) -> None:
    row = f"fabric_state={state} fabric_status=999 fabric_health=2 fabric_health_mask=1"
    assert looked(f"0 {row}", f"900 {row}") == []


@pytest.mark.parametrize(("health", "mask", "words"), [
    (2, 426, "it is unhealthy"), (3, 426, "it is of limited capacity"), (1, 425, "bandwidth is degraded"),
    (1, 422, "a route is being recovered"), (1, 410, "a route is unhealthy"),
    (1, 362, "recovers from an access time-out"), (1, 0x5AA, "too few NVLinks"), ("?", 0x4AA, "no partition"),
    (2, 0, "it is unhealthy"), (2, 425, "it is unhealthy, bandwidth is degraded"),
])  # fmt: skip
def test_the_worst_of_word_and_mask_counts(health: object, mask: int, words: str) -> None:
    row = f"fabric_state=3 fabric_status=0 fabric_health={health} fabric_health_mask={mask}"
    assert looked(f"0 {row}", f"59 {row}") == []
    (told_of,) = looked(f"0 {row}", f"60 {row}")
    assert told_of.startswith("fabric_unwell stands: degraded, advice test")
    assert told_of.endswith(f"the fabric complains of it: {words}")


@pytest.mark.parametrize("mask", [426, 0, 0x1AA | 2 << 12, 0x1AA | 2 << 14, 0xFAA])
def test_a_mask_without_a_complaint_is_well(mask: int) -> None:
    row = f"fabric_state=3 fabric_status=0 fabric_health=1 fabric_health_mask={mask}"
    assert looked(f"0 {row}", f"900 {row}") == []


def test_a_driver_that_says_nothing_takes_nothing_back() -> None:
    bad, mute = (f"fabric_state=3 fabric_status=0 fabric_health={n} fabric_health_mask=0" for n in (2, 0))
    assert len(looked(f"0 {bad}", f"60 {bad}", f"120 {mute}")) == 1
    refused = "fabric_state=3 fabric_status=5"
    assert len(looked(f"0 {refused}", f"60 {refused}", "120 fabric_state=3 fabric_status=?")) == 1
