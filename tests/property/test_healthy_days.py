"""A healthy machine is healthy: a whole day of it, through every detector, and nobody says a word.

Sweeps are coarser than the agent's, so that a day takes seconds; `bench/healthy_days.py` takes every one of them.
"""

import pytest

from tests.support.core import detectors
from tests.support.days import HEALTHY, live
from tests.support.machines import machine

# 13 passes of a recording: no multiple of its series, so that each sweep sees other values.
COARSE = 65.0


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_has_no_finding_for_a_day(name: str) -> None:
    outcome = live(machine(name), 24.0, fast_every=COARSE)
    assert outcome.failed == set()
    assert outcome.found == []
    assert outcome.sweeps["nvml/fast"] > 1300
    assert outcome.sweeps["machine/slow"] > 140
    assert outcome.health is not None
    assert all(not subject.standing for subject in outcome.health.subjects.values())


def test_each_detector_of_gpus_was_shown_something() -> None:
    """So the day says something: every column that a detector of GPUs waits for is told of at least one machine."""
    told: set[str] = set()
    for name in (*HEALTHY, "h100x8-lost"):
        outcome = live(machine(name), 0.2, fast_every=COARSE)
        told |= outcome.columns
    waiting = {d.name: d.reads for d in detectors() if hasattr(d, "of") and not told.intersection(d.reads)}
    assert waiting.keys() <= UNTOLD, waiting


# Of these no recorded machine tells anything: pages are retired before Ampere, this flag is of the newest drivers, and
# disks are those of whoever runs the test. No job tells of itself, and no scheduler of its jobs.
UNTOLD = {
    "retired_pages", "memory_unrepairable", "disk_space", "optics", "nvml_unresponsive", "imex", "heartbeats_refused",
    "gpu_bypass", "job_half_dead", "job_loss", "job_checkpoint", "job_completion", "job_out_of_memory",
}  # fmt: skip


def test_a_machine_that_lost_a_gpu_is_not_that_quiet() -> None:
    """So a day can fail: an hour of a machine that is ill."""
    outcome = live(machine("h100x8-lost"), 1.0, fast_every=COARSE)
    assert outcome.failed == set()
    assert any("gpu:0000:c3:00.0: nvlink_down" in one for one in outcome.found)
    assert any("gpu_count" in one for one in outcome.found)
