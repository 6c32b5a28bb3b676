"""A Snapshot in which everything there can be is there once."""

from gpuguard.model.health import Drain, FindingView, ShellFacts, Snapshot, SourceView, SubjectView
from gpuguard.model.ids import BootId, EventId, GpuSerial, GpuUuid, SubjectId, TokenId
from gpuguard.model.instants import Instant

BOOT = BootId("6f0d8e53-0c1b-4e0e-9d55-6f1a77c3a001")
GPU = SubjectId("gpu:0000:4e:00.0")


def full() -> Snapshot:
    """One unfit GPU, one drain, one source, one count of each kind."""
    now = Instant(boot=BOOT, mono=100.0, utc=1_700_000_100.0)
    finding = FindingView(
        subject=GPU, code="xid 79", check="fault_codes", severity="critical", confirmed=True, remedy="reset",
        reason="fell off the bus", count=1, first_utc=1_700_000_000.0, last_utc=1_700_000_000.0, sources=("kmsg",),
        secondary_to=None, latched=True, because=(EventId("kmsg:6f0d8e53:9"),),
    )  # fmt: skip
    return Snapshot(
        at=now, boot=BOOT, level=2, confirmed=True, line="CRITICAL",
        subjects=(
            SubjectView(
                id=GPU, state="unfit", remedy="reset", uuid=GpuUuid("GPU-6a1d2c3b-0000-4000-8000-000000000001"),
                serial=GpuSerial("1650000000001"), findings=(finding,),
            ),
        ),
        drain=Drain(
            token=TokenId("7f3a"), subject=GPU, code="xid79", reason="gpuguard:7f3a 4e:00.0 lost xid79", since=now,
            state="standing", dry_run=False,
        ),
        shell=ShellFacts(
            version="0", mode="drain", policy="default",
            sources=(SourceView(name="kmsg", level="watching", reason="", last_success_utc=1.7e9, lost=0, restarts=0),),
            events={"xid 79": 1}, results={"drain done": 1}, actions={"done": 1}, latency=((1.0, 1),),
            latency_sum=0.02, latency_count=1, actuator_ok=True, check_errors={"fault_codes": 1},
        ),
    )  # fmt: skip
