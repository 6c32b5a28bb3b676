"""Who has used how much: decayed for fair share, and by calendar month for the bill.

A row by account and user holds what had been used at an instant and the price of a second of all that runs, so a read
costs as much for one running job as for thousands. There is no timer: any later instant's value is a closed form,

    used(t) = used(t0) * 0.5^((t - t0)/H) + rate * H/ln 2 * (1 - 0.5^((t - t0)/H))

whose second term is the integral of a constant rate under decay. All of it is linear, so what is told late (a job that
ended a minute ago) is put right by adding its term, and gives what telling it in time would have given.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuguard.errors import ConfigInvalid, InvariantBroken
from gpuguard.scheduler import months
from gpuguard.scheduler.settings import DAY
from gpuguard.scheduler.tariff import CARD, CARD_HOUR


class Holder(NamedTuple):
    """Who is charged: a user in an account. The same user in two accounts is two holders."""

    account: str
    user: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A holder's use, as it is kept.

    Units   used: standard-card-seconds, decayed to `at`; rate: 1 / CARD of a standard card; months: the same times
            seconds, by number of the month, up to `at`
    """

    account: str
    user: str
    at: int
    used: float
    rate: int
    months: Mapping[int, int]


class MonthlyUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a holder used in a month, not decayed. `card_seconds` is in 1 / CARD of a standard-card-second, exact."""

    month: str
    account: str
    user: str
    card_seconds: int

    @property
    def hours(self) -> float:
        """Standard-card-hours."""
        return self.card_seconds / CARD_HOUR


class Ledger:
    """Use by holder.

    Units   instants are seconds on the caller's clock; `epoch` is the UTC second of its 0, by which months are found
    """

    __slots__ = ("_at", "_decay", "_index", "_months", "_own", "_rate", "_shared", "_used", "epoch", "half_life")

    def __init__(self, half_life: int = 7 * DAY, *, epoch: int = 0) -> None:
        if half_life <= 0:
            raise ConfigInvalid((f"order.half_life: {half_life} s; give a number of seconds above 0",))
        self.half_life = half_life
        self.epoch = epoch
        self._decay = math.log(2) / half_life
        self._index: dict[Holder, int] = {}
        self._at: list[int] = []
        self._used: list[float] = []
        self._rate: list[int] = []
        self._months: dict[int, dict[int, int]] = {}
        # Copies share their columns until one of them is written; of the months, only those that are written part.
        self._shared = False
        self._own: set[int] = set()

    @classmethod
    def restore(cls, rows: Iterable[Row], half_life: int, *, epoch: int = 0) -> "Ledger":
        """The ledger that gave these rows."""
        ledger = cls(half_life, epoch=epoch)
        for row in rows:
            index = ledger._enrol(Holder(row.account, row.user))
            ledger._at[index], ledger._used[index], ledger._rate[index] = row.at, row.used, row.rate
            for month, amount in row.months.items():
                ledger._bill(index, month, amount)
        return ledger

    def copy(self) -> "Ledger":
        """A ledger that goes its own way from here. Costs nothing until one of the two is written."""
        other = object.__new__(Ledger)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        self._shared = other._shared = True
        self._own, other._own = set(), set()
        return other

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, holder: object) -> bool:
        return holder in self._index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        return (self.half_life, self.epoch, self.rows()) == (other.half_life, other.epoch, other.rows())

    __hash__ = None  # type: ignore[assignment] # it is written

    @property
    def holders(self) -> tuple[Holder, ...]:
        """In the order in which they came, which is the order of `all_used`."""
        return tuple(self._index)

    def enrol(self, holder: Holder) -> None:
        """The holder is known, with no use yet."""
        if holder not in self._index:
            self._enrol(holder)

    def start(self, holder: Holder, rate: int, at: int) -> None:
        """From `at` on the holder uses `rate` more."""
        self._change(holder, rate, at)

    def stop(self, holder: Holder, rate: int, at: int) -> None:
        """From `at` on the holder uses `rate` less: the job that was started with this rate is over.

        Raises  InvariantBroken where the holder does not use as much
        """
        self._change(holder, -rate, at)

    def charge(self, holder: Holder, rate: int, begin: int, end: int) -> None:
        """What ran from `begin` to `end` counts, though it was told only afterwards."""
        if begin > end:
            raise InvariantBroken(f"a charge of {holder} ends at {end}, before its begin at {begin}; report this")
        self._change(holder, rate, begin)
        self._change(holder, -rate, end)

    def used(self, holder: Holder, now: int) -> float:
        """Standard-card-seconds, decayed to `now`, with what still runs; 0 for one who is not known.

        Shape   a `now` before the last change reads as the change's instant: what was known then is gone
        """
        index = self._index.get(holder)
        return 0.0 if index is None else self._value(index, now)

    def all_used(self, now: int) -> NDArray[np.float64]:
        """`used` of every holder, in the order of `holders`."""
        passed = np.maximum(now - np.array(self._at, dtype=np.int64), 0) / self.half_life
        rates = np.array(self._rate, dtype=np.float64) / CARD / self._decay
        used: NDArray[np.float64] = np.array(self._used, dtype=np.float64) * np.exp2(-passed)
        used -= rates * np.expm1(-math.log(2) * passed)
        return used

    def rate(self, holder: Holder) -> int:
        """The price of a second of all that the holder runs."""
        index = self._index.get(holder)
        return 0 if index is None else self._rate[index]

    def monthly(self, now: int) -> tuple[MonthlyUse, ...]:
        """Standard-card-hours by month and holder, with what still runs, in the order of month, account, user."""
        names = list(self._index)
        total: dict[tuple[int, int], int] = {}
        for month, amounts in self._months.items():
            for index, amount in amounts.items():
                total[month, index] = amount
        for index, (rate, at) in enumerate(zip(self._rate, self._at, strict=True)):
            if rate:
                for month, seconds in months.split(self.epoch + at, self.epoch + now):
                    total[month, index] = total.get((month, index), 0) + rate * seconds
        kept = sorted((month, *names[index], amount) for (month, index), amount in total.items() if amount)
        return tuple(
            MonthlyUse(month=months.name_of(month), account=account, user=user, card_seconds=amount)
            for month, account, user, amount in kept
        )

    def rows(self) -> tuple[Row, ...]:
        """All that is kept, by account and user. Two ledgers with the same rows answer alike for ever."""
        billed: dict[int, dict[int, int]] = {}
        for month in sorted(self._months):
            for index, amount in self._months[month].items():
                if amount:
                    billed.setdefault(index, {})[month] = amount
        return tuple(
            Row(account=holder.account, user=holder.user, at=self._at[index], used=self._used[index],
                rate=self._rate[index], months=billed.get(index, {}))
            for holder, index in sorted(self._index.items())
        )  # fmt: skip

    def _value(self, index: int, now: int) -> float:
        passed = max(0, now - self._at[index]) / self.half_life
        return self._used[index] * math.pow(0.5, passed) + self._ran(self._rate[index], passed)

    def _ran(self, rate: int, passed: float) -> float:
        """What a constant rate leaves after so many half-lives. 1 - 0.5^x would lose ten digits of a second's use."""
        return -(rate / CARD / self._decay) * math.expm1(-math.log(2) * passed)

    def _change(self, holder: Holder, rate: int, at: int) -> None:
        index = self._index.get(holder)
        if index is None:
            index = self._enrol(holder)
        else:
            self._part()
        known = self._at[index]
        if at >= known:
            before = self._rate[index]
            if at > known:
                self._used[index] = self._value(index, at)
                self._at[index] = at
                self._bill_time(index, before, known, at)
        else:
            late = self._ran(rate, (known - at) / self.half_life)
            self._used[index] = max(0.0, self._used[index] + late)
            self._bill_time(index, rate, at, known)
        self._rate[index] += rate
        if self._rate[index] < 0:
            raise InvariantBroken(f"{holder} stopped more than it had started, at {at}; report this with the event log")

    def _bill_time(self, index: int, rate: int, begin: int, end: int) -> None:
        if rate:
            for month, seconds in months.split(self.epoch + begin, self.epoch + end):
                self._bill(index, month, rate * seconds)

    def _bill(self, index: int, month: int, amount: int) -> None:
        if month not in self._own:
            self._part()
            self._months[month] = dict(self._months.get(month, ()))
            self._own.add(month)
        amounts = self._months[month]
        amounts[index] = amounts.get(index, 0) + amount

    def _enrol(self, holder: Holder) -> int:
        self._part()
        index = self._index[holder] = len(self._at)
        self._at.append(0)
        self._used.append(0.0)
        self._rate.append(0)
        return index

    def _part(self) -> None:
        if self._shared:
            self._index = dict(self._index)
            self._at, self._used, self._rate = list(self._at), list(self._used), list(self._rate)
            self._months = dict(self._months)
            self._shared = False
