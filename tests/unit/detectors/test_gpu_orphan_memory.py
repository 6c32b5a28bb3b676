"""Memory that nobody uses and nobody can have."""

from gpuguard.detectors import gpu_orphan_memory
from gpuguard.model.ids import BootId
from tests.support.looks import Looks
from tests.support.watched import Watched

GPU = "gpu:0000:4e:00.0"
MUCH = 20 * 2**30


def test_five_minutes_of_the_same_orphan_are_a_warning() -> None:
    gpu = Watched(gpu_orphan_memory, GPU)
    assert gpu.standing(0.0, gpu_orphan_bytes=MUCH, gpu_orphans="4711/812.50") == []
    assert gpu.standing(299.0, gpu_orphan_bytes=MUCH, gpu_orphans="4711/812.50,4712/9.00") == []
    found = gpu.see(300.0, gpu_orphan_bytes=MUCH, gpu_orphans="4711/812.50,4712/9.00")["gpu_orphan_memory"]
    assert (found.stands, found.severity, found.blame, found.remedy) == (True, "degraded", "program", "none")
    assert "20.0 GiB are held by pid 4711 4712" in found.reason
    assert gpu.standing(301.0, gpu_orphan_bytes=0, gpu_orphans="") == []


def test_a_small_rest_is_not_worth_a_word() -> None:
    gpu = Watched(gpu_orphan_memory, GPU, hold=0.0)
    assert gpu.standing(0.0, gpu_orphan_bytes=256 * 2**20 - 1, gpu_orphans="1/1.00") == []
    assert gpu.standing(1.0, gpu_orphan_bytes=256 * 2**20, gpu_orphans="1/1.00") == ["gpu_orphan_memory"]


def test_others_begin_anew_also_with_a_pid_that_was_used_before() -> None:
    gpu = Watched(gpu_orphan_memory, GPU)
    for mono, orphans in ((0.0, "4711/812.50"), (200.0, "4711/1000.00"), (400.0, "9/1.00"), (600.0, "10/1.00")):
        assert gpu.standing(mono, gpu_orphan_bytes=MUCH, gpu_orphans=orphans) == []


def test_memory_without_a_process_says_so() -> None:
    gpu = Watched(gpu_orphan_memory, GPU, hold=0.0)
    assert "no process that the driver lists" in gpu.see(0.0, gpu_orphan_bytes=MUCH)["gpu_orphan_memory"].reason


def test_a_reboot_begins_anew() -> None:
    looks = Looks(gpu_orphan_memory.build(gpu_orphan_memory.Settings(), None))  # type: ignore[arg-type]  # it has no tables
    looks(0.0, gpu_orphan_bytes=MUCH, gpu_orphans="4711/812.50")
    assert not looks(5000.0, BootId("another"), gpu_orphan_bytes=MUCH, gpu_orphans="4711/812.50")[
        "gpu_orphan_memory"
    ].stands


def test_many_are_named_in_part_and_nothing_breaks_the_line() -> None:
    gpu = Watched(gpu_orphan_memory, GPU, hold=0.0)
    reason = gpu.see(0.0, gpu_orphan_bytes=MUCH, gpu_orphans=",".join(f"{n}\n/1" for n in range(500)))
    assert reason["gpu_orphan_memory"].reason.isprintable()
    assert "and 484 more" in reason["gpu_orphan_memory"].reason


def test_of_what_is_not_known_nothing_is_said() -> None:
    gpu = Watched(gpu_orphan_memory, GPU, hold=0.0)
    assert gpu.see(0.0) == {}
    assert gpu.see(0.0, gpu_orphan_bytes=None, gpu_orphans="4711/812.50") == {}
