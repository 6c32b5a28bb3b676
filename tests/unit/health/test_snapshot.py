"""The verdict on the whole node, in one number and one line."""

import pytest

from gpuguard.health.snapshot import LINE_LIMIT, take, without_readings
from gpuguard.model.events import SourceChanged
from gpuguard.model.health import ShellFacts, Snapshot, SourceView
from gpuguard.model.ids import EventId
from gpuguard.model.quantities import GPU_QUANTITIES
from tests.support.core import Core, instant, probed, sweep, tick, xid

KMSG = SourceView(name="kmsg", level="watching", reason="", last_success_utc=1.7e9, lost=0, restarts=0)
SHELL = ShellFacts(version="0", mode="observe", policy="default", sources=(KMSG,))
LOST = "GPU has fallen off the bus."


def after(core: Core) -> Snapshot:
    return take(core.health, SHELL, instant(100.0))


def blind(mono: float) -> SourceChanged:
    return SourceChanged(
        id=EventId(f"s{mono}"), at=instant(mono), source="kmsg", level="blind", reason="no permission; add CAP_SYSLOG"
    )


def test_nothing_is_ok_and_says_how_many_gpus_it_knows() -> None:
    core = Core()
    assert (after(core).level, after(core).line) == (0, "nothing stands against this node")
    core.tell(probed("0000:3b:00", 1.0, answers=True))
    assert after(core).line == "nothing stands against this node or its 1 known GPU"


def test_critical_outranks_warning_outranks_unknown() -> None:
    core = Core()
    core.tell(blind(1.0))
    assert after(core).level == 3
    assert "add CAP_SYSLOG" in after(core).line
    core.tell(xid("0000:3b:00", 999, 2.0, "new"))
    assert after(core).level == 1
    core.tell(xid("0000:5e:00", 79, 3.0, LOST))
    snapshot = after(core)
    assert (snapshot.level, snapshot.confirmed) == (2, True)
    assert snapshot.line == "5e:00.0 unfit (xid79, needs reboot)"


def test_an_unconfirmed_critical_is_a_warning() -> None:
    core = Core()
    core.tell(xid("0000:3b:00", 109, 2.0, "pid=1, name=x, Ch 00000008"))
    assert (after(core).level, after(core).confirmed) == (1, False)


def test_the_line_stays_short_however_many_are_bad() -> None:
    core = Core()
    for bus in range(16, 80):
        core.tell(xid(f"0000:{bus:02x}:00", 79, 3.0, LOST))
    assert len(after(core).line) <= LINE_LIMIT


def test_probation_is_named() -> None:
    core = Core()
    core.tell(xid("0000:3b:00", 120, 2.0, "GSP task exception"), tick(3.0))
    core.tell(xid("0000:3b:00", 154, 4.0, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))
    assert after(core).line == "3b:00.0 returning (not yet given back, 0 clean looks so far)"


@pytest.mark.parametrize("code", [13, 43])
def test_what_is_only_worth_knowing_keeps_the_node_ok(code: int) -> None:
    core = Core()
    core.tell(xid("0000:3b:00", code, 2.0, "pid=1, name=x, Ch 00000008"))
    assert after(core).level == 0
    assert after(core).subjects[0].findings[0].count == 1


def test_a_node_whose_log_nobody_reads_is_unknown() -> None:
    probes = SourceView(name="pci_config", level="watching", reason="", last_success_utc=1.7e9, lost=0, restarts=0)
    for sources in ((), (probes,)):
        shell = ShellFacts(version="0", mode="observe", policy="default", sources=sources)
        snapshot = take(Core().health, shell, instant(1.0))
        assert snapshot.level == 3
        assert "kmsg" in snapshot.line


def test_what_was_measured_is_there_with_what_it_means_and_is_not_written_down() -> None:
    core = Core()
    core.tell(sweep({"gpu:0000:3b:00.0": {"gpu_index": 3, "power_watts": 400.0}}, 1.0))
    snapshot = take(core.health, SHELL, instant(2.0), GPU_QUANTITIES)
    assert [view.index for view in snapshot.subjects if view.id == "gpu:0000:3b:00.0"] == [3]
    assert snapshot.readings["gpu:0000:3b:00.0"]["nvml/fast"].values["power_watts"] == 400.0
    assert {quantity.name for quantity in snapshot.quantities} >= {"gpu_index", "power_watts"}
    written = without_readings(snapshot)
    assert (written.readings, written.quantities, written.subjects) == ({}, (), snapshot.subjects)
