"""The source against a library, through the real nvidia-ml-py: what it says, and what it does when NVML does not."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuguard.child.process import Child
from gpuguard.errors import ReadFailed
from gpuguard.model.events import AnyEvent, Batch, LogLine, Sweep
from gpuguard.model.ids import NODE
from gpuguard.model.readings import Rate, Values
from gpuguard.runtime.clock import SystemClock
from gpuguard.sources.nvml import Nvml, Settings
from gpuguard.sources.nvml.protocol import Begin, Begun, Look, Refused, Report, Seen, decode_report, encode
from tests.support.fake_nvml import FakeNvml, lacking
from tests.support.fake_nvml.small import SMALL
from tests.support.require import require

NODES = Path(__file__).resolve().parents[2] / "fixtures" / "nodes"
QUICK = Settings(fast=1.0, fast_deadline=0.7, medium_deadline=0.7, slow_deadline=0.7, init_deadline=5.0)
# Generations of the driver, and a machine of their time.
MACHINES = (("a100x8", "470"), ("a100x8", "535"), ("l40sx4", "570"), ("h100x8", "570"), ("h100x8-mig", "570"),
            ("b200x8", "580"), ("b200x8", "615"))  # fmt: skip
A = "gpu:0000:1b:00.0"


@pytest.fixture(autouse=True)
def _compiler() -> None:
    require(
        "gcc, libc6-dev or nvidia-nvml-dev", not lacking(), "apt-get install gcc libc6-dev; pip install nvidia-nvml-dev"
    )


class Asked:
    """A child that was begun, asked by hand."""

    def __init__(self, child: Child) -> None:
        self.child = child
        assert isinstance(self.ask(Begin()), Begun)

    def ask(self, request: Begin | Look) -> Report:
        self.child.send(encode(request))
        message = self.child.receive(20.0)
        assert message is not None
        return decode_report(message)

    def look(self, rate: Rate) -> dict[str, Values]:
        report = self.ask(Look(rate))
        assert isinstance(report, Seen), report
        return dict(report.rows)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Asked]]:
    """Starts a child on a fake library, or on the player for the same machine."""
    children: list[Child] = []

    def start(nvml: FakeNvml | None, root: Path = Path("/")) -> Asked:
        if nvml is not None:
            for name, value in nvml.env().items():
                monkeypatch.setenv(name, value)
        child = Nvml(Settings(), root, SystemClock())._start_child()
        children.append(child)
        return Asked(child)

    yield start
    for child in children:
        child.stop(5.0)


@pytest.fixture
def h100() -> Iterator[FakeNvml]:
    with FakeNvml(NODES / "h100x8" / "nvml.json", driver="570") as nvml:
        yield nvml


def _sweeps(asked: Asked) -> dict[str, dict[str, Values]]:
    """Each class once all of it has settled: GPM needs two samples, a field is dropped after three."""
    rows: dict[str, dict[str, Values]] = {}
    for _ in range(4):
        for rate in ("fast", "medium", "slow"):
            rows[rate] = asked.look(rate)  # type: ignore[arg-type]
        time.sleep(0.11)
    return rows


@pytest.mark.parametrize(("machine", "driver"), MACHINES)
def test_the_driver_and_the_player_say_the_same(machine: str, driver: str, begun: Callable[..., Asked]) -> None:
    """What an older driver does not know is absent; nothing is an error, nothing implausible."""
    with FakeNvml(NODES / machine / "nvml.json", driver=driver) as nvml:
        live = _sweeps(begun(nvml))
        played = _sweeps(begun(nvml, NODES / machine))
    missing = set()
    for rate, rows in played.items():
        assert live[rate].keys() == rows.keys()
        for subject, row in rows.items():
            assert live[rate][subject].keys() <= row.keys()
            missing |= row.keys() - live[rate][subject].keys()
            for column in live[rate][subject].keys() - {"process_name"}:  # those of the recording do not run here
                value = live[rate][subject][column]
                assert (value is None) == (row[column] is None), (subject, column)
                assert type(value) is type(row[column]), (subject, column)
                if rate == "slow":  # what identifies, limits and connects does not move
                    assert value == row[column], (subject, column)
    node = live["fast"][NODE]
    assert node["collect_errors_total"] == ("15", 0, "16", 0, "999", 0)
    assert node["rejected_samples_total"] == ()
    younger = {"sw_thermal_slowdown_seconds_total", "hw_thermal_slowdown_seconds_total", "hw_power_brake_seconds_total"}
    older = {"470": {"memory_reserved_bytes", "gpu_module_id"}, "570": younger}
    assert missing <= older.get(driver, set())


def test_values_of_a_field_are_of_their_type(h100: FakeNvml, begun: Callable[..., Asked]) -> None:
    asked = begun(h100)
    h100.answer("field/82", 2**63 - 6, device=0)
    h100.fail("field/83", 999, device=0)
    h100.fail("nvmlDeviceGetTotalEnergyConsumption", 999, device=0)
    h100.answer("field/94", 17, device=0)
    h100.wrong_type("field/94", 4, device=0)
    row = asked.look("fast")[A]
    assert (row["memory_temperature_celsius"], row["energy_joules_total"], row["pcie_replay_total"]) == (None, None, 17)


def test_a_metric_that_is_no_number_is_unknown(h100: FakeNvml, begun: Callable[..., Asked]) -> None:
    asked = begun(h100)
    asked.look("fast")
    h100.answer("gpm/2", float("nan"), device=0)
    h100.fail("gpm/5", 21, device=0)
    time.sleep(0.12)
    row = asked.look("fast")[A]
    assert (row["sm_active_ratio"], row["tensor_active_ratio"]) == (None, None)
    assert row["graphics_active_ratio"] == 0.972


def test_samples_that_are_too_close_say_what_the_last_ones_said(h100: FakeNvml, begun: Callable[..., Asked]) -> None:
    asked = begun(h100)
    assert asked.look("fast")[A]["sm_active_ratio"] is None  # one sample is no span
    time.sleep(0.12)
    value = asked.look("fast")[A]["sm_active_ratio"]
    assert value is not None
    assert asked.look("fast")[A]["sm_active_ratio"] == value


def test_gpus_are_known_by_uuid_whatever_the_list_does(h100: FakeNvml, begun: Callable[..., Asked]) -> None:
    asked = begun(h100)
    before = asked.look("fast")
    h100.reorder([7, 6, 5, 4, 3, 2, 1, 0])
    after = asked.look("fast")
    for subject in before.keys() - {NODE}:
        assert after[subject]["gpu_uuid"] == before[subject]["gpu_uuid"]
        assert after[subject]["gpu_index"] == 7 - int(str(before[subject]["gpu_index"]))
    h100.heal()
    h100.lose(0)
    h100.want_reset(1)
    h100.lose(2, gone=True)
    rows = asked.look("fast")
    errors = {subject: row["nvml_error"] for subject, row in rows.items() if row.get("gpu_up") == 0}
    assert len(errors) == 3
    assert set(errors.values()) == {15, 16}
    assert (rows[NODE]["gpus_visible"], rows[NODE]["gpus_lost"]) == (5, 3)
    h100.heal()
    rows = asked.look("fast")
    assert (rows[NODE]["gpus_visible"], rows[NODE]["gpus_lost"]) == (8, 0)


def test_links_and_pairs_are_as_the_driver_tells_them(h100: FakeNvml, begun: Callable[..., Asked]) -> None:
    asked = begun(h100)
    h100.cut_link(0, 3)
    h100.join_link(0, 4, 1)
    h100.fail("nvmlDeviceGetP2PStatus/2/1", 999, device=0)
    h100.lose(7)
    assert asked.look("medium")[A]["nvlink_up"][2:5] == (1, 0, 1)  # type: ignore[index]
    row = asked.look("slow")[A]
    switch = "nvswitch:0000:05:00.0"
    assert row["nvlink_peers"][2:6] == (switch, None, "gpu:0000:43:00.0", "nvswitch:0000:06:00.0")  # type: ignore[index]
    assert row["p2p_write"] == (
        "0000:43:00.0", 0, "0000:52:00.0", None, "0000:61:00.0", 0, "0000:9d:00.0", 0, "0000:c3:00.0", 0,
        "0000:d1:00.0", 0,
    )  # fmt: skip
    h100.heal()
    assert asked.look("slow")[A]["nvlink_peers"][3:5] == (switch, switch)  # type: ignore[index]
    h100.cut_link(0, 3)
    row = asked.look("slow")[A]
    assert row["nvlink_peers"][3] == switch  # type: ignore[index]  # it was told before, and nobody rewires it
    assert len(row["common_ancestors"]) == 14  # type: ignore[arg-type]


def test_masks_and_structs_of_the_wiring_are_read_as_they_are_laid_out(begun: Callable[..., Asked]) -> None:
    with FakeNvml(SMALL, driver="615") as nvml:
        row = begun(nvml).look("slow")[A]
    expected = {
        "nvml_cpus": "0-7,64", "nvml_numa_nodes": "1", "gpu_memory_numa_node": 3, "gpu_compute_capability": "9.0",
        "gpu_module_id": 1, "fabric_clique": 7, "fabric_cluster": "01020304-0506-0708-090a-0b0c0d0e0f10",
        "common_ancestors": ("0000:9d:00.0", 40), "p2p_read": ("0000:9d:00.0", 5),
    }  # fmt: skip
    assert expected.items() <= row.items()
    assert not {"p2p_write", "p2p_nvlink", "p2p_atomics"} & row.keys()


def test_a_gpu_that_was_lost_before_the_agent_began_is_missed(begun: Callable[..., Asked]) -> None:
    with FakeNvml(NODES / "h100x8-lost" / "nvml.json", driver="570") as nvml:
        live = begun(nvml).look("fast")
        played = begun(nvml, NODES / "h100x8-lost").look("fast")
    assert (live[NODE]["gpus_visible"], live[NODE]["gpus_lost"]) == (7, 1)
    assert (played[NODE]["gpus_visible"], played[NODE]["gpus_lost"]) == (7, 1)
    row = played["gpu:0000:9d:00.0"]  # by the kernel's list, which this machine's does not have
    assert (row["gpu_up"], row["nvml_error"]) == (0, 15)


def test_nvml_is_left_in_order_when_the_agent_goes(h100: FakeNvml, begun: Callable[..., Asked]) -> None:
    asked = begun(h100)
    asked.look("fast")
    shut, freed = h100.watch("nvmlShutdown"), h100.watch("nvmlGpmSampleFree")
    assert asked.child.stop(5.0)
    assert h100.hits(shut) == 1
    assert h100.hits(freed) == 16


def test_a_shutdown_that_hangs_ends_all_the_same(h100: FakeNvml, begun: Callable[..., Asked]) -> None:
    asked = begun(h100)
    h100.hang("nvmlShutdown")
    asked.child._socket.close()  # as when the agent is killed
    os.waitid(os.P_PID, asked.child.pid, os.WEXITED | os.WNOWAIT)
    assert asked.child.gone()


def test_the_child_cannot_be_ended_in_the_middle_of_a_call(h100: FakeNvml, begun: Callable[..., Asked]) -> None:
    asked = begun(h100)
    os.kill(asked.child.pid, 15)
    os.kill(asked.child.pid, 2)
    assert asked.look("fast")[NODE]["gpus_visible"] == 8


class Running:
    """The source in a thread of its own, and what it said."""

    def __init__(self, settings: Settings = QUICK) -> None:
        self.source = Nvml(settings, Path("/"), SystemClock())
        self.events: list[AnyEvent] = []
        self.more = threading.Condition()
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.source.run(self._emit, None)
        except ReadFailed as error:
            self.error = error
        with self.more:
            self.more.notify_all()

    def _emit(self, batch: Batch) -> None:
        with self.more:
            self.events += batch.events
            self.more.notify_all()

    def wait_for(self, what: Callable[[], Any], within: float = 10.0) -> None:
        with self.more:
            assert self.more.wait_for(what, within), self.events[-3:]

    @property
    def node(self) -> Values:
        rows = [event.rows[NODE] for event in self.events if isinstance(event, Sweep) and event.rate == "fast"]
        return rows[-1] if rows else {}

    def __enter__(self) -> "Running":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.source.stop()
        self.thread.join(10.0)
        assert not self.thread.is_alive()


@pytest.fixture
def on_h100(h100: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    for name, value in h100.env().items():
        monkeypatch.setenv(name, value)
    return h100


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        "nvmlInitWithFlags",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetNvLinkVersion",
        "nvmlDeviceGetTopologyCommonAncestor",
    ],
)
def test_a_hang_is_told_and_left_behind(on_h100: FakeNvml, call: str, deep: bool) -> None:
    on_h100.hang(call, deep=deep)
    settings = Settings(fast=1.0, fast_deadline=0.5, medium_deadline=0.5, slow_deadline=0.5, init_deadline=0.7)
    with Running(settings) as running:
        running.wait_for(lambda: running.error, 8.0)
        assert running.node["nvml_hung"] == 1
        assert running.node["nvml_hung_call"] == call
        assert call in str(running.error)
        (left,) = running.source._left
        time.sleep(0.2)
        assert left.gone()  # this one could be killed


def test_when_answers_come_again_nothing_hangs(on_h100: FakeNvml) -> None:
    fault = on_h100.hang("nvmlDeviceGetPowerUsage", device=3)
    settings = Settings(fast=1.0, fast_deadline=0.3, first_wait=0.2)
    with Running(settings) as running:
        running.wait_for(lambda: running.error)
    on_h100.heal(fault)
    again = Running(settings)
    again.source, running.source._stopping = running.source, False
    again.error = None
    with again:
        again.wait_for(lambda: again.node.get("nvml_hung") == 0)
    assert again.node["nvml_children_abandoned_total"] == 1


def test_a_crash_in_the_library_is_told(on_h100: FakeNvml) -> None:
    on_h100.crash("nvmlDeviceGetMemoryInfo_v2", device=2)
    with Running() as running:
        running.wait_for(lambda: running.error)
    assert "SIGSEGV" in str(running.error)


def test_an_xid_comes_as_a_second_witness(on_h100: FakeNvml) -> None:
    with Running() as running:
        running.wait_for(lambda: running.node)
        time.sleep(0.3)  # until the events are registered
        on_h100.event(1, 8, 94)
        running.wait_for(lambda: [event for event in running.events if isinstance(event, LogLine)], 5.0)
    (line,) = (event for event in running.events if isinstance(event, LogLine))
    assert (line.parsed.xid, line.parsed.pci, line.source) == (94, "0000:43:00.0", "nvml")


def test_a_driver_of_another_version_refuses(on_h100: FakeNvml) -> None:
    on_h100.fail("nvmlInitWithFlags", 18)
    with Running() as running:
        running.wait_for(lambda: running.error)
    assert running.node["nvml_init_error"] == 18
    assert Refused(18, "") != running.error
