"""The module in a port is too hot, or receives too little light.

Both end in a link that flaps or breaks. Light is judged only while the port is active: a dark fibre of a port that is
down is another check's business.

Reads     optics_temperature_celsius, optics_temperature_limit_celsius, optics_received_power_watts and ib_state of each
          port, where the driver tells
Source    SFF-8636 and CMIS, module monitors; IEEE 802.3 receiver powers; what modules give as their own limit
Clears    when it is cool, or light enough, again
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Celsius, Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held

ACTIVE = 4
MICRO = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a module bears, where it does not tell itself, and for how long."""

    hot: Celsius = Celsius(75.0)  # where the module gives no limit of its own
    dim_watts: float = 63e-6  # -12 dBm
    hold: Seconds = Seconds(300.0)  # so long without a break


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it is hot or dim."""

    hot: Held = Held()
    dim: Held = Held()


class Optics:
    """Reports modules that suffer."""

    name = "optics"
    of: tuple[SubjectKind, ...] = ("port",)
    reads = ("optics_temperature_celsius", "optics_received_power_watts")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        after, findings = memory, []
        degrees, power = row.number("optics_temperature_celsius"), row.number("optics_received_power_watts")
        if degrees is not None:
            limit = row.number("optics_temperature_limit_celsius") or self.settings.hot
            after = msgspec.structs.replace(after, hot=after.hot.told(degrees >= limit, row.at))
            words = f"the module has {degrees:.0f} degrees and bears {limit:.0f}"
            findings.append(self._finding(subject, row, "optics_hot", after.hot, words))
        state = row.number("ib_state")
        # An active link has light: 0 is what drivers tell of a copper cable, or where the module does not measure it.
        if power is not None and state is not None and not (state == ACTIVE and power == 0):
            dim = state == ACTIVE and power < self.settings.dim_watts
            after = msgspec.structs.replace(after, dim=after.dim.told(dim, row.at))
            words = f"the module receives {power * MICRO:.0f} microwatts of light"
            findings.append(self._finding(subject, row, "optics_dim", after.dim, words))
        return (memory if after == memory else after), findings

    def _finding(self, subject: SubjectId, row: Row, code: str, held: Held, reason: str) -> Finding:
        return Finding(
            subject=subject, check=self.name, code=code, at=row.at, severity="degraded", blame="hardware",
            clears=("replace", "ack"), advice="watch", reason=reason,
            stands=held.lasted(self.settings.hold, row.at),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> Optics:
    """The detector with a site's settings."""
    return Optics(settings)
