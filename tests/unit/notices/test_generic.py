"""The object that docs/notices.md promises."""

import json

from gpuguard.notices import clean, generic, stamp
from tests.support.notices import UTC, notice, over

KEYS = {
    "version", "id", "node", "event", "status", "severity", "subject", "mark", "code", "token", "title", "text",
    "next_step", "since", "until", "facts", "because", "bundle",
}  # fmt: skip


def test_it_has_the_keys_that_are_promised() -> None:
    message = generic.render(notice(), generic.Settings(), UTC)
    sent = json.loads(message.body)
    assert set(sent) == KEYS
    assert (sent["version"], sent["status"], sent["severity"]) == (1, "standing", "page")
    assert sent["since"] == "2025-06-15T15:06:50.000Z"
    assert (sent["until"], sent["bundle"]) == (None, None)
    assert message.headers == {"Content-Type": "application/json; charset=utf-8"}


def test_what_is_over_has_its_end() -> None:
    sent = json.loads(generic.render(over(), generic.Settings(), UTC).body)
    assert (sent["status"], sent["until"]) == ("over", "2025-06-15T15:08:20.000Z")


def test_half_a_character_and_what_moves_a_cursor_are_written_out() -> None:
    assert clean("a\udcffb\x00\r\n") == r"a\udcffb\x00\r\n"
    assert clean("x" * 50, 10) == "xxxxxxx..."
    json.loads(generic.render(notice(text="\udcff"), generic.Settings(), UTC).body)


def test_without_a_date_there_is_none() -> None:
    assert stamp(None) is None
