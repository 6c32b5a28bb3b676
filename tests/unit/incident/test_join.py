"""Which findings belong to one incident, and what names it."""

import pytest

from gpuguard.incident import join, ranks
from gpuguard.model.findings import Finding
from gpuguard.model.health import Incident, Standing, SubjectHealth
from gpuguard.model.ids import EventId, IncidentId, SubjectId
from tests.support.core import BOOT, instant

GPU = SubjectId("gpu:0000:3b:00.0")
PEER = SubjectId("gpu:0000:86:00.0")


def finding(code: str, mono: float, subject: SubjectId = GPU, **more: object) -> Finding:
    because = (EventId(f"kmsg:{code}:{mono}"),)
    return Finding(subject=subject, check="fault_codes", code=code, at=instant(mono), because=because, **more)  # type: ignore[arg-type]


def holding(*findings: Finding, incident: IncidentId) -> SubjectHealth:
    standing = tuple(
        Standing(
            finding=f, incident=incident, first=f.at, last=f.at, count=1, sources=("kmsg",), remedy="none",
            because=f.because,
        )
        for f in findings
    )  # fmt: skip
    return SubjectHealth(id=GPU, since=instant(0.0), standing=standing)


def test_a_first_finding_opens_an_incident_named_by_it() -> None:
    incident, secondary = join.join({}, SubjectHealth(id=GPU, since=instant(0.0)), finding("xid43", 10.0))
    assert (incident.name, incident.members, secondary) == ("xid43", ("xid43",), None)


@pytest.mark.parametrize(("gap", "together"), [(29.0, True), (31.0, False)])
def test_the_window_is_thirty_seconds_from_the_last_line(gap: float, together: bool) -> None:
    first = finding("xid62", 10.0)
    incident, _ = join.join({}, SubjectHealth(id=GPU, since=instant(0.0)), first)
    subject = holding(first, incident=incident.id)
    joined, _ = join.join({incident.id: incident}, subject, finding("xid45", 10.0 + gap, consequence=True))
    assert (joined.id == incident.id) is together


def test_an_incident_takes_no_more_than_five_minutes_of_new_codes() -> None:
    incident = Incident(
        id=IncidentId("i"), subject=GPU, name="xid119", opened=instant(0.0), last=instant(295.0), members=("xid119",)
    )
    assert join.is_open(incident, instant(299.0))
    assert not join.is_open(incident, instant(301.0))


@pytest.mark.parametrize(
    ("codes", "name"),
    [
        (("xid48", "xid171", "xid63", "xid94", "xid154"), "xid48"),
        (("xid154", "xid79", "gpu_lost"), "xid79"),
        (("xid62", "xid45"), "xid62"),
        (("xid45",), "xid45"),
        (("xid149", "xid45", "xid154"), "xid149"),
        (("xid13", "xid43"), "xid13"),
    ],
)
def test_the_strongest_member_names_the_incident(codes: tuple[str, ...], name: str) -> None:
    incidents: dict[IncidentId, Incident] = {}
    told: list[Finding] = []
    incident = None
    for place, code in enumerate(codes):
        new = finding(code, 10.0 + place / 100, severity="critical", consequence=code == "xid45")
        subject = holding(*told, incident=incident.id) if incident else SubjectHealth(id=GPU, since=instant(0.0))
        incident, _ = join.join(incidents, subject, new)
        incidents[incident.id] = incident
        told.append(new)
    assert incident is not None
    assert incident.name == name
    assert incident.members == codes


def test_what_a_peer_says_of_a_lost_gpu_is_secondary() -> None:
    loss, _ = join.join({}, SubjectHealth(id=GPU, since=instant(0.0)), finding("xid79", 10.0))
    echo = finding("xid74", 12.0, PEER)
    peer = SubjectHealth(id=PEER, since=instant(0.0))
    assert join.join({loss.id: loss}, peer, echo)[1] is None, "a doubtful loss excuses nobody"
    incident, secondary = join.join({loss.id: loss}, peer, echo, [loss])
    assert (incident.part_of, secondary) == (loss.id, "xid79")
    late = finding("xid74", 60.0, PEER)
    assert join.join({loss.id: loss}, peer, late, [loss])[1] is None


def test_the_same_first_line_makes_the_same_incident() -> None:
    assert join.incident_id(finding("xid79", 10.0)) == join.incident_id(finding("xid79", 10.0))
    assert join.incident_id(finding("xid79", 10.0)) != join.incident_id(finding("xid79", 11.0))


def test_incidents_of_different_boots_never_join() -> None:
    incident = Incident(
        id=IncidentId("i"), subject=GPU, name="xid79", opened=instant(10.0), last=instant(10.0), members=("xid79",)
    )
    other = instant(10.0, boot=type(BOOT)("bbbbbbbb-0000-4000-8000-000000000002"))
    assert not join.is_open(incident, other.__class__(boot=other.boot, mono=10.0, utc=None))


def test_every_place_in_the_order_is_used_once() -> None:
    codes = [code for line in ranks.ORDER for code in line]
    assert len(codes) == len(set(codes))
    assert ranks.RANK["xid79"] > ranks.RANK["xid95"] > ranks.RANK["xid64"] > ranks.RANK["xid48"]
