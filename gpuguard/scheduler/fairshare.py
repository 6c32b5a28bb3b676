"""Fair share as the core keeps it: the ledger of use and the tree of accounts, and a sentence for who asks why.

Both grow with what happens and are copied with the state; neither asks the time.
"""

from collections.abc import Mapping

from gpuguard.scheduler.fairtree import FairTree, Standing, check_shares
from gpuguard.scheduler.settings import DAY, HOUR, Settings
from gpuguard.scheduler.tariff import Tariff
from gpuguard.scheduler.usage import Holder, Ledger, MonthlyUse


class FairShare:
    """Use and order of all holders.

    Units   instants are seconds on the caller's clock; rates are what `tariff.price` says
    """

    __slots__ = ("_tree", "ledger", "shares", "tariff")

    def __init__(self, ledger: Ledger, tariff: Tariff, shares: Mapping[str, float]) -> None:
        check_shares(shares)
        self.ledger = ledger
        self.tariff = tariff
        self.shares = shares
        self._tree = FairTree((), {})

    @classmethod
    def of(cls, settings: Settings, *, epoch: int = 0) -> "FairShare":
        """An empty one, as the site wants it. `epoch`: the UTC second of the clock's 0."""
        return cls(Ledger(settings.order.half_life, epoch=epoch), Tariff.of(settings), settings.shares)

    def copy(self) -> "FairShare":
        """One that goes its own way from here, at no cost until one of the two is written."""
        other = object.__new__(FairShare)
        other.ledger = self.ledger.copy()
        other.tariff, other.shares, other._tree = self.tariff, self.shares, self._tree
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FairShare):
            return NotImplemented
        return (self.tariff, self.shares, self.ledger) == (other.tariff, other.shares, other.ledger)

    __hash__ = None  # type: ignore[assignment] # it is written

    def enrol(self, holder: Holder) -> None:
        """The holder is counted among the users, before anything of his has run."""
        self.ledger.enrol(holder)

    def start(self, holder: Holder, rate: int, at: int) -> None:
        """A job of this price a second began at `at`."""
        self.ledger.start(holder, rate, at)

    def stop(self, holder: Holder, rate: int, at: int) -> None:
        """A job of this price a second ended at `at`."""
        self.ledger.stop(holder, rate, at)

    def standing(self, now: int) -> Standing:
        """The order at `now`. Valid until then or longer: whoever calls decides how old it may be."""
        # Holders are only ever added, so as many as the tree has are those that it has.
        if self._tree.size != len(self.ledger):
            self._tree = FairTree(self.ledger.holders, self.shares)
        return self._tree.standing(self.ledger.all_used(now))

    def factors(self, now: int) -> Mapping[Holder, float]:
        """1.0 for who is served first, down to 1 / users."""
        return self.standing(now).factors

    def monthly(self, now: int) -> tuple[MonthlyUse, ...]:
        """Standard-card-hours by month and holder, not decayed."""
        return self.ledger.monthly(now)

    def explain(self, standing: Standing, holder: Holder, other: Holder | None = None) -> str:
        """Why a holder stands where it stands against another, or against the next that is served before it."""
        for asked in (holder, other):
            if asked is not None and asked not in standing.factors:
                return f"{_named(asked)} has not submitted anything yet, so there is nothing to compare."
        other = standing.ahead_of(holder) if other is None else other
        if other is None:
            return f"Nobody is served before {_named(holder)}: {_hours(standing, holder)} {self._window()}."
        if holder == other:
            return f"{_named(holder)} used {_hours(standing, holder)} {self._window()}."
        mine, theirs = standing.factors[holder], standing.factors[other]
        verb = "behind" if mine < theirs else "ahead of" if mine > theirs else "level with"
        use = (
            f"{holder.user} used {_hours(standing, holder)} and {other.user} {_hours(standing, other)} {self._window()}"
        )
        return f"{_named(holder)} stands {verb} {_named(other)}: {_reason(standing, holder, other, verb)}; {use}."

    def _window(self) -> str:
        span = self.ledger.half_life
        length = f"{span // DAY} d" if span % DAY == 0 else f"{span / HOUR:.4g} h"
        return f"in the decayed window (half-life {length})"


def _reason(standing: Standing, holder: Holder, other: Holder, verb: str) -> str:
    fork = standing.fork(holder, other)
    if fork is None:
        if verb == "level with":
            return "their shares and use are in the same proportion at every level"
        return "a user and an account are equal where they part, and only the account's first shares the user's rank"
    tree = standing.tree
    level = int((tree.paths[standing.row(holder)] == fork[0]).argmax()) + 1
    return f"at level {level}, " + " and ".join(
        f"{tree.names[node]} has LF {fairness} "
        f"({tree.portions[node]:.1%} of the shares, {standing.parts[node]:.1%} of the use)"
        for node, fairness in zip(fork, _fairness(standing, fork), strict=True)
    )


def _fairness(standing: Standing, fork: tuple[int, int]) -> tuple[str, str]:
    one, other = (standing.fairness(node) for node in fork)
    for digits in range(3, 18):
        words = (_word(one, digits), _word(other, digits))
        if words[0] != words[1]:  # two that differ shall not read alike
            break
    return words


def _word(value: float, digits: int) -> str:
    return "infinite" if value == float("inf") else f"{value:.{digits}g}"


def _named(holder: Holder) -> str:
    return f"{holder.user} ({holder.account})"


def _hours(standing: Standing, holder: Holder) -> str:
    return f"{standing.used[standing.row(holder)] / HOUR:.1f} standard-card-hours"
