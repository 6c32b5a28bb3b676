"""What is read out of Slurm's record of a job, with names that want to be read as something else."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.child.program import Unanswered
from gpuguard.child.slurm import Job, among, gpus_on, parse_span
from gpuguard.errors import NotUnderstood
from tests.support.slurm_site import FORGED, Site, record


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_usual_job_costs_one_question(site: Site) -> None:
    site.put("1", record("train"))
    assert site.ask() == Job(
        number="1", target="1", name="train", user="jo", uid=1000, state="RUNNING", nodes="node[1-2]", node_count=2,
        batch=True, requeue=True, restarts=0, exit_code=2, exit_signal=9, run_seconds=93784.0, limit_seconds=None,
        gpus=3, given="0,3-4",
    )  # fmt: skip
    assert site.calls == ["scontrol 1"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b=c",
        "x JobState=COMPLETED Restarts=9 Requeue=0",
        "x UserId=a(0) GroupId=b(0) MCS_label=N/A JobState=COMPLETED",
        f"x{FORGED}",
        f"x{FORGED}\n\nJobId=1 JobName=y",
        f"x{FORGED}\n\nJobId=1 ArrayJobId=1 ArrayTaskId=3 JobName=y",
        "x\nJobId=1 JobName=y",
        "größer\u202e\x1b[31m",
    ],
)
def test_no_name_passes_for_facts(site: Site, name: str) -> None:
    site.put("1", record(name), name)
    job = site.ask()
    assert job is not None
    assert (job.name, job.state, job.restarts, job.requeue, job.gpus) == (name, "RUNNING", 0, True, 3)


def test_a_comment_that_looks_like_a_record_is_a_comment(site: Site) -> None:
    site.put("1", record("train", comment=f"x{FORGED}"), "train")
    job = site.ask()
    assert job is not None
    assert (job.name, job.state) == ("train", "RUNNING")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=60), st.sampled_from(["", FORGED]))
def test_any_name_is_the_name(tmp_path_factory: pytest.TempPathFactory, name: str, more: str) -> None:
    name = name.replace("\0", "") + more
    site = Site(tmp_path_factory.mktemp("site"))
    site.put("1", record(name), name)
    job = site.ask()
    assert job is not None
    assert (job.name, job.state) == (name, "RUNNING")


def test_what_can_be_read_in_two_ways_is_not_understood(site: Site) -> None:
    site.put("1", record(f"x{FORGED}"))
    with pytest.raises(NotUnderstood, match="two ways"):
        site.ask()
    site.put("1", record(f"x{FORGED}"), "another name")
    with pytest.raises(NotUnderstood, match="two ways"):
        site.ask()


def test_the_last_task_of_an_array_is_asked_for_by_its_own_name(site: Site) -> None:
    third = record("wrap").replace("JobId=1 ", "JobId=1 ArrayJobId=1 ArrayTaskId=3 ")
    second = record("wrap", state="FAILED").replace("JobId=1 ", "JobId=4 ArrayJobId=1 ArrayTaskId=2 ")
    site.put("1", third + second)
    site.put("1_3", third)
    job = site.ask()
    assert job is not None
    assert (job.number, job.target, job.state) == ("1", "1_3", "RUNNING")
    assert site.calls == ["scontrol 1", "scontrol 1_3"]


def test_a_job_that_slurm_does_not_know(site: Site) -> None:
    assert site.ask("999") is None


@pytest.mark.parametrize("number", ["", "0", "1,2", "1_2", "all", "1 2", "٣", "12345678901", "-1"])
def test_what_is_no_number_is_asked_of_nobody(site: Site, number: str) -> None:
    with pytest.raises(NotUnderstood):
        site.ask(number)
    assert not (site.folder / "calls").exists()


@pytest.mark.parametrize("text", ["", "nonsense\n", "JobId=2 JobName=x\n", "JobId=1 JobName=x\n", "JobId=1 JobN"])
def test_an_answer_of_another_form_is_not_understood(site: Site, text: str) -> None:
    site.put("1", text)
    with pytest.raises(NotUnderstood):
        site.ask()


def test_a_controller_that_is_away(site: Site) -> None:
    (site.folder / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    with pytest.raises(Unanswered, match="Unable to contact"):
        site.ask()


@pytest.mark.parametrize(
    ("state", "nodes", "alive"),
    [
        ("RUNNING", "node1", True), ("COMPLETING", "node[1-4]", True), ("RUNNING", "node2", False),
        ("PENDING", "", False), ("COMPLETED", "node1", False), ("A_NEW_WORD", "node1", None),
    ],
)  # fmt: skip
def test_alive_is_here_and_now(state: str, nodes: str, alive: bool | None) -> None:
    job = Job(number="1", target="1", name="", user="", uid=0, state=state, nodes=nodes)
    assert job.alive_on("node1") is alive


@pytest.mark.parametrize(
    ("nodes", "here"),
    [
        ("node7", True), ("node17", False), ("node[1-9]", True), ("node[01-09]", False), ("a,node7,b", True),
        ("node[1-3,7]", True), ("node[8-10]", False), ("node[1-100]", True), ("xnode7", False), ("node[7]x", False),
        ("", False), ("node[", False), ("node[x-9]", False), ("node[9-1]", False), ("rack[1-2]node[3-4]", False),
    ],
)  # fmt: skip
def test_a_list_of_nodes(nodes: str, here: bool) -> None:
    assert among("node7", nodes) is here


def test_names_with_zeros_and_two_brackets() -> None:
    assert among("node007", "node[001-010]")
    assert not among("node007", "node[1-10]")
    assert among("rack2n10", "rack[1-2]n[09-11]")
    assert not among("rack3n10", "rack[1-2]n[09-11]")


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:2(IDX:0-1)", (2, "0-1")), ("gpu:h100:2(IDX:0,3-4)", (2, "0,3-4")), ("", (0, "")),
        ("gpu:h100:1(IDX:0),gpu:a100:1(IDX:5)", (2, "0,5")), ("gpu:4", (4, None)), ("craynetwork:1", (0, "")),
        ("gpu:2(CNT:2)", (2, None)),
    ],
)  # fmt: skip
def test_the_gpus_of_a_node(gres: str, gpus: tuple[int, str | None]) -> None:
    assert gpus_on("n1", f" Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:9 Nodes=n1 CPU_IDs=0 Mem=0 GRES={gres}") == gpus
    assert gpus_on("n3", f" Nodes=n1 CPU_IDs=0 Mem=0 GRES={gres}") == (None, None)


def test_spans() -> None:
    assert [parse_span(text) for text in ("00:00:05", "1-00:00:00", "03:04", "UNLIMITED", "INVALID", "")] == [
        5.0, 86400.0, 184.0, None, None, None,
    ]  # fmt: skip
