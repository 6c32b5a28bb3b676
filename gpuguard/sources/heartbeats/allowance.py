"""How much each one may say: what goes beyond is not listened to."""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Allowance(Generic[K]):
    """So many a second for each key, and as many as come in one go as `burst` says. Units: seconds."""

    def __init__(self, rate: float, burst: float, *, keys: int = 4096) -> None:
        """Everyone begins with a whole burst."""
        self._rate, self._burst, self._keys = rate, burst, keys
        self._left: dict[K, tuple[float, float]] = {}

    def take(self, key: K, wanted: int, now: float) -> int:
        """How many more of this key are allowed, up to so many; these are counted."""
        left, at = self._left.get(key, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        taken = min(wanted, int(left))
        self._left[key] = (left - taken, now)
        return taken

    def forget(self, now: float) -> None:
        """Those who have a whole burst again need not be remembered; of too many, those who said least lately."""
        self._left = {
            k: (left, at) for k, (left, at) in self._left.items() if left + (now - at) * self._rate < self._burst
        }
        if len(self._left) > self._keys:
            self._left = dict(sorted(self._left.items(), key=lambda item: item[1][0])[: self._keys])
