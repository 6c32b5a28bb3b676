"""The job's side in real processes: forked, killed, told to end, in C, and without the rest of gpuguard."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.progress import wire
from tests.support.listener import Listener
from tests.support.require import require

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs" / "heartbeats.md"


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    yield found
    found.close()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The folder alone, under another name, as a container without gpuguard has it."""
    shutil.copytree(CHECKOUT / "gpuguard" / "progress", tmp_path / "job_progress")
    return tmp_path


def _environ(listener: Listener, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "PYTHONPATH": str(CHECKOUT), wire.SOCKET_VARIABLE: listener.path, **more}


def _start(code: str, environ: dict[str, str]) -> subprocess.Popen[str]:
    """A Python process whose lines of output and input are its way to say that it is somewhere and to be let on."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code], env=environ, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def _finished(process: subprocess.Popen[str], say: str = "") -> tuple[str, str]:
    """What it printed until it ended; one that hangs is killed, with what it started."""
    try:
        return process.communicate(say, timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise


def _ended(process: subprocess.Popen[str]) -> None:
    out, err = _finished(process)
    assert (process.returncode, err) == (0, ""), out


def test_it_imports_nothing_but_the_standard_library_and_itself(copied: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import job_progress, json;"
        "import job_progress.hooks.pytorch; job_progress.step(1);"
        "print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(copied)], capture_output=True, text=True, check=True
    )
    strange = set(json.loads(done.stdout)) - sys.stdlib_module_names - {"job_progress"}
    assert strange <= {"__main__", "__mp_main__"}
    code = "import gpuguard.progress, sys; print(sorted(n for n in sys.modules if n.startswith('gpuguard')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert {name.split(".")[1] for name in re.findall(r"'(gpuguard\.[^']*)'", done.stdout)} == {"progress"}


@pytest.mark.parametrize("name", ["python3", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13"])
def test_it_runs_with_the_pythons_that_jobs_have(name: str, copied: Path, listener: Listener) -> None:
    """Those that are there; a job's Python is not the agent's."""
    program = shutil.which(name)
    if program is None or subprocess.run([program, "-c", "import ssl"], capture_output=True, check=False).returncode:
        program = sys.executable
    code = "import job_progress as p\nwith p.phase('checkpoint'): p.saved(3)\np.step(4, loss=0.5)\np.done()"
    subprocess.run([program, "-W", "error", "-c", code], cwd=copied, env=_environ(listener, PYTHONPATH=""), check=True)
    assert listener.all()[-1].page().step == 4


def test_a_killed_process_leaves_its_last_word(listener: Listener) -> None:
    process = _start(
        "from gpuguard import progress as p\nfor n in range(1000): p.step(n)\nprint('there', flush=True); input()",
        _environ(listener, RANK="1"),
    )
    assert process.stdout is not None
    process.stdout.readline()
    first = listener.expect()
    process.kill()
    _finished(process)
    assert (first.pid, first.message["pid"]) == (process.pid, process.pid)
    assert (first.page().step, first.page().done) == (999, False)
    assert listener.take() is None


def test_an_end_without_a_word_is_not_taken_for_the_end_of_the_work(listener: Listener) -> None:
    _ended(_start("from gpuguard import progress as p; p.step(1)", _environ(listener)))
    (only,) = listener.all()
    assert only.page().done is False


def test_a_forked_loader_is_silent_and_does_not_touch_the_page(listener: Listener) -> None:
    code = """
import os
from gpuguard import progress as p
p.step(10)
if os.fork() == 0:
    for n in range(500, 600): p.step(n, loss=1.0)
    with p.phase("evaluation"): p.alive()
    p.saved(500); p.done(); p.on_preempt()
    names = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    held = [os.readlink(name) for name in names if os.path.lexists(name)]
    with open("/proc/self/maps") as file: held.append(file.read())
    os._exit(any("gpuguard-progress" in text for text in held))
code = os.waitstatus_to_exitcode(os.wait()[1])
p.step(11)
raise SystemExit(code)
"""
    _ended(_start(code, _environ(listener)))
    (only,) = listener.all()
    page = only.page()
    assert (page.step, page.phase, page.loss, page.saved, page.done, page.preempt) == (11, "step", None, None, False, 0)


def test_forked_ranks_report_once_they_say_which_they_are(listener: Listener) -> None:
    code = """
import os
from gpuguard import progress as p
p.alive()
for rank in range(2):
    if os.fork() == 0:
        p.init(rank=rank, world=2)
        p.step(100 + rank)
        os._exit(0)
for _ in range(2): os.wait()
"""
    process = _start(code, _environ(listener, GPUGUARD_JOB="two"))
    _ended(process)
    told = listener.all()
    ranks = {received.message["rank"]: received for received in told if received.message.get("world") == 2}
    assert {rank: received.page().step for rank, received in ranks.items()} == {0: 100, 1: 101}
    assert len({process.pid, ranks[0].pid, ranks[1].pid}) == 3


def test_a_process_forked_before_the_first_word_speaks_for_itself(listener: Listener) -> None:
    code = """
import os, time
from gpuguard import progress as p
if os.fork() == 0:
    began = time.monotonic()
    p.on_preempt()
    os._exit(p.this_process.heard is not True or p.this_process._at < began - 1)
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    process = _start(code, _environ(listener))
    _ended(process)
    (only,) = listener.all()
    assert only.pid != process.pid


