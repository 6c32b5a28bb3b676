"""What `gpuguard topo` answers: of a recorded machine, of a matrix, for programs, and what it refuses."""

import json
import os
import re
import shutil
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuguard import cli
from gpuguard.commands import topo
from gpuguard.sources import topology
from gpuguard.topology.profiles import parse_learned
from tests.support.machines import copied, machine
from tests.support.shared_data import shared
from tests.support.topo_samples import NUMBERS

Output = pytest.CaptureFixture[str]

PAIR = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-31\t0\nGPU1\tNV4\t X \t0-31\t0\n"
# Three cards without NVLink: the third is on the other socket.
APART = """\
	GPU0	GPU1	GPU2	CPU Affinity	NUMA Affinity
GPU0	 X 	SYS	PHB	0-15	0
GPU1	SYS	 X 	SYS	16-31	1
GPU2	PHB	SYS	 X 	0-15	0
"""


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def asked(capsys: Output, *argv: str) -> tuple[int, str, str]:
    try:
        code = cli.run(["topo", *argv])
    except SystemExit as end:
        code = int(str(end.code))
    out, err = capsys.readouterr()
    return code, out, err


def file(folder: Path, text: str) -> str:
    path = folder / "matrix"
    path.write_text(text)
    return str(path)


def facts(capsys: Output, *argv: str) -> dict[str, Any]:  # Any: what JSON holds
    answer: dict[str, Any] = json.loads(asked(capsys, *argv, "--json")[1])
    return answer


# --- a recorded machine -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a100x8", "h100x8", "b200x8", "h100x8-mig"])
def test_a_healthy_machine_is_as_it_should_be(capsys: Output, name: str) -> None:
    code, out, err = asked(capsys, "--root", str(machine(name)), "--diff")
    assert (code, err) == (0, "")
    assert out.startswith("Nothing differs from what is expected: ")


def test_what_could_not_be_compared_is_said_where_nothing_differs(capsys: Output, tmp_path: Path) -> None:
    root = copied("h100x8", tmp_path)
    (root / "nvml.json").unlink()
    code, out, _ = asked(capsys, "--root", str(root), "--diff")
    assert code == 0
    assert "note: the driver's library does not tell of any GPU" in out


def test_a_long_difference_is_one_line(capsys: Output, tmp_path: Path) -> None:
    root = copied("h100x8", tmp_path)
    assert asked(capsys, "--root", str(root), "--learn")[0] == 0
    text = (root / "topology.toml").read_text()
    one, other = (gpu["uuid"] for gpu in list(tomllib.loads(text)["gpu"].values())[:2])
    swapped = text.replace(one, "?").replace(other, one).replace("?", other)
    (root / "topology.toml").write_text(re.sub(r"^serial = .*\n", "", swapped, flags=re.MULTILINE))
    code, out, _ = asked(capsys, "--root", str(root), "--diff")
    assert code == 1
    [line] = [line for line in out.splitlines() if "changed places" in line]
    assert other in line
    assert len(line) > 80


def test_a_kind_of_which_nothing_is_expected_is_not_called_well(capsys: Output) -> None:
    code, out, _ = asked(capsys, "--root", str(machine("l40sx4")), "--diff")
    assert code == 0
    assert out.startswith("Nothing is expected of L40S servers by their kind")
    assert "--learn" in out


def test_what_differs_comes_a_line_each(capsys: Output) -> None:
    code, out, _ = asked(capsys, "--root", str(machine("h100x8-lost")), "--diff")
    assert code == 1
    assert out.splitlines() == [
        "GPU4 at 0000:9d:00.0 is on the bus, but the driver does not answer for it",
        "GPU5 has 17 of 18 NVLinks up; down: link 6",
        "GPU7 has 17 of 18 NVLinks up; down: link 6",
        "Compared with: HGX or DGX H100, eight GPUs.",
        "note: the driver's library does not tell of GPU4: NVLinks are not known there",
    ]


