"""How long a job may show no progress before that is a hang.

Theory. What is normal differs from job to job by a factor of a thousand, and from phase to phase within one; so the
limit is learned from the job's own past, for each phase apart. A sample is the time between two signs of progress. The
limit is

    clamp(max(5 x p99, 3 x longest of the last 50), floor, ceiling)

The percentile forgives what comes now and then, and the longest of the last fifty what has just begun to come, as when
checkpoints grow. Until there are twenty samples the phase's own default counts. Nothing is learned from a gap that was
longer than the limit, or one hang would excuse the next; and everything is forgotten when the job starts anew, because
then it may be another program. Percentiles are kept as counts by the logarithm of the gap: each at most a fifth too
long, never too short, in a few dozen numbers whatever comes.

Source  NVIDIA's resiliency extension takes five times the longest gap; one long checkpoint raises that for ever
"""

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from gpuguard.errors import ConfigInvalid

BASE = math.log(1.2)
SHORTEST = 0.001  # of a gap, in seconds; what is shorter counts as this
LATEST = 50
TIMES_P99, TIMES_LONGEST = 5.0, 3.0
# From so many samples on each counts half: what was long ago fades.
FADES_AT = 20_000
OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What is known of a phase before anything was learned. Units: seconds."""

    first: float
    floor: float
    ceiling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The phases with a row of their own, and how many samples make a limit."""

    samples: int
    rows: Mapping[str, Phase]

    def of(self, name: str) -> Phase:
        """The phase's row, or that of the others."""
        return self.rows.get(name) or self.rows[OTHER]


def parse_phases(text: str) -> Phases:
    """The table of `rules/jobs/phases.toml`.

    Raises  ConfigInvalid with every mistake
    """
    wrong: list[str] = []
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigInvalid((f"rules/jobs/phases.toml: {error}; see the file that ships with gpuguard",)) from error
    samples = table.pop("samples", 20)
    if not isinstance(samples, int) or samples < 1:
        wrong.append("rules/jobs/phases.toml: samples must be a whole number above 0")
    rows: dict[str, Phase] = {}
    for name, row in table.items():
        try:
            phase = msgspec.convert(row, Phase)
        except msgspec.ValidationError as error:
            wrong.append(f"rules/jobs/phases.toml [{name}]: {error}; it has first, floor and ceiling, in seconds")
            continue
        if not 0 < phase.floor <= phase.ceiling or phase.first <= 0:
            wrong.append(f"rules/jobs/phases.toml [{name}]: floor must be above 0 and not above ceiling")
        rows[name] = phase
    if OTHER not in rows:
        wrong.append(f"rules/jobs/phases.toml: [{OTHER}] is missing; it counts for phases without a row")
    if wrong:
        raise ConfigInvalid(tuple(wrong))
    return Phases(samples=samples, rows=rows)


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps that were seen in one phase of a job: how many by length, and the latest. Units: seconds."""

    counts: dict[int, int] = {}
    total: int = 0
    latest: tuple[float, ...] = ()

    def learned(self, gap: float, times: int = 1) -> "Limit":
        """With this gap, seen so many times: a hundred steps in ten seconds are a hundred gaps of a tenth."""
        return self.learned_all(((gap, times),))

    def learned_all(self, gaps: Iterable[tuple[float, int]]) -> "Limit":
        """With all of these gaps, and how often each was seen."""
        counts, total, latest = dict(self.counts), self.total, list(self.latest)
        for gap, times in gaps:
            place = math.ceil(math.log(max(gap, SHORTEST)) / BASE)
            # A step's number may leap as far as its job likes; more than fades at once says nothing more.
            counted = min(times, FADES_AT)
            counts[place] = counts.get(place, 0) + counted
            total += counted
            latest.append(gap)
        if total > FADES_AT:
            counts = {place: count // 2 for place, count in counts.items() if count > 1}
            total = sum(counts.values())
        return Limit(counts=counts, total=total, latest=tuple(latest[-LATEST:]))

    def quantile(self, share: float) -> float:
        """A length that at least this share of the gaps did not pass, at most a fifth too long; 0 without any."""
        left = share * self.total
        for place in sorted(self.counts):
            left -= self.counts[place]
            if left <= 1e-9:
                return math.exp(place * BASE)
        return 0.0

    def seconds(self, phase: Phase, samples: int) -> float:
        """After how long without progress it is a hang."""
        if self.total < samples:
            return phase.first
        longest = max(self.latest, default=0.0)
        wanted = max(TIMES_P99 * self.quantile(0.99), TIMES_LONGEST * longest)
        return min(max(wanted, phase.floor), phase.ceiling)
