"""How much of the wiring is not as it should be, and where each link leads."""

import msgspec

from gpuguard.metrics import readings, topology
from gpuguard.model.findings import Severity
from gpuguard.model.health import Snapshot
from gpuguard.model.ids import NODE
from gpuguard.model.readings import Values
from tests.support.snapshots import DECLARED, GPU, full, measured


def snapshot(*severities: Severity, **node: str | int) -> Snapshot:
    """A node whose GPU has findings of the check, of these severities; `node` are the columns that say what it is."""
    whole = full()
    (view,) = whole.subjects
    (pattern,) = view.findings
    drifts = tuple(
        msgspec.structs.replace(pattern, check="topology_drift", code=f"topology_{n}", severity=severity)
        for n, severity in enumerate(severities)
    )
    group = measured("node")["nvml/fast"]
    values: Values = {k: v for k, v in group.values.items() if k not in topology.EXPECTED}
    of_node = {"nvml/fast": msgspec.structs.replace(group, values={**values, **node})}
    readings = {**whole.readings, NODE: of_node}
    return msgspec.structs.replace(
        whole, subjects=(msgspec.structs.replace(view, findings=(pattern, *drifts)),), readings=readings
    )


def counted(of: Snapshot) -> list[float]:
    return [sample.value for family in topology.families(of) for sample in family.samples]


def test_differences_are_counted_and_other_findings_are_not() -> None:
    assert counted(snapshot("degraded", "degraded", "info", gpus_expected=8)) == [2.0]
    assert counted(snapshot(topology_learned="[gpu]")) == [0.0]


def test_a_machine_of_which_nobody_knows_what_it_should_be_has_no_series() -> None:
    assert counted(snapshot("degraded")) == []


def test_while_what_it_should_be_cannot_be_read_there_is_no_series() -> None:
    whole = snapshot("degraded", topology_learned="[gpu")
    assert counted(whole) == [1.0]
    (view,) = whole.subjects
    mistaken = msgspec.structs.replace(view.findings[-1], code=topology.UNREADABLE)
    view = msgspec.structs.replace(view, findings=(*view.findings, mistaken))
    assert counted(msgspec.structs.replace(whole, subjects=(view,))) == []


def test_each_link_says_where_it_leads() -> None:
    whole = full()
    links: Values = {"nvlink_up": (1, 0, 1), "nvlink_peers": ("nvswitch:0000:05:00.0", None)}
    group = msgspec.structs.replace(whole.readings[GPU]["nvml/fast"], values=links)
    of_links = msgspec.structs.replace(whole, readings={GPU: {"nvml/fast": group}}, quantities=DECLARED)
    (family,) = [family for family in readings.families(of_links) if family.name == "gpuguard_nvlink_up"]
    assert [(s.labels["link"], s.labels["peer"], s.value) for s in family.samples] == [
        ("0", "nvswitch:0000:05:00.0", 1), ("1", "", 0), ("2", "", 1),
    ]  # fmt: skip
