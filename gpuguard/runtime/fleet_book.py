"""Where a drain is asked for before it is written: a book that all nodes share, or the scheduler's own records.

`Shared` is a book behind a ledger, changed by compare-and-set: of two nodes that ask at once the second sees the first.
`Recorded` does without: the scheduler's list of drained nodes is the book. It cannot be changed by compare-and-set, so
a node writes, waits until the second of its write is over, and looks again: drains are in one order for everybody, by
when they began and then by name, and whoever finds itself beyond the budget steps back. It knows nothing of what was
refused, or was lifted already.
"""

import random
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec

from gpuguard.custody.budget import (
    GPUGUARD,
    Answer,
    Ask,
    Book,
    Limits,
    before,
    foregone,
    give_back,
    noted,
    of_records,
    read_book,
    weigh,
    withdraw,
    write_book,
)
from gpuguard.errors import NotUnderstood, ReadFailed, ReadRefused
from gpuguard.ports import FleetReport, Ledger, LedgerPage, Overseer

T = TypeVar("T")

# A refusal that could not be written down after so many tries is one all the same. Units: 1, then seconds
REFUSALS_TRIED: Final = 3
PAUSE: Final = 0.01
PAUSE_MOST: Final = 0.2
# Schedulers date a drain in whole seconds: after this nobody's can be dated as early as ours.
SECOND_OVER: Final = 1.1
# A drain that stands for longer is not stepped back from, whatever a later look makes of it.
FRESH: Final = 120.0


class FleetBook(Protocol):
    """Says whether a drain may be written, and hears what became of it.

    `tells` is whether it wants to hear of drains that are over or were not written.
    Raises  ReadFailed, NotUnderstood when there is no answer: nothing is granted then; ReadRefused when a person must
            do something before there can be one
    """

    tells: bool

    def enter(self, ask: Ask) -> Answer: ...

    def confirm(self, ask: Ask, *, again: bool) -> Answer | None:
        """What a look after the write says; None where there is nothing to add. `again` when it stood already."""

    def withdraw(self, key: str) -> None: ...

    def give_back(self, node: str, token: str) -> None: ...


