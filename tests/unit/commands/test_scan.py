"""`gpuguard scan`, as a person and as a script sees it."""

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuguard.cli import run
from gpuguard.commands import scan

XID = (
    b"2026-11-09T01:02:03.456789+00:00 gpu-3 kernel: [   12.345678] "
    b"NVRM: Xid (PCI:0000:c8:00): 79, pid=5, name=a\x1b[2Jb, GPU has fallen off the bus.\n"
)
KEYS = ["file", "line", "kind", "xid", "pci", "pid", "process", "fatal", "at", "boot_seconds", "detail", "raw"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_bytes(b"noise\n" + XID + b"noise\n")
    return path


def test_json_has_exactly_the_promised_keys(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", "--json", str(log)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    event = json.loads(line)
    assert list(event) == KEYS
    assert event["file"] == str(log)
    assert (event["line"], event["kind"], event["xid"], event["pci"], event["fatal"]) == (
        2,
        "xid",
        79,
        "0000:c8:00.0",
        True,
    )
    assert (event["at"], event["boot_seconds"]) == ("2026-11-09T01:02:03.456789Z", 12.345678)


def test_text_fits_80_columns_and_obeys_no_escape(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", str(log)]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "xid 79" in out
    assert out.splitlines()[-1] == "1 event in 3 lines of 1 file"


def test_nothing_found_is_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.log"
    path.write_bytes(b"")
    assert run(["scan", str(path)]) == 0
    assert capsys.readouterr().out == "no events in 0 lines of 1 file\n"


def test_gzip_is_unpacked(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "kern.log.1"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    assert run(["scan", "--json", str(packed)]) == 1
    assert json.loads(capsys.readouterr().out)["xid"] == 79


def test_half_a_gzip_tells_what_stands_before_the_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "kern.log.1.gz"
    packed.write_bytes(gzip.compress(XID + b"".join(b"%d noise\n" % n for n in range(100_000)))[:-20_000])
    assert run(["scan", "--json", str(packed)]) == 2
    told = capsys.readouterr()
    assert json.loads(told.out)["xid"] == 79
    assert "damaged" in told.err


def test_what_cannot_be_read_is_2_and_the_rest_is_read(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scan", "--json", str(tmp_path), str(tmp_path / "none"), str(log)]) == 2
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 1
    assert "is a directory; name the files in it" in told.err
    assert "no such file" in told.err


def test_order_is_the_order_of_the_input(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "a.log"
    other.write_bytes(XID * 3)
    run(["scan", "--json", str(log), str(other)])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(Path(row["file"]).name, row["line"]) for row in rows] == [
        ("kern.log", 2),
        ("a.log", 1),
        ("a.log", 2),
        ("a.log", 3),
    ]


def test_forged_lines_need_trust_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"12,1,1,-;NVRM: Xid (PCI:0000:c8:00): 79\n")
    assert run(["scan", "--json", str(path)]) == 0
    assert run(["scan", "--json", "--trust-user", str(path)]) == 1
    assert json.loads(capsys.readouterr().out)["xid"] == 79


def test_large_input_gives_the_same_as_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beyond a mebibyte another matcher takes over."""
    path = tmp_path / "large.log"
    block = b"noise of a kernel that has nothing to say\n" * 999 + XID
    path.write_bytes(block * 60)
    assert path.stat().st_size > 2 * scan.SMALL
    assert run(["scan", "--json", str(path)]) == 1
    assert [json.loads(line)["line"] for line in capsys.readouterr().out.splitlines()] == [
        1000 * n for n in range(1, 61)
    ]


def test_progress_shows_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["scan", str(log)])
    assert capsys.readouterr().err == ""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(scan, "PROGRESS_EVERY", 0.0)
    monkeypatch.setattr(sys, "stderr", shown)
    run(["scan", str(log)])
    assert f"{log}: 0 MB" in shown.getvalue()
    assert shown.getvalue().endswith("\r\x1b[K")


def test_standard_input_and_a_closed_pipe(log: Path) -> None:
    command = [sys.executable, "-m", "gpuguard.cli", "scan", "-"]
    done = subprocess.run(command, input=log.read_bytes(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"xid 79" in done.stdout


def test_usage_error_is_64(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run(["scan"])
    assert end.value.code == 64
    assert "--help" in capsys.readouterr().err
