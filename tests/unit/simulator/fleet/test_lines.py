"""What the simulated driver prints is what real grammars read, and real detectors take for what it is."""

from typing import get_args

import pytest

from gpuguard.kernel_log.reader import parse_text
from gpuguard.model.ids import NODE, gpu
from gpuguard.simulator.chance import stream
from gpuguard.simulator.fleet.causes import SIGHT, Signature
from gpuguard.simulator.fleet.lines import STORM_LINES, STORM_TEXTS, again, place, printed
from gpuguard.simulator.fleet.machine import ADDRESSES, LOST, MOVES, PORTS, Machine
from tests.support.core import Core, booted, line, probed, sweep, tick

WHERE = place(ADDRESSES[2], 2, "GPU-00000001-0002-4000-8000-000000000000")
SIGNATURES = get_args(Signature)


@pytest.mark.parametrize("signature", SIGNATURES)
@pytest.mark.parametrize("seed", range(6))
def test_each_line_is_read(signature: Signature, seed: int) -> None:
    told = [*printed(signature, WHERE, stream(seed, "t")), *again(signature, WHERE)]
    assert [one.text for one in told if parse_text(one.text) is None] == []
    assert [one.after for one in told[:-1]] == sorted(one.after for one in told[:-1])
    assert all(one.repeated >= 1 and one.after >= 0 for one in told)


@pytest.mark.parametrize("signature", [one for one in SIGNATURES if SIGHT[one] == "evident"])
def test_what_is_evident_drains_whatever_the_noise(signature: Signature) -> None:
    """From its lines, or from what is measured and the bus."""
    core, machine = Core(), Machine(0, 8)
    core.tell(booted(), *(probed(address, 2.0, answers=True) for address in ADDRESSES))
    core.tell(sweep(machine.rows("medium"), 3.0, rate="medium"), sweep(machine.rows("fast"), 4.0))
    machine.breaks(2, signature)
    for one in printed(signature, WHERE, stream(1, "t")):
        core.tell(line(one.text, 100.0 + one.after))
    if not any(one == "drain" for one in core.owed()):
        core.tell(sweep(machine.rows("fast"), 105.0), probed(ADDRESSES[2], 110.0, answers=not machine.lost(2)))
    assert core.owed() == ["drain"]
    assert core.state(ADDRESSES[2]) == "unfit"


@pytest.mark.parametrize("signature", [one for one in SIGNATURES if SIGHT[one] == "doubtful"])
def test_what_is_doubtful_is_a_warning(signature: Signature) -> None:
    """The library that hangs is told of by the agent's source, not by a row."""
    core, machine = Core(), Machine(0, 8)
    core.tell(booted())
    kinds = (("slow", "nvml"), ("medium", "nvml"), ("fast", "nvml"), ("infiniband", "infiniband"), ("edac", "edac"))

    def look(mono: float) -> None:
        for kind, source in kinds:
            rate = kind if source == "nvml" else "medium"
            core.tell(sweep(machine.rows(kind), mono, source=source, rate=rate))  # type: ignore[arg-type]

    look(10.0)
    machine.breaks(2, signature)
    for one in printed(signature, WHERE, stream(1, "t")):
        core.tell(line(one.text, 20.0 + one.after))
    if signature == "nvml_wedged":
        assert machine.wedged
        core.tell(sweep({NODE: {"nvml_hung": 1, "nvml_hung_for_seconds": 4.0}}, 24.0))
    for mono in range(30, 400, 30):
        look(float(mono)) if signature != "nvml_wedged" else core.tell(tick(float(mono)))
    standing = [s for subject in core.health.subjects.values() for s in subject.standing]
    assert any(s.finding.severity != "info" for s in standing)
    assert "drain" not in core.owed()


def test_a_storm_is_as_large_as_the_one_that_was_seen() -> None:
    told = printed("storm", WHERE, stream(1, "t"))
    assert len({one.text for one in told}) == STORM_TEXTS
    assert 0.9 * STORM_LINES <= sum(one.repeated for one in told) <= STORM_LINES


def test_nothing_is_printed_for_what_the_driver_does_not_know() -> None:
    assert printed("unseen", WHERE, stream(1, "t")) == ()
    assert printed("lost_silently", WHERE, stream(1, "t")) == ()
    assert again("gsp", WHERE) == ()


def test_a_machine_shows_what_is_broken_and_forgets_what_was_mended() -> None:
    machine = Machine(3, 4)
    assert machine.well
    machine.breaks(1, "double_bit")
    machine.breaks(1, "uncontained")
    row = machine.rows("medium")[gpu(ADDRESSES[1])]
    assert row["ecc_dram_uncorrected"] == 2
    assert machine.rows("medium") is machine.rows("medium")
    machine.breaks(2, "lost")
    assert machine.rows("fast")[gpu(ADDRESSES[2])]["nvml_error"] == 15
    assert machine.lost(2)
    machine.breaks(0, "port_down")
    machine.flap(1)
    ports = machine.rows("infiniband")
    assert (ports[PORTS[0]]["ib_state"], ports[PORTS[1]]["ib_link_downed_total"]) == (1, 1)
    before = machine.instant(10.0)
    machine.mend()
    machine.reboot(50.0)
    assert machine.well
    assert machine.instant(60.0).boot != before.boot
    assert machine.instant(60.0).mono == 10.0
    assert machine.rows("infiniband")[PORTS[1]]["ib_link_downed_total"] == 0
    one = machine.uuid(1)
    machine.replace(1)
    assert machine.uuid(1) != one


def test_every_column_that_a_fault_moves_stands_in_a_sweep() -> None:
    machine = Machine(0, 1)
    columns = {name for kind in ("fast", "medium", "slow") for row in machine.rows(kind).values() for name in row}
    assert {name for moves in MOVES.values() for name in moves} <= columns
    assert set(LOST).isdisjoint(MOVES)
