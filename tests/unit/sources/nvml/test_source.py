"""The source lives on where its child does not: a hang is a fact, told in time, and no reason to wait."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.actions import Question
from gpuguard.model.events import AnyEvent, Batch, LogLine, Parsed, Sweep
from gpuguard.model.ids import NODE, EventId, PciAddress, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.nvml import Nvml, Settings
from gpuguard.sources.nvml.protocol import Begin, Begun, Doing, Look, Refused, Report, Request, Seen, Xid
from tests.support.nvml import FakeChild, answers, seen

GPU = SubjectId("gpu:0000:1b:00.0")
PCI = PciAddress("0000:1b:00.0")


class Desk:
    """The source with children that a test gives it, and all that it said."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock(1000.0)
        self.events: list[AnyEvent] = []
        self.settled_at: list[float] = []
        self.children: list[FakeChild] = []
        self.next: list[FakeChild] = []
        self.rested: list[float] = []
        self.stop_at = float("inf")
        self.source = Nvml(Settings(**settings), Path("/"), self.clock, start=self._start, rest=self._rest)

    def child(self, answer: Callable[[Request], Sequence[Report]] = answers, **more: Any) -> FakeChild:
        """A child that the source gets next."""
        child = FakeChild(self.clock, answer, **more)
        child.until = self._stop_in_time
        self.next.append(child)
        return child

    def _start(self) -> FakeChild:
        self.children.append(self.next.pop(0))
        return self.children[-1]

    def _rest(self, seconds: float) -> None:
        self.rested.append(seconds)
        self.clock.advance(seconds)
        self._stop_in_time()

    def _stop_in_time(self) -> None:
        if self.clock.now().mono >= self.stop_at:
            self.source.stop()

    def run(self, seconds: float = 1e9) -> None:
        """The source runs until so much time went by, or it ends by itself."""
        self.stop_at = self.clock.now().mono + seconds
        self.source.run(self._emit, None)

    def _emit(self, batch: Batch) -> None:
        self.events += batch.events
        if not batch.events:
            self.settled_at.append(self.clock.now().mono)

    def sweeps(self, rate: str = "fast") -> list[Sweep]:
        """Those of one class, in their order."""
        return [event for event in self.events if isinstance(event, Sweep) and event.rate == rate]

    @property
    def node(self) -> dict[str, Any]:
        """The newest row of the node."""
        return self.sweeps()[-1].rows[NODE]


def _hangs_at(rate: str) -> Callable[[Request], Sequence[Report]]:
    return lambda request: [] if isinstance(request, Look) and request.rate == rate else answers(request)


def test_each_class_is_swept_when_it_is_due() -> None:
    desk = Desk()
    desk.child()
    desk.run(601.0)
    assert [len(desk.sweeps(rate)) for rate in ("fast", "medium", "slow")] == [121, 21, 2]
    assert desk.settled_at == [1000.0]
    first = desk.sweeps()[0]
    assert (first.source, first.valid_for, first.rows[GPU]) == ("nvml", 15.0, {"gpu_up": 1})
    assert desk.sweeps("slow")[0].valid_for == 1800.0
    expected = {
        "gpus_visible": 1, "nvml_hung": 0, "nvml_init_error": 0, "nvml_children_abandoned_total": 0,
        "samples_due_total": 142, "samples_taken_total": 142, "nvml_fast_sweep_seconds": 0.001,
        "nvml_call_seconds": (1, 1, 0.001),
    }  # fmt: skip
    assert expected.items() <= desk.node.items()
    assert len({event.id for event in desk.events}) == len(desk.events)
    assert desk.children[0].stopped


def test_activity_is_known_soon_after_the_first_look() -> None:
    """It is measured between two looks, and whoever looks once would never see it."""
    desk = Desk()
    looks = iter([None, 0.5, 0.5, 0.5])

    def answer(request: Request) -> Sequence[Report]:
        (report,) = answers(request)
        if isinstance(request, Look) and request.rate == "fast" and isinstance(report, Seen):
            report.rows[GPU]["sm_active_ratio"] = next(looks)
        return (report,)

    desk.child(answer)
    desk.run(6.0)
    fast = desk.sweeps()
    assert [round(sweep.at.mono - 1000.0, 1) for sweep in fast] == [0.0, 0.2, 5.2]
    assert [round(at - 1000.0, 1) for at in desk.settled_at] == [0.2]


def test_what_changed_is_read_whole_at_once_but_not_over_and_over() -> None:
    desk = Desk()
    desk.child(lambda r: [seen(r.rate, changed=r.rate == "fast")] if isinstance(r, Look) else answers(r))
    desk.run(61.0)
    assert [len(desk.sweeps(rate)) for rate in ("fast", "slow")] == [13, 3]


