"""What `gpuguard gpus` shows: values with their units, a dash for absent, a question mark for unknown."""

import json

import msgspec
import pytest

from gpuguard import cli
from gpuguard.commands import gpus
from gpuguard.model.health import Snapshot, SubjectView
from gpuguard.model.ids import NODE, SubjectId
from gpuguard.model.readings import Group, Values
from gpuguard.runtime import board
from gpuguard.runtime.words import date
from tests.support.core import instant
from tests.support.machines import machine
from tests.support.snapshots import full

GIB = 2**30
FIRST, SECOND = SubjectId("gpu:0000:1b:00.0"), SubjectId("gpu:0000:43:00.0")
BUSY: Values = {
    "gpu_index": 0, "gpu_up": 1, "temperature_celsius": 64, "power_watts": 512.4, "power_limit_watts": 700.0,
    "utilization_ratio": 1.0, "sm_active_ratio": 0.974, "tensor_active_ratio": 0.61, "dram_active_ratio": 0.0,
    "memory_used_bytes": 68 * GIB, "memory_total_bytes": 80 * GIB, "nvlinks_active": 17, "nvlink_up": (1,) * 17 + (0,),
    "process_count": 1, "gpu_name": "NVIDIA H100 80GB HBM3",
}  # fmt: skip
# No NVLink, no SM counters; power was asked for without an answer.
PLAIN: Values = {
    "gpu_up": 1,
    "gpu_name": "NVIDIA H100 80GB HBM3", "gpu_index": 1, "temperature_celsius": 40, "power_watts": None,
    "utilization_ratio": 0.0,
}  # fmt: skip


def with_readings(**rows: Values) -> Snapshot:
    base = msgspec.structs.replace(full(), subjects=(), readings={})
    readings = {
        SubjectId(name): {"nvml/fast": Group(source="nvml", rate="fast", at=instant(0.0), valid_for=1e9, values=values)}
        for name, values in {FIRST: BUSY, SECOND: PLAIN, **rows}.items()
    }
    return msgspec.structs.replace(base, at=instant(1.0), readings=readings)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = with_readings(
        **{
            f"mig:{SECOND[4:]}/{gi}": {
                "mig_gpu_instance": gi,
                "mig_profile": "1g.10gb",
                "mig_sm_active_ratio": 0.25,
                "mig_memory_used_bytes": 0,
                "mig_memory_total_bytes": 10 * GIB,
            }
            for gi in (13, 2)
        },
        node={"driver_version": "570.124.06", "cuda_version": "12.8"},
        **{
            f"process:{FIRST[4:]}/4711": {"process_name": "python3", "process_memory_bytes": 66 * GIB},
            f"process:{SECOND[4:]}/4712": {"process_name": "notebook", "process_mig": 13},
        },
    )
    monkeypatch.setattr(board, "measured", lambda parts, **rest: (taken, "agent"))


@pytest.mark.usefixtures("shown")
def test_the_table_fits_and_tells_absent_from_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["gpus", "--config", "/dev/null"])
    out = capsys.readouterr().out
    when, head, first, second, *rest = out.splitlines()
    assert when == f"{date(instant(1.0).utc)}  2 x NVIDIA H100 80GB HBM3, driver 570.124.06, CUDA 12.8"
    assert rest[0].split() == ["gi", "2", "1g.10gb", "-", "25", "-", "-", "0.0/10.0"]
    assert rest[1].split()[:2] == ["gi", "13"]
    assert head == gpus.HEAD
    assert max(map(len, out.splitlines())) <= 80
    assert first.split() == ["0", "healthy", "64", "512/700", "100", "97", "61", "0", "68.0/80.0", "17/18", "1"]
    assert second.split() == ["1", "healthy", "40", "?/-", "0", "-", "-", "-", "-/-", "-", "-"]
    assert [line.split() for line in rest[-2:]] == [
        ["0", "4711", "-", "66.0", "python3"], ["1/13", "4712", "-", "?", "notebook"]
    ]  # fmt: skip


