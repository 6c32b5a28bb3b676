"""NVLink's rates where GPM does not give them, as on Ampere: by how much the counters grew since the last look.

Units   bytes, bytes per second
Source  nvml.h 13.5, fields 138 and 139; DCGM makes its field 449 the same way
"""

from collections.abc import Mapping

from gpuguard.model.ids import SubjectId
from gpuguard.model.quantities import BY_NAME
from gpuguard.model.readings import Quantity, Value, Values, plausible

# The column of a counter, and that of its rate.
RATES = {f"nvlink_{way}_bytes_all_total": f"nvlink_{way}_bytes_per_second" for way in ("tx", "rx")}


class Rates:
    """What the counters of each GPU showed at the last look."""

    def __init__(self) -> None:
        self._at = 0.0
        self._shown: dict[SubjectId, Values] = {}

    def fill(self, rows: Mapping[SubjectId, Values], at: float) -> None:
        """Rows with a counter and without its rate have the rate since the look before; unknown where that is none."""
        shown: dict[SubjectId, Values] = {}
        for subject, row in rows.items():
            for counter, rate in RATES.items():
                if counter not in row or rate in row:
                    continue
                before = self._shown.get(subject, {}).get(counter)
                row[rate] = _rate(BY_NAME[rate], before, row[counter], at - self._at)
                shown.setdefault(subject, {})[counter] = row[counter]
        self._at, self._shown = at, shown


def _rate(quantity: Quantity, before: Value, now: Value, seconds: float) -> float | None:
    """None where nobody knows both, where the counter began anew, and for what cannot be."""
    if not isinstance(before, int | float) or not isinstance(now, int | float) or now < before or seconds <= 0:
        return None
    rate = (now - before) / seconds
    return rate if plausible(quantity, rate) else None