def test_a_question_brings_the_next_fast_sweep_at_once() -> None:
    desk = Desk()
    child = desk.child()
    moments = iter([1002.0])

    def ask() -> None:
        if next(moments, None) is not None:
            desk.source.ask(Question(subject=GPU, code="xid79", source="kmsg", raw="", at=desk.clock.now()))

    child.receive = _waits(child.receive, 2.0, ask)  # type: ignore[method-assign]
    desk.run(4.0)
    assert [sweep.at.mono for sweep in desk.sweeps()] == [1000.0, 1002.0]


def _waits(receive: Callable[..., bytes | None], at_most: float, then: Callable[[], None]) -> Any:
    """A wait that ends early, as one that is woken does. Any: stands for a method."""

    def wait(timeout: float, *wakes: int) -> bytes | None:
        message = receive(min(timeout, at_most), *wakes)
        if message is None:
            then()
        return message

    return wait


# --- hangs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", ["fast", "medium", "slow"])
def test_a_child_that_misses_its_deadline_is_left_behind_within_ten_seconds(rate: str) -> None:
    desk = Desk()
    child = desk.child(_hangs_at(rate))
    with pytest.raises(ReadFailed, match="NVML hangs in nvmlDeviceGetPowerUsage"):
        desk.run()
    assert desk.clock.now().mono - 1000.0 < 9.0
    assert child.abandoned
    assert not child.stopped  # it is not waited for
    expected = {"nvml_hung": 1, "nvml_hung_call": "nvmlDeviceGetPowerUsage", "nvml_children_abandoned_total": 1}
    assert expected.items() <= desk.node.items()
    assert desk.node["nvml_hung_for_seconds"] >= 4.0
    assert "gpus_visible" not in desk.node
    assert desk.sweeps()[-1].valid_for >= 10.0 + 30.0


def test_a_child_that_hangs_while_it_opens_nvml_is_left_behind() -> None:
    desk = Desk()
    desk.child(lambda request: [], call="nvmlInitWithFlags")
    with pytest.raises(ReadFailed, match="nvmlInitWithFlags"):
        desk.run()
    assert desk.clock.now().mono == 1030.0
    assert desk.node["nvml_hung_call"] == "nvmlInitWithFlags"


def test_one_that_tells_nothing_at_all_is_known_by_what_was_asked() -> None:
    desk = Desk()
    desk.child(_hangs_at("fast"), call="")
    with pytest.raises(ReadFailed, match="NVML hangs in look"):
        desk.run()


def test_a_late_answer_is_an_answer() -> None:
    desk = Desk()
    late = seen("fast", {"node": {"gpus_visible": 1}})
    child = desk.child(lambda r: [late] if isinstance(r, Doing) else _hangs_at("fast")(r))
    desk.run(4.1)
    assert not child.abandoned
    assert [sweep.at.mono for sweep in desk.sweeps()] == [1004.0]
    assert desk.node["nvml_hung"] == 0


def test_waits_get_longer_and_the_row_says_that_it_still_hangs() -> None:
    desk = Desk()
    starts = []
    for _ in range(9):
        desk.child(_hangs_at("fast"))
        with pytest.raises(ReadFailed):
            desk.run()
        starts.append(desk.clock.now().mono)
    gaps = [round(later - before - 4.0) for before, later in pairwise(starts)]
    assert gaps == [10, 20, 40, 80, 160, 320, 600, 600]
    assert desk.node["nvml_children_abandoned_total"] == 9
    assert desk.node["nvml_hung"] == 1
    desk.child()
    desk.run(700.0)
    assert desk.node["nvml_hung"] == 0
    assert max(desk.rested) <= 5.0


def test_while_one_that_cannot_be_killed_is_left_behind_no_other_is_started() -> None:
    desk = Desk()
    desk.child(_hangs_at("fast"), killable=False)
    with pytest.raises(ReadFailed):
        desk.run()
    judged = desk.clock.now().mono
    for times in range(1, 4):
        with pytest.raises(ReadFailed, match="no other is started"):
            desk.run()
        assert desk.clock.now().mono == judged + 600.0 * times
        assert desk.node["nvml_hung"] == 1
    assert len(desk.children) == 1
    desk.children[0].killable = True
    desk.child()
    desk.run(1300.0)
    assert desk.node["nvml_hung"] == 0


def test_the_wait_ends_when_told_to_stop() -> None:
    desk = Desk()
    desk.child(_hangs_at("fast"))
    with pytest.raises(ReadFailed):
        desk.run()
    desk.run(3.0)
    assert len(desk.children) == 1


