"""CloudEvents 1.0: the attributes that the specification asks for, in the spelling it asks for."""

import json
import re
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import msgspec

from gpuguard.notices import cloudevents
from tests.support.notices import UTC, notice, over


def _sent(**more: Any) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(cloudevents.render(notice(**more), cloudevents.Settings(), UTC).body)
    return sent


def test_the_required_attributes_are_there_and_none_is_empty() -> None:
    sent = _sent()
    assert sent["specversion"] == "1.0"
    for name in ("id", "source", "type"):
        assert isinstance(sent[name], str)
        assert sent[name]
    assert sent["type"] == "io.gpuguard.gpu.failed"
    assert sent["datacontenttype"] == "application/json"
    assert datetime.fromisoformat(sent["time"]).utcoffset() is not None
    # Names of attributes are lower-case letters and digits.
    assert all(re.fullmatch(r"[a-z0-9]{1,20}", name) for name in sent)


def test_the_content_type_says_that_it_is_structured() -> None:
    message = cloudevents.render(notice(), cloudevents.Settings(), UTC)
    assert message.headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"


def test_a_source_is_a_uri_whatever_the_node_is_called() -> None:
    source = _sent(node="n 7/<x>\n")["source"]
    assert re.fullmatch(r"[A-Za-z0-9/_.~%-]+", source)
    assert unquote(source) == "//gpuguard.io/nodes/n 7/<x>\\n"
    assert _sent(node="")["source"] == "//gpuguard.io/nodes/unnamed"


def test_the_end_is_an_event_of_its_own() -> None:
    begin, end = notice(), over()
    sent = json.loads(cloudevents.render(end, cloudevents.Settings(), UTC).body)
    assert sent["type"] == "io.gpuguard.gpu.failed.over"
    assert sent["id"] == end.id != begin.id
    assert sent["data"]["status"] == "over"


def test_without_a_date_there_is_no_time() -> None:
    undated = msgspec.structs.replace(notice().since, utc=None)
    assert "time" not in _sent(since=undated)
