"""A real Alertmanager is told of a lost GPU and of a drain that is held, and that they are over."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpuguard.health.state import Health
from gpuguard.model.health import Decision, Drain
from gpuguard.model.ids import SubjectId, TokenId
from gpuguard.runtime import telling
from gpuguard.runtime.assembly import assemble
from gpuguard.runtime.clock import SystemClock
from gpuguard.runtime.plugins import shelf
from gpuguard.runtime.telling import Telling
from tests.support.alertmanager import Alertmanager
from tests.support.core import tick

pytestmark = pytest.mark.alertmanager
HELD, FOREIGN = "GpuguardDrainHeldNotice", "GpuguardDrainBlockedNotice"


class Site:
    """An agent's telling, configured by a file as a site has it."""

    def __init__(self, folder: Path, url: str) -> None:
        file = folder / "config.toml"
        file.write_text(f'[notify]\nnode = "n7"\n[notify.alertmanager]\nurl = "{url}"\nlabels = ["cluster=a"]\n')
        self.counts: Counter[str] = Counter()
        self.clock = SystemClock()
        forms: dict[str, Any] = shelf("gpuguard.notices")
        config = assemble(file, with_sources=False).config
        self.telling: Telling = telling.build(config, forms, folder, self.clock, self.counts, "n7.example.org")
        self.health = Health(now=self.clock.now())

    def start(self, health: Health) -> None:
        self.health = health
        self.telling.start(health)

    def becomes(self, health: Health) -> None:
        self.telling.take(self.health, health, Decision(urgent=True), tick(0.0))
        self.health = health

    def drained(self, state: str) -> Health:
        now = self.clock.now()
        drain = Drain(
            token=TokenId("7f3a"), subject=SubjectId("gpu:0000:4e:00.0"), code="xid79", since=self.health.now,
            reason="gpuguard:7f3a gpu5 lost xid79", state=state, dry_run=False,  # type: ignore[arg-type]
            message='5 of 100 nodes are drained already; "budget"\n<&>',
        )  # fmt: skip
        return Health(now=now, drain=drain)


def test_an_alert_arrives_survives_a_restart_and_is_resolved(tmp_path: Path) -> None:
    with Alertmanager(tmp_path) as there:
        site = Site(tmp_path, there.url)
        site.start(Health(now=site.clock.now()))
        site.becomes(site.drained("held"))
        (alert,) = there.wait_for({HELD})
        assert alert["labels"] == {
            "alertname": HELD, "severity": "critical", "node": "n7", "subject": "node", "token": "7f3a", "cluster": "a",
        }  # fmt: skip
        assert "budget" in alert["annotations"]["description"]
        assert "gpuguard drain --yes" in alert["annotations"]["next_step"]
        # Another state of the same drain is another alert, and the first is over.
        site.becomes(site.drained("foreign"))
        there.wait_for({FOREIGN})
        site.telling.stop()

        again = Site(tmp_path, there.url)
        again.start(again.drained("owed"))
        there.wait_for(set())
        again.telling.stop()
        assert again.counts["alertmanager sent"] == 1


def test_what_could_not_be_told_is_told_once_it_listens(tmp_path: Path) -> None:
    """The address leads nowhere, then to a server: what stands arrives with the next start."""
    site = Site(tmp_path, "http://127.0.0.1:9")
    site.start(site.drained("held"))
    threading.Event().wait(0.1)
    site.telling.stop()
    with Alertmanager(tmp_path) as there:
        again = Site(tmp_path, there.url)
        again.start(again.drained("held"))
        there.wait_for({HELD})
        again.telling.stop()
