"""Room of the state directory: known, absent, unknown while the file system hangs."""

import threading
from pathlib import Path

import pytest

from gpuguard.errors import Absent
from gpuguard.model.readings import Values, plausible
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.disk import QUANTITIES, STATE, Disk, Settings, build

NOW = ManualClock().now()


def test_room_on_a_real_file_system(tmp_path: Path) -> None:
    row = Disk(Settings(), Path("/"), tmp_path).sweep(NOW)[STATE]
    known = {quantity.name: quantity for quantity in QUANTITIES}
    assert {"disk_free_bytes", "disk_free_ratio"} <= row.keys() <= known.keys()
    assert all(value is not None and plausible(known[name], value) for name, value in row.items())


def test_what_is_not_there_is_absent(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        build(Settings(), Path("/"), ManualClock(), tmp_path / "gone").run(lambda batch: None, None)
    (tmp_path / "file").touch()
    with pytest.raises(Absent):
        Disk(Settings(path="file/folder"), tmp_path, tmp_path).sweep(NOW)


def test_a_recorded_machine_has_no_state_directory(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="recorded machine"):
        Disk(Settings(), tmp_path, tmp_path).sweep(NOW)


def test_a_file_system_that_hangs_is_unknown(tmp_path: Path) -> None:
    release, asked = threading.Event(), []

    def hangs(path: Path) -> Values:
        asked.append(path)
        release.wait(30)
        return {}

    disk = Disk(Settings(deadline=0.02, path="/srv/state"), tmp_path, tmp_path, read=hangs)  # type: ignore[arg-type]
    for _ in range(2):
        assert disk.sweep(NOW) == {STATE: {quantity.name: None for quantity in QUANTITIES}}
    assert asked == [tmp_path / "srv/state"]
    release.set()


def test_settings_that_could_spin() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Settings(deadline=0.0)  # type: ignore[arg-type]
