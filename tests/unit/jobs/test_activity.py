"""What a GPU does, with numbers as H100, A100 and V100 give them."""

from collections.abc import Iterable

import msgspec
import pytest

from gpuguard.jobs.activity import PARTS, Activity, Settings
from gpuguard.jobs.views import GpuView
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Row, Values

GPU = SubjectId("gpu:0000:19:00.0")
EVERY = 5.0

# What NVML says of an H100 SXM: training, in a collective that waits, in a kernel that loops on all SMs, at rest.
TRAINING: Values = {
    "utilization_ratio": 1.0, "sm_active_ratio": 0.84, "tensor_active_ratio": 0.41, "dram_active_ratio": 0.38,
    "power_watts": 612.0, "power_limit_watts": 700.0, "sm_clock_hertz": 1.755e9, "pcie_tx_bytes_per_second": 2.1e8,
    "pcie_rx_bytes_per_second": 4.4e8, "nvlink_tx_bytes_per_second": 3.1e10, "nvlink_rx_bytes_per_second": 3.1e10,
}  # fmt: skip
WAITING: Values = {
    "utilization_ratio": 1.0, "sm_active_ratio": 0.12, "tensor_active_ratio": 0.0, "dram_active_ratio": 0.004,
    "power_watts": 152.0, "power_limit_watts": 700.0, "sm_clock_hertz": 1.98e9, "pcie_tx_bytes_per_second": 1.3e6,
    "pcie_rx_bytes_per_second": 2.2e6, "nvlink_tx_bytes_per_second": 0.0, "nvlink_rx_bytes_per_second": 0.0,
}  # fmt: skip
LOOPING: Values = WAITING | {"sm_active_ratio": 1.0, "power_watts": 318.0}
RESTING: Values = WAITING | {"utilization_ratio": 0.0, "sm_active_ratio": 0.0, "power_watts": 133.0}
# An A100 without GPM: no pipes; memory_copy_ratio is all that tells of memory.
OLD_TRAINING: Values = {
    "utilization_ratio": 0.98, "memory_copy_ratio": 0.47, "power_watts": 331.0, "power_limit_watts": 400.0,
    "sm_clock_hertz": 1.41e9,
}  # fmt: skip
OLD_WAITING: Values = OLD_TRAINING | {"utilization_ratio": 1.0, "memory_copy_ratio": 0.0, "power_watts": 88.0}


def instant(mono: float) -> Instant:
    return Instant(boot=BootId("A"), mono=mono)


def after(looks: Iterable[Values], start: Activity | None = None, settings: Settings | None = None) -> Activity:
    """The activity after these looks, five seconds apart."""
    activity = start or Activity(job="slurm/7")
    mono = activity.last.mono if activity.last is not None else 0.0
    for number, values in enumerate(looks, 1):
        at = instant(mono + EVERY * number)
        row = Row(subject=GPU, at=at, source="nvml", values=values)
        activity = activity.seen(row, at, settings or Settings())
    return activity


def view(activity: Activity, later: float = 0.0) -> GpuView:
    assert activity.last is not None
    return activity.view(GPU, instant(activity.last.mono + later))


def test_training_is_work() -> None:
    seen = view(after([TRAINING] * 12))
    assert (seen.pattern, seen.worked, seen.pattern_seconds) == ("working", True, 55.0)
    assert seen.activity == pytest.approx(0.84)
    assert seen.words == (
        "utilisation 100 %, SM 84 %, tensor 41 %, memory 38 %, 612 of 700 W, PCIe 650 MB/s, NVLink 62 GB/s"
    )


@pytest.mark.parametrize("stuck", [WAITING, LOOPING])
def test_a_kernel_that_moves_nothing_spins_however_many_sms_it_holds(stuck: Values) -> None:
    activity = after([TRAINING] * 12 + [stuck] * 13)
    seen = view(activity)
    assert (seen.pattern, seen.worked, seen.pattern_seconds) == ("spinning", True, 60.0)
    assert activity.activity == pytest.approx(0.84 * 12 / 25)
    assert seen.sm == stuck["sm_active_ratio"]


