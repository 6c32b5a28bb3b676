"""Work that takes longer than one request may: begun, asked after, and never lost with the one who asked.

It runs in a thread of its own, so each program's deadline holds and what was changed is put back whether or not
anybody asks again. There is one at a time. It ends with the process: told to stop, it ends the program it waits for.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpuguard.child.program import Answer, Program
from gpuguard.errors import ActionDeferred, ActionRefused
from gpuguard.model.actions import Outcome

# The longest answer is `dcgmi diag -j` for eight GPUs: some 60 kB at level 4.
OUTPUT_LIMIT: Final = 1024 * 1024
# Fixed, not taken over: what runs here runs as root.
ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


# The state word of an answer that waits for something that will end: whoever owes the action tells it from silence.
WAITING: Final = "waiting"


class Occupied(ActionDeferred):
    """Somebody uses the GPU, and will go."""


class Steps:
    """The programs of one errand, one after the other."""

    def __init__(self, told: int) -> None:
        self._told = told
        self._program = Program(ENVIRONMENT, limit=OUTPUT_LIMIT)

    def run(self, path: str, arguments: Sequence[str], within: float, *, whole: bool = False) -> Answer:
        """What the program answered; with `whole`, it is not ended half-way when the errand is told to stop.

        Units   within: seconds
        Raises  Unanswered when it gave no answer, Told when the errand was told to stop
        """
        return self._program.run(path, arguments, time.monotonic() + within, None if whole else self._told)

    def run_with(self, more: Mapping[str, str], path: str, within: float) -> Answer:
        """As `run`, without arguments and with more in its environment."""
        program = Program({**ENVIRONMENT, **more}, limit=OUTPUT_LIMIT)
        return program.run(path, (), time.monotonic() + within, self._told)


class Errand:
    """One remedy under way, for the action `key`."""

    def __init__(self, key: str, verb: str, what: str, work: Callable[[Steps], Outcome]) -> None:
        self.key, self.verb, self.what = key, verb, what
        self._since = time.monotonic()
        self._work = work
        self._outcome: Outcome | None = None
        self._told, self._tell = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._go, name=f"{verb} {what}", daemon=True)
        self._thread.start()

    @property
    def seconds(self) -> float:
        """How long it has been at work."""
        return time.monotonic() - self._since

    def ended(self, within: float) -> bool:
        """Whether it is over, after waiting so many seconds for that."""
        self._thread.join(within)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """It ends the program it waits for, unless that must not be ended half-way."""
        with contextlib.suppress(OSError):
            os.write(self._tell, b"!")

    def outcome(self) -> Outcome:
        """What came of it, once it has ended."""
        if self._outcome is None:
            message = f"the {self.verb} of {self.what} broke off by a mistake of ours; the log has it, please report it"
            return Outcome(result="refused", message=message)
        return self._outcome

    def close(self) -> None:
        """Its descriptors are given back; only once it has ended."""
        os.close(self._told)
        os.close(self._tell)

    def _go(self) -> None:
        try:
            self._outcome = self._work(Steps(self._told))
        except ActionDeferred as later:
            word = WAITING if isinstance(later, Occupied) else None
            self._outcome = Outcome(
                result="deferred", message=str(later), retry_after=later.retry_after, node_state=word
            )
        except ActionRefused as no:
            self._outcome = Outcome(result="refused", message=str(no))
