"""Who lives, by beats alone."""

import pytest

from gpuguard.errors import NotUnderstood
from gpuguard.jobs.nodes import BEAT_LIMIT, Beat, Limits, Presence, judge, newest, read, write
from gpuguard.model.ids import BootId, JobId

NOW = 1_750_000_000.0


def beat(node: str = "gpu17", at: float = NOW, **more: float) -> Beat:
    return Beat(node=node, boot=BootId("b"), at=at, level="OK", jobs=(JobId("slurm/8123"),), **more)  # type: ignore[arg-type]  # `every` alone


@pytest.mark.parametrize(
    ("age", "presence"),
    [(0.0, "alive"), (45.0, "alive"), (45.1, "late"), (180.0, "late"), (180.1, "lost"), (1e9, "lost"),
     (-30.0, "alive"), (-31.0, "unknown")],
)  # fmt: skip
def test_a_node_is_judged_by_the_age_of_its_beat(age: float, presence: Presence) -> None:
    assert judge({"gpu17": beat(at=NOW - age)}, NOW) == {"gpu17": presence}


def test_one_that_beats_slower_has_more_time_and_none_has_for_ever() -> None:
    assert judge({"a": beat(at=NOW - 300, every=60.0)}, NOW) == {"a": "late"}
    assert judge({"a": beat(at=NOW - 3601, every=1e9)}, NOW) == {"a": "lost"}


def test_one_that_was_never_heard_is_unknown_and_not_lost() -> None:
    assert judge({"a": beat("a")}, NOW, expected=("a", "b")) == {"a": "alive", "b": "unknown"}


def test_a_site_sets_its_own_limits() -> None:
    assert judge({"a": beat(at=NOW - 20)}, NOW, limits=Limits(late=1, lost=2)) == {"a": "late"}
    with pytest.raises(ValueError, match="lost more than late"):
        Limits(late=5, lost=5)


def test_the_later_beat_counts_in_any_order() -> None:
    old, new = beat(at=NOW - 60), beat(at=NOW)
    assert newest([new, old]) == newest([old, new]) == {"gpu17": new}


def test_what_is_written_is_read() -> None:
    document = write(beat())
    assert document == b'{"node":"gpu17","boot":"b","at":1750000000.0,"level":"OK","jobs":["slurm/8123"]}'
    assert read(document) == beat()
    assert read(b'{"node":"n","boot":"b","at":1,"later":"versions may say more"}').level == "UNKNOWN"


@pytest.mark.parametrize(
    "document",
    [
        b"", b"[]", b"\xff\xfe", b'{"node":"","boot":"b","at":1}', b'{"node":"n","boot":"b","at":"yesterday"}',
        b'{"node":"n","boot":"b","at":1,"every":0}', b'{"node":"n","boot":"b","at":1,"level":"fine"}',
        b'{"node":"n","boot":"b","at":NaN}', b" " * (BEAT_LIMIT + 1),
    ],
)  # fmt: skip
def test_what_is_no_beat_is_refused(document: bytes) -> None:
    with pytest.raises(NotUnderstood):
        read(document)