def test_missed_sweeps_are_due_and_not_taken() -> None:
    desk = Desk()
    desk.child(_hangs_at("medium"))
    with pytest.raises(ReadFailed):
        desk.run()
    assert (desk.node["samples_due_total"], desk.node["samples_taken_total"]) == (2, 1)
    desk.child()
    desk.run(60.0)
    # Asked again 10 s after the hang was judged: the sweeps of that time were due as well, and nobody took them.
    missed = desk.node["samples_due_total"] - desk.node["samples_taken_total"]
    assert missed == 1 + 2  # the one that hung, and two fast ones; the third was late


# --- refusals and ends -----------------------------------------------------------------------------------------------


def _refuses(code: int) -> Callable[[Request], Sequence[Report]]:
    return lambda request: [Refused(code, "nvmlInitWithFlags")]


def test_no_library_is_no_nvml() -> None:
    desk = Desk()
    child = desk.child(_refuses(12))
    with pytest.raises(Absent):
        desk.run()
    assert desk.node["nvml_init_error"] == 12  # where there are GPUs, somebody is to be told
    assert child.stopped


def test_a_root_without_a_recording_is_no_nvml(tmp_path: Path) -> None:
    with pytest.raises(Absent, match=r"nvml\.json does not exist"):
        Nvml(Settings(), tmp_path, ManualClock()).run(lambda batch: None, None)


def test_library_and_driver_that_differ_are_told() -> None:
    desk = Desk()
    desk.child(_refuses(18))
    with pytest.raises(ReadFailed, match="reload the driver"):
        desk.run()
    assert desk.node["nvml_init_error"] == 18


def test_nvml_that_ends_in_between_is_told_and_begun_anew() -> None:
    desk = Desk()
    child = desk.child(lambda r: [Refused(9, "x")] if isinstance(r, Look) and r.rate == "medium" else answers(r))
    with pytest.raises(ReadFailed, match="driver is not loaded"):
        desk.run()
    assert desk.node["nvml_init_error"] == 9
    assert child.stopped


def test_a_child_that_ends_is_told() -> None:
    desk = Desk()
    child = desk.child()
    child.until = lambda: setattr(child, "closed", True)
    with pytest.raises(ReadFailed, match="exit code 1"):
        desk.run()


def test_the_next_child_knows_the_gpus_that_were_there() -> None:
    desk = Desk()
    known = {"GPU-1": PCI}
    first = desk.child(lambda r: [seen(r.rate, known=known)] if isinstance(r, Look) else answers(r))
    first.until = lambda: setattr(first, "closed", True)
    with pytest.raises(ReadFailed):
        desk.run()
    second = desk.child()
    desk.run(1.0)
    assert second.requests[0] == Begin(known)


# --- Xids ------------------------------------------------------------------------------------------------------------


def test_the_drivers_events_are_a_second_witness() -> None:
    desk = Desk()
    child = desk.child()
    child.at = [(1002.5, Xid(94, PCI, 3)), (1003.0, Xid(63, PCI))]
    desk.run(4.0)
    first, second = (event for event in desk.events if isinstance(event, LogLine))
    assert (first.source, first.at.mono, first.raw) == ("nvml", 1002.5, "NVML event: Xid 94")
    assert (first.parsed.kind, first.parsed.xid, first.parsed.pci) == ("xid", 94, PCI)
    assert first.parsed.detail == {"gpu_instance": 3}
    assert second.parsed.detail == {}


def test_that_the_recovery_action_changed_brings_the_next_fast_sweep_at_once() -> None:
    """The event does not say to what."""
    desk = Desk()
    child = desk.child()
    child.at = [(1002.5, Xid(154, PCI))]
    desk.run(4.0)
    assert [sweep.at.mono for sweep in desk.sweeps()] == [1000.0, 1002.5]


def test_an_event_during_a_sweep_is_told_before_it() -> None:
    desk = Desk()
    desk.child(lambda r: [Xid(63, PCI), *answers(r)] if isinstance(r, Look) and r.rate == "slow" else answers(r))
    desk.run(1.0)
    assert [type(event).__name__ for event in desk.events] == ["Sweep", "Sweep", "LogLine", "Sweep"]


def _hear(desk: Desk, code: int, ago: float = 0.0) -> None:
    """The kernel log told an Xid of the first GPU so many seconds ago."""
    now = desk.clock.now()
    at = Instant(boot=now.boot, mono=now.mono - ago)
    parsed = Parsed(kind="xid", xid=code, pci=PCI)
    desk.source.overhear(LogLine(id=EventId("kmsg:1"), at=at, source="kmsg", parsed=parsed, raw=""))


