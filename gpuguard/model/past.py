"""What is remembered of a board or of a machine that was faulty before."""

import math

import msgspec

from gpuguard.model.units import Seconds


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """How faulty it was, of late above all.

    `score` is the sum of what each fault weighed, each halved for every `half_life` that has gone by until `as_of`;
    from then on it halves further, see `score_at`. `faults` counts them all; `last_utc` and `last_code` are of the
    newest.
    Units   seconds since 1970; `half_life` in seconds
    """

    score: float
    as_of: float
    faults: int
    last_utc: float
    last_code: str
    half_life: Seconds

    def score_at(self, utc: float) -> float:
        """The score at a moment; at one before `as_of`, which only a clock that was set back can show, as of then."""
        return self.score * decay(utc - self.as_of, self.half_life)


def decay(seconds: float, half_life: float) -> float:
    """The share of a score that is left after so long: 1 at once, and never more; half of it after each half-life.

    With a half-life that is none, as only damage can have left one, nothing is left: it is no reason not to start.
    """
    if not half_life > 0.0:
        return 0.0
    return math.exp2(-max(0.0, seconds) / half_life)
