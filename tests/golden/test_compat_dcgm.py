"""The page in DCGM's names on recorded machines, as the sources read them."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gpuguard.compat.dcgm import Settings, page
from gpuguard.errors import Absent
from gpuguard.model.events import AnyEvent, Batch, Sweep
from gpuguard.model.health import ShellFacts, Snapshot, SourceView
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Group, Rate, Readings
from gpuguard.runtime.clock import SystemClock
from gpuguard.sources import dcgm
from gpuguard.sources.nvml.played import Player, load
from gpuguard.sources.nvml.reader import Reader
from tests.support.core import UTC, instant
from tests.support.machines import gpus, machine
from tests.support.snapshots import full

Golden = Callable[[Path, str], None]
RATES: tuple[Rate, ...] = ("slow", "medium", "fast")


def readings(root: Path) -> Readings:
    """What NVML tells in the tenth second of the recording, and DCGM where the machine has one."""
    now = [0.0]
    player = Player(load(root / "nvml.json"), lambda: now[0])
    player.open()
    reader = Reader(player, root)
    reader.sweep("fast")
    now[0] = 10.0
    found: Readings = {}
    for rate in RATES:
        for subject, values in reader.sweep(rate).items():
            group = Group(source="nvml", rate=rate, at=instant(10.0), valid_for=60.0, values=values)
            found.setdefault(SubjectId(subject), {})[f"nvml/{rate}"] = group
    for sweep in swept_by_dcgm(root):
        for subject, values in sweep.rows.items():
            group = Group(source="dcgm", rate="fast", at=instant(10.0), valid_for=60.0, values=values)
            found.setdefault(subject, {})["dcgm/fast"] = group
    return found


def swept_by_dcgm(root: Path) -> list[Sweep]:
    events: list[AnyEvent] = []
    source = dcgm.build(dcgm.Settings(), root, SystemClock(root))

    def emit(batch: Batch) -> None:
        events.extend(batch.events)
        source.stop()

    try:
        source.run(emit, None)
    except Absent:
        return []
    return [event for event in events if isinstance(event, Sweep)]


def shown(name: str, settings: Settings | None = None) -> str:
    """The page of a recorded machine."""
    kmsg = SourceView(name="kmsg", level="watching", reason="", last_success_utc=UTC, lost=0, restarts=0)
    snapshot: Snapshot = msgspec.structs.replace(
        full(), at=instant(10.0), subjects=(), readings=readings(machine(name)),
        shell=ShellFacts(version="0", mode="observe", policy="default", sources=(kmsg,)),
    )  # fmt: skip
    return page(snapshot, settings or Settings(), "node1")


def count(text: str, name: str) -> int:
    return sum(line.startswith(f"{name}{{") for line in text.splitlines())


def test_h100x8(golden: Golden) -> None:
    golden(Path(__file__).parent / "compat_dcgm_h100x8.prom", shown("h100x8"))


@pytest.mark.parametrize("name", ["h100x8", "b200x8", "a100x8", "l40sx4"])
def test_each_gpu_has_what_the_dashboard_asks_for(name: str) -> None:
    """Dashboard 12239; tensor activity before Hopper only where a DCGM runs, as it does on a100x8."""
    text, here = shown(name), len(gpus(machine(name)))
    for metric in ("GPU_TEMP", "POWER_USAGE", "SM_CLOCK", "GPU_UTIL", "FB_USED", "XID_ERRORS"):
        assert count(text, f"DCGM_FI_DEV_{metric}") == here
    assert count(text, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE") == (0 if name == "l40sx4" else here)


def test_the_instances_of_a_cut_gpu_have_rows() -> None:
    text = shown("h100x8-mig")
    rows = [line for line in text.splitlines() if line.startswith("DCGM_FI_PROF_SM_ACTIVE{") and "GPU_I_ID" in line]
    assert rows
    assert all('GPU_I_PROFILE="' in line and 'GPU_I_PROFILE=""' not in line for line in rows)


def test_a_lost_gpu_costs_its_own_rows_alone() -> None:
    assert count(shown("h100x8-lost"), "DCGM_FI_DEV_GPU_TEMP") == 7


def test_no_row_is_a_blank_or_a_repetition() -> None:
    for name in ("h100x8", "h100x8-mig", "h100x8-lost", "b200x8", "a100x8", "l40sx4"):
        rows = [line.rsplit(" ", 1) for line in shown(name).splitlines() if not line.startswith("#")]
        assert len({labels for labels, _ in rows}) == len(rows)
        assert all(0.0 <= float(value) < 2**47 for labels, value in rows), name
