"""A dry run says what it would do, and nothing else."""

import msgspec
import pytest

from gpuguard.actuators.dry_run import Settings, build
from gpuguard.custody.ownership import VERBS, judge
from gpuguard.model.actions import Verb
from tests.support.wishes import wish


@pytest.mark.parametrize("verb", VERBS)
def test_each_wish_is_granted_in_words(verb: Verb) -> None:
    outcome = build(Settings()).perform(wish(verb))
    assert outcome.result == "done"
    assert outcome.message.startswith("dry run: would ")
    assert "7f3a" in outcome.message
    assert outcome.message.endswith("nothing was written")


def test_a_reason_without_the_token_shows_even_in_a_dry_run() -> None:
    assert build(Settings()).perform(msgspec.structs.replace(wish("drain"), reason="x")).result == "refused"


def test_a_dry_run_knows_nothing_of_the_node() -> None:
    report = build(Settings()).read_state()
    assert report.error is not None
    assert judge(report, "drain", wish("drain").token).call == "wait"
