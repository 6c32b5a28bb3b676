"""Who tells: nothing that stands is lost, nothing is told twice, and nobody waits."""

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuguard.errors import ActionRefused, ConfigInvalid, ReadFailed
from gpuguard.health.state import Health
from gpuguard.model.health import Decision, Drain
from gpuguard.model.ids import SubjectId, TokenId
from gpuguard.model.instants import Instant
from gpuguard.model.notices import Notice
from gpuguard.model.units import Seconds, Secret
from gpuguard.notices import Message, generic
from gpuguard.runtime import telling
from gpuguard.runtime.assembly import assemble
from gpuguard.runtime.plugins import shelf
from gpuguard.runtime.telling import Teller, Telling
from gpuguard.runtime.telling_settings import Settings, configured
from gpuguard.runtime.told import Told
from tests.support.core import UTC, instant, tick
from tests.support.notices import notice, over


class Hands:
    """A carrier that keeps what it is given, or refuses it."""

    def __init__(self) -> None:
        self.carried: list[dict[str, Any]] = []
        self.refusal: Exception | None = None

    def carry(self, message: Message) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.carried.append(msgspec.json.decode(message.body))

    def close(self) -> None:
        """Nothing is open."""

    def told(self) -> list[tuple[str, str]]:
        return [(sent["event"], sent["status"]) for sent in self.carried]


class Watch:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.mono = 10.0

    def now(self) -> Instant:
        return instant(self.mono)


def _drain(state: str, **more: object) -> Health:
    drain = Drain(
        token=TokenId("7f3a"), subject=SubjectId("node"), code="xid79", reason="gpuguard:7f3a node lost xid79",
        since=instant(5.0), dry_run=False,
    )  # fmt: skip
    return Health(now=instant(10.0), drain=msgspec.structs.replace(drain, state=state, **more))


HELD, CALM = _drain("held"), Health(now=instant(10.0))


class Desk:
    """One teller with everything around it."""

    def __init__(self, folder: Path, *, repeat: float = 1000.0, settings: Settings | None = None, **more: Any) -> None:
        self.hands, self.clock, self.counts = Hands(), Watch(), Counter[str]()
        self.health, self.folder = CALM, folder
        form = generic.Settings(
            url=Secret("http://x"), repeat=Seconds(repeat), at_least=more.pop("at_least", "warning")
        )
        self.teller = Teller(
            "generic", generic, form, self.hands, settings=settings or Settings(), told=Told(folder, "generic"),
            clock=self.clock, look=lambda: self.health, node="n7", counts=self.counts, **more,
        )  # fmt: skip


def test_what_stands_at_the_start_is_told_and_after_a_restart_not_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.health = HELD
    desk.teller.look()
    assert desk.hands.told() == [("drain.held", "standing")]
    again = Desk(tmp_path)
    again.health = HELD
    again.teller.look()
    assert again.hands.told() == []
    # What was over while nobody ran is told to be over, once.
    later = Desk(tmp_path)
    later.teller.look()
    later.teller.look()
    assert later.hands.told() == [("drain.held", "over")]


def test_killed_between_the_receiver_and_the_disk_it_is_told_once_more(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.health = HELD
    desk.teller.look()
    (tmp_path / "told-generic.json").unlink()
    again = Desk(tmp_path)
    again.health = HELD
    again.teller.look()
    assert again.hands.carried[0]["id"] == desk.hands.carried[0]["id"]


def test_the_same_is_told_again_when_its_time_is_over(tmp_path: Path) -> None:
    desk = Desk(tmp_path, repeat=1000.0)
    desk.teller.tell(notice())
    desk.clock.mono += 999.0
    desk.teller.tell(notice())
    assert len(desk.hands.carried) == 1
    desk.clock.mono += 1.0
    desk.teller.tell(notice())
    assert len(desk.hands.carried) == 2


def test_without_a_repeat_it_is_told_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path, repeat=0.0)
    desk.teller.tell(notice())
    desk.clock.mono += 1e7
    desk.teller.tell(notice())
    assert len(desk.hands.carried) == 1


