"""Which dumps of flight recorders are of the hang that is judged."""

import msgspec

from gpuguard.jobs.dumps import compared, is_of_now
from gpuguard.model.flight import FlightSummary, GroupFlight, Waiting
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Row, Value


def row(**values: Value) -> Row:
    return Row(
        subject=SubjectId("rank:slurm/7/0"), at=Instant(boot=BootId("A"), mono=1.0), source="flight_recorder",
        values={f"flight_{name}": value for name, value in values.items()},
    )  # fmt: skip


def test_a_dump_is_of_now_when_it_is_younger_than_the_silence() -> None:
    assert is_of_now(row(age_seconds=10.0), 40.0)
    assert not is_of_now(row(age_seconds=50.0), 40.0)
    assert not is_of_now(row(), 40.0)
    assert not is_of_now(None, 40.0)


def test_without_a_dump_of_now_nothing_is_compared() -> None:
    assert compared({0: row(age_seconds=50.0, groups="{}")}, {0: 40.0}, 2) is None
    assert compared({0: row(age_seconds=5.0, groups="no JSON")}, {0: 40.0}, 2) is None
    assert compared({}, {}, None) is None


def test_who_has_not_called_what_the_others_wait_in() -> None:
    waits = FlightSummary(
        groups=(
            GroupFlight(
                name="0", ranks="0-1", completed=90, enqueued=91,
                waiting=Waiting(number=91, call="all_reduce", state="started"),
            ),
        ),
    )  # fmt: skip
    behind = FlightSummary(groups=(GroupFlight(name="0", ranks="0-1", completed=90, enqueued=90),))
    told = {
        number: row(age_seconds=5.0, groups=msgspec.json.encode(summary).decode())
        for number, summary in enumerate((waits, behind))
    }
    found = compared(told, {0: 40.0, 1: 40.0}, 2)
    assert found is not None
    assert (found.kind, found.culprits) == ("missing", (1,))
