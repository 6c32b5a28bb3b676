"""What the host's sources read on the recorded machines: as declared, possible, and without a finding."""

from importlib import import_module
from pathlib import Path

import pytest

from gpuguard.errors import Absent
from gpuguard.model.events import Batch, Sweep
from gpuguard.model.ids import kind_of
from gpuguard.model.readings import plausible
from gpuguard.runtime.assembly import RulesFolder, quantities
from gpuguard.runtime.clock import ManualClock
from gpuguard.runtime.plugins import shelf
from tests.support.core import Core

NODES = Path(__file__).resolve().parents[3] / "fixtures" / "nodes"
MACHINES = sorted(path.name for path in NODES.iterdir())
SOURCES = ("pcie", "infiniband", "driver_stack", "process_states", "edac", "disk", "machine", "topology")


def swept(name: str, machine: str, clock: ManualClock) -> Sweep | None:
    """The first sweep of a source; None where the machine lacks what it reads."""
    module = import_module(f"gpuguard.sources.{name}")
    more = {
        "machine": {"rules": RulesFolder(name)},
        "disk": {"state_dir": NODES},
        "topology": {"state_dir": NODES},
    }.get(name, {})
    source = module.build(module.Settings(), NODES / machine, clock, **more)
    sweeps: list[Sweep] = []

    def emit(batch: Batch) -> None:
        sweeps.extend(event for event in batch.events if isinstance(event, Sweep))
        source.stop()

    try:
        source.run(emit, None)
    except Absent:
        return None
    return sweeps[0]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_value_is_declared_and_can_be(machine: str) -> None:
    known = quantities(shelf("gpuguard.sources"))
    for name in SOURCES:
        sweep = swept(name, machine, ManualClock())
        for subject, values in sweep.rows.items() if sweep else ():
            for column, value in values.items():
                assert known[column].of == kind_of(subject)
                assert plausible(known[column], value), (subject, column, value)


@pytest.mark.parametrize("machine", MACHINES)
def test_what_a_machine_has_is_seen(machine: str) -> None:
    seen = {name: sweep for name in SOURCES if (sweep := swept(name, machine, ManualClock())) is not None}
    assert seen.keys() >= {"pcie", "driver_stack", "process_states", "edac", "machine", "topology"}
    assert ("infiniband" in seen) == (machine != "l40sx4")
    assert "disk" not in seen, "a recorded machine has no state directory"
    assert len(seen["pcie"].rows) == (4 if machine == "l40sx4" else 8)


@pytest.mark.parametrize("machine", MACHINES)
def test_its_host_is_healthy(machine: str) -> None:
    clock, core = ManualClock(), Core()
    for _ in range(6):
        for name in SOURCES:
            if (sweep := swept(name, machine, clock)) is not None:
                core.tell(sweep)
        clock.advance(170.0)
    found = {s.finding.code for subject in core.health.subjects.values() for s in subject.standing}
    assert found <= ({"gpu_count"} if machine == "h100x8-lost" else set())
