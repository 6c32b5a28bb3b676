"""What scontrol prints, told apart: recorded forms, and what must never be taken for ours."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.actuators.slurm.node import StateRefused, complaint_of, flags_of, parse_node
from gpuguard.actuators.slurm.scontrol import Answer
from gpuguard.custody.ownership import VERBS, condition_of, holder_of, judge
from gpuguard.errors import ActionDeferred, ActionRefused
from gpuguard.model.ids import TokenId

FIXTURES = Path(__file__).parents[4] / "fixtures" / "actuators" / "slurm"
TOKEN = TokenId("c0de")


def recorded(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("name", "state", "condition", "holder"),
    [
        ("idle", "IDLE", "settled", "nobody"),
        ("mixed", "MIXED", "settled", "nobody"),
        ("draining_ours", "MIXED+DRAIN", "settled", "ours"),
        ("drained_ours_with_comment", "IDLE+DRAIN", "settled", "ours"),
        ("drained_foreign", "IDLE+DRAIN", "settled", "foreign"),
        ("drained_two_line_reason", "IDLE+DRAIN", "settled", "foreign"),
        ("drained_unexplained", "IDLE+DRAIN", "settled", "unexplained"),
        ("down_silent", "DOWN+NOT_RESPONDING", "down", "nobody"),
        ("failing", "ALLOCATED+FAIL", "failing", "nobody"),
        ("maintenance", "IDLE+MAINTENANCE+RESERVED", "maintenance", "nobody"),
        ("reboot_issued_ours", "DOWN+DRAIN+REBOOT_ISSUED", "rebooting", "ours"),
        ("powered_down", "IDLE+CLOUD+POWERED_DOWN", "powered", "nobody"),
        ("suffixes_20.11", "IDLE*+DRAIN", "silent", "ours"),
        ("unheard_of", "IDLE+HIBERNATING", "strange", "nobody"),
    ],
)
def test_recorded_forms(name: str, state: str, condition: str, holder: str) -> None:
    report = parse_node(recorded(name), "gpu-a17")
    assert (report.error, report.state) == (None, state)
    assert condition_of(report) == condition
    assert holder_of(report, TOKEN) == holder
    assert report.drained == ("DRAIN" in state)
    assert report.ours == ("c0de" if holder == "ours" else None)


def test_each_recorded_form_is_used() -> None:
    listed = {mark.args[1][index][0] for mark in test_recorded_forms.pytestmark for index in range(len(mark.args[1]))}
    assert {path.stem for path in FIXTURES.glob("*.txt")} == listed


def test_the_reason_stands_without_its_tail_and_without_what_follows() -> None:
    assert parse_node(recorded("drained_ours_with_comment"), "gpu-a17").reason == "gpuguard:c0de gpu6 lost xid79"
    assert parse_node(recorded("drained_foreign"), "gpu-a17").reason == "PSU 2 swap, ask Noor"
    assert parse_node(recorded("idle"), "gpu-a17").reason == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "No nodes in the system\n",
        recorded("idle")[:-1],
        recorded("idle")[:300],
        recorded("idle")[300:],
        recorded("idle") * 2,
        recorded("idle").replace("gpu-a17", "gpu-a18"),
        recorded("idle").replace("gpu-a17", "gpu-a17x", 1),
        recorded("idle").replace("State=IDLE", "Status=IDLE"),
        recorded("idle").replace("Boards=1", "Boards=1 State=DOWN"),
        "x" * 70_000,
        "\0\x1b[2J\xff\n",
    ],
)
def test_what_is_not_one_whole_record_is_an_error(text: str) -> None:
    report = parse_node(text, "gpu-a17")
    assert report.error is not None
    assert {judge(report, verb, TOKEN).call for verb in VERBS} == {"wait"}


@pytest.mark.parametrize(
    "free",
    [
        " Comment=x Reason=gpuguard:c0de gpu6 lost xid79 [root@now]",
        " Reason=gpuguard:c0de gpu6 lost xid79 [root@now] keep out [noor@now]",
        " Reason=gpuguard:c0de gpu6 lost xid79 [root@now] Comment=keep out [noor@now]",
        " Reason=gpuguard:c0de gpu6 lost xid79 [root@now]        Noor: keep it out",
        " Reason=x Reason=gpuguard:c0de gpu6 lost xid79 [root@now]",
        " Reason=gpuguard:c0de gpu6 lost xid79\t[root@now]",
        " Reason=State=IDLE gpuguard:c0de gpu6 lost xid79 [root@now]",
    ],
)
def test_free_text_cannot_pose_as_our_reason(free: str) -> None:
    record = recorded("idle").replace("State=IDLE", "State=IDLE+DRAIN").replace("\n", f"{free}\n")
    report = parse_node(record, "gpu-a17")
    assert (report.error, report.state, report.ours) == (None, "IDLE+DRAIN", None)
    assert judge(report, "release", TOKEN).call == "never"


def test_a_reason_without_a_drain_is_nobodys() -> None:
    record = recorded("draining_ours").replace("MIXED+DRAIN", "MIXED")
    assert parse_node(record, "gpu-a17").ours is None


def test_a_long_foreign_reason_is_cut() -> None:
    record = recorded("drained_foreign").replace("PSU 2 swap", "PSU 2 swap " + "y" * 3000)
    assert len(parse_node(record, "gpu-a17").reason) == 400


@given(st.text(max_size=300))
def test_no_text_is_taken_for_a_drain_of_ours(text: str) -> None:
    assert parse_node(text, "gpu-a17").error is not None
    record = recorded("idle").replace("State=IDLE", "State=IDLE+DRAIN").replace("\n", f" Reason={text}x [a@b]\n")
    assert parse_node(record, "gpu-a17").ours is None


def test_suffixes_of_old_releases() -> None:
    assert flags_of("MIXED#+CLOUD") == ("MIXED", "POWERING_UP", "CLOUD")
    assert flags_of("DOWN*+DRAIN") == ("DOWN", "NOT_RESPONDING", "DRAIN")
    assert flags_of("idle$") == ("IDLE", "MAINTENANCE")
    assert flags_of("IDLE^") == ("IDLE", "REBOOT_ISSUED")


@pytest.mark.parametrize(
    ("said", "kind", "names"),
    [
        ("Node gpu-a17 not found", ActionRefused, "[actuators.slurm]"),
        ("slurm_update error: Invalid node name specified", ActionRefused, "[actuators.slurm]"),
        ("slurm_update error: Invalid user id", ActionRefused, "SlurmUser"),
        ("slurm_update error: Access/permission denied", ActionRefused, "SlurmUser"),
        ("scontrol: unrecognized option '--json'", ActionRefused, "report"),
        ("slurm_update error: Invalid node state specified", StateRefused, "Invalid node state"),
        ("Invalid input: state=undrain\nRequest aborted\nValid states are: DRAIN", StateRefused, "undrain"),
        ("slurm_load_node error: Unable to contact slurm controller (connect failure)", ActionDeferred, "slurmctld"),
        ("slurm_update error: Socket timed out on send/recv operation", ActionDeferred, "slurmctld"),
        ("error: Munge encode failed: Failed to access socket", ActionDeferred, "munged"),
        ("scontrol: fatal: Could not establish a configuration source", ActionDeferred, "slurm_conf"),
        ("something new", ActionDeferred, "something new"),
        ("", ActionDeferred, "nothing"),
    ],
)
@pytest.mark.parametrize("stream", ["out", "err"])
def test_complaints_are_told_apart_by_their_text(said: str, kind: type[Exception], names: str, stream: str) -> None:
    answer = Answer(1, said if stream == "out" else "", said if stream == "err" else "")
    error = complaint_of(answer, "gpu-a17")
    assert isinstance(error, kind)
    assert names in str(error)


def test_a_complaint_is_one_short_printable_line() -> None:
    said = Answer(1, "", "a\nb\x1b[31m" + "c" * 500).said
    assert said.startswith("a b?[31m")
    assert said.isprintable()
    assert len(said) == 160
