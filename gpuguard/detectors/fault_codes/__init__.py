"""Faults that the driver names by a code, and the few that it reports without one.

The catalogue in rules/detectors/fault_codes/ says for each code what it means, whom it accuses and what it asks for;
the line's own words, numbers and registers choose between its variants.

Reads     LogLine of kinds xid, sxid, fm_sxid, gpu_lost, rm_init_failed, gsp, nvlink
Source    rules/detectors/fault_codes/*.toml, each entry with its own
Clears    what the entry lists; Xid 162 clears 163; Xid 154 back to none shows that a reset was done
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.detectors.fault_codes.catalogue import RECOVERY_XID, Catalogue, FaultCode, load_catalogue
from gpuguard.model.events import AnyEvent, LogLine, subject_of
from gpuguard.model.findings import Clear, Finding, Remedy
from gpuguard.model.ids import SubjectId
from gpuguard.ports import Rules

CODED = ("xid", "sxid", "fm_sxid")
LOST_XID = 79  # what a bus drop without a number counts as


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the tables do not hold."""

    # The driver's version, where the site knows it: it tells how the registers of Xid 144 to 150 are laid out.
    driver: str | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing: every line stands for itself, and what stands is kept by the core."""


class Uncoded(msgspec.Struct, frozen=True, kw_only=True):
    """What a fault without a number means."""

    reason: str
    critical: bool = False
    remedy: Remedy = "none"
    ladder: tuple[Remedy, ...] = ()
    clears: tuple[Clear, ...] = ("quiet", "reset", "reboot", "ack")


UNCODED: dict[str, Uncoded] = {
    "rm_init_failed": Uncoded(
        reason="the driver could not initialise the GPU", critical=True, remedy="reset",
        ladder=("reset", "reboot", "replace"), clears=("reset", "reboot", "replace", "ack"),
    ),
    "gsp": Uncoded(reason="the GPU's system processor reports trouble; Xid 119, 120 or 154 usually follow"),
    "nvlink": Uncoded(
        reason="the driver cannot read the state of NVLink; NVML calls may hang until the node is rebooted",
        remedy="reboot", clears=("quiet", "reboot", "ack"),
    ),
}  # fmt: skip


class FaultCodes:
    """Judges each coded fault by the catalogue."""

    name = "fault_codes"
    reads = (LogLine,)
    memory = Memory

    def __init__(self, settings: Settings, catalogue: Catalogue) -> None:
        self.settings, self.catalogue = settings, catalogue

    def subjects(self, event: AnyEvent) -> Sequence[SubjectId]:
        if not isinstance(event, LogLine):
            return ()
        wanted = event.parsed.kind in (*CODED, "gpu_lost", *UNCODED)
        return (subject_of(event.parsed),) if wanted else ()

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, event: AnyEvent) -> tuple[Memory, Sequence[Finding]]:
        if not isinstance(event, LogLine):
            return memory, ()
        parsed = event.parsed
        if parsed.kind in UNCODED:
            return memory, (self._uncoded(subject, event, UNCODED[parsed.kind]),)
        # A follow-up of an SXid with its raw data says nothing new; one with its severity may.
        if parsed.detail.get("part") == "data":
            return memory, ()
        if parsed.kind == "gpu_lost":
            entry: FaultCode | None = self.catalogue.xid(LOST_XID)
        else:
            entry = self.catalogue.read(parsed, event.raw, self.settings.driver)
        if entry is None:
            return memory, ()
        finding = self._coded(subject, event, entry)
        if parsed.kind == "xid" and parsed.xid == RECOVERY_XID and parsed.detail.get("to") == 0:
            needed = parsed.detail.get("from")
            proves: Clear | None = "reset" if isinstance(needed, int) and needed > 0 else None
            return memory, (msgspec.structs.replace(finding, stands=False, proves=proves),)
        if entry.clears_code is not None:
            code = f"{entry.family}{entry.clears_code}"
            return memory, (finding, msgspec.structs.replace(finding, code=code, stands=False))
        return memory, (finding,)

    def _coded(self, subject: SubjectId, event: LogLine, entry: FaultCode) -> Finding:
        parsed = event.parsed
        words = entry.meaning if not entry.because else f"{entry.meaning.rstrip('.')}: {entry.because}"
        follow_up = parsed.detail.get("part") == "severity"
        return Finding(
            subject=subject, check=self.name, at=event.at, source=event.source, because=(event.id,),
            code="gpu_lost" if parsed.kind == "gpu_lost" else entry.finding_code,
            severity=entry.severity, advice=entry.action, remedy=entry.remedy, ladder=_ladder(entry),
            blame=entry.blame, consequence=entry.consequence, latched=entry.latched, clears=entry.clears,
            quiet_after=entry.quiet_after, reason=words.rstrip("."), count=0 if follow_up else event.repeated,
            # The fabric manager's own log is written by a process; it needs a witness from the kernel.
            self_evident=entry.self_evident and parsed.kind != "fm_sxid",
        )  # fmt: skip

    def _uncoded(self, subject: SubjectId, event: LogLine, meaning: Uncoded) -> Finding:
        return Finding(
            subject=subject, check=self.name, at=event.at, source=event.source, because=(event.id,),
            code=event.parsed.kind, severity="critical" if meaning.critical else "degraded",
            advice="drain" if meaning.critical else "watch", remedy=meaning.remedy, ladder=meaning.ladder,
            blame="driver", latched=meaning.critical, clears=meaning.clears, reason=meaning.reason,
            count=event.repeated,
        )  # fmt: skip


def _ladder(entry: FaultCode) -> tuple[Remedy, ...]:
    """The remedies to try in turn: a critical fault that comes back after the last of its own asks for a new board."""
    steps = (entry.remedy, entry.second_remedy)
    ladder = tuple(step for step in steps if step != "none")
    return (*ladder, "replace") if entry.severity == "critical" and "replace" not in ladder else ladder


def build(settings: Settings, rules: Rules) -> FaultCodes:
    """The detector over the tables of rules/detectors/fault_codes/."""
    texts = (rules.text(f"{family}.toml") for family in ("xid", "sxid", "nvlink5"))
    return FaultCodes(settings, load_catalogue(*texts))
