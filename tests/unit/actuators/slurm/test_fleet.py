"""What `scontrol -o show node` tells of all nodes together."""

from pathlib import Path

import pytest

from gpuguard.actuators import slurm
from gpuguard.actuators.slurm.fleet import parse_fleet
from gpuguard.ports import FleetDrain, Overseer
from tests.support.fake_scontrol import FakeScontrol

OURS = "gpuguard:7f3a gpu5 lost xid79"


def record(name: str, state: str = "IDLE", reason: str = "", gres: str = "gpu:h100:8(S:0-1)") -> str:
    tail = f" Reason={reason} [root@1772650975]" if reason else ""
    return f"NodeName={name} Arch=x86_64 Gres={gres} NodeAddr=10.0.0.1 State={state} ThreadsPerCore=2{tail}\n"


def test_nodes_with_gpus_are_counted_and_our_drains_told() -> None:
    text = "".join(
        [
            record("n1"), record("n2", "MIXED+DRAIN", OURS), record("n3", "IDLE+DRAIN", "Bob: fan"),
            record("login1", gres="(null)"), record("n4", gres="shard:8,gpu:a100:4"), record("n5", "IDLE", OURS),
            record("n6", "IDLE+DRAIN", "gpuguard:c0de node operator mia"),
            record("n7", "DOWN+DRAIN", f"{OURS} : reboot issued"),
        ]
    )  # fmt: skip
    report = parse_fleet(text, "n1")
    assert (report.error, report.nodes) == (None, 7)
    assert report.drains == (
        FleetDrain(node="n2", token="7f3a", code="xid79", since_utc=1772650975.0),
        FleetDrain(node="n6", token="c0de", by="mia", since_utc=1772650975.0),
        FleetDrain(node="n7", token="7f3a", code="xid79", since_utc=1772650975.0),
    )


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        ("IDLE", True), ("ALLOCATED", True), ("MIXED+DRAIN", True), ("DOWN", True), ("DOWN+NOT_RESPONDING", True),
        ("IDLE+MAINTENANCE", True), ("IDLE+REBOOT_ISSUED", True), ("IDLE+FAIL", True), ("IDLE+CLOUD", True),
        ("IDLE+CLOUD+POWERED_DOWN", False), ("IDLE+POWERING_DOWN", False), ("IDLE+POWERING_UP", False),
        ("IDLE~", False), ("FUTURE", False), ("UNKNOWN", False), ("IDLE+INVALID_REG", False),
        ("IDLE+UNHEARD_OF", False), ("DRAIN", False),
    ],
)  # fmt: skip
def test_who_takes_part(state: str, counts: bool) -> None:
    assert parse_fleet(record("n1") + record("n2", state), "n1").nodes == 1 + counts


def test_a_drain_counts_also_on_a_node_that_takes_no_part() -> None:
    report = parse_fleet(record("n1") + record("n2", "IDLE+DRAIN+POWERED_DOWN", OURS), "n1")
    assert (report.nodes, [d.node for d in report.drains]) == (1, ["n2"])


def test_a_site_that_tells_slurm_of_no_gpus_has_all_its_nodes_counted() -> None:
    text = record("n1", gres="(null)") + record("n2", gres="") + record("n3", gres="gpu:8")
    assert parse_fleet(text, "n1").nodes == 3
    assert parse_fleet(text, "n3").nodes == 1


@pytest.mark.parametrize(
    "strange",
    ["garbage\n", "NodeName=n2 Gres=gpu:8 State=IDLE", "NodeName=n2 Gres=gpu:8 Owner=N/A\n", "\n",
     "NodeName= State=IDLE \n", record("n2", "IDLE+DRAIN", "x NodeName=n9 Gres=gpu:8 State=IDLE"),
     record("n2", "IDLE+DRAIN", OURS + " Bob: keep")],
)  # fmt: skip
def test_what_is_no_whole_record_of_ours_is_no_drain(strange: str) -> None:
    report = parse_fleet(record("n1") + strange, "n1")
    assert report.error is None
    assert report.drains == ()
    assert report.nodes <= 2


@pytest.mark.parametrize("text", ["", "\n", record("n2"), "No nodes in the system\n"])
def test_without_this_node_nothing_is_told(text: str) -> None:
    report = parse_fleet(text, "n1")
    assert report.error is not None
    assert "n1 is not among them" in report.error


def test_the_actuator_oversees_the_fleet_by_one_call(tmp_path: Path) -> None:
    fake = FakeScontrol(tmp_path)
    fake.put_others(2, 1772650975, of=40)
    actuator = slurm.build(slurm.Settings(scontrol=str(fake.path), node="here"))
    assert isinstance(actuator, Overseer)
    report = actuator.read_fleet()
    assert (report.nodes, report.error) == (41, None)
    assert report.drains[1] == FleetDrain(node="n1", token="0001", code="xid1", since_utc=1772650975.0)
    assert fake.calls == ["-o show node"]


@pytest.mark.parametrize(
    ("trap", "said"),
    [("echo 'Unable to contact slurm controller' >&2; exit 1", "Unable to contact"), ("exec sleep 60", "in time")],
)
def test_no_answer_is_an_error_and_ends_in_time(tmp_path: Path, trap: str, said: str) -> None:
    fake = FakeScontrol(tmp_path)
    fake.trap("show", trap)
    settings = slurm.Settings(scontrol=str(fake.path), node="here", fleet_deadline=slurm.Seconds(0.3))
    report = slurm.build(settings).read_fleet()
    assert report.error is not None
    assert said in report.error