def test_high_utilisation_alone_is_no_work() -> None:
    activity = after([{"utilization_ratio": 1.0}] * 60)
    assert view(activity).pattern == "unknown"
    assert not view(activity).worked


def test_no_utilisation_is_idle_and_says_nothing_of_a_fault() -> None:
    seen = view(after([RESTING] * 12))
    assert (seen.pattern, seen.worked, seen.activity) == ("idle", False, 0.0)


def test_without_pipes_the_power_of_its_own_work_tells() -> None:
    seen = view(after([OLD_TRAINING] * 12 + [OLD_WAITING] * 5))
    assert (seen.pattern, seen.pattern_seconds) == ("spinning", 20.0)


def test_without_pipes_low_power_at_a_low_clock_tells_nothing() -> None:
    slowed: Values = OLD_WAITING | {"power_watts": 120.0, "sm_clock_hertz": 0.4e9}
    assert view(after([OLD_TRAINING] * 12 + [slowed] * 5)).pattern == "unknown"


def test_without_pipes_and_past_a_share_of_the_limit_stands_in() -> None:
    v100: Values = {"utilization_ratio": 1.0, "memory_copy_ratio": 0.0, "power_watts": 44.0, "power_limit_watts": 250.0}
    assert view(after([v100] * 5)).pattern == "spinning"
    assert view(after([v100 | {"power_watts": 190.0}] * 5)).pattern == "unknown"


def test_numbers_without_tensor_cores_are_work_by_their_power_once_work_is_known() -> None:
    other: Values = WAITING | {"sm_active_ratio": 0.97, "power_watts": 540.0}
    assert view(after([TRAINING] * 12 + [other] * 5)).pattern == "working"
    assert view(after([other] * 5)).pattern == "unknown"


def test_a_loop_that_draws_three_quarters_of_work_is_none_where_the_pipes_are_seen_at_rest() -> None:
    hot: Values = LOOPING | {"power_watts": 455.0}
    assert view(after([TRAINING] * 12 + [hot] * 8)).pattern == "spinning"
    old: Values = OLD_WAITING | {"power_watts": 245.0}
    assert view(after([OLD_TRAINING] * 12 + [old] * 8)).pattern == "working"


def test_bytes_alone_are_work() -> None:
    exchange: Values = WAITING | {"nvlink_tx_bytes_per_second": 1.8e11, "nvlink_rx_bytes_per_second": 1.8e11}
    assert view(after([exchange] * 5)).pattern == "working"


def test_one_unclear_look_breaks_nothing_and_four_do() -> None:
    unclear: Values = WAITING | {"utilization_ratio": 0.5}
    once = after([TRAINING] * 12 + [WAITING] * 6 + [unclear] + [WAITING] * 5)
    assert (view(once).pattern, view(once).pattern_seconds) == ("spinning", 55.0)
    lasting = after([TRAINING] * 12 + [WAITING] * 6 + [unclear] * 4)
    assert view(lasting).pattern == "unknown"
    anew = after([WAITING] * 2, lasting)
    assert (view(anew).pattern, view(anew).pattern_seconds) == ("spinning", 5.0)


def starved(cycles: int, gap: int, work: int) -> list[Values]:
    return ([RESTING] * gap + [TRAINING] * work) * cycles


def test_bursts_between_long_gaps_are_a_sawtooth() -> None:
    seen = view(after([TRAINING] * 12 + starved(8, gap=3, work=2)))
    assert seen.pattern == "sawtooth"
    assert seen.pattern_seconds > 30
    assert seen.activity == pytest.approx(0.84 * 2 / 5, abs=0.1)


def test_a_rank_that_others_wait_for_is_busier_than_they_with_and_without_pipes() -> None:
    """Steps of a second, of which the others wait 0.65 s: each look is a mean over several."""
    partly: Values = TRAINING | {"sm_active_ratio": 0.38, "tensor_active_ratio": 0.14, "power_watts": 311.0}
    held_up, holder = (view(after([TRAINING] * 24 + [look] * 24)).activity for look in (partly, TRAINING))
    assert held_up == pytest.approx(0.38)
    assert holder == pytest.approx(0.84)
    old: Values = OLD_TRAINING | {"memory_copy_ratio": 0.16, "power_watts": 171.0}
    held_up, holder = (view(after([OLD_TRAINING] * 24 + [look] * 24)).activity for look in (old, OLD_TRAINING))
    assert held_up == pytest.approx(0.51, abs=0.02)
    assert holder == pytest.approx(0.98)


