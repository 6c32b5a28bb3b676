"""What Slack's incoming webhooks take, whatever stands in a notice."""

import json
from typing import Any

import msgspec
import pytest

from gpuguard.notices import slack
from tests.support.notices import UTC, notice, over


def _sent(text: str = "fell off the bus", **more: Any) -> dict[str, Any]:
    message = slack.render(notice(text=text, **more), slack.Settings(), UTC)
    assert message.path == ""
    assert message.headers["Content-Type"].startswith("application/json")
    sent: dict[str, Any] = json.loads(message.body)
    return sent


def _texts(sent: dict[str, Any]) -> list[dict[str, Any]]:
    """Every text object of the message."""
    found = []
    for block in sent["blocks"]:
        found += [block["text"]] if "text" in block else []
        found += [*block.get("fields", ()), *block.get("elements", ())]
    return found


def test_a_page_has_a_header_what_to_do_and_its_evidence() -> None:
    sent = _sent()
    assert sent["text"] == "PAGE n7: gpu5 is unfit"
    assert [block["type"] for block in sent["blocks"]] == ["header", "section", "section", "section", "context"]
    assert sent["blocks"][2]["text"]["text"] == "Next: gpuguard why gpu5"


def test_what_is_over_says_so() -> None:
    sent = json.loads(slack.render(over(), slack.Settings(), UTC).body)
    assert sent["text"] == "over n7: gpu5 is unfit"


@pytest.mark.parametrize("letter", ["x", "&", "<", "\n", "\u202e", "\U0001f525"])
def test_no_text_is_longer_than_slack_takes(letter: str) -> None:
    long = letter * 9000
    sent = _sent(long, title=long, next_step=long, facts={f"f{n}": long for n in range(30)}, node=long)
    header, *_ = sent["blocks"]
    assert len(header["text"]["text"]) <= 150
    assert len(sent["text"]) <= 3000
    assert len(sent["blocks"]) <= 50
    for block in sent["blocks"]:
        assert len(block.get("fields", ())) <= 10
        assert len(block.get("text", {}).get("text", "")) <= 3000
        assert all(len(item["text"]) <= 2000 for item in block.get("fields", ()))


def test_no_name_makes_a_mention_a_link_or_a_line() -> None:
    hostile = "<!channel> <https://example.org|here> *bold* `x`\n\x1b[31m\u202eevil &amp;"
    sent = _sent(hostile, title=hostile)
    for text in _texts(sent):
        assert (text["type"], text["emoji"]) == ("plain_text", False)
        assert not set(text["text"]) & set("<>\n\x1b\u202e")
    assert "&lt;!channel&gt;" in sent["text"]
    assert "&amp;amp;" in sent["blocks"][1]["text"]["text"]
    assert (sent["mrkdwn"], sent["unfurl_links"], sent["unfurl_media"]) == (False, False, False)


def test_the_address_is_in_no_picture_of_the_settings() -> None:
    made = msgspec.convert({"url": "https://hooks.example.org/T0/B0/secret"}, slack.Settings)
    assert "secret" not in repr(made)
