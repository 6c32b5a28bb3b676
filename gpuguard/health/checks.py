"""The checks by the shape of what they judge, and what is said of one that crashed."""

from functools import lru_cache
from typing import cast

from gpuguard.model.events import AnyEvent
from gpuguard.model.findings import Finding
from gpuguard.model.ids import NODE
from gpuguard.ports import AnyDetector, Deriver, Detector, MachineDetector, RowDetector


@lru_cache(maxsize=8)
def by_shape(
    detectors: tuple[AnyDetector, ...],
) -> tuple[tuple[Deriver, ...], tuple[Detector, ...], tuple[RowDetector, ...], tuple[MachineDetector, ...]]:
    """Those that conclude rows from rows, that judge by events, that judge one row of what was measured, and that judge
    them all."""
    derivers: list[Deriver] = []
    of_events: list[Detector] = []
    of_rows: list[RowDetector] = []
    of_machine: list[MachineDetector] = []
    for detector in detectors:
        if hasattr(detector, "derive"):
            derivers.append(cast(Deriver, detector))
        elif hasattr(detector, "survey"):
            of_machine.append(cast(MachineDetector, detector))
        elif hasattr(detector, "of"):
            of_rows.append(cast(RowDetector, detector))
        else:
            of_events.append(detector)
    return tuple(derivers), tuple(of_events), tuple(of_rows), tuple(of_machine)


def against_itself(check: str, error: Exception, event: AnyEvent) -> Finding:
    """The finding that a crashed check is: it says nothing of any GPU."""
    return Finding(
        subject=NODE, check=check, code=f"check_{check}", at=event.at, severity="degraded", silent=True,
        source="gpuguard", because=(event.id,), advice="watch",
        reason=f"the check {check} crashed with {type(error).__name__}: {error}; please report it",
    )  # fmt: skip
