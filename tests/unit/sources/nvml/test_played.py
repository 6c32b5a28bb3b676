"""A recording plays: values as they were, series and counters as time goes by, errors as errors."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuguard.errors import Absent, NotUnderstood
from gpuguard.sources.nvml.library import Noticed, NvmlError
from gpuguard.sources.nvml.played import Machine, Player, load

GPU = {"uuid": "GPU-1", "pci": "00000000:1B:00.0"}


class Seconds:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def _player(clock: Seconds, device: dict[str, Any], **more: Any) -> tuple[Player, Any]:
    """A player that was opened, and its one device. Any: a recording is nested JSON."""
    recording = {"system": {"nvmlSystemGetDriverVersion": "570.1"}, "devices": [{**GPU, **device}], **more}
    player = Player(msgspec.convert(recording, Machine), clock)
    player.open()
    return player, player.devices()[0].device


def _code(player: Player, device: Any, call: str, *arguments: int) -> int:
    with pytest.raises(NvmlError) as caught:
        player.call(device, call, *arguments)
    return caught.value.code


def test_series_and_counters_move_with_the_clock() -> None:
    clock = Seconds()
    calls = {
        "nvmlDeviceGetPowerUsage": {"series": [1, 2, {"error": 999}]},
        "nvmlDeviceGetTemperatureV": {"0": {"series": [60, 61]}},
        "nvmlDeviceGetTotalEnergyConsumption": {"from": 100, "per_second": 2.5},
        "nvmlDeviceGetMemoryInfo_v2": {"used": {"series": [7, 8]}, "free": 1},
    }  # fmt: skip
    player, device = _player(clock, {"calls": calls, "gpm": {"1": {"from": 0.5, "per_second": 0.25}}}, every=5.0)
    assert [player.call(device, call) for call in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo_v2")] == [
        1, {"used": 7, "free": 1},
    ]  # fmt: skip
    clock.now += 5.0
    assert player.call(device, "nvmlDeviceGetPowerUsage") == 2
    assert player.call(device, "nvmlDeviceGetTemperatureV", 0) == 61
    assert player.call(device, "nvmlDeviceGetTotalEnergyConsumption") == 112
    assert player.call(device, "nvmlDeviceGetMemoryInfo_v2") == {"used": 8, "free": 1}
    assert player.gpm(device, (1,)) == [1.75]
    clock.now += 5.0
    assert _code(player, device, "nvmlDeviceGetPowerUsage") == 999
    clock.now += 5.0
    assert player.call(device, "nvmlDeviceGetPowerUsage") == 1


def test_what_is_not_recorded_is_not_supported() -> None:
    player, device = _player(Seconds(), {"calls": {"nvmlDeviceGetFanSpeed": {"error": 4}, "a": {"0": 1}}})
    assert _code(player, device, "nvmlDeviceGetPowerUsage") == 3
    assert _code(player, device, "nvmlDeviceGetFanSpeed") == 4
    assert _code(player, device, "nvmlDeviceGetFanSpeed", 0) == 4
    assert _code(player, device, "a", 1) == 3
    with pytest.raises(NvmlError):
        player.gpm(device, (1,))
    with pytest.raises(NvmlError):
        player.system("nvmlSystemGetNVMLVersion")
    assert player.system("nvmlSystemGetDriverVersion") == "570.1"


def test_two_gpus_answer_by_the_place_of_the_other_whoever_of_them_is_asked() -> None:
    clock = Seconds()
    two = {
        "uuid": "GPU-2", "pci": "00000000:43:00.0",
        "calls": {"far": {"error": 15}, "seen": {"0/1": {"series": [5, 6]}, "0/2": {"error": 999}, "2/1": 7}},
    }  # fmt: skip
    recording = {"system": {}, "devices": [{**GPU, "calls": {"near": {"1": 40}, "far": {"1": 50}}}, two], "every": 5.0}
    player = Player(msgspec.convert(recording, Machine), clock)
    player.open()
    one, other = (listed.device for listed in player.devices())
    assert one is not None
    assert other is not None
    assert (player.pair(one, other, "near"), player.pair(other, one, "near")) == (40, 40)
    assert (player.pair(one, other, "seen", 1), player.pair(other, one, "seen", 1)) == (5, 5)
    clock.now += 5.0
    assert player.pair(one, other, "seen", 1) == 6
    for call, arguments, code in (("seen", (2,), 999), ("seen", (3,), 3), ("far", (), 15), ("what", (), 3)):
        for device, peer in ((one, other), (other, one)):
            with pytest.raises(NvmlError) as caught:
                player.pair(device, peer, call, *arguments)
            assert caught.value.code == code


def test_fields_have_scopes_and_errors_of_their_own() -> None:
    player, device = _player(Seconds(), {"fields": {"83": 5, "138/4294967295": 6, "138/2": {"error": 15}}})
    values = player.fields(device, ((83, 0), (138, 4294967295), (138, 2), (138, 0)))
    assert values[:2] == [5, 6]
    assert [value.code for value in values[2:] if isinstance(value, NvmlError)] == [15, 3]


def test_what_all_devices_answer_is_overruled_by_one() -> None:
    everybody = {"calls": {"a": 1, "b": 1}, "fields": {"1": 1}, "gpm": {"1": 10.0, "2": 20.0}}
    player, device = _player(Seconds(), {"calls": {"b": 2}, "gpm": {"2": 30.0}}, all=everybody)
    assert (player.call(device, "a"), player.call(device, "b")) == (1, 2)
    assert player.gpm(device, (1, 2)) == [10.0, 30.0]


def test_an_address_is_that_of_the_device_even_when_it_is_lost() -> None:
    player, device = _player(Seconds(), {"calls": {"nvmlDeviceGetPciInfo_v3": {"error": 15}}})
    assert player.call(device, "nvmlDeviceGetPciInfo_v3") == {"busId": "00000000:1B:00.0"}


def test_a_handle_that_is_refused_is_listed_without_a_device() -> None:
    player, device = _player(Seconds(), {"calls": {"nvmlDeviceGetHandleByIndex_v2": {"error": 15}}})
    assert device is None
    assert player.devices()[0].error == 15


def test_mig_devices_answer_for_themselves() -> None:
    part = {"gi": 3, "ci": [0, 1], "uuid": "MIG-3", "calls": {"nvmlDeviceGetName": "x MIG 1g.10gb"}, "gpm": {"1": 4.0}}
    player, device = _player(Seconds(), {"mig": [part]})
    first, second = player.parts(device)
    assert (first.gpu_instance, first.compute_instance, second.compute_instance) == (3, 0, 1)
    assert player.call(first.device, "nvmlDeviceGetName") == "x MIG 1g.10gb"
    assert player.gpm(device, (1,), 3) == [4.0]


def test_events_come_when_they_were_recorded() -> None:
    clock = Seconds()
    events = [{"after": 30.0, "uuid": "GPU-1", "type": 8, "data": 79}, {"after": 20.0, "uuid": "GPU-1", "data": 94,
              "gpuInstanceId": 2}]  # fmt: skip
    player, _ = _player(clock, {}, events=events)
    player.hush()  # no test sleeps
    assert player.wait(1.0) is None
    clock.now += 25.0
    assert player.wait(1.0) == Noticed("GPU-1", 8, 94, 2)
    assert player.wait(5.0) == Noticed("GPU-1", 8, 79)
    assert player.wait(5.0) is None


def test_a_machine_without_a_driver_cannot_be_opened() -> None:
    recording = {"system": {"nvmlInitWithFlags": {"error": 9}}, "devices": []}
    with pytest.raises(NvmlError) as caught:
        Player(msgspec.convert(recording, Machine), Seconds()).open()
    assert caught.value.code == 9


def test_a_file_is_a_recording_or_says_why_not(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        load(tmp_path / "nvml.json")
    (tmp_path / "nvml.json").write_text("[]")
    with pytest.raises(NotUnderstood, match="no recording"):
        load(tmp_path / "nvml.json")
    (tmp_path / "nvml.json").write_text('{"system": {}, "devices": [], "every": 2.0, "origin": "here"}')
    assert load(tmp_path / "nvml.json").every == 2.0
