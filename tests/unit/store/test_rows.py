"""Values survive the way to columns and back."""

import msgspec
import pytest

from gpuguard.errors import NotUnderstood
from gpuguard.store import rows
from tests.support.stored import entry, line, owed


def test_a_story_entry_comes_back() -> None:
    bare = msgspec.structs.replace(
        entry(1), event_id=None, cause=None, detail={}, at=msgspec.structs.replace(entry(1).at, utc=None)
    )
    for value in (entry(2, event_id="kmsg:5a1e:2"), bare):
        assert rows.story_entry(rows.story_row(value)) == value


def test_an_action_comes_back() -> None:
    for value in (owed(1), owed(2, state="refused", tries=9, due=30.25)):
        assert rows.owed_action(rows.action_row(value)) == value


def test_a_line_comes_back() -> None:
    event_id, utc, body = rows.event_row(line(3))
    assert (event_id, utc) == (line(3).id, line(3).at.utc)
    assert rows.log_line(body) == line(3)


def test_a_line_of_ten_megabytes_is_cut_and_says_so() -> None:
    long = msgspec.structs.replace(line(1), raw="x" * 10_000_000)
    body = rows.event_row(long)[2]
    kept = rows.log_line(body).raw
    assert kept.endswith("x [9983616 more characters]")
    assert len(kept) < rows.RAW_LIMIT + 50


@pytest.mark.parametrize(("text", "kept"), [("plain µ\x00", "plain µ\x00"), ("bad \udc80", "bad \\udc80")])
def test_clean(text: str, kept: str) -> None:
    assert rows.clean(text) == kept


def test_hostile_keys_and_nested_values_are_encoded() -> None:
    assert rows.encode({"\udc80": ["\udc81", {"a": "\udc82"}, 1, None]}) == (
        '{"\\\\udc80":["\\\\udc81",{"a":"\\\\udc82"},1,null]}'
    )


@pytest.mark.parametrize("body", ["", "{}", '{"event":"tick"}', "\x00", None, 7])
def test_damage_is_not_guessed_at(body: rows.Column) -> None:
    with pytest.raises(NotUnderstood):
        rows.log_line(body)