def test_a_wide_terminal_shows_the_matrix_and_a_narrow_one_a_drawing(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, narrow, _ = asked(capsys, "--root", str(machine("h100x8")))
    assert max(map(len, narrow.splitlines())) <= 80
    assert "all 8 GPUs: NV18" in narrow
    monkeypatch.setenv("COLUMNS", "240")
    _, wide, _ = asked(capsys, "--root", str(machine("h100x8")))
    assert wide.startswith("\tGPU0\tGPU1")
    assert "GPU0 to GPU7 are one NVLink domain, 18 links each through 4 NVSwitches" in wide
    assert "Legend" not in wide


def test_the_matrix_is_that_of_nvidia_smi(capsys: Output) -> None:
    code, out, _ = asked(capsys, "--root", str(machine("h100x8")), "--format", "matrix")
    rows = [line.split("\t") for line in out.partition("\n\n")[0].splitlines()]
    assert code == 0
    assert rows[0][1:17] == [*(f"GPU{n}" for n in range(8)), *(f"NIC{n}" for n in range(8))]
    assert rows[1][:4] == ["GPU0", " X ", "NV18", "NV18"]
    assert rows[1][9:11] == ["PIX", "NODE"]
    assert "  NIC7: mlx5_7\n" in out


def test_json_has_all_that_was_promised(capsys: Output) -> None:
    told = facts(capsys, "--root", str(machine("h100x8")))
    assert told["devices"][:8] == [f"GPU{n}" for n in range(8)]
    assert told["matrix"][0][:2] == ["X", "NV18"]
    assert told["affinity"]["GPU7"] == {"cpus": "56-111,168-223", "numa": "1"}
    assert told["nic_names"]["NIC0"] == "mlx5_0"
    assert set(told["best"]) == {str(size) for size in range(1, 9)}
    assert told["best"]["4"] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert told["differences"] == []
    assert {island["kind"] for island in told["islands"]} >= {"nvlink", "switch"}
    assert told["nics_by_distance"]["GPU5"][0] == "NIC5"
    assert told["placement"]["gpus"] == [f"GPU{n}" for n in range(8)]


def test_differences_in_json_and_its_code(capsys: Output) -> None:
    code, out, _ = asked(capsys, "--root", str(machine("h100x8-lost")), "--json")
    assert code == 1
    assert [one["device"] for one in json.loads(out)["differences"]] == ["GPU4", "GPU5", "GPU7"]


@pytest.mark.parametrize("form", [form for form in topo._formats() if form != "slurm-topology"])
def test_every_form_is_written_of_a_machine(capsys: Output, form: str, tmp_path: Path) -> None:
    code, out, err = asked(capsys, "--root", str(machine("h100x8")), "--format", form, "--node", "n17")
    assert (code, err) == (0, "")
    assert out.endswith("\n")
    target = tmp_path / "file"
    assert asked(capsys, "--root", str(machine("h100x8")), "--format", form, "--node", "n17",
                 "--output", str(target))[:2] == (0, "")  # fmt: skip
    assert target.read_text() == out


def test_slurms_topology_wants_a_fabric_file(capsys: Output, tmp_path: Path) -> None:
    code, _, err = asked(capsys, "--root", str(machine("h100x8")), "--format", "slurm-topology")
    assert code == 2
    assert "--fabric" in err
    fabric = tmp_path / "fabric.toml"
    fabric.write_text('[switches.leaf1]\nnodes = "n17"\n')
    code, out, err = asked(capsys, "--root", str(machine("h100x8")), "--format", "slurm-topology", "--node", "n17",
                           "--fabric", str(fabric))  # fmt: skip
    assert (code, err) == (0, "")
    assert "SwitchName=leaf1 Nodes=n17" in out


# --- which GPUs -------------------------------------------------------------------------------------------------------


def test_the_best_are_named_first_with_the_reason_cards_and_processors(capsys: Output) -> None:
    code, out, _ = asked(capsys, "--root", str(machine("h100x8")), "--best", "2", "--free", "3,4,GPU5")
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "GPU4,GPU5"
    assert "  GPU4: card NIC4 (mlx5_4) PIX, CPUs 56-111,168-223" in lines


def test_a_bad_choice_is_told_with_what_it_costs(capsys: Output) -> None:
    code, out, _ = asked(capsys, "--root", str(machine("l40sx4")), "--between", "0,3")
    text = " ".join(out.split())
    assert code == 0
    assert "GPU0 and GPU3 reach each other only over the link between processors (SYS)" in text
    assert "70 % of what the best pair has" in text
    assert "the best 2 of this machine: GPU0, GPU1" in text


def test_of_many_gpus_the_best_pair_is_told_once(capsys: Output) -> None:
    lines = asked(capsys, "--root", str(machine("l40sx4")), "--between", "0-2")[1].splitlines()
    assert [line.partition(" ")[0] for line in lines if not line.startswith(" ")] == [
        "GPU0",
        "GPU0",
        "GPU1",
        "the",
        "the",
    ]
    assert sum("GPU0 and GPU1 are on one NUMA node" in line for line in lines) == 2


def test_a_gpu_that_serves_no_job_is_not_chosen_and_the_answer_says_so(capsys: Output) -> None:
    root = str(machine("h100x8-lost"))
    for size in ("1", "7"):
        code, out, _ = asked(capsys, "--root", root, "--best", size)
        assert code == 0
        assert "GPU4" not in out.splitlines()[0]
        assert "  left out: GPU4, as the driver does not answer for it" in out.splitlines()
    code, out, err = asked(capsys, "--root", root, "--best", "2", "--free", "4,5")
    assert (code, out) == (64, "")
    assert "GPU4 is left out, as the driver does not answer for it" in err
    told = facts(capsys, "--root", root)
    assert all("GPU4" not in names for names in told["best"].values())


def test_a_gpu_in_mig_mode_is_chosen_only_where_it_is_named(capsys: Output) -> None:
    root = str(machine("h100x8-mig"))
    assert asked(capsys, "--root", root, "--best", "8")[0] == 64
    assert asked(capsys, "--root", root, "--best", "2", "--free", "0,1")[1].startswith("GPU0,GPU1\n")


def test_gpus_are_found_by_what_people_have_at_hand(capsys: Output) -> None:
    root = str(machine("h100x8"))
    uuid = facts(capsys, "--root", root)["placement"]["uuids"][7]
    for free in ("6-7", "gpu6,7", f"0000:d1:00.0,{uuid}", "d1:00.0,DF:00.0"):
        assert asked(capsys, "--root", root, "--best", "2", "--free", free)[1].startswith("GPU6,GPU7\n"), free


def test_gpus_below_one_switch_have_a_card_each(capsys: Output) -> None:
    out = asked(capsys, "--root", str(machine("a100x8")), "--best", "2")[1]
    assert [line.partition("card ")[2][:4] for line in out.splitlines() if "card" in line] == ["NIC0", "NIC1"]


def test_programs_get_the_answer_to_what_was_asked(capsys: Output) -> None:
    root = str(machine("h100x8-lost"))
    chosen = facts(capsys, "--root", root, "--best", "2", "--free", "4-6")["chosen"]
    assert chosen["gpus"] == chosen["ring"] == ["GPU5", "GPU6"]
    assert chosen["left_out"] == {"GPU4": "the driver does not answer for it"}
    assert chosen["nics"] == {"GPU5": "NIC5", "GPU6": "NIC6"}
    assert chosen["cpus"]["GPU6"] == "56-111,168-223"
    told = facts(capsys, "--root", root, "--between", "0,7")
    [pair] = told["between"]
    assert (pair["pair"], pair["best"]) == (["GPU0", "GPU7"], ["GPU0", "GPU1"])
    assert pair["ratio"] == pytest.approx(17 / 18)
    assert told["distances"][6]["pair"] == ["GPU0", "GPU7"]
    assert (told["distances"][6]["way"], told["distances"][6]["hops"]) == ("nvlink", 2)
    down = [link["number"] for link in told["graph"]["devices"][7]["gpu"]["links"] if not link["up"]]
    assert down == [6]


@pytest.mark.parametrize(("argv", "words"), [
    (("--json", "--format", "svg"), "ask for it without --json"),
    (("--force",), "--force goes with --learn"),
    (("--best", "2", "--free", "3-1"), "ends before it begins"),
    (("--learn", "--state-dir", "/nowhere"), "--output FILE writes it elsewhere"),
])  # fmt: skip
def test_options_that_would_do_nothing_are_refused(capsys: Output, argv: tuple[str, ...], words: str) -> None:
    code, out, err = asked(capsys, "--root", str(machine("l40sx4")), *argv)
    assert (code, out) == (64, "")
    assert words in err


def test_how_far_a_card_is_from_a_gpu(capsys: Output) -> None:
    code, out, _ = asked(capsys, "--root", str(machine("h100x8")), "--between", "GPU0,mlx5_0,NIC7")
    lines = " ".join(out.split())
    assert code == 0
    assert "GPU0 and NIC0 share one PCIe switch" in lines
    assert "GPU0 and NIC7 reach each other only over the link between processors (SYS)" in lines
    assert "the best" not in lines
    told = facts(capsys, "--root", str(machine("h100x8")), "--between", "GPU0,mlx5_0")["between"]
    assert (told[0]["pair"], told[0]["ratio"]) == (["GPU0", "NIC0"], None)


@pytest.mark.parametrize(("argv", "words"), [
    (("--between", "0,9"), "no 'GPU9' here; there are GPU0 and GPU1"),
    (("--best", "2", "--free", "GPU0,NIC0"), "no 'NIC0' here"),
    (("--best", "0"), "give 1 to 64"),
    (("--free", "0"), "--free goes with --best K"),
    (("--between", "0,,1"), "give them as GPU0,GPU1"),
    (("--diff", "--profile", "hgx-z900"), "no profile 'hgx-z900'; there are "),
    (("--learn",), "what a matrix tells is too little"),
    (("--format", "png"), "invalid choice"),
    (("--diff", "--best", "2"), "not allowed with"),
    (("--between", "0"), "name two devices or more"),
])  # fmt: skip
def test_what_is_typed_wrong_is_64_with_a_next_step(
    capsys: Output, tmp_path: Path, argv: tuple[str, ...], words: str
) -> None:
    code, out, err = asked(capsys, "--from-matrix", file(tmp_path, PAIR), *argv)
    assert (code, out) == (64, "")
    assert words in err


@pytest.mark.parametrize("size", ["3", "64"])
def test_more_gpus_than_there_are_is_refused(capsys: Output, tmp_path: Path, size: str) -> None:
    code, out, err = asked(capsys, "--from-matrix", file(tmp_path, PAIR), "--best", size)
    assert (code, out) == (64, "")
    assert "GPU" in err


# --- a matrix ---------------------------------------------------------------------------------------------------------


def test_a_matrix_answers_the_same_questions(capsys: Output, tmp_path: Path) -> None:
    name = file(tmp_path, APART)
    assert asked(capsys, "--from-matrix", name, "--format", "matrix")[1] == APART
    assert asked(capsys, "--from-matrix", name, "--best", "2")[1].splitlines()[0] == "GPU0,GPU2"
    told = facts(capsys, "--from-matrix", name)
    assert told["matrix"] == [["X", "SYS", "PHB"], ["SYS", "X", "SYS"], ["PHB", "SYS", "X"]]
    assert told["best"]["2"] == ["GPU0", "GPU2"]
    code, out, _ = asked(capsys, "--from-matrix", name)
    assert code == 0
    assert "which is no fault" in " ".join(out.split())
    assert "--learn" not in out


def test_what_a_matrix_does_not_tell_is_said_with_each_answer(capsys: Output, tmp_path: Path) -> None:
    name = file(tmp_path, PAIR + PAIR)
    for question in (("--best", "2"), ("--between", "0,1")):
        assert "note: a second matrix begins in line 4" in asked(capsys, "--from-matrix", name, *question)[1]
    out = asked(capsys, "--from-matrix", file(tmp_path, PAIR.splitlines()[0]), "--between", "0,1")[1]
    assert "no pair of this node is known to be better joined" in " ".join(out.split())


def test_a_matrix_in_utf_16_is_read(capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "matrix"
    path.write_bytes(PAIR.encode("utf-16"))
    assert facts(capsys, "--from-matrix", str(path))["matrix"] == [["X", "NV4"], ["NV4", "X"]]


def test_a_matrix_is_held_against_a_profile(capsys: Output, tmp_path: Path) -> None:
    code, out, _ = asked(capsys, "--from-matrix", file(tmp_path, PAIR), "--diff", "--profile", "hgx-h100-8")
    assert code == 1
    assert "NVLinks" in out
    code, out, _ = asked(capsys, "--from-matrix", file(tmp_path, PAIR), "--diff", "--profile", "none")
    assert code == 0


@pytest.mark.parametrize("number", NUMBERS)
def test_every_published_matrix_is_printed_as_it_was(capsys: Output, tmp_path: Path, number: str) -> None:
    matrix = sample(number)
    code, out, err = asked(capsys, "--from-matrix", file(tmp_path, matrix), "--format", "matrix")
    assert (code, out, err) == (0, matrix, "")
    told = facts(capsys, "--from-matrix", str(tmp_path / "matrix"))["matrix"]
    assert all(told[i][j] == told[j][i] for i in range(len(told)) for j in range(i))


def sample(number: str) -> str:
    """The text of a published matrix."""
    text = shared("reference", "topo-samples.txt").read_text()
    matrix = text.partition(f"### SAMPLE {number}\n")[2].partition("--- BEGIN MATRIX\n")[2]
    return matrix.partition("--- END MATRIX")[0]


@pytest.mark.parametrize(
    ("number", "profile"),
    [
        ("02", "hgx-a100-8"), ("03", "hgx-h200-8"), ("05", "hgx-a100-8"), ("08", "l40s"), ("09", "hgx-a100-4"),
        ("17", "hgx-h100-8"), ("20", "hgx-h100-8"), ("28", "hgx-a100-4"), ("35", "gb200-tray"), ("37", "hgx-h100-8"),
    ],
)  # fmt: skip
def test_no_published_machine_differs_from_its_kind(capsys: Output, tmp_path: Path, number: str, profile: str) -> None:
    code, out, _ = asked(capsys, "--from-matrix", file(tmp_path, sample(number)), "--diff", "--profile", profile)
    assert code == 0, out


def test_a_machine_whose_nvlinks_are_gone_is_told_gpu_by_gpu(capsys: Output, tmp_path: Path) -> None:
    code, out, _ = asked(capsys, "--from-matrix", file(tmp_path, sample("19")), "--diff", "--profile", "hgx-h100-8")
    assert code == 1
    assert [f"GPU{n} has 0 of 18 NVLinks up" in out for n in range(8)] == [True] * 8


@pytest.mark.parametrize(("content", "words"), [
    (b"", "give the output of `nvidia-smi topo -m`"), (b"\x7fELF\x00\x01", "no matrix"),
    (b"no such thing\n" * 50, "no matrix"),
    (PAIR.replace("\t", ",").encode() + b"\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n", "no GPU in this matrix"),
])  # fmt: skip
def test_a_file_without_a_matrix_is_refused(capsys: Output, tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    code, out, err = asked(capsys, "--from-matrix", str(path))
    assert (code, out) == (2, "")
    assert words in err


def test_files_that_cannot_be_read_are_told(capsys: Output, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe", "."):
        code, out, err = asked(capsys, "--from-matrix", str(tmp_path / name))
        assert (code, out) == (2, "")
        assert "cannot be read" in err


# --- learning ---------------------------------------------------------------------------------------------------------


def test_what_is_learned_is_what_is_expected(capsys: Output, tmp_path: Path) -> None:
    root = copied("h100x8", tmp_path)
    code, out, err = asked(capsys, "--root", str(root), "--learn")
    assert (code, err) == (0, "")
    assert "18 devices are expected" in " ".join(out.split())
    learned = parse_learned((root / "topology.toml").read_text())
    assert len(learned.slots) == 8
    assert asked(capsys, "--root", str(root), "--diff")[:2] == (
        0,
        "Nothing differs from what is expected: the learned profile.\n",
    )
    text = (root / "topology.toml").read_text()
    (root / "topology.toml").write_text(text.replace("numa = 1", "numa = 0", 1))
    code, out, _ = asked(capsys, "--root", str(root), "--diff")
    assert code == 1
    assert "NUMA node 1" in out
    asked(capsys, "--root", str(root), "--learn")
    assert (root / "topology.toml.before").read_text() == text.replace("numa = 1", "numa = 0", 1)


def test_a_machine_with_something_amiss_is_learned_by_force_alone(capsys: Output, tmp_path: Path) -> None:
    root = copied("h100x8-lost", tmp_path)
    code, out, err = asked(capsys, "--root", str(root), "--learn")
    assert (code, out) == (2, "")
    assert "GPU4" in err
    assert "--force" in err
    assert not (root / "topology.toml").exists()
    assert asked(capsys, "--root", str(root), "--learn", "--force")[0] == 1
    assert (root / "topology.toml").exists()


def test_it_is_learned_where_it_is_told_to(capsys: Output, tmp_path: Path) -> None:
    code, out, _ = asked(capsys, "--root", str(machine("l40sx4")), "--learn", "--output", "-")
    assert code == 0
    assert len(parse_learned(out).slots) == 4
    code, _, err = asked(capsys, "--root", str(machine("l40sx4")), "--learn", "--output", str(tmp_path / "no" / "file"))
    assert code == 2
    assert "name another place with --output" in err


def test_a_broken_learned_file_is_told_with_every_mistake(capsys: Output, tmp_path: Path) -> None:
    root = copied("l40sx4", tmp_path)
    (root / "topology.toml").write_text('[machine]\ncolour = "red"\n[shoes]\n')
    code, out, err = asked(capsys, "--root", str(root), "--diff")
    assert (code, out) == (2, "")
    assert "colour" in err
    assert "[shoes]" in err


@pytest.mark.parametrize("content", ["[gpu", "x" * 300_000, None], ids=["broken", "too long", "a pipe"])
def test_a_machine_is_shown_and_learned_anew_whatever_its_learned_file_is(
    capsys: Output, tmp_path: Path, content: str | None
) -> None:
    root = copied("l40sx4", tmp_path)
    learned = root / "topology.toml"
    if content is None:
        os.mkfifo(learned)
    else:
        learned.write_text(content)
    code, out, _ = asked(capsys, "--root", str(root))
    assert code == 2
    assert "What this machine should be is not known:\nthe learned profile" in out
    assert facts(capsys, "--root", str(root))["mistakes"]
    code, out, _ = asked(capsys, "--root", str(root), "--format", "matrix")
    assert (code, out.count("\nGPU")) == (0, 4)
    code, _, err = asked(capsys, "--root", str(root), "--learn")
    if content is None:
        assert (code, "is there and no file; remove it" in err) == (2, True)
        return
    assert code == 0
    assert asked(capsys, "--root", str(root), "--diff")[:2] == (
        0,
        "Nothing differs from what is expected: the learned profile.\n",
    )
    assert (root / "topology.toml.before").read_text() == content


def test_more_than_is_read_is_not_learned(capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copied("l40sx4", tmp_path)
    monkeypatch.setattr(topology, "MOST_LEARNED", 100)
    code, _, err = asked(capsys, "--root", str(root), "--learn")
    assert (code, "more than is read" in err) == (2, True)
    assert not (root / "topology.toml").exists()


def test_what_is_learned_can_be_read_by_the_agents_user(
    capsys: Output, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = copied("l40sx4", tmp_path)
    request.addfinalizer(partial(os.umask, os.umask(0o077)))
    for _ in range(2):
        assert asked(capsys, "--root", str(root), "--learn")[0] == 0
        assert (root / "topology.toml").stat().st_mode & 0o777 == 0o644


def test_output_keeps_links_devices_and_modes(capsys: Output, tmp_path: Path) -> None:
    """Root types it: what stands in /dev must stay there."""
    pipe, target, link = tmp_path / "pipe", tmp_path / "matrix", tmp_path / "link"
    os.mkfifo(pipe)
    target.write_text("before")
    target.chmod(0o600)
    link.symlink_to(target)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (pipe, link):
            argv = ("--root", str(machine("l40sx4")), "--format", "matrix", "--output", str(path))
            assert asked(capsys, *argv) == (0, "", "")
        assert os.read(reader, 1 << 16) == target.read_bytes() != b"before"
    finally:
        os.close(reader)
    assert (pipe.is_fifo(), link.is_symlink(), target.stat().st_mode & 0o777) == (True, True, 0o600)
    for odd in (tmp_path, tmp_path / "a\0b"):
        code, _, err = asked(capsys, "--root", str(machine("l40sx4")), "--format", "matrix", "--output", str(odd))
        assert (code, "name another place with --output" in err) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "matrix", "pipe"]


def test_a_machine_without_gpu_or_card_says_where_to_look(capsys: Output, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text("")
    code, out, err = asked(capsys, "--root", str(tmp_path))
    assert (code, out) == (2, "")
    assert "gpuguard status" in err


def test_network_cards_alone_are_drawn(capsys: Output, tmp_path: Path) -> None:
    root = copied("h100x8", tmp_path)
    (root / "nvml.json").unlink()
    for device in (root / "sys/bus/pci/devices").iterdir():
        if device.name[5:7] != "2a" and device.is_dir():
            shutil.rmtree(device)
    code, out, err = asked(capsys, "--root", str(root))
    assert (code, err) == (0, "")
    assert "NIC0  2a:00.0" in out
