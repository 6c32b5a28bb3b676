"""Neither silence nor chatter of the child can hold the caller, and nothing of it is left behind."""

import os
import time
from pathlib import Path

import pytest

from gpuguard.actuators.slurm.scontrol import OUTPUT_LIMIT, Scontrol
from gpuguard.child import slurm as places
from gpuguard.errors import ActionDeferred, ActionRefused


def program(folder: Path, shell: str) -> Scontrol:
    path = folder / "scontrol"
    path.write_text(f"#!/bin/sh\n{shell}\n")
    path.chmod(0o755)
    return Scontrol(str(path), "")


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def gone(pid_file: Path) -> bool:
    """Whether the process that wrote its pid there has ended, or does so at once: dying takes a moment."""
    stat = Path(f"/proc/{int(pid_file.read_text())}/stat")
    until = soon()
    while time.monotonic() < until:
        try:
            state = stat.read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        os.sched_yield()
    return False


def test_both_streams_and_the_code_come_back(tmp_path: Path) -> None:
    answer = program(tmp_path, 'echo "out $1"; echo "err $2" >&2; exit 3').run(("one", "two words"), soon())
    assert (answer.code, answer.out, answer.err) == (3, "out one\n", "err two words\n")


def test_only_what_it_needs_is_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "elsewhere")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    program(tmp_path, "env")
    out = Scontrol(str(tmp_path / "scontrol"), "/etc/x.conf").run((), soon()).out.splitlines()
    names = {line.partition("=")[0] for line in out} - {"PWD", "OLDPWD", "SHLVL", "_"}
    assert names == {"PATH", "LC_ALL", "SLURM_TIME_FORMAT", "SLURM_CONF"}
    assert "SLURM_CONF=/etc/x.conf" in out


def test_a_hang_ends_at_the_deadline_with_all_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hanging = program(tmp_path, f"sleep 600 & echo $! >{pid}; wait")
    started = time.monotonic()
    with pytest.raises(ActionDeferred, match="no answer in time"):
        hanging.run((), soon(0.15))
    assert time.monotonic() - started < 1.0
    assert gone(pid)


def test_a_child_that_keeps_the_pipe_does_not_hold_us(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    started = time.monotonic()
    answer = program(tmp_path, f"sleep 600 & echo $! >{pid}; echo done").run((), soon())
    assert (answer.code, answer.out) == (0, "done\n")
    assert time.monotonic() - started < 2.0
    assert gone(pid)


def test_one_that_closes_its_output_and_stays_is_ended(tmp_path: Path) -> None:
    with pytest.raises(ActionDeferred, match="no answer in time"):
        program(tmp_path, "exec >&- 2>&-; exec sleep 600").run((), soon(0.15))


@pytest.mark.parametrize("stream", ["", ">&2"])
def test_endless_output_is_cut(tmp_path: Path, stream: str) -> None:
    with pytest.raises(ActionDeferred, match=str(OUTPUT_LIMIT)):
        program(tmp_path, f"exec yes {stream}").run((), soon())


def test_bytes_that_are_no_text_survive(tmp_path: Path) -> None:
    assert program(tmp_path, r"printf '\377\000x'").run((), soon()).out == "\ufffd\0x"


def test_a_signal_is_a_code_of_its_own(tmp_path: Path) -> None:
    assert program(tmp_path, "kill -9 $$").run((), soon()).code == -9


def test_a_deadline_that_has_passed_starts_nothing_that_stays(tmp_path: Path) -> None:
    with pytest.raises(ActionDeferred):
        program(tmp_path, "sleep 600").run((), soon(-1.0))


def test_what_cannot_be_started_is_put_off(tmp_path: Path) -> None:
    with pytest.raises(ActionDeferred, match="could not be started"):
        Scontrol(str(tmp_path / "absent"), "").run((), soon())
    (tmp_path / "plain").write_text("no program")
    with pytest.raises(ActionDeferred, match="could not be started"):
        Scontrol(str(tmp_path / "plain"), "").run((), soon())


def test_a_machine_without_one_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(places, "PLACES", (str(tmp_path),))
    lacking = Scontrol("", "")
    with pytest.raises(ActionRefused, match="install"):
        lacking.run((), soon())
    program(tmp_path, "echo here")
    assert lacking.run((), soon()).out == "here\n", "installed later, it is found"


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    quick, hanging = program(tmp_path, "echo x"), Scontrol(str(tmp_path / "sleep"), "")
    (tmp_path / "sleep").symlink_to("/bin/sleep")
    before = len(os.listdir("/proc/self/fd"))
    quick.run((), soon())
    with pytest.raises(ActionDeferred):
        hanging.run(("600",), soon(0.05))
    assert len(os.listdir("/proc/self/fd")) == before
