"""A loop that is told to end finishes its step, saves, meets the others and goes.

A scheduler that takes a job's place sends SIGTERM and, after a grace period, SIGKILL. What is asked of a loop is to use
that time; what is reported is whether it did: 1 it would, 2 it was told, 3 it saved.

Not every rank is told at the same step, and some are not told at all. Where ranks meet in every step, one that leaves
alone leaves the others hanging: `agree` has them decide together. It is called at the end of the same step in every
rank, with whether this one was told, and answers whether any was.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol


class Teller(Protocol):
    """What is needed of the reporter."""

    def told_to_end(self) -> None:
        """It was told."""
        ...

    def stood_down(self) -> None:
        """It waits for that no longer."""
        ...

    def saved(self, step: int, holds: str | Iterable[str] | None = None) -> None:
        """A checkpoint is complete."""
        ...

    def phase(self, name: str) -> Any:  # Any: a context manager of the reporter's own
        """A phase, for as long as the block runs."""
        ...

    @property
    def obeyed(self) -> bool:
        """Whether it saved since it was told."""
        ...


class Preemption:
    """The answer of one process to being told to end. Made by `on_preempt`.

    Either the loop looks:

        guard = on_preempt()
        for n, batch in enumerate(loader, 1):
            train(batch)
            step(n)
            if guard.told:
                save(n)
                guard.saved(n)
                guard.leave()

    or `step` does it all: `on_preempt(save=save, barrier=dist.barrier)`.
    """

    def __init__(
        self,
        teller: Teller,
        *,
        save: Callable[[int], object] | None,
        barrier: Callable[[], object] | None,
        agree: Callable[[bool], bool] | None,
        every: int,
        exit_code: int,
        chain: bool,
    ) -> None:
        self._teller = teller
        self._save, self._barrier, self._agree = save, barrier, agree
        self._every = every
        self._exit_code, self._chain = exit_code, chain
        self._signalled = self._agreed = self._leaving = False
        self._before: dict[int, Any] = {}  # Any: what signal.signal returns, a handler or one of three constants

    @property
    def signals(self) -> frozenset[int]:
        """Those it waits for."""
        return frozenset(self._before)

    @property
    def told(self) -> bool:
        """Whether it is time to save and end; with `agree`, once all have agreed on it."""
        return self._signalled if self._agree is None else self._agreed

    def arm(self, signals: Iterable[int]) -> None:
        """These signals no longer kill: they are taken down, and with `chain` the handler from before is called too.

        Raises  ValueError beyond the main thread, where Python lets nobody do this
        """
        for number in signals:
            before = signal.signal(number, self._heard)
            self._before.setdefault(number, before)

    def disarm(self) -> None:
        """The signals do again what they did before, and it is reported that nobody waits for them."""
        self.restore()
        self._teller.stood_down()

    def restore(self) -> None:
        """The handlers are those from before, where nobody put others in place of ours."""
        for number, before in self._before.items():
            if signal.getsignal(number) == self._heard:
                # None was no handler of Python's, and cannot be put back by Python.
                signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before = {}

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        self._teller.told_to_end()
        before = self._before.get(number)
        # The last of these raises KeyboardInterrupt, in the middle of the step that is to be finished.
        if self._chain and callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    def saved(self, step: int, holds: str | Iterable[str] | None = None) -> None:
        """The checkpoint that was asked for is complete."""
        self._teller.saved(step, holds)

    def leave(self) -> NoReturn:
        """Meets the others, then ends this process in order.

        Raises  SystemExit
        """
        self._leaving = True
        if self._barrier is not None:
            self._barrier()
        raise SystemExit(self._exit_code)

    def at_step_end(self, step: int) -> None:
        """Called by `step`: agrees with the others and, where it was given how to save, does so and leaves.

        What `agree`, `save` or `barrier` raise is theirs and goes to the loop.

        Raises  SystemExit once it has saved
        """
        if self._leaving:
            return
        if self._agree is not None and not self._agreed and step % self._every == 0:
            self._agreed = bool(self._agree(self._signalled))
            if self._agreed:
                self._teller.told_to_end()
        if self._save is None or not self.told:
            return
        self._leaving = True  # `save` may call `step`
        with self._teller.phase("checkpoint"):
            self._save(step)
        if not self._teller.obeyed:  # where `save` said nothing itself, it returned, and that says it
            self._teller.saved(step)
        self.leave()

    def __enter__(self) -> Preemption:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disarm()
