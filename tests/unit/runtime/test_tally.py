"""What the shell counts about itself."""

import msgspec

from gpuguard.model.events import LinesLost, LogLine
from gpuguard.model.ids import EventId
from gpuguard.runtime.tally import CODES_KEPT, XIDS_KEPT, Tally
from tests.support.core import UTC, instant, line, sweep


def tally() -> Tally:
    return Tally(version="1", mode="observe", policy="default")


def test_events_are_counted_by_kind_and_code_with_their_repeats() -> None:
    counting = tally()
    event = line("NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name=x, Ch 00000008", 1.0)
    counting.saw(event)
    counting.saw(msgspec.structs.replace(event, repeated=9))
    counting.saw(LinesLost(id=EventId("l"), at=instant(1.0), source="kmsg", count=5, reason="overrun"))
    assert counting.facts((), {}, 0).events == {"xid 43": 10, "lines_lost ": 5}


def test_a_hostile_log_cannot_make_series_without_end() -> None:
    counting = tally()
    event = line("NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name=x, Ch 00000008", 1.0)
    for code in range(5000):
        parsed = msgspec.structs.replace(event.parsed, xid=code)
        counting.saw(LogLine(id=EventId("e"), at=event.at, source="kmsg", parsed=parsed, raw=""))
    events = counting.facts((), {}, 0).events
    assert len(events) <= CODES_KEPT + 1
    assert sum(events.values()) == 5000


def test_latency_is_a_cumulative_histogram() -> None:
    counting = tally()
    for seconds in (0.0005, 0.003, 0.03, 9.0):
        counting.decided(seconds)
    facts = counting.facts((), {}, 0)
    latency = dict(facts.latency)
    assert latency[0.001] == 1
    assert latency[0.05] == 3
    assert latency[5.0] == 3
    assert facts.latency_count == 4


def test_whether_the_target_answers_follows_its_last_answer() -> None:
    counting = tally()
    assert counting.facts((), {}, 0).actuator_ok is None
    counting.answered("drain", "deferred")
    assert counting.actuator_ok is False
    counting.answered("drain", "done")
    assert counting.actuator_ok is True
    assert counting.facts((), {}, 0).results == {"drain deferred": 1, "drain done": 1}


def test_its_own_cost_is_measured() -> None:
    facts = tally().facts((), {"owed": 1}, 3)
    assert facts.resident_bytes > 1_000_000
    assert facts.cpu_seconds > 0
    assert (facts.actions, facts.mailbox_depth) == ({"owed": 1}, 3)


def test_the_newest_xids_are_known_by_gpu_and_code_with_their_dates() -> None:
    counting = tally()
    counting.saw(line("NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name=x, Ch 00000008", 1.0))
    counting.saw(msgspec.structs.replace(line("NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name=x", 5.0), repeated=3))
    counting.saw(line("NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.", 6.0, source="nvml"))
    seen = {(x.pci, x.xid): (x.count, x.last_utc) for x in counting.facts((), {}, 0).xids}
    assert seen == {("0000:3b:00.0", 43): (4, UTC + 5.0), ("0000:4e:00.0", 79): (0, UTC + 6.0)}


def test_of_too_many_xids_the_oldest_goes() -> None:
    counting = tally()
    event = line("NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name=x, Ch 00000008", 1.0)
    for code in (*range(XIDS_KEPT), 0, 9999):
        parsed = msgspec.structs.replace(event.parsed, xid=code)
        counting.saw(LogLine(id=EventId("e"), at=event.at, source="kmsg", parsed=parsed, raw=""))
    codes = [seen.xid for seen in counting.facts((), {}, 0).xids]
    assert len(codes) == XIDS_KEPT
    assert codes[-2:] == [0, 9999]
    assert 1 not in codes


def test_when_each_gpu_last_answered_is_known_also_after_it_stopped() -> None:
    counting = tally()
    counting.saw(sweep({"gpu:0000:3b:00.0": {"gpu_up": 1}, "gpu:0000:4e:00.0": {"gpu_up": 1}}, 1.0))
    counting.saw(sweep({"gpu:0000:3b:00.0": {"gpu_up": 0}, "gpu:0000:4e:00.0": {"gpu_up": 1}, "node": {}}, 6.0))
    counting.saw(sweep({"gpu:0000:3b:00.0": {"pcie_link_width": 16}}, 9.0))  # the kernel says so, not the driver
    assert counting.facts((), {}, 0).gpu_success == {"gpu:0000:3b:00.0": UTC + 1.0, "gpu:0000:4e:00.0": UTC + 6.0}
