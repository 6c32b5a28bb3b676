"""Bits, links, instances and the last answer of each GPU."""

import msgspec
import pytest

from gpuguard.metrics.gpus import CLOCK_EVENTS, FABRIC_BITS, families
from gpuguard.model.health import Snapshot
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Group, Value
from tests.support.snapshots import GPU, NOW, full

OTHER = SubjectId("gpu:0000:5d:00.0")


def knowing(subject: str = GPU, **values: Value) -> Snapshot:
    group = Group(source="nvml", rate="fast", at=NOW, valid_for=15.0, values=values)
    return msgspec.structs.replace(full(), readings={SubjectId(subject): {"nvml/fast": group}})


def shown(snapshot: Snapshot, name: str, label: str) -> dict[str, float]:
    """The values of one family by one of their labels."""
    return {
        sample.labels[label]: sample.value
        for family in families(snapshot) if family.name == f"gpuguard_{name}" for sample in family.samples
    }  # fmt: skip


def test_each_bit_of_the_clocks_is_told() -> None:
    active = shown(knowing(clock_events=0x84), "clock_event_active", "reason")
    assert active.keys() == CLOCK_EVENTS.keys()
    assert {reason for reason, value in active.items() if value} == {"hw_power_brake", "sw_power_cap"}


def test_no_bit_is_set_where_nothing_holds_the_clocks_down() -> None:
    assert set(shown(knowing(clock_events=0), "clock_event_active", "reason").values()) == {0.0}


@pytest.mark.parametrize("column", ["clock_events", "fabric_health_mask"])
def test_a_mask_that_nobody_could_read_has_no_series(column: str) -> None:
    assert list(families(msgspec.structs.replace(knowing(**{column: None}), shell=full().shell))) != []
    assert shown(knowing(**{column: None}), "clock_event_active", "reason") == {}
    assert shown(knowing(**{column: None}), "fabric_health", "bit") == {}


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (0b01, {"degraded_bandwidth": 1.0}),
        (0b10, {"degraded_bandwidth": 0.0}),
        (0b01 << 4, {"route_unhealthy": 1.0}),
        (0b10 << 6, {"access_timeout_recovery": 0.0}),
        (1 << 8, {"incorrect_configuration": 0.0}),
        (4 << 8, {"incorrect_configuration": 1.0}),
        (0, {}),  # the fabric can tell nothing
    ],
)
def test_bits_of_the_fabric(mask: int, expected: dict[str, float]) -> None:
    assert shown(knowing(fabric_health_mask=mask), "fabric_health", "bit") == expected


def test_the_fields_of_the_mask_do_not_overlap() -> None:
    bits = [shift + place for shift, width in FABRIC_BITS.values() for place in range(width)]
    assert sorted(bits) == list(range(12))


def found_by(check: str) -> Snapshot:
    snapshot = knowing(pcie_link_width=8, pcie_link_generation=5)
    (view,) = snapshot.subjects
    finding = msgspec.structs.replace(view.findings[0], check=check, code=check)
    return msgspec.structs.replace(snapshot, subjects=(msgspec.structs.replace(view, findings=(finding,)),))


def test_a_link_is_degraded_by_what_its_check_finds() -> None:
    assert shown(knowing(pcie_link_width=8, pcie_link_generation=1), "pcie_link_degraded", "kind") == {
        "width": 0.0, "speed": 0.0,
    }  # fmt: skip
    assert shown(found_by("pcie_width"), "pcie_link_degraded", "kind") == {"width": 1.0, "speed": 0.0}
    assert shown(found_by("pcie_speed"), "pcie_link_degraded", "kind") == {"width": 0.0, "speed": 1.0}


def test_a_link_that_is_as_good_as_its_slot_is_not_degraded() -> None:
    snapshot = found_by("pcie_width")
    (view,) = snapshot.subjects
    of_the_slot = (msgspec.structs.replace(view.findings[0], code="pcie_slot_width"),)
    snapshot = msgspec.structs.replace(snapshot, subjects=(msgspec.structs.replace(view, findings=of_the_slot),))
    assert shown(snapshot, "pcie_link_degraded", "kind") == {"width": 0.0, "speed": 0.0}


def test_a_link_of_which_nothing_is_known_is_not_called_well() -> None:
    assert shown(knowing(pcie_link_width=None), "pcie_link_degraded", "kind") == {}


def test_an_instance_is_told_with_its_parent() -> None:
    snapshot = knowing("mig:0000:4e:00.0/3", mig_profile="1g.10gb", mig_compute_instances="0", mig_uuid="MIG-1")
    (family,) = [family for family in families(snapshot) if family.name == "gpuguard_mig_info"]
    assert family.samples[0].labels == {
        "gpu": "5", "uuid": full().subjects[0].uuid, "mig": "3", "ci": "0", "profile": "1g.10gb", "mig_uuid": "MIG-1",
    }  # fmt: skip


def test_a_gpu_that_answers_no_more_keeps_the_time_of_its_last_answer() -> None:
    silent = msgspec.structs.replace(full(), readings={})
    assert shown(silent, "gpu_last_success_timestamp_seconds", "gpu") == {"5": 1_700_000_000.0}


def test_a_gpu_that_never_answered_has_no_such_time() -> None:
    shell = msgspec.structs.replace(full().shell, gpu_success={OTHER: 1.0})
    snapshot = msgspec.structs.replace(full(), shell=shell)
    assert shown(snapshot, "gpu_last_success_timestamp_seconds", "gpu") == {}
