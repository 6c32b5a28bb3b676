"""What is asked of the fleet's book around each write, and what comes of it when any step fails or is the last."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from gpuguard.actuators import dry_run, slurm
from gpuguard.custody.budget import Book, Limits, read_book, write_book
from gpuguard.custody.ownership import about_the_drain, judge
from gpuguard.errors import ConfigInvalid, ReadFailed
from gpuguard.model.actions import Action, Outcome
from gpuguard.ports import Actuator, FleetDrain, FleetReport, LedgerPage, NodeReport
from gpuguard.runtime import guard
from gpuguard.runtime.fleet_book import FRESH, Recorded, Shared
from gpuguard.runtime.guard import Guarded, Settings, Target, guarded
from gpuguard.store.ledger import MARKER, DirectoryLedger
from tests.support.fake_scontrol import FakeScontrol
from tests.support.wishes import requeue, wish

NOW = 1_800_000_000.0
TOKEN = "7f3a"
FULL = tuple(FleetDrain(node=f"n{number}", token=f"{number:04x}", since_utc=NOW - 5) for number in range(5))


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Cluster:
    """A scheduler that obeys the table of custody; `fault` happens before or after a named step."""

    name: str = "slurm"
    nodes: int = 1000
    drains: tuple[FleetDrain, ...] = ()
    flags: tuple[str, ...] = ("IDLE",)
    reason: str = ""
    since: float = NOW
    away: bool = False
    error: str | None = None
    fault: Callable[[str], None] = lambda step: None
    steps: list[str] = field(default_factory=list)
    late: tuple[FleetDrain, ...] = ()

    def read_state(self) -> NodeReport:
        self._step("look")
        return NodeReport(
            target="slurm", node="here", state="+".join(self.flags), flags=self.flags, drained="DRAIN" in self.flags,
            reason=self.reason, ours=TOKEN if self.reason else None, error=self.error,
        )  # fmt: skip

    def read_fleet(self) -> FleetReport:
        self._step("fleet")
        mine = (FleetDrain(node="here", token=TOKEN, code="xid79", since_utc=self.since),) if self.reason else ()
        error = "slurmctld does not answer" if self.away else None
        return FleetReport(target="slurm", nodes=self.nodes, drains=(*self.drains, *mine), error=error)

    def perform(self, action: Action) -> Outcome:
        self._step(f"before {action.verb}")
        if not about_the_drain(action.verb):
            return Outcome(result="done", message="it was done")
        report = NodeReport(target="slurm", node="here", flags=self.flags, reason=self.reason)
        judgement = judge(report, action.verb, action.token)
        if judgement.call == "write":
            self.flags = ("IDLE", "DRAIN") if action.verb == "drain" else ("IDLE",)
            self.reason = action.reason if action.verb == "drain" else ""
            self.drains += self.late
            self.steps.append(f"WROTE {action.verb}")
        self._step(f"after {action.verb}")
        said = {"write": "done", "done": "done", "never": "foreign", "wait": "deferred"}[judgement.call]
        outcome = {"result": said, "message": judgement.why, "retry_after": 1.0 if said == "deferred" else None}
        return msgspec.convert(outcome, Outcome)

    def _step(self, step: str) -> None:
        self.steps.append(step)
        self.fault(step)

    @property
    def writes(self) -> list[str]:
        return [step.removeprefix("WROTE ") for step in self.steps if step.startswith("WROTE ")]


@dataclass
class Shelf:
    """A ledger in memory; `fault` happens before or after a named step."""

    name: str = "shelf"
    anew: str = "empty the shelf"
    text: bytes = b""
    version: int = 0
    utc: float = NOW
    fault: Callable[[str], None] = lambda step: None
    others: int = 0
    calls: int = 0

    def read(self, until: float) -> LedgerPage:
        self.calls += 1
        self.fault("read")
        return LedgerPage(version=str(self.version), text=self.text, utc=self.utc)

    def write(self, page: LedgerPage, text: bytes, until: float) -> bool:
        self.calls += 1
        self.fault("before write")
        if self.others:
            self.others -= 1
            return False
        if page.version != str(self.version):
            return False
        self.text, self.version = text, self.version + 1
        self.fault("after write")
        return True

    @property
    def book(self) -> Book:
        return read_book(self.text)


def over(cluster: Cluster, shelf: Shelf, deadline: float = 2.0) -> Guarded:
    return Guarded(cluster, Shared(shelf, cluster, Limits(), deadline, "0.6.0", pause=lambda _: None), version="0.6.0")


def recorded(cluster: Cluster, now: float = NOW, pauses: list[float] | None = None) -> Guarded:
    told = pauses if pauses is not None else []
    return Guarded(cluster, Recorded(cluster, Limits(), clock=lambda: now, pause=told.append))


def drain(by: str = "gpuguard", code: str = "xid79") -> Action:
    return msgspec.structs.replace(wish("drain"), by=by, code=code)


def at(step: str, error: BaseException) -> Callable[[str], None]:
    """That step fails, once."""
    left = [step]

    def fault(now: str) -> None:
        if left and now == step:
            left.clear()
            raise error

    return fault


def test_a_drain_is_entered_then_written() -> None:
    cluster, shelf = Cluster(), Shelf()
    cluster.fault = lambda step: order.append((step, len(shelf.book.entries)))
    order: list[tuple[str, int]] = []
    assert over(cluster, shelf).perform(drain()).result == "done"
    assert order == [("look", 0), ("fleet", 0), ("before drain", 1), ("after drain", 1)]
    (entry,) = shelf.book.entries
    assert (entry.node, entry.key, entry.token, entry.code) == ("here", "here/drain-7f3a", TOKEN, "xid79")
    assert (entry.granted, entry.version) == (True, "0.6.0")


def test_over_budget_it_is_held_and_nothing_is_written() -> None:
    cluster, shelf = Cluster(drains=FULL), Shelf()
    here = over(cluster, shelf)
    outcome = here.perform(drain())
    assert outcome == Outcome(
        result="held", node_state="IDLE",
        message="not drained: 5 nodes began a drain within 10 min and 5 may, of 1000: a person is to decide",
    )  # fmt: skip
    shelf.utc += 300
    again = here.perform(drain())
    assert (again.result, "it refused" in again.message or "refused it before" in again.message) == ("held", True)
    assert cluster.writes == []


def test_a_person_gets_what_gpuguard_does_not_and_the_book_hears_of_it() -> None:
    cluster, shelf = Cluster(drains=FULL), Shelf()
    assert over(cluster, shelf).perform(drain(by="mia")).result == "done"
    assert cluster.writes == ["drain"]
    assert [(e.by, e.granted) for e in shelf.book.entries] == [("mia", True)]
    assert "fleet" not in cluster.steps


def test_a_release_waits_for_nothing_and_is_given_back() -> None:
    cluster, shelf = Cluster(), Shelf()
    here = over(cluster, shelf)
    here.perform(drain())
    cluster.drains = FULL
    assert here.perform(wish("release")).result == "done"
    assert [e.ended for e in shelf.book.entries] == [NOW]
    assert cluster.writes == ["drain", "release"]


@pytest.mark.parametrize("verb", ["update_reason", "adopt", "release"])
def test_what_is_no_drain_goes_straight_to_the_target(verb: str) -> None:
    cluster, shelf = Cluster(), Shelf()
    shelf.fault = at("read", ReadFailed("the server hangs"))
    action = msgspec.convert({**msgspec.to_builtins(wish("drain")), "verb": verb}, Action)
    expected = {"update_reason": "foreign", "adopt": "foreign", "release": "done"}[verb]
    assert over(cluster, shelf).perform(action).result == expected
    assert cluster.steps[0] == f"before {verb}"


def test_a_requeue_asks_nobody() -> None:
    cluster, shelf = Cluster(), Shelf()
    assert over(cluster, shelf).perform(requeue()).result == "done"
    assert (cluster.steps, shelf.calls) == (["before requeue"], 0)


@pytest.mark.parametrize("text", [b"garbage", b'{"version": 9}'])
def test_a_book_that_is_not_understood_puts_the_drain_off(text: bytes) -> None:
    cluster = Cluster()
    outcome = over(cluster, Shelf(text=text)).perform(drain())
    assert outcome.result == "deferred"
    assert "nothing was written, as the fleet's budget could not be asked: the fleet's book" in outcome.message
    assert outcome.retry_after is not None
    assert 5.0 <= outcome.retry_after <= 15.0
    assert cluster.writes == []


@pytest.mark.parametrize("step", ["read", "before write", "after write"])
def test_a_ledger_without_an_answer_puts_a_drain_off_and_lets_everything_else_through(step: str) -> None:
    cluster, shelf = Cluster(), Shelf()
    here = over(cluster, shelf)
    shelf.fault = at(step, ReadFailed("the server hangs"))
    assert here.perform(drain()).result == "deferred"
    assert cluster.writes == []
    assert here.perform(drain()).result == "done"
    shelf.fault = at(step, ReadFailed("the server hangs"))
    outcome = here.perform(wish("release"))
    assert outcome.result == "done"
    assert "the fleet's book was not told and mends itself within minutes (the server hangs)" in outcome.message
    shelf.fault = at(step, ReadFailed("the server hangs"))
    assert here.perform(drain(by="mia")).result == "done"
    assert cluster.writes == ["drain", "release", "drain"]


def test_a_fleet_of_unknown_size_puts_a_drain_off() -> None:
    cluster, shelf = Cluster(away=True), Shelf()
    outcome = over(cluster, shelf).perform(drain())
    assert (outcome.result, cluster.writes, shelf.book.entries) == ("deferred", [], ())
    assert "slurmctld does not answer" in outcome.message


@pytest.mark.parametrize(
    "step", ["look", "fleet", "before drain", "after drain", "read", "before write", "after write"]
)
def test_killed_at_any_step_the_same_key_gets_the_same_answer(step: str) -> None:
    cluster, shelf = Cluster(), Shelf()
    cluster.fault = shelf.fault = at(step, Killed())
    with pytest.raises(Killed):
        over(cluster, shelf).perform(drain())
    assert over(cluster, shelf).perform(drain()).result == "done"
    assert cluster.writes == ["drain"]
    assert [e.granted for e in shelf.book.entries] == [True]


@pytest.mark.parametrize("step", ["look", "fleet", "read", "before write", "after write"])
def test_killed_at_any_step_a_refusal_stays_one(step: str) -> None:
    cluster, shelf = Cluster(drains=FULL), Shelf()
    cluster.fault = shelf.fault = at(step, Killed())
    with pytest.raises(Killed):
        over(cluster, shelf).perform(drain())
    assert over(cluster, shelf).perform(drain()).result == "held"
    assert cluster.writes == []


@pytest.mark.parametrize(
    ("flags", "reason", "result"),
    [
        (("IDLE", "DRAIN"), "Bob: fan", "foreign"), (("IDLE", "DRAIN"), "", "foreign"), (("DOWN",), "", "deferred"),
        (("IDLE", "REBOOT_ISSUED"), "", "deferred"), (("IDLE", "UNHEARD_OF"), "", "deferred"),
        (("IDLE", "FAIL"), "", "foreign"), (("IDLE", "MAINTENANCE"), "", "deferred"),
    ],
)  # fmt: skip
def test_what_would_not_be_written_is_not_asked_for(flags: tuple[str, ...], reason: str, result: str) -> None:
    cluster, shelf = Cluster(flags=flags, reason=reason), Shelf()
    outcome = over(cluster, shelf).perform(drain())
    assert (outcome.result, shelf.calls, cluster.writes) == (result, 0, [])
    assert (outcome.retry_after is None) == (result != "deferred")
    assert "here is " in outcome.message


def test_what_stands_already_is_done_without_the_book() -> None:
    cluster, shelf = Cluster(flags=("IDLE", "DRAIN"), reason=wish("drain").reason), Shelf(text=b"garbage")
    assert over(cluster, shelf).perform(drain()).result == "done"
    assert (shelf.calls, cluster.writes) == (0, [])


def test_what_somebody_else_took_meanwhile_is_withdrawn() -> None:
    cluster, shelf = Cluster(), Shelf()

    def taken(step: str) -> None:
        if step == "before drain":
            cluster.flags, cluster.reason = ("IDLE", "DRAIN"), "Bob: fan"

    cluster.fault = taken
    assert over(cluster, shelf).perform(drain()).result == "foreign"
    assert [(e.granted, e.ended) for e in shelf.book.entries] == [(False, NOW)]


@pytest.mark.parametrize(("written", "granted"), [(False, False), (True, True)])
def test_a_write_that_was_put_off_is_withdrawn_only_where_it_was_not_made(written: bool, granted: bool) -> None:
    class Silent(Cluster):
        def perform(self, action: Action) -> Outcome:
            if written:
                self.flags, self.reason = ("IDLE", "DRAIN"), action.reason
            return Outcome(result="deferred", message="scontrol had no answer in time", retry_after=5.0)

    cluster, shelf = Silent(), Shelf()
    assert over(cluster, shelf).perform(drain()).result == "deferred"
    assert [e.granted for e in shelf.book.entries] == [granted]


def test_those_who_are_slower_try_again_and_a_refusal_need_not_be_written() -> None:
    cluster, shelf = Cluster(), Shelf(others=6)
    assert over(cluster, shelf).perform(drain()).result == "done"
    cluster, shelf = Cluster(drains=FULL), Shelf(others=1_000_000)
    assert over(cluster, shelf).perform(drain()).result == "held"
    assert shelf.calls < 10
    cluster, shelf = Cluster(), Shelf(others=1_000_000)
    outcome = over(cluster, shelf, deadline=0.25).perform(drain())
    assert (outcome.result, cluster.writes) == ("deferred", [])
    assert "too many nodes write in the fleet's book at once" in outcome.message


def test_a_common_cause_asks_the_scheduler_nothing() -> None:
    shelf = Shelf()
    for number in range(40):
        cluster = Cluster()
        here = Guarded(
            Named(cluster, f"n{number}"), Shared(shelf, cluster, Limits(), 2.0, "0.6.0", pause=lambda _: None)
        )
        outcome = here.perform(drain())
        assert outcome.result == ("done" if number < 3 else "held")
        assert ("fleet" in cluster.steps) == (number < 3)


class Named:
    """The same scheduler seen from a node of another name."""

    name = "slurm"

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster, self._node = cluster, node
        self.perform, self.read_fleet = cluster.perform, cluster.read_fleet

    def read_state(self) -> NodeReport:
        return msgspec.structs.replace(self._cluster.read_state(), node=self._node)


def test_the_first_book_is_empty_and_a_quiet_look_writes_nothing() -> None:
    shelf = Shelf(text=write_book(Book()))
    Shared(shelf, Cluster(), Limits(), 2.0, "").give_back("here", TOKEN)
    assert shelf.version == 0


# --- the scheduler's own records --------------------------------------------------------------------------------------


def test_with_records_alone_a_drain_is_looked_at_again_when_its_second_is_over() -> None:
    cluster, pauses = Cluster(drains=FULL[:4]), []
    assert recorded(cluster, pauses=pauses).perform(drain()).result == "done"
    assert cluster.steps == ["look", "fleet", "before drain", "WROTE drain", "after drain", "fleet"]
    assert pauses == [1.1]


def test_with_records_alone_a_full_budget_writes_nothing() -> None:
    cluster = Cluster(drains=FULL)
    assert recorded(cluster).perform(drain()).result == "held"
    assert cluster.writes == []


def test_who_was_slower_steps_back() -> None:
    cluster = Cluster(drains=FULL[:4], late=(FULL[4],))
    outcome = recorded(cluster).perform(drain())
    assert outcome.result == "held"
    assert "5 nodes began a drain within 10 min and 5 may" in outcome.message
    assert cluster.writes == ["drain", "release"]


def test_who_was_faster_stays() -> None:
    later = msgspec.structs.replace(FULL[4], since_utc=NOW + 1)
    same = msgspec.structs.replace(FULL[4], node="zz", since_utc=NOW)
    for other in (later, same):
        cluster = Cluster(drains=FULL[:4], late=(other,))
        assert recorded(cluster).perform(drain()).result == "done"
        assert cluster.writes == ["drain"]


def test_of_a_common_cause_three_stay() -> None:
    drains = tuple(msgspec.structs.replace(d, code="xid79") for d in FULL[:2])
    cluster = Cluster(drains=drains, late=(msgspec.structs.replace(FULL[2], code="xid79"),))
    outcome = recorded(cluster).perform(drain())
    assert (outcome.result, "common cause" in outcome.message) == ("held", True)


def test_a_clock_that_is_wrong_changes_nothing_in_the_end() -> None:
    for wrong in (NOW - 1e7, NOW + 1e7):
        cluster = Cluster(drains=FULL)
        assert recorded(cluster, now=wrong).perform(drain()).result == "held"
        assert cluster.flags == ("IDLE",)


def test_killed_after_the_write_the_look_comes_later() -> None:
    cluster = Cluster(drains=FULL[:4], late=(FULL[4],))
    cluster.fault = at("after drain", Killed())
    with pytest.raises(Killed):
        recorded(cluster).perform(drain())
    assert recorded(cluster).perform(drain()).result == "held"
    assert cluster.writes == ["drain", "release"]


def test_what_stands_for_long_is_never_stepped_back_from() -> None:
    cluster = Cluster(drains=FULL, flags=("IDLE", "DRAIN"), reason=wish("drain").reason)
    assert recorded(cluster, now=NOW + FRESH + 1).perform(drain()).result == "done"
    assert cluster.writes == []


def test_what_was_told_to_stand_is_never_stepped_back_from_however_its_date_reads() -> None:
    cluster = Cluster(drains=FULL, flags=("IDLE", "DRAIN"), reason="gpuguard:7f3a gpu6 lost xid79", since=NOW)
    known = msgspec.structs.replace(drain(), known=True)
    assert recorded(cluster).perform(known).result == "done"
    assert (cluster.writes, "fleet" in cluster.steps) == ([], False)


def test_what_was_told_to_stand_and_was_lifted_is_asked_for_like_a_new_one() -> None:
    known = msgspec.structs.replace(drain(), known=True)
    full, late = Cluster(drains=FULL), Cluster(drains=FULL[:4], late=(FULL[4],))
    assert (recorded(full).perform(known).result, full.writes) == ("held", [])
    assert (recorded(late).perform(known).result, late.writes) == ("held", ["drain", "release"])


def test_a_reworded_drain_stays_over_the_fake_scontrol(tmp_path: Path) -> None:
    fake = FakeScontrol(tmp_path)
    fake.put_others(0, 0.0, of=99)
    here = guarded(slurm.build(slurm.Settings(scontrol=str(fake.path), node="here")), Settings(), Limits())
    assert here.perform(drain()).result == "done"
    (tmp_path / "since").write_text(str(int(time.time()) - 7200))
    fake.put_others(2, time.time() - 60, of=99)
    reworded = msgspec.structs.replace(wish("update_reason"), reason="gpuguard:7f3a gpu6 lost xid79")
    assert here.perform(reworded).result == "done"
    again = msgspec.structs.replace(drain(), key="drain:7f3a:2", reason=reworded.reason, known=True)
    assert here.perform(again).result == "done"
    assert fake.state == "IDLE+DRAIN"


def test_a_look_that_fails_is_made_again() -> None:
    cluster = Cluster(drains=FULL[:4], late=(FULL[4],))

    def away(step: str) -> None:
        cluster.away = step == "after drain" or (cluster.away and step == "fleet")

    cluster.fault = away
    outcome = recorded(cluster).perform(drain())
    assert outcome.result == "deferred"
    assert "could not be asked again: slurmctld does not answer" in outcome.message
    cluster.fault, cluster.away = lambda step: None, False
    assert recorded(cluster).perform(drain()).result == "held"


def test_a_step_back_that_is_put_off_is_made_again() -> None:
    cluster = Cluster(drains=FULL[:4], late=(FULL[4],))

    def silent(step: str) -> None:
        if step == "before release":
            cluster.flags = ("IDLE", "DRAIN", "NOT_RESPONDING")

    cluster.fault = silent
    outcome = recorded(cluster).perform(drain())
    assert outcome.result == "deferred"
    assert "beyond the fleet's budget, and to be lifted again" in outcome.message
    cluster.fault, cluster.flags = lambda step: None, ("IDLE", "DRAIN")
    assert recorded(cluster).perform(drain()).result == "held"
    assert cluster.flags == ("IDLE",)


def test_a_person_and_a_release_never_wait_for_the_records() -> None:
    cluster = Cluster(drains=FULL, away=True)
    here = recorded(cluster)
    assert here.perform(drain(by="mia")).result == "done"
    assert here.perform(wish("release")).result == "done"
    assert "fleet" not in cluster.steps


# --- put together -----------------------------------------------------------------------------------------------------


def test_the_usual_ledger_of_a_target() -> None:
    def book(settings: Settings) -> object:
        built = guarded(Cluster(), settings, Limits())
        return type(built._book) if isinstance(built, Guarded) else None

    assert book(Settings()) is Recorded
    assert book(Settings(directory="/srv/gpuguard")) is Shared
    assert book(Settings(ledger="directory", directory="/srv/gpuguard")) is Shared
    assert book(Settings(ledger="none")) is None
    dry = dry_run.build(dry_run.Settings())
    assert guarded(dry, Settings(), Limits()) is dry


@pytest.mark.parametrize(("target", "ledger"), [("slurm", "lease"), ("slurm", "scheduler"), ("unheard_of", "auto")])
def test_a_ledger_that_a_target_has_not_is_a_mistake(target: str, ledger: str) -> None:
    settings = msgspec.convert({"ledger": ledger}, Settings)
    with pytest.raises(ConfigInvalid, match=r"\[fleet\] ledger: "):
        guarded(Cluster(name=target), settings, Limits())


def test_every_target_of_the_shelf_can_be_overseen_and_has_a_usual_ledger() -> None:
    assert isinstance(slurm.build(slurm.Settings(node="here")), Target)
    assert set(guard.AUTO.values()) <= {*guard.LEDGERS, "records", "none"}


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"directory": "srv"}, "absolute"), ({"ledger": "directory"}, "must be named"),
        ({"ledger": "records", "directory": "/srv"}, "leave one of the two out"), ({"deadline": 0.0}, "deadline"),
    ],
)  # fmt: skip
def test_settings_that_say_nothing_are_refused(settings: dict[str, object], word: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=word):
        msgspec.convert(settings, Settings)


@pytest.mark.parametrize("text", [b"garbage", b'{"version": 99}', b"null", b"[]"])
def test_a_book_that_nobody_can_read_puts_drains_off_and_says_what_to_do(text: bytes, tmp_path: Path) -> None:
    fake = FakeScontrol(tmp_path)
    fake.put_others(0, 0.0, of=99)
    target = slurm.build(slurm.Settings(scontrol=str(fake.path), node="here"))
    shared = Shared(Shelf(text=text), target, Limits(), 2.0, "1")
    outcome = Guarded(target, shared).perform(drain())
    assert outcome.result == "deferred"
    assert "give all the same; otherwise, to have an empty one, empty the shelf: what stands" in outcome.message
    assert fake.writes == []


def test_over_the_fake_scontrol_and_a_real_directory(tmp_path: Path) -> None:
    folder = tmp_path / "book"
    folder.mkdir()
    (folder / MARKER).touch()
    fake = FakeScontrol(tmp_path)
    fake.put_others(0, 0.0, of=99)

    def build() -> Actuator:
        target = slurm.build(slurm.Settings(scontrol=str(fake.path), node="here"))
        return guarded(target, Settings(directory=str(folder)), Limits())

    assert build().perform(drain()).result == "done"
    assert build().perform(drain()).result == "done"
    assert len(fake.writes) == 1
    assert build().perform(wish("release")).result == "done"
    fake.put_others(2, time.time(), of=99)
    outcome = build().perform(msgspec.structs.replace(drain(), key="drain:7f3a:1"))
    assert (outcome.result, outcome.message) == (
        "held", "not drained: 2 nodes began a drain within 10 min and 2 may, of 100: a person is to decide",
    )  # fmt: skip
    page = DirectoryLedger(str(folder)).read(time.monotonic() + 20)
    assert [e.granted for e in read_book(page.text).entries] == [True, False]


def test_what_slurm_refuses_is_refused_at_once(tmp_path: Path) -> None:
    fake = FakeScontrol(tmp_path)
    target = slurm.build(slurm.Settings(scontrol=str(fake.path), node="elsewhere"))
    outcome = guarded(target, Settings(), Limits()).perform(drain())
    assert outcome.result == "refused"
    assert "knows no node elsewhere" in outcome.message
