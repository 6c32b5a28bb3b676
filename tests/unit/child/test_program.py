"""A program's answer, whatever it does: what actuators/slurm relies on is tried there, on its thin Scontrol."""

import os
import time
from pathlib import Path

import pytest

from gpuguard.child.program import STUCK_LIMIT, Answer, Program, Told, Unanswered


def script(folder: Path, shell: str) -> str:
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\n{shell}\n")
    path.chmod(0o755)
    return str(path)


def test_the_environment_is_the_one_it_is_given(tmp_path: Path) -> None:
    answer = Program({"A": "b"}).run(script(tmp_path, 'echo "$A${HOME-none}"'), (), time.monotonic() + 5)
    assert answer.out == "bnone\n"


def test_the_limit_is_the_callers(tmp_path: Path) -> None:
    path = script(tmp_path, "echo 0123456789")
    assert Program({}, limit=11).run(path, (), time.monotonic() + 5).out == "0123456789\n"
    with pytest.raises(Unanswered, match="tool printed more than 10 bytes") as found:
        Program({}, limit=10).run(path, (), time.monotonic() + 5)
    assert found.value.next_in == 60.0


def test_silence_names_the_program(tmp_path: Path) -> None:
    with pytest.raises(Unanswered, match=r"^tool had no answer in time"):
        Program({}).run(script(tmp_path, "exec sleep 600"), (), time.monotonic() + 0.1)


def test_those_that_cannot_be_ended_are_finitely_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        def poll(self) -> None:
            return None

    program = Program({})
    monkeypatch.setattr(program, "_stuck", [Stuck()] * STUCK_LIMIT)
    with pytest.raises(Unanswered, match="cannot be ended"):
        program.run(script(tmp_path, "exit 0"), (), time.monotonic() + 5)


def test_a_complaint_is_one_short_printable_line() -> None:
    assert Answer(1, "out\n", "a\tb\x1b[31m\n").said == "a b?[31m out"
    assert Answer(1, "", "").said == "nothing"
    assert len(Answer(1, "x" * 900, "").said) == 160


def test_one_that_nobody_waits_for_any_more_is_ended(tmp_path: Path) -> None:
    told, tell = os.pipe()
    try:
        path = script(tmp_path, f"touch {tmp_path}/began\nexec sleep 60")
        assert Program({}).run("/bin/echo", ("x",), time.monotonic() + 5, told).out == "x\n"
        os.write(tell, b"!")
        with pytest.raises(Told, match="tool was ended"):
            Program({"PATH": "/usr/bin:/bin"}).run(path, (), time.monotonic() + 30, told)
    finally:
        os.close(told)
        os.close(tell)
