"""Alerts as Alertmanager's API takes them; tests/e2e/test_alertmanager.py asks a real one."""

import json
import re
from typing import Any

import msgspec
import pytest

from gpuguard.model.ids import TokenId
from gpuguard.model.notices import Notice
from gpuguard.notices import alertmanager
from tests.support.notices import UTC, notice, over


def _alert(told: Notice, settings: alertmanager.Settings | None = None) -> dict[str, Any]:
    message = alertmanager.render(told, settings or alertmanager.Settings(), UTC)
    assert message.path == "/api/v2/alerts"
    (alert,) = json.loads(message.body)
    assert isinstance(alert, dict)
    return alert


def test_it_begins_when_it_began_and_ends_by_itself_when_it_is_not_sent_again() -> None:
    alert = _alert(notice())
    assert alert["startsAt"] == "2025-06-15T15:06:50.000Z"
    assert alert["endsAt"] == "2025-06-15T15:21:40.000Z"  # three times five minutes after it was told


def test_what_is_over_has_the_same_labels() -> None:
    begin, end = _alert(notice()), _alert(over())
    assert begin["labels"] == end["labels"]
    assert end["endsAt"] == "2025-06-15T15:08:20.000Z"
    assert begin["labels"] == {
        "alertname": "GpuguardGpuFailedNotice", "severity": "critical", "node": "n7", "subject": "gpu:0000:4e:00.0",
        "code": "xid79",
    }  # fmt: skip


def test_a_drain_is_known_by_its_token() -> None:
    labels = _alert(notice(event="drain.held", mark="7f3a", token=TokenId("7f3a")))["labels"]
    assert labels["token"] == "7f3a"
    assert "code" not in labels


def test_a_site_adds_labels_and_cannot_lose_ours() -> None:
    labels = _alert(notice(), alertmanager.Settings(labels=("cluster=a=b", "severity=none")))["labels"]
    assert (labels["cluster"], labels["severity"]) == ("a=b", "critical")


@pytest.mark.parametrize("wrong", ["cluster", "=a", "1x=a", "a-b=c", "ä=b"])
def test_a_label_that_is_none_is_a_mistake(wrong: str) -> None:
    with pytest.raises(ValueError, match="labels: each must be"):
        alertmanager.Settings(labels=(wrong,))


def test_names_of_labels_and_annotations_are_such() -> None:
    alert = _alert(notice(facts={"serial": "1", "not a name": "2"}))
    for name in (*alert["labels"], *alert["annotations"]):
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name)
    assert alert["annotations"]["serial"] == "1"


def test_an_alert_never_ends_before_it_begins() -> None:
    late = over()
    assert late.until is not None
    early = msgspec.structs.replace(late, until=msgspec.structs.replace(late.until, utc=1.0))
    alert = _alert(early)
    assert alert["endsAt"] == alert["startsAt"]
