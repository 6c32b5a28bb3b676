"""What a second on some hardware costs, in standard cards.

A standard card is a GPU whose type weighs 1. The price of a second is an integer, so that what many jobs cost together
does not depend on the order in which they are added, and comes back to 0 when all have ended.
"""

import re
from collections.abc import Mapping

import msgspec

from gpuguard.errors import ConfigInvalid
from gpuguard.scheduler.request import WHOLE
from gpuguard.scheduler.settings import HOUR, Settings

CARD = 10**9
"""Units of price in one standard card: a thousandth of a GPU times a millionth of weight."""
CARD_HOUR = CARD * HOUR

_WEIGHT = CARD // WHOLE
_WORD = re.compile(r"[^0-9a-z]+")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in _WORD.split(text.lower()) if word)


class Tariff(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """How hardware is priced.

    Shape   weights: standard cards that a GPU of a type is worth; a type that is not named weighs 1. core: the same for
            a core of work that takes no GPU; the cores of work with GPUs are free, since somebody has to feed the card.
            cores_per_gpu: None prices GPUs only. A number, which should be the cores of a node over its GPUs, prices
            what a job makes useless: the larger of its GPUs and of its cores over this number
    """

    weights: Mapping[str, float] = {}
    core: float = 0.01
    cores_per_gpu: float | None = None

    def __post_init__(self) -> None:
        mistakes = [
            f"gpu_weights.{name}: {weight} is no weight; give a number from 0 to 1000"
            for name, weight in self.weights.items()
            if not 0 <= weight <= 1000
        ]
        if not 0 <= self.core <= 1000:
            mistakes.append(f"core: {self.core} is no weight; give a number from 0 to 1000")
        if self.cores_per_gpu is not None and not 0 < self.cores_per_gpu < float("inf"):
            mistakes.append(
                f"cores_per_gpu: {self.cores_per_gpu}; give a node's cores over its GPUs, or none to price GPUs only"
            )
        if mistakes:
            raise ConfigInvalid(mistakes)

    @classmethod
    def of(cls, settings: Settings) -> "Tariff":
        """The site's weights. Its `cores_per_gpu` is the least that a GPU needs, and no measure of what is wasted."""
        return cls(weights=settings.gpu_weights)

    def weight(self, gpu_type: str) -> float:
        """Standard cards that one GPU of the type is worth.

        Shape   the type as it is named, else the weight whose words all stand in it, the most words first: A100 prices
                "NVIDIA A100-SXM4-80GB", and A10 does not
        """
        if gpu_type in self.weights:
            return self.weights[gpu_type]
        words = f" {' '.join(_words(gpu_type))} "
        best, most = 1.0, 0
        for name in sorted(self.weights):
            wanted = _words(name)
            if len(wanted) > most and f" {' '.join(wanted)} " in words:
                best, most = self.weights[name], len(wanted)
        return best

    def price(self, gpus: int, milli: int = WHOLE, gpu_type: str = "", cpus: int = 0, *, strands: bool = True) -> int:
        """What a second of this costs; a job's price is the sum over its nodes.

        Shape   strands: the node has GPUs, which are of no use once its cores are taken
        Units   milli: thousandths of each GPU; cpus: thousandths of a core, as in `plan.Share`; in 1 / CARD of a
                standard card
        """
        weight, core, per_gpu = self._table(gpu_type)
        cards = gpus * milli * weight
        if strands and per_gpu is not None:
            # One division of integers, rounded to the nearest: the same on every machine.
            cards = max(cards, (cpus * WHOLE * weight + per_gpu // 2) // per_gpu)
        return cards if gpus else max(cards, cpus * core)

    def _table(self, gpu_type: str) -> tuple[int, int, int | None]:
        known: dict[str, tuple[int, int, int | None]] = self.__dict__.setdefault("_known", {})
        if gpu_type not in known:
            per_gpu = None if self.cores_per_gpu is None else max(1, round(self.cores_per_gpu * WHOLE))
            known[gpu_type] = (round(self.weight(gpu_type) * _WEIGHT), round(self.core * _WEIGHT), per_gpu)
        return known[gpu_type]