def test_a_pause_now_and_then_is_no_sawtooth() -> None:
    assert view(after(starved(2, gap=6, work=30))).pattern == "working"


def test_waiting_for_other_ranks_between_bursts_is_no_sawtooth() -> None:
    assert view(after(([WAITING] * 3 + [TRAINING] * 2) * 10)).pattern == "working"


@pytest.mark.parametrize(("stuck", "pattern"), [(RESTING, "idle"), (WAITING, "spinning")])
def test_a_sawtooth_that_stands_still_is_none_any_more(stuck: Values, pattern: str) -> None:
    sawtooth = after(starved(10, gap=3, work=2))
    assert view(sawtooth).pattern == "sawtooth"
    assert view(after([stuck] * 8, sawtooth)).pattern == "sawtooth"
    assert view(after([stuck] * 15, sawtooth)).pattern == pattern


def test_another_job_begins_anew() -> None:
    worked = after([TRAINING] * 12)
    assert worked.of("slurm/7") is worked
    assert worked.of("slurm/8") == Activity(job="slurm/8")


def test_nothing_goes_on_while_nobody_looks() -> None:
    activity = after([TRAINING] * 12 + [WAITING] * 6)
    assert view(activity, later=61.0).pattern == "unknown"
    assert view(activity, later=61.0).worked
    row = Row(subject=GPU, at=instant(1000.0), source="nvml", values=WAITING)
    assert activity.seen(row, instant(1000.0)).view(GPU, instant(1000.0)).pattern_seconds == 0.0


def test_a_row_of_something_else_or_the_same_look_changes_nothing() -> None:
    activity = after([TRAINING] * 3)
    assert activity.last is not None
    other = Row(subject=GPU, at=instant(17.0), source="pcie", values={"pcie_link_width": 16})
    assert activity.seen(other, instant(17.0)) is activity
    again = Row(subject=GPU, at=activity.last, source="pcie", values=WAITING)
    assert activity.seen(again, activity.last) is activity


def test_unknown_is_neither_idle_nor_spinning() -> None:
    nothing: Values = dict.fromkeys(TRAINING)
    assert view(after([nothing] * 10)).pattern == "unknown"
    assert view(after([TRAINING] * 6 + [nothing] * 5)).pattern == "unknown"


def test_the_most_memory_is_kept() -> None:
    used: list[Values] = [
        TRAINING | {"memory_used_bytes": value, "memory_total_bytes": 80.0} for value in (10.0, 60.0, 20.0)
    ]
    assert (after(used).peak, after(used).memory) == (60.0, 80.0)
    assert after([TRAINING]).peak is None


def test_the_mean_forgets_what_left_the_window() -> None:
    assert after([TRAINING] * 120 + [RESTING] * 130).activity == 0.0


def test_it_stays_small_however_long_it_goes_on() -> None:
    activity = after([*starved(50, gap=5, work=3), *[TRAINING] * 2000])
    assert len(activity.parts) <= PARTS + 1
    assert len(msgspec.msgpack.encode(activity)) < 6000
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(activity), type=Activity) == activity


def test_the_power_of_work_follows_slowly_and_no_spike_makes_it() -> None:
    spiked = after([TRAINING] * 12 + [TRAINING | {"power_watts": 1400.0}] + [TRAINING] * 12)
    assert spiked.power == pytest.approx(690, abs=5)
    assert view(after([WAITING | {"power_watts": 240.0}] * 5, spiked)).pattern == "spinning"


def test_a_look_that_tells_nothing_is_not_one_at_which_it_did_nothing() -> None:
    known = Activity()
    for n in range(40):
        at = Instant(boot=BootId("A"), mono=1000.0 + 5 * n, utc=1e9)
        row = Row(subject=SubjectId("gpu:0000:01:00.0"), at=at, source="nvml", values={"utilization_ratio": None})
        known = known.seen(row, at)
    assert known.activity is None, "as while the GPU is cut into instances, or the driver hangs"
