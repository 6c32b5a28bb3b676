"""Snapshots in which everything there can be is there: once, or as often as on a whole node."""

from collections.abc import Mapping

import msgspec

from gpuguard.model.health import Drain, FindingView, ShellFacts, Snapshot, SourceView, SubjectView, XidSeen
from gpuguard.model.ids import BootId, EventId, GpuSerial, GpuUuid, PciAddress, SubjectId, TokenId
from gpuguard.model.instants import Instant
from gpuguard.model.past import Record
from gpuguard.model.quantities import NVML_CALL_BOUNDS
from gpuguard.model.readings import Group, Quantity, Value, Values
from gpuguard.model.units import Seconds
from gpuguard.runtime.assembly import quantities
from gpuguard.runtime.plugins import shelf

BOOT = BootId("6f0d8e53-0c1b-4e0e-9d55-6f1a77c3a001")
NOW = Instant(boot=BOOT, mono=100.0, utc=1_700_000_100.0)
GPU = SubjectId("gpu:0000:4e:00.0")
DECLARED = tuple(quantities(shelf("gpuguard.sources")).values())
PAST = Record(
    score=1.5, as_of=1_700_000_000.0, faults=2, last_utc=1_700_000_000.0, last_code="xid79",
    half_life=Seconds(10 * 86400.0),
)  # fmt: skip
# One subject of each kind that is not a GPU.
OTHERS = {
    "mig": "mig:0000:4e:00.0/1", "node": "node", "nvswitch": "nvswitch:0000:a1:00.0", "port": "port:mlx5_0/1",
    "disk": "disk:state", "process": "process:0000:4e:00.0/4711",
    "job": "job:slurm/8123", "rank": "rank:slurm/8123/0", "task": "task:4711",
}  # fmt: skip
# What is not simply a number that can be.
SPECIAL: dict[str, Value] = {
    "clock_events": 0x84,
    "fabric_health_mask": 0b0001_10_10_10_01,  # bandwidth degraded, the rest well, configuration right
    "nvml_call_seconds": ("fields", *range(10, 10 * len(NVML_CALL_BOUNDS) + 1, 10), 100, 2.5),
    "gpu_name": "NVIDIA H100 80GB HBM3",
    "driver_version": "570.124.06",
    "gpu_job": "slurm/8123",
    "job_verdict": "hung",
    "job_phase": "checkpoint",
    "job_ended": 0,
}


def full() -> Snapshot:
    """One unfit GPU, one drain, one source, one count of each kind, and a value of all that is declared."""
    finding = FindingView(
        subject=GPU, code="xid79", check="fault_codes", severity="critical", confirmed=True, remedy="reset",
        reason="fell off the bus", count=1, first_utc=1_700_000_000.0, last_utc=1_700_000_000.0, sources=("kmsg",),
        secondary_to=None, latched=True, because=(EventId("kmsg:6f0d8e53:9"),),
    )  # fmt: skip
    return Snapshot(
        at=NOW, boot=BOOT, level=2, confirmed=True, line="CRITICAL",
        subjects=(
            SubjectView(
                id=GPU, state="unfit", remedy="reset", uuid=GpuUuid("GPU-6a1d2c3b-0000-4000-8000-000000000001"),
                serial=GpuSerial("1650000000001"), findings=(finding,), index=5,
                past=PAST,
            ),
        ),
        drain=Drain(
            token=TokenId("7f3a"), subject=GPU, code="xid79", reason="gpuguard:7f3a 4e:00.0 lost xid79", since=NOW,
            state="standing", dry_run=False,
        ),
        shell=ShellFacts(
            version="0", mode="drain", policy="default",
            sources=(SourceView(name="kmsg", level="watching", reason="", last_success_utc=1.7e9, lost=0, restarts=1),),
            events={"xid 79": 1}, results={"drain done": 1}, actions={"done": 1}, latency=((1.0, 1),),
            latency_sum=0.02, latency_count=1, actuator_ok=True, check_errors={"fault_codes": 1},
            xids=(XidSeen(pci=PciAddress("0000:4e:00.0"), xid=79, count=1, last_utc=1_700_000_000.0),),
            gpu_success={GPU: 1_700_000_000.0}, notices={"slack sent": 1},
        ),
        readings={GPU: measured("gpu"), **{SubjectId(name): measured(kind) for kind, name in OTHERS.items()}},
        quantities=DECLARED, past=PAST,
    )  # fmt: skip


def measured(of: str, *, parts: int = 2, values: Mapping[str, Value] | None = None) -> dict[str, Group]:
    """One group with a value of all that is declared of such a subject; a part has `parts` values."""
    all_values: Values = {q.name: _value(q, parts) for q in DECLARED if q.of == of}
    all_values.update(values or {})
    return {"nvml/fast": Group(source="nvml", rate="fast", at=NOW, valid_for=15.0, values=all_values)}


def node(*, gpus: int = 8, links: int = 18, ports: int = 8, jobs: int = 1) -> Snapshot:
    """A whole healthy node of which everything is known that can be: more than any one machine can tell."""
    views, readings = [], {SubjectId("node"): measured("node")}
    for number in range(gpus):
        pci = f"0000:{number + 16:02x}:00.0"
        uuid = GpuUuid(f"GPU-6a1d2c3b-0000-4000-8000-{number:012d}")
        views.append(
            SubjectView(
                id=SubjectId(f"gpu:{pci}"), state="healthy", remedy="none", uuid=uuid,
                serial=GpuSerial(f"16500000000{number:02d}"), findings=(), index=number,
            )
        )  # fmt: skip
        readings[SubjectId(f"gpu:{pci}")] = measured("gpu", parts=links, values={"gpu_uuid": uuid})
    for number in range(ports):
        readings[SubjectId(f"port:mlx5_{number}/1")] = measured("port")
    readings[SubjectId("disk:state")] = measured("disk")
    for number in range(jobs):
        readings[SubjectId(f"job:slurm/{number}")] = measured("job", values={"job_seen_seconds": number})
    return msgspec.structs.replace(full(), subjects=tuple(views), readings=readings, drain=None, past=None)


def _value(quantity: Quantity, parts: int) -> Value:
    if quantity.name in SPECIAL:
        return SPECIAL[quantity.name]
    if quantity.unit == "text":
        return quantity.name
    low = 0 if quantity.low is None else quantity.low
    value = low if quantity.high is None else min(quantity.high, low + (0.5 if quantity.unit == "ratio" else 1))
    return (value,) * parts if quantity.each else value
