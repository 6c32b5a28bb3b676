"""What the demo is made of; tests/e2e/test_demo.py plays it."""

import pytest

from gpuguard import cli
from gpuguard.commands.demo import scenes


def test_scenes_are_words_and_the_records_below_them() -> None:
    text = "# One\n# more.\n4,1,1,-;a\n4,2,2,-;b\n# Two.\n4,3,3,-;c\n"
    assert list(scenes(text)) == [("One more.", ["4,1,1,-;a", "4,2,2,-;b"]), ("Two.", ["4,3,3,-;c"])]


def test_words_without_records_are_no_scene() -> None:
    assert list(scenes("# Nothing comes of it.\n")) == []


@pytest.mark.parametrize("speed", ["0", "nan", "inf"])
def test_a_speed_that_is_none_is_a_usage_error(speed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["demo", "--speed", speed]) == cli.USAGE_ERROR
    assert "try 2" in capsys.readouterr().err
