"""Memory errors of a GPU that were corrected, but come very often.

Corrected errors harm nothing by themselves. Many of them come before uncorrected ones; thousands a second slow the GPU
down and make calls of the driver hang, and a monitor that only counts the calls that failed never tells why.

Reads     ecc_corrected_volatile, else ecc_corrected_aggregate; of each GPU
Source    NVSentinel#1748: 4,647 to 17,657 a second, DCGM stalled for more than 45 s, the errors themselves unreported;
          NVIDIA's Xid 92
Clears    when the rate is below the limit again, the remedy, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Counter

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """From which rate on corrected errors are told."""

    per_hour: float = 30_000.0  # over an hour: worth a look
    storm_per_second: float = 1_000.0  # over `storm_within`: test the GPU
    storm_within: Seconds = Seconds(600.0)  # the window of a storm

    def __post_init__(self) -> None:
        for name in ("per_hour", "storm_per_second", "storm_within"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be more than 0")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Growth within the last hour, and within the shorter window of a storm."""

    column: str = ""
    hour: Counter = Counter()
    storm: Counter = Counter()


class EccCorrectedRate:
    """Reports GPUs that correct very many errors."""

    name = "ecc_corrected_rate"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("ecc_corrected_volatile", "ecc_corrected_aggregate")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        column = next((column for column in self.reads if column in row.values), "")
        value = row.number(column)
        if value is None:
            return memory, ()
        if memory.column != column:
            memory = Memory(column=column)
        within = self.settings.storm_within
        hour = memory.hour.seen(value, row.at, HOUR, as_rate=True)
        storm = memory.storm.seen(value, row.at, within, as_rate=True)
        per_second = storm.growth() / within
        often = Finding(
            subject=subject, check=self.name, code="ecc_corrected_rate", at=row.at, severity="degraded",
            blame="hardware", advice="watch", clears=("reset", "reboot", "replace", "ack"),
            stands=hour.growth() >= self.settings.per_hour,
            reason=f"{hour.growth():.0f} memory errors were corrected within an hour",
        )  # fmt: skip
        flood = Finding(
            subject=subject, check=self.name, code="ecc_corrected_storm", at=row.at, severity="degraded",
            remedy="test", blame="hardware", advice="test", clears=("reset", "reboot", "replace", "ack"),
            stands=per_second >= self.settings.storm_per_second,
            reason=f"{per_second:.0f} memory errors a second are corrected: the GPU slows down and calls may hang",
        )  # fmt: skip
        return Memory(column=column, hour=hour, storm=storm), (often, flood)


def build(settings: Settings, rules: Rules) -> EccCorrectedRate:
    """The detector with a site's settings."""
    return EccCorrectedRate(settings)
