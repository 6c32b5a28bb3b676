"""A watch tells what stands against its part of the GPU, and nothing where nothing is known."""

import msgspec
import pytest

from gpuguard.metrics.watches import WATCHES, families
from gpuguard.model.findings import Severity
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Group, Value
from gpuguard.runtime.plugins import shelf
from tests.support.snapshots import DECLARED, GPU, NOW, full

WELL: dict[str, Value] = {"gpu_up": 1, "temperature_celsius": 60.0, "power_watts": 400.0, "pcie_link_width": 16}


def shown(values: dict[str, Value], *findings: tuple[str, str, Severity]) -> dict[str, float]:
    group = Group(source="nvml", rate="fast", at=NOW, valid_for=15.0, values=values)
    snapshot = full()
    (view,) = snapshot.subjects
    standing = tuple(
        msgspec.structs.replace(view.findings[0], check=check, code=code, severity=severity)
        for check, code, severity in findings
    )
    snapshot = msgspec.structs.replace(
        snapshot, readings={GPU: {"nvml/fast": group}} if values else {},
        subjects=(msgspec.structs.replace(view, findings=standing), view_of_node()),
    )  # fmt: skip
    return {sample.labels["watch"]: sample.value for family in families(snapshot) for sample in family.samples}


def view_of_node() -> object:
    return msgspec.structs.replace(full().subjects[0], id=SubjectId("node"), findings=())


def test_what_is_known_and_well_passes() -> None:
    assert shown(WELL) == {"pcie": 0, "thermal": 0, "power": 0, "driver": 0, "all": 0}


def test_what_nobody_could_read_does_not_pass() -> None:
    assert "thermal" not in shown({**WELL, "temperature_celsius": None})
    assert shown({}) == {}


@pytest.mark.parametrize(("severity", "worth"), [("info", 0), ("degraded", 10), ("critical", 20)])
def test_a_finding_of_a_check_is_worth_its_severity(severity: Severity, worth: int) -> None:
    told = shown(WELL, ("thermal", "thermal", severity))
    assert (told["thermal"], told["all"], told["power"]) == (worth, worth, 0)


def test_the_worst_counts() -> None:
    told = shown(WELL, ("thermal", "thermal", "critical"), ("memory_temperature", "memory_temperature", "degraded"))
    assert told["thermal"] == 20
    assert told["memory"] == 10


@pytest.mark.parametrize(
    ("code", "watches"),
    [("xid48", {"memory"}), ("xid74", {"nvlink"}), ("xid79", {"pcie", "driver"}), ("xid31", set()), ("gsp", set())],
)
def test_a_fault_code_belongs_to_its_watch(code: str, watches: set[str]) -> None:
    told = shown({}, ("fault_codes", code, "critical"))
    assert told == {**dict.fromkeys(watches, 20), "all": 20}


def test_a_finding_is_told_of_a_gpu_that_is_silent() -> None:
    assert shown({}, ("gpu_lost", "gpu_lost", "critical")) == {"driver": 20, "all": 20}


@pytest.mark.parametrize("watch", WATCHES)
def test_a_watch_rests_on_columns_that_are_declared(watch: str) -> None:
    assert set(WATCHES[watch].columns) <= {q.name for q in DECLARED if q.of == "gpu"}


@pytest.mark.parametrize("watch", WATCHES)
def test_a_watch_names_checks_that_there_are(watch: str) -> None:
    assert set(WATCHES[watch].checks) <= shelf("gpuguard.detectors").keys()