def test_what_is_over_is_told_if_it_was_told_itself(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.teller.tell(over())
    assert desk.hands.told() == []
    for word in (notice(), over(), over(), notice()):
        desk.teller.tell(word)
    assert desk.hands.told() == [("gpu.failed", "standing"), ("gpu.failed", "over"), ("gpu.failed", "standing")]


@pytest.mark.parametrize("refusal", [ReadFailed("away"), ActionRefused("404"), ConfigInvalid(["no file"])])
def test_what_could_not_be_told_is_found_again_while_it_stands(tmp_path: Path, refusal: Exception) -> None:
    desk = Desk(tmp_path)
    desk.health, desk.hands.refusal = HELD, refusal
    desk.teller.look()
    assert desk.counts["generic failed"] == 1
    desk.hands.refusal = None
    desk.teller.look()
    assert desk.hands.told() == [("drain.held", "standing")]
    # That it is over could not be told either: it is, later.
    desk.health, desk.hands.refusal = CALM, refusal
    desk.teller.look()
    desk.hands.refusal = None
    desk.teller.look()
    assert desk.hands.told()[1:] == [("drain.held", "over")]


def test_a_receiver_that_is_away_is_asked_less_and_less_often(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.health, desk.hands.refusal = HELD, ReadFailed("away")
    waits = []
    for _ in range(8):
        desk.teller.look()
        waits.append(desk.teller._wait())
    assert waits == [120.0, 240.0, 480.0, 960.0, 1800.0, 1800.0, 1800.0, 1800.0]
    desk.hands.refusal, desk.health = None, CALM
    desk.teller.look()
    assert desk.teller._wait() is None  # nothing stands, nothing is amiss: it costs nothing


def test_a_full_queue_drops_and_counts_and_nobody_waits(tmp_path: Path) -> None:
    desk = Desk(tmp_path, settings=Settings(queue=2))
    for number in range(5):
        desk.teller.offer(notice(mark=f"xid{number}"))
    assert desk.counts["generic dropped"] == 3
    # What was dropped and still stands is found.
    desk.health = HELD
    desk.teller.look()
    assert ("drain.held", "standing") in desk.hands.told()


def test_what_is_not_urgent_enough_is_not_told(tmp_path: Path) -> None:
    desk = Desk(tmp_path, at_least="page", settings=Settings(queue=1))
    for _ in range(9):
        desk.teller.offer(notice(urgency="warning"))
    assert desk.counts["generic dropped"] == 0
    desk.health = _drain("foreign")
    desk.teller.look()
    assert desk.hands.told() == []


def test_beyond_so_many_an_hour_only_pages_and_ends_are_told(tmp_path: Path) -> None:
    desk = Desk(tmp_path, settings=Settings(hourly=2))
    for number in range(4):
        desk.teller.tell(notice(urgency="warning", mark=f"xid{number}"))
    assert (len(desk.hands.carried), desk.counts["generic kept_back"]) == (2, 2)
    desk.teller.tell(notice(mark="xid9"))
    desk.teller.tell(over(mark="xid0", urgency="warning"))
    assert len(desk.hands.carried) == 4
    desk.clock.mono += 3600.0
    desk.teller.tell(notice(urgency="warning", mark="xid3"))
    assert len(desk.hands.carried) == 5


def test_a_page_carries_the_path_of_a_bundle(tmp_path: Path) -> None:
    desk = Desk(tmp_path, bundle=lambda: "/var/lib/gpuguard/bundles/x.tar.gz")
    desk.teller.tell(notice(urgency="warning", mark="xid1"))
    desk.teller.tell(notice())
    desk.teller.tell(over())
    assert [sent["bundle"] for sent in desk.hands.carried] == [None, "/var/lib/gpuguard/bundles/x.tar.gz", None]


def test_a_thread_tells_what_follows_from_decisions(tmp_path: Path) -> None:
    desk, carried = Desk(tmp_path), threading.Event()
    carry = desk.hands.carry

    def signalled(message: Message) -> None:
        carry(message)
        if len(desk.hands.carried) == 2:
            carried.set()

    desk.hands.carry = signalled  # type: ignore[method-assign]
    whole = Telling((desk.teller,), "n7", threading.Event())
    whole.take(CALM, HELD, Decision(urgent=True), tick(10.0))  # before the start it is nobody's news
    whole.start(CALM)
    whole.take(CALM, HELD, Decision(urgent=True), tick(10.0))
    whole.take(HELD, CALM, Decision(urgent=True), tick(20.0))
    assert carried.wait(30)
    whole.stop()
    assert desk.hands.told() == [("drain.held", "standing"), ("drain.held", "over")]
    assert desk.hands.carried[1]["until"] is not None
    assert desk.clock.now().utc > UTC  # type: ignore[operator]


def test_a_file_that_is_damaged_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "told-generic.json").write_bytes(b"{nonsense")
    told = Told(tmp_path, "generic")
    assert told.entries == {}
    assert "told anew" in told.failure


def test_without_a_place_for_the_file_it_is_kept_in_memory(tmp_path: Path) -> None:
    told = Told(tmp_path / "absent", "generic")
    told.begin(notice(), 1.0)
    assert "cannot be written" in told.failure
    assert list(told.entries) == [notice().key]


def _built(folder: Path, text: str) -> Telling:
    file = folder / "config.toml"
    file.write_text(text)
    counts: Counter[str] = Counter()
    forms: dict[str, Any] = shelf("gpuguard.notices")
    return telling.build(assemble(file, with_sources=False).config, forms, folder, Watch(), counts, "n7.example.org")


def test_nothing_is_told_unless_somewhere_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    for text, names in (("", ()), ('[notify.slack]\nurl_file = "/etc/x"\n', ("slack",))):
        file.write_text(text)
        assert configured(assemble(file, with_sources=False).config, shelf("gpuguard.notices")) == names


@pytest.mark.parametrize(
    "text",
    ['url = "https://u:verysecret@h/"', 'url = "https://h/verysecret"\nurl_file = "/etc/x"', "url = 1"],
)
def test_a_mistake_about_an_address_does_not_show_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigInvalid, match="url") as failed:
        _built(tmp_path, f"[notify.slack]\n{text}\n")
    assert "verysecret" not in str(failed.value)


def test_the_table_of_settings_does_not_show_an_address(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[notify.slack]\nurl = "https://hooks.example.org/verysecret"\n')
    table = assemble(file, with_sources=False).config.as_table()
    assert "verysecret" not in str(table)
    assert table["notify.slack"]["url"] == "[left out]"
    assert table["notify.generic"]["url"] == ""


def test_an_id_is_of_the_notice_and_not_of_the_moment() -> None:
    first: Notice = notice()
    assert first.key == over().key


def test_without_a_webhook_nothing_is_loaded_that_one_would_need() -> None:
    """An agent that tells nobody pays for no retries and no client."""
    code = (
        "import sys, gpuguard.daemons.agent; from gpuguard.runtime.assembly import assemble; from pathlib import Path; "
        "assemble(Path('/dev/null')); "
        "print([name for name in ('tenacity', 'gpuguard.web', 'gpuguard.health.notices') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
