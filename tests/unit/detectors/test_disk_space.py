"""The smaller share counts; a word is taken back only with some slack."""

import pytest

from gpuguard.detectors.disk_space import Settings
from tests.support.stories import told

ONLY = "only=disk_space"


def looked(*rows: str) -> list[str]:
    """What is told of one disk after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep disk/medium disk:state {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


@pytest.mark.parametrize(
    ("share", "word"), [("0.03", "info"), ("0.0499", "info"), ("0.0299", "degraded"), ("0", "degraded")]
)
def test_little_room_by_how_little(share: str, word: str) -> None:
    for column in ("disk_free_ratio", "disk_inodes_free_ratio"):
        assert looked(f"0 {column}={share}")[0].startswith(f"disk_space stands: {word}")


def test_the_smaller_share_counts() -> None:
    assert looked("0 disk_free_ratio=0.9 disk_inodes_free_ratio=0.01")[0].endswith("1.0% of its inodes free")


def test_at_the_limit_it_is_not_news_each_time() -> None:
    rows = [f"{60 * n} disk_free_ratio={share}" for n, share in enumerate((0.05, 0.0499, 0.0501, 0.0499, 0.0599))]
    assert len(looked(*rows)) == 1
    assert looked(*rows, "900 disk_free_ratio=0.061")[-1] == "disk_space stands no longer"


@pytest.mark.parametrize("share", ["?", "-0.1", "1.1"])
def test_what_is_no_share_is_unknown(share: str) -> None:
    assert looked(f"0 disk_free_ratio={share}") == []
    assert len(looked("0 disk_free_ratio=0.01", f"60 disk_free_ratio={share}")) == 1


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="full"):
        Settings(low=0.02, full=0.03)