def test_after_xid_79_that_gpu_is_held_back_for_a_minute() -> None:
    desk = Desk()
    child = desk.child()
    child.at = [(1001.0, Xid(79, PCI))]
    desk.run(70.0)
    held = [look.held for look in child.looks if look.rate == "fast"]
    assert held[0] == ()
    assert held[1:13] == [(PCI,)] * 12
    assert held[13:] == [()]


@pytest.mark.parametrize("code", [119, 120])
def test_after_a_gsp_timeout_nothing_is_asked_for_a_minute(code: int) -> None:
    desk = Desk()
    desk.child()
    _hear(desk, code)
    desk.run(66.0)
    assert desk.sweeps()[0].at.mono == 1060.0
    assert len(desk.settled_at) > 10  # a sign of life all the while


def test_while_a_gpu_is_reset_nobody_has_nvml_open() -> None:
    desk = Desk()
    looks = iter(range(1000))

    def answer(request: Request) -> Sequence[Report]:
        if isinstance(request, Look) and request.rate == "fast" and next(looks) == 2:
            desk.source.let_go(20.0)
        return answers(request)

    first, second = desk.child(answer), desk.child()
    desk.run(60.0)
    assert first.stopped
    assert len(first.looks) < len(second.looks)
    times = [sweep.at.mono for sweep in desk.sweeps()]
    assert max(later - earlier for earlier, later in pairwise(times)) == 20.0
    assert len(desk.settled_at) > 3, "a sign of life meanwhile"


def test_a_hold_in_between_lets_sweeps_fall_out() -> None:
    desk = Desk()
    child = desk.child()
    child.at = [(1001.0, Xid(119, PCI))]
    desk.run(66.0)
    assert [sweep.at.mono for sweep in desk.sweeps()] == [1000.0, 1065.0]
    assert desk.node["samples_due_total"] > desk.node["samples_taken_total"] + 10


def test_old_news_and_other_xids_hold_nothing() -> None:
    desk = Desk()
    child = desk.child()
    _hear(desk, 119, ago=61.0)
    _hear(desk, 63)
    desk.run(1.0)
    assert child.looks[0].held == ()


def test_a_gpu_that_fell_off_delays_the_opening_which_touches_all() -> None:
    desk = Desk()
    child = desk.child()
    _hear(desk, 79, ago=20.0)
    desk.run(41.0)
    assert isinstance(child.requests[0], Begin)
    assert desk.sweeps()[0].at.mono == 1040.0


@pytest.mark.parametrize("wrong", [{"fast": 0.0}, {"fast_deadline": 0.0}, {"first_wait": 0.0}, {"first_wait": 700.0}])
def test_settings_that_could_spin_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Settings(**wrong)  # type: ignore[arg-type]


def test_begun_is_needed_before_anything_is_asked() -> None:
    desk = Desk()
    child = desk.child(lambda r: [Xid(63, PCI), Begun(0.1)] if isinstance(r, Begin) else answers(r))
    desk.run(1.0)
    assert isinstance(desk.events[0], LogLine)
    assert len(child.looks) == 3


def test_children_that_end_before_they_looked_at_everything_are_told_until_one_has() -> None:
    desk = Desk()
    desk.child(answers).closed = True
    with pytest.raises(ReadFailed, match="ended"):
        desk.run()
    assert (desk.node["nvml_failing"], desk.node["nvml_failure"][:24]) == (1, "the process that asks NV")
    assert desk.sweeps()[-1].valid_for >= 120.0, "supervision waits a minute at most"
    child = desk.child()
    child.answer = lambda request: _closing(child, request)
    with pytest.raises(ReadFailed, match="ended"):
        desk.run()
    assert [sweep.rows[NODE]["nvml_failing"] for sweep in desk.sweeps()] == [1, 1, 1], (
        "its fast look alone proves nothing"
    )
    desk.child()
    desk.run(11.0)
    assert [sweep.rows[NODE]["nvml_failing"] for sweep in desk.sweeps()[3:]] == [1, 0, 0]


def _closing(child: FakeChild, request: Request) -> Sequence[Report]:
    """It dies of every medium look."""
    if isinstance(request, Look) and request.rate == "medium":
        child.closed = True
        return ()
    return answers(request)


@pytest.mark.parametrize(("code", "failing"), [(999, 1), (15, 1), (4, 0), (9, 0), (18, 0)])
def test_nvml_that_refuses_is_told_unless_another_check_tells_why(code: int, failing: int) -> None:
    desk = Desk()
    desk.child(lambda request: [Refused(code, "nvmlInit")])
    with pytest.raises(ReadFailed):
        desk.run()
    assert (desk.node["nvml_init_error"], desk.node["nvml_failing"]) == (code, failing)
