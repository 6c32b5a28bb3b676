"""A recording of a machine that is played is that machine: the reader reads the same from both."""

from pathlib import Path

import pytest

from gpuguard.model.quantities import BY_NAME
from gpuguard.model.readings import Rate, Value
from gpuguard.sources.nvml.library import NvmlError
from gpuguard.sources.nvml.noted import Noted
from gpuguard.sources.nvml.played import Machine, Player, load
from gpuguard.sources.nvml.reader import Reader, Rows
from tests.support.machines import NAMES, machine
from tests.support.nvml import FakeDevice, FakeLibrary, error

RATES: tuple[Rate, ...] = ("fast", "medium", "slow")
EVERY, PASSES = 5.0, 12


class Time:
    """Seconds that move when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def read(library: Player | Noted, root: Path, time: Time, passes: int, noted: Noted | None = None) -> list[Rows]:
    library.open()
    reader = Reader(library, root)
    told = []
    for n in range(passes):
        if n and noted is not None:
            noted.next_pass()
        rows: Rows = {}
        for rate in RATES:
            for subject, values in reader.sweep(rate).items():
                rows.setdefault(subject, {}).update(values)
        told.append(rows)
        time.now += EVERY
    return told


def same(column: str, told: Value, again: Value) -> bool:
    """Whether both are one value; of counters of bytes and of energy the last digit may differ."""
    if BY_NAME[column].kind != "counter" or BY_NAME[column].keyed:
        return told == again
    pairs = zip(told, again, strict=True) if isinstance(told, tuple) and isinstance(again, tuple) else ((told, again),)
    return all(left == pytest.approx(right, rel=1e-12, abs=1.0) for left, right in pairs)


def recorded(name: str) -> tuple[list[Rows], Machine]:
    time = Time()
    noted = Noted(Player(load(machine(name) / "nvml.json"), time), time)
    told = read(noted, machine(name), time, PASSES, noted)
    # The index of the lost GPU is known from the driver's files, not from NVML.
    lost = {4: ("GPU-ca0bc36c-05ad-43fc-8f63-41279a23bef7", "00000000:9D:00.0")}
    made = noted.recording("a test", EVERY, lost if name == "h100x8-lost" else None)
    return told, Machine(system=made["system"], devices=made["devices"], every=made["every"])


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_of_a_played_machine_plays_the_same(name: str) -> None:
    told, copy = recorded(name)
    time = Time()
    again = read(Player(copy, time), machine(name), time, PASSES)
    for first, second in zip(told, again, strict=True):
        assert first.keys() == second.keys()
        for subject, values in first.items():
            for column, value in values.items():
                assert same(column, value, second[subject][column]), (subject, column, value)


def test_counters_run_on_and_what_moves_is_a_series() -> None:
    _, copy = recorded("h100x8")
    device = copy.devices[0]
    assert device["fields"]["83"]["per_second"] == pytest.approx(637000)
    assert device["fields"]["138/4294967295"]["per_second"] == pytest.approx(18 * 10485760)
    assert device["calls"]["nvmlDeviceGetUtilizationRates"]["gpu"]["series"][:3] == [98, 99, 100]
    assert device["calls"]["nvmlDeviceGetName"] == "NVIDIA H100 80GB HBM3"
    assert len(device["gpm"]["2"]["series"]) == PASSES


def test_what_a_machine_does_not_know_is_not_in_its_recording() -> None:
    _, copy = recorded("l40sx4")
    assert "82" not in copy.devices[0]["fields"]
    assert "gpm" not in copy.devices[0]
    assert "nvmlDeviceGetMigMode" not in copy.devices[0]["calls"]


def test_calls_are_timed() -> None:
    time = Time()
    noted = Noted(Player(load(machine("a100x8") / "nvml.json"), time), time)
    read(noted, machine("a100x8"), time, 1, noted)
    assert len(noted.seconds["nvmlDeviceGetPowerUsage"]) == 8
    assert noted.current == ""


def test_what_two_gpus_answer_is_kept_by_the_place_of_the_other_in_the_recording() -> None:
    """A GPU without a handle takes a place only where somebody names it."""
    calls = {"far/2": 50, "seen/2/1": error(999), "seen/2/2": error(3)}
    one, gone, other = FakeDevice("GPU-1", calls), FakeDevice("", listing_error=15), FakeDevice("GPU-3", place=2)
    time = Time()
    noted = Noted(FakeLibrary([one, gone, other]), time)
    noted.devices()
    assert noted.pair(one, other, "far") == 50
    for index in (1, 2):
        with pytest.raises(NvmlError):
            noted.pair(one, other, "seen", index)
    assert len(noted.seconds["seen"]) == 2
    assert noted.current == ""
    named = noted.recording("a test", EVERY, {1: ("GPU-2", "00000000:43:00.0")})["devices"]
    assert [device["uuid"] for device in named] == ["GPU-1", "GPU-2", "GPU-3"]
    assert named[0]["calls"].items() >= {"far": {"2": 50}, "seen": {"2/1": {"error": 999}}}.items()
    nameless = noted.recording("a test", EVERY)["devices"]
    assert [device["uuid"] for device in nameless] == ["GPU-1", "GPU-3"]
    assert nameless[0]["calls"]["far"] == {"1": 50}