def test_what_is_executed_in_the_same_process_goes_on_above(listener: Listener) -> None:
    code = """
import os, sys
from gpuguard import progress as p
p.step(1)
os.execv(sys.executable, [sys.executable, "-c", "from gpuguard import progress as p; p.step(2)"])
"""
    _ended(_start(code, _environ(listener)))
    first, second = listener.all()
    assert first.pid == second.pid
    assert second.message["n"] > first.page().n  # type: ignore[operator]  # decode holds it to be a number
    assert (first.page().step, second.page().step) == (1, 2)


def test_two_ranks_are_told_to_end_and_leave_at_the_same_step(listener: Listener, tmp_path: Path) -> None:
    """Only one of them is sent the signal; they meet by pipes in every step, so one that left alone would hang."""
    code = """
import os, signal, sys
from gpuguard import progress as p
there, back = os.pipe(), os.pipe()
rank = 0 if os.fork() else 1
read, write = (back[0], there[1]) if rank == 0 else (there[0], back[1])
p.init(rank=rank, world=2)

def meet(told=False):
    os.write(write, b"1" if told else b"0")
    return os.read(read, 1) == b"1" or told

def save(step):
    open(os.path.join(sys.argv[1], str(rank)), "w").write(str(step))

p.on_preempt(save=save, barrier=meet, agree=meet)
for n in range(1, 1000):
    if n == 5 and rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    try:
        p.step(n)
    finally:
        if rank == 0 and n == 5:
            os.wait()
"""
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=_environ(listener), capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["5", "5"]
    last = {received.message["rank"]: received for received in listener.all()}
    assert {rank: (received.page().preempt, received.page().saved) for rank, received in last.items()} == {
        0: (3, 5), 1: (3, 5),
    }  # fmt: skip


def test_sigterm_from_outside_lets_the_step_finish(listener: Listener) -> None:
    code = """
from gpuguard import progress as p
p.on_preempt(save=lambda step: print("saved", step, flush=True), exit_code=3)
p.step(1)
print("in step 2", flush=True)
input()
p.step(2)
print("never", flush=True)
"""
    process = _start(code, _environ(listener))
    assert process.stdout is not None
    assert process.stdout.readline() == "in step 2\n"
    process.send_signal(signal.SIGTERM)
    out, err = _finished(process, "go on\n")
    assert (process.returncode, out, err) == (3, "saved 2\n", "")
    assert [received.message.get("preempt", 0) for received in listener.all()][-2:] == [2, 3]


def test_a_process_that_is_ended_while_it_is_forked_ends(listener: Listener) -> None:
    """Sent before its own handlers are back, the signal must not be lost."""
    code = """
import os, signal
from gpuguard import progress as p
p.on_preempt()
for _ in range(200):
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(1)
    os.kill(child, signal.SIGTERM)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGTERM:
        raise SystemExit("it did not end by the signal")
guard = p.on_preempt()
os.kill(os.getpid(), signal.SIGTERM)
raise SystemExit(0 if guard.told else "we hear nothing any more")
"""
    _ended(_start(code, _environ(listener)))


def test_a_pool_can_still_end_its_processes(listener: Listener) -> None:
    """They inherit the handler; one that kept it would not go, and the pool would wait for ever."""
    code = """
import multiprocessing
from gpuguard import progress as p
p.on_preempt()
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.map(abs, range(4))
pool.join()
p.done()
"""
    process = _start(code, _environ(listener))
    _finished(process)
    assert process.returncode == 0
    assert listener.all()[-1].message["done"] is True


def test_threads_do_no_harm(listener: Listener) -> None:
    code = """
import sys, threading
from gpuguard import progress as p
sys.setswitchinterval(1e-6)
def work():
    for n in range(2000):
        p.step(n)
        with p.phase("evaluation"): p.saved(n)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
p.step(5000)
p.done()
"""
    _ended(_start(code, _environ(listener)))
    last = listener.all()[-1]
    assert (last.page().step, last.page().phase, last.page().done) == (5000, "step", True)


def test_the_sender_in_c_that_the_docs_show(listener: Listener, tmp_path: Path) -> None:
    require("gcc", shutil.which("gcc") is not None, "apt-get install gcc libc6-dev")
    (source,) = re.findall(r"```c\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (tmp_path / "beat.c").write_text(source)
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", str(tmp_path / "beat"), str(tmp_path / "beat.c")]
    subprocess.run(command, check=True)
    environ = _environ(listener, RANK="2", WORLD_SIZE="4", SLURM_JOB_ID="8123")
    process = subprocess.run([tmp_path / "beat"], env=environ, check=True, timeout=60)
    assert process.returncode == 0
    told = listener.all()
    assert {received.message["rank"] for received in told} == {2}
    numbers = [int(str(received.message["n"])) for received in told]
    assert numbers == sorted(set(numbers))
    assert told[0].message["phase"] == "step"
    assert told[-1].message["done"] is True
    # And with nobody there it goes on as well.
    listener.fall_silent()
    subprocess.run([tmp_path / "beat"], env=environ, check=True, timeout=60)
    listener.listen()


def test_the_lines_for_other_languages_that_the_docs_show() -> None:
    messages = re.findall(r"^\{\"v\".*\}$", PAGE.read_text(), flags=re.MULTILINE)
    assert messages
    for message in messages:
        assert wire.decode(message.encode())["v"] == wire.VERSION


def test_the_variables_that_the_docs_name_are_read() -> None:
    text = PAGE.read_text()
    place = (CHECKOUT / "gpuguard" / "progress" / "place.py").read_text()
    for name in ("GPUGUARD_JOB", "GPUGUARD_RANK", "GPUGUARD_WORLD"):
        assert f"`{name}`" in text
        assert name in place
    assert f"`{wire.SOCKET_VARIABLE}`" in text
    assert wire.SOCKET in text
