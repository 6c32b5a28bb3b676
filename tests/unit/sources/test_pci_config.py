"""GPUs on the bus: there, gone, silent, asleep, and a read that never comes back."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.actions import Question
from gpuguard.model.events import AnyEvent, Batch, GpuProbed, LinesLost
from gpuguard.model.ids import SubjectId
from gpuguard.runtime.clock import ManualClock, SystemClock
from gpuguard.sources.pci_config import Answer, PciConfig, Settings, build, look, read_uuid
from gpuguard.sweeping.gpus import is_asleep, is_gpu

HEADER = bytes.fromhex("de103023") + bytes(60)
UUID = "GPU-5a0f91c2-0b37-4e21-8d55-6c10e7a4b9d3"


def device(root: Path, pci: str, *, vendor: str = "0x10de", kind: str = "0x030200", config: bytes = HEADER) -> Path:
    folder = root / "sys/bus/pci/devices" / pci
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    (folder / "config").write_bytes(config)
    return folder


def question(pci: str, kind: str = "gpu") -> Question:
    subject = SubjectId(f"{kind}:{pci}")
    return Question(subject=subject, code="xid79", source="kmsg", raw="x", at=ManualClock().now())


class Running:
    """The source in its thread, with what it emitted."""

    def __init__(self, root: Path, look_at: Callable[[Path], Answer] = look, every: float = 600.0) -> None:
        self.source = PciConfig(
            Settings(every=every, deadline=0.2),  # type: ignore[arg-type]
            root,
            SystemClock(),
            look_at=look_at,
        )
        self.batches: list[Batch] = []
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self.source.run, args=(self._emit, None))
        self._thread.start()

    def _emit(self, batch: Batch) -> None:
        with self._more:
            self.batches.append(batch)
            self._more.notify_all()

    @property
    def events(self) -> list[AnyEvent]:
        return [event for batch in self.batches for event in batch.events]

    @property
    def probes(self) -> list[tuple[str, bool, bool]]:
        return [(e.pci, e.present, e.answers) for e in self.events if isinstance(e, GpuProbed)]

    def until(self, holds: Callable[[], bool]) -> None:
        with self._more:
            assert self._more.wait_for(holds, 10), self.batches

    def stop(self) -> None:
        self.source.stop()
        self._thread.join(10)
        assert not self._thread.is_alive()


def test_gpus_are_told_apart_from_the_rest(tmp_path: Path) -> None:
    assert is_gpu(device(tmp_path, "0000:7a:00.0"))
    assert is_gpu(device(tmp_path, "0000:7b:00.0", kind="0x030000"))
    assert not is_gpu(device(tmp_path, "0000:7c:00.0", kind="0x068000"))
    assert not is_gpu(device(tmp_path, "0000:7d:00.0", vendor="0x8086"))
    assert not is_gpu(tmp_path / "none")


@pytest.mark.parametrize(
    ("config", "answers"), [(HEADER, True), (b"\xff" * 64, False), (b"\xff" * 4, False), (b"\xff" * 63 + b"\x00", True)]
)
def test_all_ones_is_no_answer(tmp_path: Path, config: bytes, answers: bool) -> None:
    assert look(device(tmp_path, "0000:7a:00.0", config=config)) == Answer(present=True, answers=answers)


def test_vanished_device_is_not_present(tmp_path: Path) -> None:
    assert look(tmp_path / "none") == Answer(present=False, answers=False)


def test_config_that_gives_nothing_is_a_failure_and_no_verdict(tmp_path: Path) -> None:
    with pytest.raises(ReadFailed, match="empty"):
        look(device(tmp_path, "0000:7a:00.0", config=b""))


def test_uuid_as_the_driver_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "information"
    path.write_text(f"Model: \t\t NVIDIA H100\nIRQ:   \t\t 1\nGPU UUID: \t {UUID}\nBus Type: \t PCIe\n")
    assert read_uuid(path) == UUID
    path.write_text("GPU UUID: \t GPU-????????-????-????-????-????????????\n")
    assert read_uuid(path) is None
    assert read_uuid(tmp_path / "none") is None


def test_suspended_device_is_asleep(tmp_path: Path) -> None:
    folder = device(tmp_path, "0000:7a:00.0")
    assert not is_asleep(folder)
    (folder / "power").mkdir()
    (folder / "power/runtime_status").write_text("suspended\n")
    assert is_asleep(folder)


def test_each_gpu_is_told_once_at_the_start(tmp_path: Path) -> None:
    device(tmp_path, "0000:7a:00.0")
    device(tmp_path, "0000:7b:00.0", config=b"\xff" * 64)
    running = Running(tmp_path)
    running.until(lambda: any(not batch.events for batch in running.batches))
    running.stop()
    assert sorted(running.probes) == [("0000:7a:00.0", True, True), ("0000:7b:00.0", True, False)]


def test_question_is_answered_at_once_even_without_a_change(tmp_path: Path) -> None:
    folder = device(tmp_path, "0000:7a:00.0")
    running = Running(tmp_path)
    running.until(lambda: len(running.probes) == 1)
    (folder / "config").write_bytes(b"\xff" * 64)
    running.source.ask(question("0000:7a:00.0"))
    running.until(lambda: len(running.probes) == 2)
    running.source.ask(question("0000:7a:00.0"))
    running.until(lambda: len(running.probes) == 3)
    running.stop()
    assert running.probes[1:] == [("0000:7a:00.0", True, False)] * 2


def test_question_about_a_gpu_that_is_gone(tmp_path: Path) -> None:
    device(tmp_path, "0000:7a:00.0")
    running = Running(tmp_path)
    running.source.ask(question("0000:7e:00.0"))
    running.until(lambda: ("0000:7e:00.0", False, False) in running.probes)
    running.stop()


def test_sweeps_tell_changes_only(tmp_path: Path) -> None:
    folder = device(tmp_path, "0000:7a:00.0")
    running = Running(tmp_path, every=0.01)
    running.until(lambda: sum(not batch.events for batch in running.batches) > 3)
    assert len(running.probes) == 1
    for path in sorted(folder.rglob("*")):
        path.unlink()
    folder.rmdir()
    running.until(lambda: len(running.probes) == 2)
    running.stop()
    assert running.probes[1] == ("0000:7a:00.0", False, False)


def test_identity_comes_from_the_driver_when_it_has_one(tmp_path: Path) -> None:
    device(tmp_path, "0000:7a:00.0")
    folder = tmp_path / "proc/driver/nvidia/gpus/0000:7a:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text(f"GPU UUID: \t {UUID}\n")
    running = Running(tmp_path)
    running.until(lambda: any(isinstance(e, GpuProbed) and e.uuid == UUID for e in running.events))
    running.stop()


def test_read_that_hangs_blinds_only_its_own_gpu(tmp_path: Path) -> None:
    device(tmp_path, "0000:7a:00.0")
    device(tmp_path, "0000:7b:00.0")
    release = threading.Event()

    def hangs(path: Path) -> Answer:
        if path.name.startswith("0000:7a"):
            release.wait(30)
        return look(path)

    running = Running(tmp_path, hangs)
    running.until(lambda: any(isinstance(event, LinesLost) for event in running.events))
    assert running.probes == [("0000:7b:00.0", True, True)]
    running.source.ask(question("0000:7a:00.0"))
    running.source.ask(question("0000:7b:00.0"))
    running.until(lambda: len(running.probes) == 2)
    running.stop()
    assert {pci for pci, _, _ in running.probes} == {"0000:7b:00.0"}
    assert sum(isinstance(event, LinesLost) for event in running.events) == 1
    release.set()


def test_questions_about_others_are_none_of_ours(tmp_path: Path) -> None:
    device(tmp_path, "0000:7a:00.0")
    source = build(Settings(), tmp_path, ManualClock())
    source.ask(question("0000:05:00.0", kind="nvswitch"))
    source.ask(Question(subject=SubjectId("node"), code="oom", source="kmsg", raw="x", at=ManualClock().now()))
    assert source._questions.empty()


def test_machine_without_gpus_or_bus_is_absent(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="no PCI bus"):
        build(Settings(), tmp_path, ManualClock()).run(lambda batch: None, None)
    device(tmp_path, "0000:7d:00.0", vendor="0x8086")
    with pytest.raises(Absent, match="no NVIDIA GPU"):
        build(Settings(), tmp_path, ManualClock()).run(lambda batch: None, None)
