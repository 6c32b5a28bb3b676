"""What the flight recorders of a job's ranks say, where their dumps are of the hang that is judged."""

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from gpuguard.jobs.flight import Comparison, compare
from gpuguard.model.flight import FlightSummary
from gpuguard.model.readings import Row

# So many ranks of two nodes; what a dump says does not change.
KEPT = 128
_SUMMARY = msgspec.json.Decoder(FlightSummary)


def is_of_now(row: Row | None, silent: float) -> bool:
    """Whether the rank's dump was written since it stopped to get on: an older one is of another wait."""
    age = row.number("flight_age_seconds") if row is not None else None
    return age is not None and age <= silent


def compared(rows: Mapping[int, Row], silent: Mapping[int, float], world: int | None) -> Comparison | None:
    """What all dumps that are of now say together; None where there is none."""
    told = {
        number: row.text("flight_groups") for number, row in rows.items() if is_of_now(row, silent.get(number, 0.0))
    }
    summaries = {number: summary for number, text in told.items() if text and (summary := _summary(text)) is not None}
    return compare(summaries, of_all=tuple(range(world or 0))) if summaries else None


@lru_cache(maxsize=KEPT)
def _summary(text: str) -> FlightSummary | None:
    try:
        return _SUMMARY.decode(text)
    except msgspec.MsgspecError:
        return None  # of another version, or none was told
