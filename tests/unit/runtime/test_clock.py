"""The clock of this machine, of a recorded one, and the one that tests move."""

from pathlib import Path

import pytest

from gpuguard.runtime.clock import ManualClock, SystemClock, read_boot_id


def test_monotonic_never_runs_backwards_and_boot_stays() -> None:
    clock = SystemClock()
    first, second = clock.now(), clock.now()
    assert first.mono <= second.mono
    assert first.boot == second.boot
    assert first.utc is not None
    assert not first.estimated


def test_recorded_machine_has_its_own_boot(tmp_path: Path) -> None:
    folder = tmp_path / "proc/sys/kernel/random"
    folder.mkdir(parents=True)
    (folder / "boot_id").write_text("feedc0de-0000-4000-8000-000000000009\n")
    assert SystemClock(tmp_path).now().boot == "feedc0de-0000-4000-8000-000000000009"


def test_recorded_machine_without_boot_id_is_in_ours(tmp_path: Path) -> None:
    assert read_boot_id(tmp_path) is None
    assert SystemClock(tmp_path).now().boot == SystemClock().now().boot


def test_manual_clock_stands_still_until_moved() -> None:
    clock = ManualClock(mono=5.0, utc=100.0)
    assert clock.now() == clock.now()
    assert (clock.advance(2.5).mono, clock.now().utc) == (7.5, 102.5)


def test_setting_the_wall_clock_does_not_move_monotonic() -> None:
    clock = ManualClock(mono=5.0, utc=100.0)
    stepped = clock.step_utc(-50.0)
    assert (stepped.mono, stepped.utc) == (5.0, 50.0)


def test_reboot_starts_monotonic_again() -> None:
    clock = ManualClock(mono=5000.0, utc=100.0)
    after = clock.reboot("second00-boot", mono=3.0, down_for=10.0)
    assert (after.boot, after.mono, after.utc) == ("second00-boot", 3.0, 110.0)


def test_running_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="backwards"):
        ManualClock().advance(-1.0)
