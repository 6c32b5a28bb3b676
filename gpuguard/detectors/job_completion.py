"""Jobs that ended otherwise than well.

An exit code of zero proves nothing: a framework that died for want of memory was seen to end with it, and hundreds of
GPUs stood idle until the morning. So a job whose ranks use the library has proven that it is complete only when they
have said so. Any other code, or a signal, is a failure of the program, unless the scheduler itself ended the job: that
is told in its own words. Judged is only an end that was witnessed.

Reads     job_alive, or job_ended where no scheduler knows the job; job_exit_code, job_exit_signal, job_state,
          job_out_of_memory, job_restarts, job_world, job_ranks_telling, job_ranks_done and job_ranks_obeyed, of each
          job
Source    squeue(1), JOB STATE CODES; signal(7); bash(1), EXIT STATUS (128 and the signal's number)
Clears    when the job is started anew or nobody tells of it any more, a reboot, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.jobs.wording import clean, counted
from gpuguard.model.findings import Finding, Severity
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held

MOST = 2**31 - 1
# What a scheduler does to a job is no fault of its program.
STOPPED = {
    "CANCELLED": "it was cancelled by a person or a program",
    "TIMEOUT": "it came to its time limit; what it had not saved is lost",
    "DEADLINE": "it came to its deadline",
    "PREEMPTED": "another job took its place",
    "NODE_FAIL": "one of its nodes failed",
    "BOOT_FAIL": "one of its nodes did not start",
    "REVOKED": "another cluster runs it",
    "EVICTED": "its node had to make room",
    "PENDING": "it waits to be started anew",
    "REQUEUED": "it is to be started anew",
    "REQUEUE_HOLD": "it is held, and to be started anew when a person lets it go",
}
OUT_OF_MEMORY = ("OUT_OF_MEMORY", "OOMKILLED")
SIGNALS = {
    1: "SIGHUP: its terminal or its launcher went away", 2: "SIGINT: interrupted",
    4: "SIGILL: built for another processor", 6: "SIGABRT: an assertion, or NCCL's watchdog, ended it",
    7: "SIGBUS: often /dev/shm is full", 8: "SIGFPE: a division by zero",
    9: "SIGKILL: killed for want of memory, by a limit or by a person", 11: "SIGSEGV: a bad address",
    13: "SIGPIPE: what it wrote to went away", 15: "SIGTERM: it was told to end",
}  # fmt: skip
CODES = {1: "mostly an exception that nobody caught", 126: "the command cannot be run", 127: "no such command"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What of an end is suspicious, and how grave that is."""

    # From the end on: the last word of a rank may come after the scheduler's.
    settle: Seconds = Seconds(30.0)
    # Whether an end without proof makes the node WARNING, for as long as it is told of.
    warn_unproven: bool = False


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it was seen to live, and since when it is over; the most ranks that used the library, that were done,
    and that were so or saved when told to end, since it was started last or its world changed; how it ended, where
    anybody told."""

    lived: bool = False
    restarts: int | None = None
    world: int | None = None
    telling: int = 0
    done: int = 0
    obeyed: int = 0
    over: Held = Held()
    code: int | None = None
    signal: int | None = None
    state: str = ""
    starved: bool = False


class JobCompletion:
    """Reports jobs that failed, and those that did not prove that they are complete."""

    name = "job_completion"
    of: tuple[SubjectKind, ...] = ("job",)
    reads = ("job_alive", "job_ended")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        over = _is_over(row)
        if over is None:
            return memory, ()
        if not over:
            restarts = _count(row, "job_restarts")
            world = _count(row, "job_world")
            changed = any(
                now is not None and then is not None and now != then
                for now, then in ((restarts, memory.restarts), (world, memory.world))
            )
            before = Memory() if changed or memory.over.since is not None else memory
            after = msgspec.structs.replace(
                _heard(before, row), lived=True, restarts=before.restarts if restarts is None else restarts,
                world=before.world if world is None else world,
            )  # fmt: skip
            return after, self._findings(subject, row, "", "")
        if not memory.lived:
            return memory, ()
        after = _ended(_heard(memory, row), row)
        return after, self._findings(subject, row, *self._judge(after, row))

    def _judge(self, memory: Memory, row: Row) -> tuple[str, str]:
        """The code of what is to be told, and why; '' for nothing."""
        if memory.state in STOPPED:
            return "job_stopped", f"{memory.state}: {STOPPED[memory.state]}"
        if memory.starved or memory.state in OUT_OF_MEMORY:
            return "job_failed_memory", "it ended for want of memory of the host; ask for more, or load less at a time"
        if memory.code or memory.signal:
            return "job_failed", _meaning(memory.code or 0, memory.signal or 0)
        if memory.state == "FAILED":
            return "job_failed", "it failed; with which exit code is not known"
        missing = memory.telling - memory.done
        if missing > 0 and memory.obeyed >= memory.telling:
            return "job_stopped", "it was told to end, saved, and ended as it should"
        if missing <= 0 or not memory.over.lasted(self.settings.settle, row.at):
            return "", ""
        how = "with exit code 0" if memory.code == 0 else "how is not known"
        reason = f"it ended, {how}, and {missing} of {counted(memory.telling, 'rank')} here never said to be done"
        return "job_unproven", f"{reason}; see the end of its log, and whether its last checkpoint is whole"

    def _findings(self, subject: SubjectId, row: Row, code: str, reason: str) -> Sequence[Finding]:
        grave: dict[str, Severity] = {"job_unproven": "degraded" if self.settings.warn_unproven else "info"}
        return tuple(
            Finding(
                subject=subject, check=self.name, code=one, at=row.at, stands=one == code,
                severity=grave.get(one, "info"), blame="unknown" if one == "job_stopped" else "program",
                advice="watch" if grave.get(one) == "degraded" else "none", clears=("reboot", "ack"),
                reason=reason if one == code else "",
            )
            for one in ("job_failed", "job_failed_memory", "job_stopped", "job_unproven")
        )  # fmt: skip


def _is_over(row: Row) -> bool | None:
    """What the scheduler says, else what is concluded; None where neither can be told."""
    alive, ended = row.number("job_alive"), row.number("job_ended")
    if alive in (0, 1):
        return alive == 0
    return ended == 1 if ended in (0, 1) else None


def _count(row: Row, name: str) -> int | None:
    value = row.bits(name)
    return None if value is None else min(value, MOST)


def _heard(memory: Memory, row: Row) -> Memory:
    """With what its ranks said: who said that it is done has said so, also when nobody tells of it any more."""
    telling, done = _count(row, "job_ranks_telling") or 0, _count(row, "job_ranks_done") or 0
    obeyed = _count(row, "job_ranks_obeyed") or 0
    if telling <= memory.telling and done <= memory.done and obeyed <= memory.obeyed:
        return memory
    return msgspec.structs.replace(
        memory, telling=max(telling, memory.telling), done=max(done, memory.done), obeyed=max(obeyed, memory.obeyed)
    )


def _ended(memory: Memory, row: Row) -> Memory:
    """With how it ended; what was known of that stays known."""
    code, signal = _count(row, "job_exit_code"), _count(row, "job_exit_signal")
    state = (row.text("job_state") or "").upper().replace("+", " ").split()
    return msgspec.structs.replace(
        memory, over=memory.over.told(True, row.at), code=memory.code if code is None else code,
        signal=memory.signal if signal is None else signal, state=clean(state[0], 24) if state else memory.state,
        starved=memory.starved or (row.number("job_out_of_memory") or 0) >= 1,
    )  # fmt: skip


def _meaning(code: int, signal: int) -> str:
    """What the number says; a shell adds 128 to that of a signal."""
    if signal:
        told, means = f"signal {signal}", SIGNALS.get(signal, "")
    elif 128 < code < 192:
        told, means = f"exit code {code}", SIGNALS.get(code - 128, f"signal {code - 128}")
    else:
        told, means = f"exit code {code}", CODES.get(code, "")
    return f"it failed with {told}" + (f" ({means})" if means else "")


def build(settings: Settings, rules: Rules) -> JobCompletion:
    """The detector with a site's settings."""
    return JobCompletion(settings)
