"""What `gpuguard scheduler render` takes, refuses and writes."""

import gzip
import json
from pathlib import Path

import pytest

from gpuguard.cli import run

Output = pytest.CaptureFixture[str]


def _said(capsys: Output, line: str, code: int = 0) -> str:
    assert run(["scheduler", *line.split()]) == code
    output = capsys.readouterr()
    return output.err if code else output.out


def test_each_file_is_named_where_there_are_several(capsys: Output) -> None:
    told = _said(capsys, "render --for slurm --gpus 100")
    assert told.count("# ==> ") == 2
    assert "at most 20% of 100 GPUs" in told.replace("\n# ", " ")
    only = _said(capsys, "render --for slurm --gpus 100 --only gpuguard-slurm-qos.sh")
    assert only.startswith("#!/bin/sh\n")
    assert told.endswith(only)
    assert _said(capsys, "render --for volcano").startswith("# gpuguard-volcano.yaml: ")


def test_json_tells_what_is_in_the_files(capsys: Output) -> None:
    told = json.loads(_said(capsys, "render --for slurm --gpus 1040 --json"))
    assert told["for"] == "slurm"
    assert set(told["files"]) == {"gpuguard-slurm.conf", "gpuguard-slurm-qos.sh"}
    limits = {row["name"]: row["limit_s"] for row in told["partitions"]}
    assert limits == {"trial": 7200, "training": 604800, "urgent": 86400, "interactive": 3600}
    assert sum(row["gpus"] or 0 for row in told["qos"]) == 208
    told = json.loads(_said(capsys, "render --for volcano --json"))
    assert len(told["priority_classes"]) == 15
    assert any("walltime" in words for words in told["cannot"])


def test_the_files_are_written_into_a_folder(tmp_path: Path, capsys: Output) -> None:
    told = _said(capsys, f"render --for slurm --output {tmp_path}")
    written = sorted(tmp_path.iterdir())
    assert sorted(told.split()) == [str(path) for path in written]
    assert [path.stat().st_mode & 0o777 for path in written] == [0o755, 0o644]
    before = [path.read_text() for path in written]
    _said(capsys, f"render --for slurm --output {tmp_path}")
    assert [path.read_text() for path in written] == before
    assert "a folder that is there" in _said(capsys, f"render --for slurm --output {tmp_path}/none", 2)


@pytest.mark.parametrize("packed", [False, True])
def test_a_list_of_nodes_is_counted(tmp_path: Path, capsys: Output, packed: bool) -> None:
    nodes = b"node_id,gpus,gpu_type,cpus,mem\nn1,8,A100,96,1000000\nn2,4,A10,64,100000\nn3,0,,64,8000\n"
    path = tmp_path / "nodes.csv"
    path.write_bytes(gzip.compress(nodes) if packed else nodes)
    told = _said(capsys, f"render --for slurm --nodes {path}")
    assert "of 12 GPUs" in told
    assert "\nDefMemPerGPU=25000\n" in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node_id,cpus\nn1,8\n", "line 1: there is no column gpus"),
        ("node_id,gpus\nn1,8\nn2,-1\n", "line 3, column gpus: '-1'"),
        ("node_id,gpus,mem\nn1,8,much\n", "line 2, column mem: 'much'"),
        ("node_id,gpus\nn1,0\n", "no node of it has a GPU"),
        ("", "line 1: there is no column gpus"),
    ],
)
def test_a_list_that_is_none_is_told_by_line_and_column(tmp_path: Path, capsys: Output, text: str, words: str) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    assert words in _said(capsys, f"render --for slurm --nodes {path}", 2)


def test_a_list_that_was_cut_short_is_not_half_read(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "nodes.csv.gz"
    path.write_bytes(gzip.compress(b"node_id,gpus\nn1,8\n" * 50)[:-12])
    assert "cannot be read" in _said(capsys, f"render --for slurm --nodes {path}", 2)
    assert "cannot be read" in _said(capsys, f"render --for slurm --nodes {tmp_path}/none", 2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("render --for slurm --gpus 8 --nodes x", "leave out --gpus"),
        ("render --for slurm --json --output x", "leave out --json"),
        ("render --for slurm --only x", "there is gpuguard-slurm.conf and gpuguard-slurm-qos.sh"),
        ("render --for volcano --pool interactive=n1", "have a label"),
    ],
)
def test_what_does_not_go_together(capsys: Output, line: str, words: str) -> None:
    assert words in _said(capsys, line, 64)


@pytest.mark.parametrize("line", ["", "render", "render --for lsf", "render --for slurm --gpus 0", "run"])
def test_what_is_no_request(line: str) -> None:
    with pytest.raises(SystemExit) as end:
        run(["scheduler", *line.split()])
    assert end.value.code == 64


def test_a_pool_that_there_is_not(capsys: Output) -> None:
    assert "there is no pool 'night'" in _said(capsys, "render --for slurm --pool night=n1", 2)
