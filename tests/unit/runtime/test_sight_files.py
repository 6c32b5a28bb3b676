"""A folder with what nodes wrote: whatever is in it, the rest is read."""

import os
from pathlib import Path

import msgspec
import pytest

from gpuguard.errors import ReadFailed
from gpuguard.jobs.sights import LARGEST, JobSight, NodeSight
from gpuguard.runtime import sight_files
from gpuguard.runtime.sight_files import sights_in


def written(folder: Path, *nodes: str) -> tuple[NodeSight, ...]:
    sights = tuple(NodeSight(node=node, at=1.0, jobs=(JobSight(job="slurm/1"),)) for node in nodes)
    for sight in sights:
        (folder / f"{sight.node}.json").write_bytes(msgspec.json.encode(sight))
    return sights


def test_files_of_nodes_are_read_and_others_are_left_alone(tmp_path: Path) -> None:
    sights = written(tmp_path, "n07", "n08")
    (tmp_path / "notes.txt").write_text("not of us")
    assert sights_in(tmp_path) == (sights, ())


def test_whatever_else_is_there_is_told_and_nothing_waits_for_it(tmp_path: Path) -> None:
    sights = written(tmp_path, "n07")
    (tmp_path / "a.json").touch()
    (tmp_path / "b.json").mkdir()
    os.mkfifo(tmp_path / "c.json")
    (tmp_path / "d.json").symlink_to("nowhere")
    with (tmp_path / "e.json").open("wb") as large:
        large.truncate(LARGEST + 1)
    found, problems = sights_in(tmp_path)
    assert found == sights
    assert [problem.partition(":")[0] for problem in problems] == [f"{letter}.json" for letter in "abcde"]
    assert problems[2] == "c.json: no regular file"


@pytest.mark.parametrize(("limit", "value"), [("FILES", 2), ("TOGETHER", 1)])
def test_what_is_too_much_is_counted(limit: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "n07", "n08", "n09")
    monkeypatch.setattr(sight_files, limit, value)
    sights, problems = sights_in(tmp_path)
    assert len(sights) == value
    assert problems == (f"{3 - value} more files were not read: these are too many, or too large",)


def test_without_one_sight_there_is_a_next_step(tmp_path: Path) -> None:
    with pytest.raises(ReadFailed, match=r"has no \*\.json .*hang --json > NODE\.json"):
        sights_in(tmp_path)
    with pytest.raises(ReadFailed, match=r"No such file or directory; run `gpuguard hang"):
        sights_in(tmp_path / "nowhere")
    (tmp_path / "\x1b.json").touch()
    with pytest.raises(ReadFailed, match=r"printed; \\x1b\.json: no sight of a node.*write it anew"):
        sights_in(tmp_path)
