"""Ports of InfiniBand and RoCE adapters: values, refusals, adapters that hang or go, modules."""

import errno
import os
import threading
from pathlib import Path

import pytest

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.ids import NODE, SubjectId
from gpuguard.model.readings import Values
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.infiniband import (
    COUNTERS,
    DEVICES,
    Infiniband,
    Settings,
    build,
    parse_code,
    parse_count,
)
from tests.support.trees import put

NOW = ManualClock().now()
PORT = SubjectId("port:mlx5_0/1")


def adapter(root: Path, name: str = "mlx5_0", port: str = "1", **files: str) -> Path:
    """An adapter with one active port."""
    folder = root / DEVICES / name
    put(folder / "ports" / port, {
        "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand",
        **{f"counters/{counter}": "0" for counter in COUNTERS}, **files,
    })  # fmt: skip
    return folder


@pytest.mark.parametrize(
    ("text", "code"),
    [("4: ACTIVE", 4), ("1: DOWN", 1), ("5: LinkUp", 5), ("7: Phy Test", 7), ("ACTIVE", None), ("", None)],
)
def test_codes(text: str, code: int | None) -> None:
    assert parse_code(text) == code


def test_counts() -> None:
    assert (parse_count("65535"), parse_count("N/A (no PMA)"), parse_count("-1")) == (65535, None, None)


def test_everything_that_a_port_tells(tmp_path: Path) -> None:
    adapter(
        tmp_path, **{"counters/symbol_error": "9", "hw_counters/out_of_sequence": "4", "hw_counters/lifespan": "10"}
    )
    adapter(
        tmp_path, "mlx5_1", state="1: DOWN", phys_state="3: Disabled", rate="10 Gb/sec (4X SDR)", link_layer="Ethernet"
    )
    rows = Infiniband(Settings(), tmp_path).sweep(NOW)
    assert rows[PORT] == {
        "ib_state": 4, "ib_phys_state": 5, "ib_rate_bits_per_second": 400 * 10**9, "ib_link_layer": "InfiniBand",
        **{f"ib_{name}_total": 9 if name == "symbol_error" else 0 for name in COUNTERS}, "ib_out_of_sequence_total": 4,
    }  # fmt: skip
    down = rows[SubjectId("port:mlx5_1/1")]
    assert (down["ib_state"], down["ib_phys_state"], down["ib_link_layer"]) == (1, 3, "Ethernet")
    assert rows[NODE] == {"ib_ports": 2, "ib_ports_active": 1}


def test_virtual_functions_are_left_to_whom_they_belong(tmp_path: Path) -> None:
    adapter(tmp_path)
    (adapter(tmp_path, "mlx5_9") / "device/physfn").mkdir(parents=True)
    assert set(Infiniband(Settings(), tmp_path).sweep(NOW)) == {PORT, NODE}


def test_a_counter_that_was_refused_is_left_alone_for_an_hour(tmp_path: Path) -> None:
    refused = adapter(tmp_path) / "ports/1/counters/symbol_error"
    refused.unlink()
    refused.mkdir()  # opens and cannot be read
    clock, ports = ManualClock(), Infiniband(Settings(), tmp_path)
    assert ports.sweep(clock.now())[PORT]["ib_symbol_error_total"] is None
    refused.rmdir()
    refused.write_text("3\n")
    clock.advance(60.0)
    assert ports.sweep(clock.now())[PORT]["ib_symbol_error_total"] is None
    assert ports.sweep(clock.now())[PORT]["ib_link_downed_total"] == 0
    clock.advance(3600.0)
    assert ports.sweep(clock.now())[PORT]["ib_symbol_error_total"] == 3


def test_an_adapter_that_hangs_is_unknown_and_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter(tmp_path)
    adapter(tmp_path, "mlx5_1")
    ports = Infiniband(Settings(deadline=0.05), tmp_path)  # type: ignore[arg-type]
    ports.sweep(NOW)
    release, asked, read = threading.Event(), [], ports._read_port

    def hangs(port: str, now: object) -> Values:
        asked.append(port)
        if "mlx5_0" in port:
            release.wait(30)
        return read(port, NOW)

    monkeypatch.setattr(ports, "_read_port", hangs)
    for _ in range(2):
        rows = ports.sweep(NOW)
        assert rows[PORT] == {"ib_state": None}
        assert rows[SubjectId("port:mlx5_1/1")]["ib_state"] == 4
        assert rows[NODE] == {"ib_ports": None, "ib_ports_active": None}
    assert sum("mlx5_0" in port for port in asked) == 1
    release.set()


def test_machines_without_adapters_and_adapters_that_go(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        build(Settings(), tmp_path, ManualClock()).run(lambda batch: None, None)
    folder = adapter(tmp_path)
    ports = Infiniband(Settings(), tmp_path)
    ports.sweep(NOW)
    folder.rename(tmp_path / "gone")
    assert ports.sweep(NOW) == {PORT: {"ib_state": 0}, NODE: {"ib_ports": 0, "ib_ports_active": 0}}
    (tmp_path / "gone").rename(folder)
    rows = ports.sweep(NOW)
    assert (rows[PORT]["ib_state"], rows[NODE]) == (4, {"ib_ports": 1, "ib_ports_active": 1})


@pytest.mark.parametrize(
    ("files", "seen"),
    [
        # As mlx5 names them, by the firmware's word or by the number of the sensor.
        (
            {"temp1_label": "asic0", "temp1_input": "61000", "temp2_label": "Module0", "temp2_input": "48125",
             "temp2_crit": "80000"},
            {"optics_temperature_celsius": 48.125, "optics_temperature_limit_celsius": 80.0},
        ),
        ({"temp1_label": "sensor0", "temp1_input": "1", "temp2_label": "sensor64", "temp2_input": "50000"},
         {"optics_temperature_celsius": 50.0}),
        # As the kernel's own code for SFP modules names them.
        (
            {"temp1_label": "temperature", "temp1_input": "41000", "power1_label": "TX_power", "power1_input": "900",
             "power2_label": "RX_power", "power2_input": "512"},
            {"optics_temperature_celsius": 41.0, "optics_received_power_watts": 0.000512},
        ),
        ({"temp1_label": "asic0", "temp1_input": "61000"}, {}),
        ({"temp2_label": "Module0", "temp2_input": "x"}, {"optics_temperature_celsius": None}),
    ],
)  # fmt: skip
def test_modules_are_told_by_their_labels(tmp_path: Path, files: dict[str, str], seen: Values) -> None:
    put(adapter(tmp_path) / "device/hwmon/hwmon3", files)
    row = Infiniband(Settings(), tmp_path).sweep(NOW)[PORT]
    assert {name: value for name, value in row.items() if name.startswith("optics")} == seen


def test_of_two_ports_nothing_tells_whose_module_it_is(tmp_path: Path) -> None:
    put(adapter(tmp_path) / "device/hwmon/hwmon3", {"temp2_label": "Module0", "temp2_input": "48125"})
    adapter(tmp_path, port="2")
    rows = Infiniband(Settings(), tmp_path).sweep(NOW)
    assert len(rows) == 3
    assert not any("optics_temperature_celsius" in row for row in rows.values())


def test_settings_that_could_spin() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Settings(every=0.0)  # type: ignore[arg-type]


def test_adapters_that_cannot_be_listed_are_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter(tmp_path)
    ports = Infiniband(Settings(), tmp_path)
    ports.sweep(NOW)

    def full(folder: object) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "listdir", full)
    with pytest.raises(ReadFailed):
        ports.sweep(NOW)