class Shared:
    """A book that all nodes share, behind a ledger.

    Units   deadline: seconds, for all that is asked of the ledger in one step
    """

    tells = True

    def __init__(
        self, ledger: Ledger, overseer: Overseer, limits: Limits, deadline: float, version: str,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._ledger, self._overseer, self._limits = ledger, overseer, limits
        self._deadline, self._version, self._pause = deadline, version, pause

    def enter(self, ask: Ask) -> Answer:
        """The answer, which stands in the book."""
        page = self._ledger.read(self._until())
        fleet = FleetReport(target="", error="it was not asked, as the book alone seemed to decide; it is tried again")
        if foregone(self._book_of(page), ask, self._limits, page.utc) is None:
            fleet = self._overseer.read_fleet()
        answer, written = self._change(lambda book, now: weigh(book, ask, fleet, self._limits, now), _is_refusal)
        if answer.granted and not written:
            raise ReadFailed("too many nodes write in the fleet's book at once")
        return answer

    def confirm(self, ask: Ask, *, again: bool) -> Answer | None:
        """Nothing: what was granted stands in the book."""
        return None

    def withdraw(self, key: str) -> None:
        """It takes no room any more."""
        self._told(lambda book, now: (withdraw(book, key), None))

    def give_back(self, node: str, token: str) -> None:
        """The drain is over."""
        self._told(lambda book, now: (noted(give_back(book, node, token, now), self._version, now), None))

    def _told(self, change: Callable[[Book, float], tuple[Book, None]]) -> None:
        _, written = self._change(change, lambda _: False)
        if not written:
            raise ReadFailed("too many nodes write in the fleet's book at once")

    def _change(self, change: Callable[[Book, float], tuple[Book, T]], enough: Callable[[T], bool]) -> tuple[T, bool]:
        """What the change said, and whether it is the book now. `enough` says of what it need not be."""
        until = self._until()
        tries = 0
        while True:
            page = self._ledger.read(until)
            was = self._book_of(page)
            book, said = change(was, page.utc)
            if book == was or self._written(page, book, until):
                return said, True
            tries += 1
            if (enough(said) and tries >= REFUSALS_TRIED) or time.monotonic() + PAUSE_MOST >= until:
                return said, False
            # Those who met once would meet again.
            self._pause(random.uniform(0.0, min(PAUSE * 2 ** min(tries, 8), PAUSE_MOST)))

    def _book_of(self, page: LedgerPage) -> Book:
        """The book that was read.

        Raises  NotUnderstood, with what a person does then
        """
        try:
            return read_book(page.text)
        except NotUnderstood as error:
            raise NotUnderstood(
                f"{error}. Where nodes have another version of gpuguard, give all the same; otherwise, to have an "
                f"empty one, {self._ledger.anew}: what stands is seen at the scheduler",
                error.text,
            ) from error

    def _written(self, page: LedgerPage, book: Book, until: float) -> bool:
        return self._ledger.write(page, write_book(book), until)

    def _until(self) -> float:
        return time.monotonic() + self._deadline


class Recorded:
    """The scheduler's own records of drains, by their tokens.

    Its clock is compared with dates of the scheduler's only before a write; after it, all dates are the scheduler's.
    """

    tells = False

    def __init__(
        self, overseer: Overseer, limits: Limits, clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._overseer, self._limits, self._clock, self._pause = overseer, limits, clock, pause

    def enter(self, ask: Ask) -> Answer:
        """Whether there seems to be room."""
        if ask.by != GPUGUARD:
            return Answer(granted=True, why="person", text="a person is not limited")
        fleet = self._overseer.read_fleet()
        newest = max((d.since_utc for d in fleet.drains if d.since_utc is not None), default=0.0)
        return weigh(of_records(fleet), ask, fleet, self._limits, max(self._clock(), newest))[1]

    def confirm(self, ask: Ask, *, again: bool) -> Answer | None:
        """Whether there was room when the drain began, by the order that all nodes see; None where it is over, or
        stands for so long that it is no question any more."""
        if again and not self._is_fresh(ask):
            return None
        self._pause(SECOND_OVER)
        fleet = self._look()
        mine = next((d for d in fleet.drains if (d.node, d.token) == (ask.node, ask.token)), None)
        if mine is None or mine.since_utc is None:
            return None
        earlier = before(fleet, mine)
        return weigh(of_records(earlier), ask, earlier, self._limits, mine.since_utc)[1]

    def withdraw(self, key: str) -> None:
        """Nothing: what was not written is not in the records."""

    def give_back(self, node: str, token: str) -> None:
        """Nothing: what was lifted is not in the records."""

    def _is_fresh(self, ask: Ask) -> bool:
        found = [d for d in self._look().drains if (d.node, d.token) == (ask.node, ask.token)]
        return any(d.since_utc is not None and abs(self._clock() - d.since_utc) < FRESH for d in found)

    def _look(self) -> FleetReport:
        fleet = self._overseer.read_fleet()
        if fleet.error is not None:
            raise ReadFailed(fleet.error)
        return fleet


def _is_refusal(answer: Answer) -> bool:
    return not answer.granted


class OrRecords:
    """A book that all nodes share, and the scheduler's own records where that one may not be used: for want of a right,
    or of a place for it. A site that names no ledger is not to go without a budget, nor without drains."""

    def __init__(self, book: Shared, records: Recorded) -> None:
        self._book, self._records = book, records
        self.tells = book.tells
        self.why = ""

    def enter(self, ask: Ask) -> Answer:
        """The book's answer; that of the records where the book may not be used."""
        try:
            answer = self._book.enter(ask)
        except ReadRefused as no:
            self.tells, self.why = False, str(no)
            answer = self._records.enter(ask)
            return msgspec.structs.replace(answer, text=f"{answer.text} (by the scheduler's own records, as {no})")
        self.tells, self.why = True, ""
        return answer

    def confirm(self, ask: Ask, *, again: bool) -> Answer | None:
        """What a look after the write says."""
        return (self._book if self.tells else self._records).confirm(ask, again=again)

    def withdraw(self, key: str) -> None:
        """It was not written after all."""
        (self._book if self.tells else self._records).withdraw(key)

    def give_back(self, node: str, token: str) -> None:
        """It is over."""
        (self._book if self.tells else self._records).give_back(node, token)