@pytest.mark.usefixtures("shown")
def test_json_has_everything_that_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run(["gpus", "--config", "/dev/null", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert code == 0
    assert facts["from"] == "agent"
    assert [gpu["subject"] for gpu in facts["gpus"]] == [FIRST, SECOND]
    assert facts["gpus"][0]["readings"]["nvlink_up"][17] == 0
    assert facts["gpus"][0]["processes"][0]["pid"] == 4711
    assert facts["gpus"][1]["readings"]["power_watts"] is None
    assert [instance["mig_gpu_instance"] for instance in facts["gpus"][1]["instances"]] == [2, 13]


@pytest.mark.parametrize(
    ("rows", "state", "told"),
    [
        ({}, "healthy", ""),
        ({FIRST: {"gpu_index": 0, "gpu_up": 0, "gpu_uuid": "GPU-1"}}, "unknown", "tells nothing of 1 of 2 GPUs"),
        ({FIRST: {"gpu_index": 0, "power_limit_watts": 700.0}}, "unknown", "tells nothing of 1 of 2 GPUs"),
        (
            {FIRST: {"nvlinks_expected": 18, "gpu_up": 1}, SECOND: {}},
            "unknown",
            "nothing is measured: the driver does not answer",
        ),
    ],
)
def test_a_gpu_that_tells_nothing_is_a_row_of_question_marks(
    rows: dict[str, Values], state: str, told: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    taken = with_readings(**rows)
    monkeypatch.setattr(board, "measured", lambda parts, **rest: (taken, "agent"))
    cli.run(["gpus", "--config", "/dev/null"])
    out = capsys.readouterr().out
    _, head, first, second, *_ = out.splitlines()
    assert first.split()[1] == state
    assert ("?" in first) is bool(told)
    assert told in out
    assert max(map(len, out.splitlines())) <= 80
    assert first.index("/") == second.index("/") > head.index("POWER")
    assert second.split()[1] == ("healthy" if SECOND not in rows else "unknown")


def test_a_hang_is_told_below_a_table_that_is_not_too_old_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = msgspec.structs.replace(
        full().subjects[0].findings[0], subject=NODE, check="nvml_unresponsive", code="nvml_unresponsive",
        severity="degraded", reason="nvmlDeviceGetPowerUsage hangs for 4 s",
    )  # fmt: skip
    node = msgspec.structs.replace(full().subjects[0], id=NODE, state="watched", findings=(finding,), index=None)
    taken = msgspec.structs.replace(with_readings(), subjects=(node,))
    monkeypatch.setattr(board, "measured", lambda parts, **rest: (taken, "agent"))
    cli.run(["gpus", "--config", "/dev/null"])
    assert "node degraded nvml_unresponsive: nvmlDeviceGetPowerUsage hangs for 4 s\n" in capsys.readouterr().out


def test_no_gpu_is_a_refusal_with_a_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = msgspec.structs.replace(full(), subjects=(), readings={})
    monkeypatch.setattr(board, "measured", lambda parts, **rest: (bare, "look"))
    assert cli.run(["gpus", "--config", "/dev/null"]) == 2
    assert "gpuguard status" in capsys.readouterr().err


def test_a_recorded_machine_has_no_part_in_this_ones_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(board, "measured", lambda parts, **rest: asked.append(rest) or (with_readings(), "look"))
    folder = str(machine("l40sx4"))
    cli.run(["gpus", "--root", folder])
    cli.run(["gpus", "--root", folder, "--state-dir", "/named"])
    assert [str(rest["state_dir"]) for rest in asked] == ["None", "/named"]  # type: ignore[index]
    with pytest.raises(SystemExit):
        cli.run(["gpus", "--root", f"{folder}/nowhere"])
    assert "is no directory" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "nan", "quick", "1e9"])
def test_a_pause_must_be_one(text: str) -> None:
    with pytest.raises(SystemExit) as end:
        cli.run(["gpus", "--every", text])
    assert end.value.code == 64


def test_an_agent_that_does_not_answer_is_no_snapshot() -> None:
    assert board.ask_agent("127.0.0.1:1") is None
    assert board.ask_agent("nonsense") is None


@pytest.mark.parametrize(
    ("values", "state", "code"),
    [({}, "unknown", 1), ({"gpu_up": 0}, "unknown", 1), ({"gpu_up": 1, "temperature_celsius": 40}, "healthy", 0)],
)
def test_what_nobody_asked_or_does_not_answer_is_not_called_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], values: Values, state: str, code: int
) -> None:
    told = with_readings()
    name = SubjectId(FIRST)
    view = SubjectView(id=name, state="healthy", remedy="none", uuid=None, serial=None, findings=())
    groups = {key: msgspec.structs.replace(group, values=values) for key, group in told.readings[name].items()}
    told = msgspec.structs.replace(told, subjects=(view,), readings={name: groups} if values else {})
    monkeypatch.setattr(board, "measured", lambda parts, **rest: (told, "agent"))
    assert cli.run(["gpus", "--config", "/dev/null"]) == code
    assert capsys.readouterr().out.splitlines()[2].split()[1] == state
    cli.run(["gpus", "--config", "/dev/null", "--json"])
    assert json.loads(capsys.readouterr().out)["gpus"][0]["state"] == state


def test_the_job_of_each_process_stands_beside_it_where_anybody_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: dict[str, Values] = {
        f"process:{FIRST[4:]}/1": {"process_name": "x" * 60, "process_job": "kubernetes/" + "f" * 36},
        f"process:{FIRST[4:]}/2": {"process_name": "Xorg", "process_job": ""},
        f"process:{FIRST[4:]}/3": {"process_name": "lost", "process_memory_bytes": None},
    }
    taken = with_readings(**rows)
    monkeypatch.setattr(board, "measured", lambda parts, **rest: (taken, "agent"))
    cli.run(["gpus", "--config", "/dev/null"])
    out = capsys.readouterr().out.splitlines()
    head, first, second, third = out[-4:]
    assert head.split()[-2:] == ["JOB", "PROCESS"]
    assert max(map(len, out)) == 80
    assert first[head.index("JOB") :] == f"kubernetes/{'f' * 8}~ {'x' * 23}~"
    assert second.split()[-2:] == ["-", "Xorg"]
    assert third.split()[-2:] == ["?", "lost"]
