"""Whose process it is, over every form of a control group's path that is known."""

import tomllib
from pathlib import Path

import pytest

from gpuguard.model.jobs import ID_LIMIT, Owner
from gpuguard.sweeping.owners import owner_of

CGROUPS = Path(__file__).resolve().parents[3] / "fixtures" / "cgroups"
EXPECTED = tomllib.loads((CGROUPS / "expected.toml").read_text())
SHELL = "0::/user.slice/user-1000.slice/session-3.scope\n"
SLURMD = "0::/system.slice/slurmd.service\n"


@pytest.mark.parametrize("name", EXPECTED)
def test_a_known_form(name: str) -> None:
    expected = EXPECTED[name]
    owner = owner_of((CGROUPS / f"{name}.txt").read_text())
    assert owner == Owner(job=expected.get("job"), part=expected.get("part", ""), user=expected.get("user"))


def test_every_recorded_form_is_expected_to_be_somebodys_or_nobodys() -> None:
    assert {path.stem for path in CGROUPS.glob("*.txt")} == EXPECTED.keys()
    assert all(expected["origin"] for expected in EXPECTED.values())


def test_the_environment_is_believed_only_where_the_group_names_no_job() -> None:
    variables = {"SLURM_JOB_ID": "8123", "SLURM_STEP_ID": "2"}
    assert owner_of(SLURMD, variables) == Owner(job="slurm/8123", part="2", vouched=False)  # type: ignore[arg-type]
    assert owner_of("0::/system.slice/train.service", variables) == Owner(job="systemd/train.service")  # type: ignore[arg-type]
    assert owner_of("", variables).job == "slurm/8123"


def test_who_logged_in_speaks_for_no_job() -> None:
    """Otherwise one variable would hide a GPU that is used past the scheduler, and stop a rank of somebody's job."""
    variables = {"SLURM_JOB_ID": "8123"}
    assert owner_of(SHELL, variables) == Owner(job=None, user=1000)
    assert owner_of("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope", variables).job is None
    assert owner_of("0::/user.slice/user-0.slice/session-1.scope", variables).job == "slurm/8123", "slurmd, by hand"


@pytest.mark.parametrize("number", ["", "8123; rm", "../8123", "-1", "٣", "1" * 21, "8123\n"])
def test_what_is_no_number_of_a_job_names_none(number: str) -> None:
    assert owner_of(SLURMD, {"SLURM_JOB_ID": number}).job is None


@pytest.mark.parametrize("step", ["4294967291", "", "batch", "9" * 40])
def test_a_step_that_has_no_number_is_left_open(step: str) -> None:
    assert owner_of(SLURMD, {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": step}).part == ""


@pytest.mark.parametrize(
    ("path", "job"),
    [
        ('/system.slice/a b\x1b[31m"{}.service', "systemd/a_b__31m___.service"),
        ("/system.slice/" + "x" * 300 + ".service", "systemd/" + "x" * ID_LIMIT),
        ("/system.slice/gpuguard-job-4/../7.scope", "systemd/7.scope"),
        ("/system.slice/gpuguard-job-ü.scope", "gpuguard/_"),
        ("/kubepods.slice/kubepods-pod.slice", None),
        ("/system.slice/job_8123/step_0/task_0", None),
        ("/" + "/".join(["x"] * 1000) + "/train.service", None),
        ("/user.slice/user@1000.service/x\x0c1:name=systemd:/slurm/uid_0/job_1/step_0/y.service", "systemd/y.service"),
    ],
)
def test_names_that_nobody_expects(path: str, job: str | None) -> None:
    assert owner_of(f"0::{path}\n").job == job


def test_lines_that_are_none_are_passed_over() -> None:
    assert owner_of("nonsense\n:::\n7\n0::/system.slice/train.service\n").job == "systemd/train.service"
    assert owner_of("x:y:/\n" * 200 + "0::/system.slice/train.service\n").job is None
