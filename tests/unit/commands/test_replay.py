"""The clock of a log, and what replay makes of files that are odd."""

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from gpuguard import cli
from gpuguard.commands.replay import LogClock
from gpuguard.ports import Record

LOST = "NVRM: Xid (PCI:0000:0f:00): 79, pid=12, name=lmp, GPU has fallen off the bus."
PROGRAM = "NVRM: Xid (PCI:0000:0f:00): 43, pid=12, name=lmp, channel 0x00000010"


def record(stamp: float | None = None, utc: float | None = None) -> Record:
    return Record(name="plain", text="", boot_seconds=stamp, utc=utc)


def moments(*records: Record) -> list[tuple[str, float]]:
    clock = LogClock()
    return [(at.boot, round(at.mono, 3)) for at, _ in map(clock.read, records)]


def test_stamps_since_boot_are_the_time() -> None:
    assert moments(record(5.0), record(9.5)) == [("log", 5.0), ("log", 9.5)]


def test_dates_are_the_time_where_there_is_nothing_else() -> None:
    first, second = moments(record(utc=1_700_000_000.0), record(utc=1_700_000_060.0))
    assert second[1] - first[1] == 60.0


def test_a_line_without_a_time_has_that_of_the_line_before() -> None:
    assert moments(record(5.0), record(), record(6.0)) == [("log", 5.0), ("log", 5.0), ("log", 6.0)]


def test_the_first_line_may_have_no_time() -> None:
    assert moments(record(), record(7.0)) == [("log", 0.0), ("log", 7.0)]


def test_both_stamps_lie_on_one_line_of_seconds() -> None:
    told = moments(record(100.0, utc=1_700_000_000.0), record(utc=1_700_000_030.0), record(140.0))
    assert told == [("log", 100.0), ("log", 130.0), ("log", 140.0)]


def test_dates_first_and_stamps_later_lie_on_one_line_of_seconds() -> None:
    told = moments(record(utc=1_700_000_000.0), record(50.0, utc=1_700_000_010.0), record(70.0))
    assert [round(mono - told[0][1], 3) for _, mono in told] == [0.0, 10.0, 30.0]


def test_a_stamp_that_falls_back_is_a_reboot() -> None:
    assert moments(record(90_000.0), record(12.0)) == [("log", 90_000.0), ("log-2", 12.0)]


def test_lines_of_other_cpus_a_little_out_of_order_are_none() -> None:
    assert [boot for boot, _ in moments(record(100.0), record(99.9), record(100.1))] == ["log"] * 3


def test_an_older_part_given_later_is_no_reboot() -> None:
    told = moments(record(90_000.0, utc=1_700_000_000.0), record(12.0, utc=1_699_910_012.0))
    assert [boot for boot, _ in told] == ["log", "log"]


def test_a_reboot_with_dates_knows_how_long_the_machine_was_down() -> None:
    clock = LogClock()
    before, _ = clock.read(record(90_000.0, utc=1_700_000_000.0))
    after, rebooted = clock.read(record(12.0, utc=1_700_000_300.0))
    assert rebooted
    assert before.utc is not None
    assert after.utc is not None
    assert after.utc - before.utc == 300.0


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_drain_is_worth_attention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "kern.log"
    log.write_text(f"[   10.000000] {LOST}\n")
    assert cli.run(["replay", "--json", str(log)]) == 1
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["subject"], row["finding"], row["action"], row["state"]) == (
        "gpu:0000:0f:00.0", "xid79", "drain", "unfit",
    )  # fmt: skip
    assert row["because"] == [{"file": str(log), "line": 1}]
    assert row["boot_seconds"] == 10.0
    assert row["at"] is None


def test_a_programs_fault_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "kern.log"
    log.write_text(f"[   10.000000] {PROGRAM}\n")
    assert cli.run(["replay", str(log)]) == 0
    assert "nothing is wrong" in capsys.readouterr().out


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "kern.log"
    log.write_text(f"[   10.000000] {LOST}\n[   11.000000] {PROGRAM}\n")
    outputs = []
    for _ in range(2):
        cli.run(["replay", "--json", str(log)])
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_gzip_and_standard_input_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "kern.log.1.gz"
    packed.write_bytes(gzip.compress(f"[   10.000000] {LOST}\n".encode()))
    assert cli.run(["replay", str(packed)]) == 1
    plain = tmp_path / "plain"
    plain.write_text(f"[   10.000000] {LOST}\n")
    with plain.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        assert cli.run(["replay", "--json", "-"]) == 1
    assert '"file":"-"' in capsys.readouterr().out


def test_a_path_that_cannot_be_read_is_told_and_the_others_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "kern.log"
    log.write_text(f"[   10.000000] {LOST}\n")
    assert cli.run(["replay", str(tmp_path / "none"), str(tmp_path), str(log)]) == 2
    captured = capsys.readouterr()
    assert "no such file" in captured.err
    assert "is a directory" in captured.err
    assert "DRAIN" in captured.out


def dated(folder: Path, name: str, day: int) -> str:
    log = folder / name
    log.write_text(f"2026-03-{day:02d}T10:00:00.000000+00:00 node7 kernel: {PROGRAM}\n" * 2)
    return str(log)


def test_files_in_the_wrong_order_are_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    oldest, middle, newest = (dated(tmp_path, f"kern.log.{3 - day}", day) for day in (1, 2, 3))
    assert cli.run(["replay", newest, middle, oldest]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.count("name the files oldest first") for line in told] == [1, 1]
    assert f"{middle} begins at 2026-03-02T10:00:00Z, before {newest} ended at 2026-03-03T10:00:00Z" in told[0]
    assert cli.run(["replay", oldest, middle, newest]) == 0
    assert capsys.readouterr().err == ""


def test_what_a_process_wrote_is_believed_only_when_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "ring"
    log.write_text(f"12,100,5000000,-;{LOST}\n")
    assert cli.run(["replay", str(log)]) == 0
    assert cli.run(["replay", "--trust-user", str(log)]) == 1
    assert "DRAIN" in capsys.readouterr().out


def test_quiet_and_probation_end_on_the_logs_own_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "kern.log"
    unknown = "NVRM: Xid (PCI:0000:0f:00): 231, pid=12, name=lmp, something new"
    log.write_text(f"[   10.000000] {unknown}\n[ 9000.000000] {PROGRAM}\n")
    cli.run(["replay", "--json", str(log)])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["finding"], row["state"]) for row in rows] == [
        ("xid231", "watched"), ("xid231", "healthy"), ("xid43", "healthy"),
    ]  # fmt: skip
    assert 3610.0 <= rows[1]["boot_seconds"] < 3611.0


def test_nothing_a_log_says_reaches_the_terminal_as_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "kern.log"
    log.write_text("[   10.000000] INFO: task nvidia\x1b[2J\x07:77 blocked for more than 120 seconds.\n" * 2)
    cli.run(["replay", str(log)])
    assert "\x1b" not in capsys.readouterr().out


def test_a_site_configuration_counts_when_it_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, config = tmp_path / "kern.log", tmp_path / "config.toml"
    log.write_text(f"[   10.000000] {PROGRAM}\n")
    config.write_text('[policy]\nname = "strict"\n')
    assert cli.run(["replay", "--config", str(config), str(log)]) == 1
    assert "DRAIN" in capsys.readouterr().out
