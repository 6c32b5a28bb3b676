"""Answers of NVML become rows in base units; absent, unknown and zero stay apart, and no GPU's trouble is another's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuguard.model.ids import PciAddress
from gpuguard.model.quantities import BY_NAME
from gpuguard.model.readings import Rate, Values, plausible
from gpuguard.sources.nvml.library import WHOLE_GPU, Library, NvmlError
from gpuguard.sources.nvml.played import Machine, Player
from gpuguard.sources.nvml.reader import Reader
from gpuguard.sources.nvml.readings import unpack_rate
from tests.support.nvml import FakeLibrary, error, library_of

A, B = "gpu:0000:1b:00.0", "gpu:0000:43:00.0"
ALL_LINKS = 0xFFFFFFFF


def _gpu(number: int, pci: str, **more: Any) -> dict[str, Any]:
    """A recorded GPU with a little of everything. Any: a recording is nested JSON."""
    calls = {
        "nvmlDeviceGetPciInfo_v3": {"pciDeviceId": 0x233010DE},
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetPowerUsage": 412500,
        "nvmlDeviceGetClockInfo": {"1": 1980, "2": 2619},
        "nvmlDeviceGetTemperatureV": {"0": 61},
        "nvmlDeviceGetUtilizationRates": {"gpu": 57, "memory": 0},
        "nvmlDeviceGetMemoryInfo_v2": {"total": 1000, "reserved": 10, "free": 90, "used": 900},
    }
    fields = {"82": 70, "83": 5000, "74": 1500000000, f"138/{ALL_LINKS}": 3, "142": 0}
    return {
        "uuid": f"GPU-{number}", "pci": pci, "gpm": {"1": 97.0, "20": 2.0, "60": 1.0},
        **more, "calls": {**calls, **more.get("calls", {})}, "fields": {**fields, **more.get("fields", {})},
    }  # fmt: skip


def _machine(*devices: Mapping[str, Any]) -> dict[str, Any]:
    system = {"nvmlSystemGetDriverVersion": "570.1", "nvmlSystemGetCudaDriverVersion_v2": 12080}
    return {"system": system, "devices": list(devices or (_gpu(1, "00000000:1B:00.0"), _gpu(2, "00000000:43:00.0")))}


def _player(recording: Mapping[str, Any]) -> Player:
    player = Player(msgspec.convert(recording, Machine), lambda: 100.0)
    player.open()
    return player


@pytest.fixture(params=["player", "fake"])
def both(request: pytest.FixtureRequest) -> Any:
    """Makes a library of a recording: what plays it, and what a test holds. Any: a function of two shapes."""
    return _player if request.param == "player" else library_of


def _rows(library: Library, rate: Rate = "fast", root: Path = Path("/nonexistent")) -> Mapping[str, Values]:
    return Reader(library, root).sweep(rate)


# --- units and the four values ---------------------------------------------------------------------------------------


def test_answers_come_in_base_units(both: Any) -> None:
    row = _rows(both(_machine()))[A]
    expected = {
        "gpu_up": 1, "nvml_error": 0, "gpu_uuid": "GPU-1", "gpu_index": 0, "power_watts": 412.5,
        "sm_clock_hertz": 1_980_000_000, "memory_clock_hertz": 2_619_000_000, "temperature_celsius": 61,
        "utilization_ratio": 0.57, "memory_copy_ratio": 0.0, "memory_used_bytes": 900, "memory_reserved_bytes": 10,
        "memory_temperature_celsius": 70, "energy_joules_total": 5.0, "power_violation_seconds_total": 1.5,
        "nvlink_tx_bytes_all_total": 3072, "remapped_rows_correctable": 0, "graphics_active_ratio": 0.97,
        "pcie_tx_bytes_per_second": 2.0 * 2**20, "nvlink_rx_bytes_per_second": 2.0**20,
    }  # fmt: skip
    assert expected.items() <= row.items()


def test_every_column_is_declared_and_of_its_kind(both: Any) -> None:
    library = both(_machine())
    reader = Reader(library, Path("/nonexistent"))
    for rate in ("fast", "medium", "slow"):
        for subject, row in reader.sweep(rate).items():
            for name, value in row.items():
                assert BY_NAME[name].of == subject.partition(":")[0]
                assert plausible(BY_NAME[name], value)


def test_the_node_row_tells_versions_and_counts(both: Any) -> None:
    node = _rows(both(_machine()))["node"]
    assert {
        "driver_version": "570.1",
        "cuda_version": "12.8",
        "gpus_visible": 2,
        "gpus_lost": 0,
    }.items() <= node.items()
    assert "nvml_version" not in node


def test_what_is_not_supported_is_absent_and_asked_once() -> None:
    library = library_of(_machine())
    reader = Reader(library, Path("/nonexistent"))
    for _ in range(5):
        row = reader.sweep("fast")[A]
    assert "performance_state" not in row
    assert library.asked.count(("GPU-1", "nvmlDeviceGetPerformanceState")) == 1
    assert reader.counts.errors == 0


def test_a_field_is_dropped_after_three_times() -> None:
    library = library_of(_machine())
    reader = Reader(library, Path("/nonexistent"))
    for _ in range(6):
        reader.sweep("fast")
    assert library.asked.count(("GPU-1", "field/230")) == 3
    assert library.asked.count(("GPU-1", "field/82")) == 6


def test_an_error_is_unknown_and_counted_and_asked_again() -> None:
    library = library_of(_machine())
    library.gpus[0].calls["nvmlDeviceGetPowerUsage"] = error(999)
    library.gpus[0].fields[82, 0] = error(999)
    reader = Reader(library, Path("/nonexistent"))
    row = reader.sweep("fast")[A]
    assert row["power_watts"] is None
    assert row["memory_temperature_celsius"] is None
    assert row["temperature_celsius"] == 61
    assert reader.counts.errors == 2
    library.gpus[0].calls["nvmlDeviceGetPowerUsage"] = 0
    assert reader.sweep("fast")[A]["power_watts"] == 0.0


@pytest.mark.parametrize(
    ("call", "answer", "column"),
    [
        ("nvmlDeviceGetTemperatureV/0", 2**63 - 6, "temperature_celsius"),
        ("nvmlDeviceGetTemperatureV/0", float("nan"), "temperature_celsius"),
        ("nvmlDeviceGetMarginTemperature", -3, "temperature_margin_celsius"),
        ("nvmlDeviceGetPerformanceState", 32, "performance_state"),
        ("nvmlDeviceGetPowerUsage", 4_000_000, "power_watts"),
        ("nvmlDeviceGetPowerUsage", "many", "power_watts"),
        ("nvmlDeviceGetUtilizationRates", {"gpu": 2**32 - 1, "memory": 1}, "utilization_ratio"),
    ],
)
def test_what_cannot_be_is_unknown_and_counted(call: str, answer: Any, column: str) -> None:
    library = library_of(_machine())
    library.gpus[0].calls[call] = answer
    reader = Reader(library, Path("/nonexistent"))
    assert reader.sweep("fast")[A][column] is None
    assert reader.counts.columns.total() == 1


@pytest.mark.parametrize("blank", [2**47, 0x7FFFFFFFFFFFFFF0 + 3])
def test_placeholders_of_a_counter_are_unknown(blank: int) -> None:
    library = library_of(_machine())
    library.gpus[0].fields[94, 0] = blank
    assert _rows(library)[A]["pcie_replay_total"] is None


def test_a_limit_of_zero_is_unknown() -> None:
    library = library_of(_machine())
    library.gpus[0].calls |= {
        "nvmlDeviceGetTemperatureThreshold/0": 0, "nvmlDeviceGetTemperatureThreshold/1": 89,
        "nvmlDeviceGetPowerManagementDefaultLimit": 0,
    }  # fmt: skip
    row = _rows(library, "slow")[A]
    assert row["shutdown_temperature_celsius"] is None
    assert row["slowdown_temperature_celsius"] == 89
    assert row["power_default_limit_watts"] is None


def test_an_older_driver_is_asked_the_older_way(both: Any) -> None:
    old = _gpu(1, "00000000:1B:00.0", calls={
        "nvmlDeviceGetTemperatureV": {"error": 13}, "nvmlDeviceGetTemperature": {"0": 55},
        "nvmlDeviceGetMemoryInfo_v2": {"error": 25}, "nvmlDeviceGetMemoryInfo": {"total": 8, "free": 6, "used": 2},
        "nvmlDeviceGetCurrentClocksThrottleReasons": 4, "nvmlDeviceGetTotalEnergyConsumption": 7000,
        "nvmlDeviceGetRemappedRows": {"corrRows": 1, "uncRows": 2, "isPending": 1, "failureOccurred": 0},
        "nvmlDeviceGetTotalEccErrors": {"0/0": 5, "1/1": 6},
    }, fields={"83": {"error": 3}, "142": {"error": 3}})  # fmt: skip
    library = both(_machine(old))
    reader = Reader(library, Path("/nonexistent"))
    for _ in range(5):  # what stands in for a field does so before and after it is dropped
        row = reader.sweep("fast")[A]
        expected = {
            "temperature_celsius": 55, "memory_used_bytes": 2, "clock_events": 4, "energy_joules_total": 7.0,
            "remapped_rows_correctable": 1, "remapped_rows_uncorrectable": 2, "row_remap_pending": 1,
            "row_remap_failure": 0,
        }  # fmt: skip
        assert expected.items() <= row.items()
        assert "memory_reserved_bytes" not in row
        medium = reader.sweep("medium")[A]
        assert (medium["ecc_corrected_volatile"], medium["ecc_uncorrected_aggregate"]) == (5, 6)


def test_gpm_that_is_not_supported_is_absent_not_zero() -> None:
    library = library_of(_machine())
    library.gpus[0].gpm = None
    reader = Reader(library, Path("/nonexistent"))
    assert "sm_active_ratio" not in reader.sweep("fast")[A]
    assert reader.sweep("fast")[B]["graphics_active_ratio"] == 0.97
    assert library.asked.count(("GPU-1", "gpm")) == 1


@pytest.mark.parametrize(("answer", "valid"), [(0, 1), (error(14), 0), (error(999), None)])
def test_the_inforom_is_valid_corrupt_or_unknown(answer: Any, valid: int | None) -> None:
    library = library_of(_machine())
    library.gpus[0].calls["nvmlDeviceValidateInforom"] = answer
    assert _rows(library, "slow")[A]["inforom_valid"] == valid
    assert "inforom_valid" not in _rows(library, "slow")[B]


def test_identity_is_text_and_blank_is_unknown() -> None:
    library = library_of(_machine())
    library.gpus[0].calls["nvmlDeviceGetSerial"] = "N/A"
    row = _rows(library, "slow")[A]
    assert (row["gpu_name"], row["gpu_pci_id"], row["gpu_serial"]) == ("NVIDIA H100 80GB HBM3", "10de:2330", None)


# --- GPUs that come and go -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [15, 16])
def test_a_lost_gpu_says_so_and_nothing_else(code: int) -> None:
    library = library_of(_machine())
    reader = Reader(library, Path("/nonexistent"))
    reader.sweep("fast")
    library.gpus[0].calls["nvmlDeviceGetPowerUsage"] = error(code)
    rows = reader.sweep("fast")
    assert rows[A] == {"gpu_up": 0, "nvml_error": code, "gpu_uuid": "GPU-1"}
    assert rows[B]["gpu_up"] == 1
    assert rows["node"]["gpus_visible"] == 1
    assert rows["node"]["gpus_lost"] == 1
    assert reader.sweep("medium").keys() == {A, B}
    library.gpus[0].calls["nvmlDeviceGetPowerUsage"] = 1000
    assert reader.sweep("fast")[A]["gpu_up"] == 1


def test_a_lost_field_batch_is_a_lost_gpu() -> None:
    library = library_of(_machine())
    library.gpus[0].fields[82, 0] = error(15)
    assert _rows(library)[A]["gpu_up"] == 0


def test_a_gpu_that_answers_nothing_but_errors_does_not_answer_and_is_not_lost() -> None:
    library = library_of(_machine())
    reader = Reader(library, Path("/nonexistent"))
    reader.sweep("fast")
    good = dict(library.gpus[0].calls), dict(library.gpus[0].fields)
    library.gpus[0].calls = {call: error(999) for call in good[0]}
    library.gpus[0].fields = {entry: error(999) for entry in good[1]}
    library.gpus[0].gpm = None
    rows = reader.sweep("fast")
    assert rows[A] == {"gpu_up": 0, "nvml_error": 999, "gpu_uuid": "GPU-1"}
    assert rows[B]["gpu_up"] == 1
    assert (rows["node"]["gpus_visible"], rows["node"]["gpus_lost"]) == (1, 0)
    library.gpus[0].fields = {**library.gpus[0].fields, (82, 0): 70}
    assert reader.sweep("fast")[A]["gpu_up"] == 1  # one answer is one


def test_a_gpu_that_is_listed_no_more_is_lost_under_its_last_address() -> None:
    library = library_of(_machine())
    reader = Reader(library, Path("/nonexistent"))
    reader.sweep("fast")
    gone = library.gpus.pop(0)
    rows = reader.sweep("fast")
    assert reader.changed
    assert rows[A] == {"gpu_up": 0, "nvml_error": 28, "gpu_uuid": "GPU-1"}
    assert rows[B]["gpu_index"] == 0  # moved up in the list
    assert (rows["node"]["gpus_visible"], rows["node"]["gpus_lost"]) == (1, 1)
    assert library.forgotten == ["GPU-2", "GPU-1"]
    library.gpus.insert(0, gone)
    rows = reader.sweep("fast")
    assert (rows[A]["gpu_up"], rows[B]["gpu_index"], rows["node"]["gpus_lost"]) == (1, 1, 0)
    reader.sweep("fast")
    assert not reader.changed


def test_a_gpu_seen_before_this_process_began_is_missed() -> None:
    reader = Reader(library_of(_machine()), Path("/nonexistent"), {"GPU-9": PciAddress("0000:99:00.0")})
    assert reader.sweep("fast")["gpu:0000:99:00.0"]["gpu_up"] == 0  # type: ignore[index]


def test_indices_that_change_places_change_no_row() -> None:
    library = library_of(_machine())
    library.gpus[1].calls["nvmlDeviceGetPowerUsage"] = 1000
    reader = Reader(library, Path("/nonexistent"))
    reader.sweep("fast")
    library.gpus.reverse()
    rows = reader.sweep("fast")
    assert reader.changed
    assert (rows[A]["power_watts"], rows[B]["power_watts"]) == (412.5, 1.0)
    assert (rows[A]["gpu_index"], rows[B]["gpu_index"]) == (1, 0)


def test_another_board_at_the_address_is_another_gpu() -> None:
    library = library_of(_machine())
    reader = Reader(library, Path("/nonexistent"))
    reader.sweep("fast")
    library.gpus[0] = library_of(_machine(_gpu(3, "00000000:1B:00.0"))).gpus[0]
    rows = reader.sweep("fast")
    assert (rows[A]["gpu_uuid"], rows["node"]["gpus_lost"]) == ("GPU-3", 0)
    assert set(reader.known) == {"GPU-2", "GPU-3"}


def test_a_gpu_lost_before_nvml_was_opened_is_found_by_the_kernel(tmp_path: Path) -> None:
    for name, driver in (("0000:1b:00.0", "nvidia"), ("0000:43:00.0", "nvidia"), ("0000:52:00.0", "vfio-pci")):
        device = tmp_path / "sys/bus/pci/devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
        (device / "driver").symlink_to(f"../../drivers/{driver}")
    library = library_of(_machine())
    library.gpus[0].listing_error = 15
    rows = _rows(library, root=tmp_path)
    assert rows[A] == {"gpu_up": 0, "nvml_error": 15}
    assert set(rows) == {A, B, "node"}
    assert rows["node"]["gpus_lost"] == 1


def test_a_held_gpu_is_not_touched_and_has_no_row() -> None:
    library = library_of(_machine())
    reader = Reader(library, Path("/nonexistent"))
    reader.sweep("fast")
    library.asked.clear()
    rows = reader.sweep("fast", held=(PciAddress("0000:1b:00.0"),))
    assert set(rows) == {B, "node"}
    assert {uuid for uuid, _ in library.asked} == {"GPU-2"}


@pytest.mark.parametrize("code", [1, 9, 18])
def test_what_ends_nvml_as_a_whole_leaves_the_sweep(code: int) -> None:
    library = library_of(_machine())
    library.gpus[0].calls["nvmlDeviceGetPowerUsage"] = error(code)
    with pytest.raises(NvmlError) as caught:
        _rows(library)
    assert caught.value.code == code


# --- NVLink and fabric -----------------------------------------------------------------------------------------------


def _links(calls: Mapping[str, Any] | None = None, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return _machine(_gpu(1, "00000000:1B:00.0", calls=dict(calls or {}), fields={"91": 2, **(fields or {})}))


def test_links_of_ampere(both: Any) -> None:
    calls = {
        "nvmlDeviceGetNvLinkState": {"0": 1, "1": 0},
        "nvmlDeviceGetNvLinkErrorCounter": {
            "0/0": 1, "0/1": 2, "0/2": 3, "0/3": 4, "1/0": 10, "1/1": 20, "1/2": 30, "1/3": 40
        },
        "nvmlDeviceGetNvLinkVersion": {"0": 4},
    }  # fmt: skip
    reader = Reader(both(_links(calls, {"138/0": 1, "138/1": 2, "139/0": 3, "139/1": 2**60})), Path("/nonexistent"))
    for _ in range(4):
        row = reader.sweep("medium")[A]
        expected = {
            "nvlink_up": (1, 0), "nvlinks_active": 1, "nvlink_replay_errors_total": 11,
            "nvlink_recovery_errors_total": 22, "nvlink_crc_errors_total": 77, "nvlink_version": 4,
            "nvlink_tx_bytes_total": (1024, 2048), "nvlink_rx_bytes_total": (3072, None),
        }  # fmt: skip
        assert expected.items() <= row.items()
    assert reader.counts.columns.total() == 4
    assert not [name for name in row if name.startswith(("nvlink5", "nvlink_effective"))]


def test_links_are_counted_where_no_field_tells(both: Any) -> None:
    recorded = _links({"nvmlDeviceGetNvLinkState": {"0": 1, "1": 1, "2": 1, "3": {"error": 2}}}, {"91": {"error": 3}})
    assert _rows(both(recorded), "medium")[A]["nvlink_up"] == (1, 1, 1)


def test_links_of_hopper_are_asked_by_field_alone() -> None:
    fields = {f"{kind}/{link}": kind for kind in (161, 162, 163) for link in (0, 1)} | {"165/0": 1, "165/1": 2}
    library = library_of(_links({}, fields))
    row = _rows(library, "medium")[A]
    expected = {
        "nvlink_up": (1, 1), "nvlink_replay_errors_total": 322, "nvlink_recovery_errors_total": 324,
        "nvlink_crc_errors_total": 326,
    }  # fmt: skip
    assert expected.items() <= row.items()
    assert not [call for _, call in library.asked if call.startswith("nvmlDeviceGetNvLink") and "Version" not in call]


def test_links_of_blackwell(both: Any) -> None:
    fields = {f"{kind}/{link}": link + 1 for kind in (202, 204, *range(206, 216), 219, 221) for link in (0, 1)}
    fields |= {"165/0": 1, "165/1": 3, "220/0": 0x50C, "220/1": 0xFFF, "222/0": 0xFFF, "222/1": 0xFFF}
    row = _rows(both(_links({}, fields)), "medium")[A]
    expected = {
        "nvlink_up": (1, 0), "nvlink_tx_bytes_total": (1, 2), "nvlink_rx_bytes_total": (1, 2),
        "nvlink5_malformed_total": 3, "nvlink5_symbol_total": 3, "nvlink_symbol_ber": 0.0,
    }  # fmt: skip
    assert expected.items() <= row.items()
    assert row["nvlink_effective_ber"] == pytest.approx(5e-12)
    assert "nvlink_crc_errors_total" not in row


def test_a_sum_that_lacks_a_link_is_unknown() -> None:
    library = library_of(_links({}, {"165/0": 1, "165/1": {"error": 999}, "161/0": 1, "161/1": {"error": 999}}))
    row = _rows(library, "medium")[A]
    assert (row["nvlink_up"], row["nvlinks_active"], row["nvlink_replay_errors_total"]) == ((1, None), None, None)


def test_a_gpu_without_nvlink_has_no_link_columns() -> None:
    row = _rows(library_of(_machine(_gpu(1, "00000000:1B:00.0", fields={"91": 0}))), "medium")[A]
    assert not [name for name in row if name.startswith("nvlink")]


@pytest.mark.parametrize(
    ("packed", "rate"), [(0xFFF, 0.0), (0x50C, 5e-12), (0x103, 1e-3), (0, 0.0)]
)  # fmt: skip
def test_a_bit_error_rate_is_unpacked(packed: int, rate: float) -> None:
    assert unpack_rate(packed) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("answer", "columns"),
    [
        ({"state": 0, "status": 0}, {}),
        ({"state": 2, "status": 0}, {"fabric_state": 2}),
        ({"state": 3, "status": 999, "healthMask": 0}, {"fabric_state": 3, "fabric_status": 999}),
        (
            {"state": 3, "status": 0, "healthMask": 426, "healthSummary": 1},
            {"fabric_state": 3, "fabric_status": 0, "fabric_health_mask": 426, "fabric_health": 1},
        ),
    ],
)
def test_the_fabric(answer: dict[str, int], columns: dict[str, int], both: Any) -> None:
    recorded = _machine(_gpu(1, "00000000:1B:00.0", calls={"nvmlDeviceGetGpuFabricInfoV": answer}))
    row = _rows(both(recorded), "medium")[A]
    assert {name: value for name, value in row.items() if name.startswith("fabric")} == columns


# --- MIG and processes -----------------------------------------------------------------------------------------------


def _cut(*parts: Mapping[str, Any]) -> dict[str, Any]:
    gpu = _gpu(1, "00000000:1B:00.0", calls={"nvmlDeviceGetMigMode": {"currentMode": 1, "pendingMode": 1}})
    del gpu["gpm"]
    gpu["fields"]["91"] = 18
    return _machine({**gpu, "mig": list(parts)})


def _part(gi: int, *ci: int, used: int = 5) -> dict[str, Any]:
    calls = {
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3 MIG 2g.20gb",
        "nvmlDeviceGetMemoryInfo_v2": {"total": 20, "reserved": 0, "free": 15, "used": used},
        "nvmlDeviceGetComputeRunningProcesses_v3": [
            {"pid": 10 + gi, "usedGpuMemory": used, "gpuInstanceId": gi, "computeInstanceId": 0}
        ],
    }  # fmt: skip
    return {"gi": gi, "ci": list(ci), "uuid": f"MIG-{gi}", "calls": calls, "gpm": {"1": 50.0, "2": 25.0}}


def test_mig_instances_have_rows_of_their_own(both: Any) -> None:
    reader = Reader(both(_cut(_part(1, 0, 1), _part(2, 0, used=7))), Path("/nonexistent"))
    fast, medium, slow = reader.sweep("fast"), reader.sweep("medium"), reader.sweep("slow")
    one = "mig:0000:1b:00.0/1"
    expected = {
        "mig_gpu_instance": 1, "mig_memory_total_bytes": 20, "mig_memory_used_bytes": 5,
        "mig_graphics_active_ratio": 0.5, "mig_sm_active_ratio": 0.25,
    }  # fmt: skip
    assert fast[one] == expected  # type: ignore[index]
    assert fast["mig:0000:1b:00.0/2"]["mig_memory_used_bytes"] == 7  # type: ignore[index]
    assert slow[one] == {  # type: ignore[index]
        "mig_gpu_instance": 1, "mig_uuid": "MIG-1", "mig_compute_instances": "0,1", "mig_profile": "2g.20gb",
    }  # fmt: skip
    assert medium["process:0000:1b:00.0/12"]["process_mig"] == 2  # type: ignore[index]
    assert (medium[A]["mig_mode"], medium[A]["process_count"]) == (1, 2)


def test_links_of_a_gpu_in_mig_mode_are_absent() -> None:
    reader = Reader(library_of(_cut(_part(1, 0))), Path("/nonexistent"))
    for rate in ("fast", "medium"):
        assert not [name for name in reader.sweep(rate)[A] if name.startswith("nvlink")]  # type: ignore[arg-type]


def test_another_layout_is_noticed_and_tried_anew() -> None:
    library = library_of(_cut(_part(1, 0), _part(2, 0)))
    reader = Reader(library, Path("/nonexistent"))
    reader.sweep("fast")
    reader.sweep("medium")
    assert not reader.changed
    library.gpus[0].parts.pop()
    rows = reader.sweep("medium")
    assert reader.changed
    assert library.forgotten == ["GPU-1"] * 2
    assert [name for name in reader.sweep("fast") if name.startswith("mig:")] == ["mig:0000:1b:00.0/1"]
    assert "process:0000:1b:00.0/12" not in rows
    library.gpus[0].calls["nvmlDeviceGetMigMode"] = {"currentMode": 0, "pendingMode": 0}
    library.gpus[0].gpm = {1: 30.0}
    reader.sweep("medium")
    row = reader.sweep("fast")[A]
    assert (row["graphics_active_ratio"], row["nvlink_tx_bytes_all_total"]) == (0.3, 3072)


def test_processes_have_names_and_memory(tmp_path: Path, both: Any) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/comm").write_text("python3\n")
    whole = {"gpuInstanceId": WHOLE_GPU, "computeInstanceId": WHOLE_GPU}
    calls = {
        "nvmlDeviceGetComputeRunningProcesses_v3": [{"pid": 7, "usedGpuMemory": 100, **whole}],
        "nvmlDeviceGetGraphicsRunningProcesses_v3": [
            {"pid": 7, "usedGpuMemory": 100, **whole}, {"pid": 8, "usedGpuMemory": 2**64 - 1, **whole}
        ],
    }  # fmt: skip
    rows = _rows(both(_machine(_gpu(1, "00000000:1B:00.0", calls=calls))), "medium", tmp_path)
    first = {"process_kind": "compute", "process_memory_bytes": 100, "process_name": "python3"}
    assert rows["process:0000:1b:00.0/7"] == first
    second = {"process_kind": "graphics", "process_memory_bytes": None, "process_name": None}
    assert rows["process:0000:1b:00.0/8"] == second
    assert rows[A]["process_count"] == 2


def test_the_number_of_processes_is_absent_where_nvml_does_not_tell() -> None:
    assert "process_count" not in _rows(library_of(_machine()), "medium")[A]


def test_a_fake_is_a_library() -> None:
    library: Library = FakeLibrary([])
    assert Reader(library, Path("/nonexistent")).sweep("fast").keys() == {"node"}


def test_two_gpus_of_one_uuid_are_both_watched(both: Any) -> None:
    one, other = _gpu(1, "00000000:1B:00.0"), _gpu(1, "00000000:43:00.0", calls={"nvmlDeviceGetPowerUsage": 1000})
    reader = Reader(both(_machine(one, other)), Path("/nonexistent"))
    for _ in range(2):
        rows = reader.sweep("fast")
        assert (rows[A]["power_watts"], rows[B]["power_watts"]) == (412.5, 1.0)
        assert (rows[A]["gpu_uuid"], rows[B]["gpu_uuid"]) == ("GPU-1", None)
        assert (rows["node"]["gpus_visible"], rows["node"]["gpus_lost"]) == (2, 0)
    assert not reader.changed
    assert set(reader.known) == {"GPU-1"}


def test_a_gpu_that_tells_anothers_uuid_or_none_takes_nobodys_place() -> None:
    library = library_of(_machine())
    reader = Reader(library, Path("/nonexistent"))
    reader.sweep("fast")
    for told in ("GPU-2", ""):
        library.gpus[0].uuid = told
        rows = reader.sweep("fast")
        assert (rows[A]["gpu_up"], rows[A]["gpu_uuid"], rows[B]["gpu_uuid"]) == (1, None, "GPU-2")
    library.gpus[0].uuid = "GPU-1"
    assert reader.sweep("fast")[A]["gpu_uuid"] == "GPU-1"
    assert reader.known == {"GPU-1": "0000:1b:00.0", "GPU-2": "0000:43:00.0"}


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_a_link_field_that_is_no_number_is_unknown_and_costs_nothing_else(odd: float) -> None:
    fields = {"165/0": 1, "165/1": odd, "220/0": odd, "220/1": 0x50C}
    row = _rows(library_of(_links({}, fields)), "medium")[A]
    assert (row["nvlink_up"], row["nvlinks_active"], row["nvlink_effective_ber"]) == ((1, None), None, None)
    row = _rows(library_of(_links({}, {"91": odd})), "medium")[A]
    assert "nvlink_up" not in row
