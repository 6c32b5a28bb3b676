"""What a Python process is doing, line by line, asked of py-spy while the process runs on.

Reads   the output of `py-spy dump --pid PID --nonblocking`, at most OUTPUT bytes of it
Source  py-spy 0.4; `--nonblocking` does not stop the process that is looked at, so that a look harms nobody; a line of
        a stack may then be missing or wrong

Optional: py-spy is no part of gpuguard. It has a deadline, and is left behind where even SIGKILL does not end it at
once: it reads the memory of a process that may hang in a driver.
"""

import os
import select
import shutil
import signal
import sys
import time

from gpuguard.errors import Absent, ReadFailed

PROGRAM = "py-spy"
OUTPUT = 256 * 1024  # bytes; a process with 200 threads makes some 100 KB
END_WITHIN = 0.5  # seconds for the kernel to end it, once it was told to
LOOK_AGAIN = 0.02  # seconds between two looks whether it ended
_NOT_ALLOWED = ("permission denied", "operation not permitted", "ptrace")


def found(program: str = PROGRAM) -> str | None:
    """Where it is: in PATH, else beside the interpreter that runs gpuguard; None where it is not installed."""
    return shutil.which(program) or shutil.which(program, path=os.path.dirname(sys.executable))


def stacks(pid: int, within: float, *, program: str = PROGRAM) -> str:
    """The stacks of all threads of the process, as py-spy prints them; cut after OUTPUT bytes.

    Units   within: seconds, after which it is ended
    Raises  Absent where py-spy is not installed; ReadFailed where it may not look, failed, or took too long
    """
    path = found(program)
    if path is None:
        raise Absent(f"{program} is not installed; `pip install py-spy`, and stacks can be shown")
    text, code = _run((path, "dump", "--pid", str(pid), "--nonblocking"), within)
    words = "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
    if code == 0:
        return words
    last = next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "it said nothing")[:160]
    if any(hint in words.lower() for hint in _NOT_ALLOWED):
        raise ReadFailed(f"{program} may not look at process {pid}: {last}; run this as root or as the process' user")
    raise ReadFailed(f"{program} could not look at process {pid}: {last}; is it a Python process, and does it live?")


def _run(arguments: tuple[str, ...], within: float) -> tuple[str, int]:
    """What the program printed on both of its outputs, and its exit code.

    Raises  ReadFailed when it cannot be started, printed too much, or did not end in time
    """
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        # Not by subprocess, which complains of a process that it knows to be left behind.
        pid = os.posix_spawn(
            arguments[0], arguments, dict(os.environ),
            file_actions=(
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, theirs, 1), (os.POSIX_SPAWN_DUP2, theirs, 2),
            ),
            setsid=True, setsigmask=(), setsigdef=(signal.SIGPIPE,),
        )  # fmt: skip
    except OSError as error:
        os.close(ours)
        raise ReadFailed(f"{arguments[0]} cannot be started: {error.strerror}") from error
    finally:
        os.close(theirs)
    ends = time.monotonic() + within
    try:
        text, whole = _output(ours, ends)
        code = _ended(pid, ends) if whole else None
    finally:
        os.close(ours)
    if code is None:
        os.killpg(pid, signal.SIGKILL)  # with whatever it started
        _ended(pid, time.monotonic() + END_WITHIN)
        if len(text) >= OUTPUT:
            raise ReadFailed(f"{arguments[0]} printed more than {OUTPUT} bytes; it was ended")
        raise ReadFailed(f"{arguments[0]} did not end within {within:g} s; it was ended, or left behind")
    return text.decode("utf-8", "replace"), code


def _output(ours: int, ends: float) -> tuple[bytes, bool]:
    """What came until it closed its output, the time was up, or it was too much; and whether that is all of it."""
    text = bytearray()
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    while len(text) < OUTPUT:
        left = ends - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return bytes(text), False
        more = os.read(ours, OUTPUT - len(text))
        if not more:
            return bytes(text), True
        text += more
    return bytes(text), False


def _ended(pid: int, ends: float) -> int | None:
    """Its exit code once it ended and was reaped; None where it did not in time."""
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= ends:
            return None
        time.sleep(LOOK_AGAIN)
