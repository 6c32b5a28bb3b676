"""The drain in a real Slurm: what is written, what is left alone, and who may ask."""

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.actuators import delegate
from gpuguard.actuators.slurm import Settings, Slurm
from gpuguard.custody.ownership import VERBS
from tests.support.require import require
from tests.support.slurm import PATH, Cluster
from tests.support.wishes import wish

pytestmark = pytest.mark.slurm

NODE = "node2"


def actuator(slurm: Cluster, node: str = NODE) -> Slurm:
    return Slurm(Settings(node=node), slurm.environ)


def test_an_idle_node_is_drained_and_released(slurm: Cluster) -> None:
    here = actuator(slurm)
    outcome = here.perform(wish("drain"))
    assert (outcome.result, outcome.node_state) == ("done", "IDLE")
    assert slurm.states()[NODE] == "IDLE+DRAIN"
    assert slurm.reason(NODE).startswith("gpuguard:7f3a gpu3 lost xid79 [")
    report = here.read_state()
    assert (report.drained, report.ours, report.reason) == (True, "7f3a", "gpuguard:7f3a gpu3 lost xid79")
    assert here.perform(wish("release")).result == "done"
    slurm.await_state(NODE, "IDLE")
    assert slurm.reason(NODE) == ""
    assert slurm.states()["node1"] == slurm.states()["node3"] == "IDLE", "other nodes are none of our business"


def test_a_fault_right_after_a_release_drains_as_soon_as_the_node_answers(slurm: Cluster) -> None:
    here = actuator(slurm)
    for _ in range(3):
        assert here.perform(wish("drain")).result == "done"
        assert here.perform(wish("release")).result == "done"


def test_a_node_with_a_job_drains_while_the_job_runs_on(slurm: Cluster) -> None:
    job = slurm.run_job(NODE)
    here = actuator(slurm)
    assert here.perform(wish("drain")).result == "done"
    assert slurm.states()[NODE] == "MIXED+DRAIN"
    assert slurm.client("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING"
    assert here.perform(wish("release")).result == "done"
    slurm.await_state(NODE, "MIXED")
    assert slurm.client("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING"


def test_a_second_drain_of_ours_writes_nothing(slurm: Cluster) -> None:
    here = actuator(slurm)
    assert here.perform(wish("drain")).result == "done"
    stood = slurm.reason(NODE)
    time.sleep(1.1)  # Slurm stamps reasons by the second: a second write would show
    assert here.perform(wish("drain")).result == "done"
    assert slurm.reason(NODE) == stood


@pytest.mark.parametrize(
    "reason",
    [
        "Bob: fan 3 rattles",
        "NHC: check_hw_eth failed",
        "gpuguard:7f3a gpu3 lost xid79 -- Bob: keep it out",
        "gpuguard:7f3a gpu3 lost xid79\nBob: keep it out",
        "looks like [root@2026-01-01T00:00:00] gpuguard:7f3a gpu3 lost xid79",
        "State=IDLE NodeName=node1 Reason=gpuguard:7f3a gpu3 lost xid79",
        "   ",
    ],
)
def test_a_drain_by_somebody_else_is_left_alone(slurm: Cluster, reason: str) -> None:
    slurm.update(NODE, "state=drain", f"reason={reason}")
    stood = _without_load(slurm.client("scontrol", "-o", "show", "node", NODE))
    here = actuator(slurm)
    for verb in VERBS:
        assert here.perform(wish(verb)).result == "foreign"
        assert _without_load(slurm.client("scontrol", "-o", "show", "node", NODE)) == stood


def test_a_comment_cannot_pose_as_our_reason(slurm: Cluster) -> None:
    slurm.update(NODE, "state=drain", "reason= ", "comment=x Reason=gpuguard:7f3a gpu3 lost xid79 [root@now]")
    assert actuator(slurm).perform(wish("release")).result == "foreign"
    assert slurm.states()[NODE] == "IDLE+DRAIN"
    slurm.update(NODE, "comment=")


def test_our_reason_is_found_beside_a_comment(slurm: Cluster) -> None:
    here = actuator(slurm)
    assert here.perform(wish("drain")).result == "done"
    slurm.update(NODE, "comment=seen by Bob", "extra=rack 4")
    assert here.perform(wish("release")).result == "done"
    slurm.await_state(NODE, "IDLE")
    slurm.update(NODE, "comment=", "extra=")


def test_a_reason_that_an_administrator_wrote_over_ours_stays(slurm: Cluster) -> None:
    here = actuator(slurm)
    assert here.perform(wish("drain")).result == "done"
    slurm.update(NODE, "reason=Alice replaces the riser card")
    for verb in ("drain", "update_reason", "release"):
        assert here.perform(wish(verb)).result == "foreign"
    assert slurm.reason(NODE).startswith("Alice replaces the riser card [")
    assert slurm.states()[NODE] == "IDLE+DRAIN"


def test_a_drain_that_an_administrator_lifted_is_not_missed(slurm: Cluster) -> None:
    here = actuator(slurm)
    assert here.perform(wish("drain")).result == "done"
    slurm.update(NODE, "state=resume")
    slurm.await_state(NODE, "IDLE")
    assert here.perform(wish("release")).result == "done"
    assert here.perform(wish("update_reason")).result == "foreign"
    assert slurm.states()[NODE] == "IDLE"


def test_our_reason_is_updated_in_place(slurm: Cluster) -> None:
    here = actuator(slurm)
    assert here.perform(wish("drain")).result == "done"
    assert here.perform(wish("update_reason", code="xid95")).result == "done"
    assert slurm.reason(NODE).startswith("gpuguard:7f3a gpu3 lost xid95 [")
    assert slurm.states()[NODE] == "IDLE+DRAIN"


def test_another_gpuguard_token_is_foreign_and_adopted_by_its_own_name_alone(slurm: Cluster) -> None:
    here = actuator(slurm)
    assert here.perform(wish("drain", token="0001")).result == "done"
    for verb in ("drain", "update_reason", "release", "adopt"):
        assert here.perform(wish(verb, token="0002")).result == "foreign"
    assert here.perform(wish("adopt", token="0001")).result == "done"
    assert slurm.reason(NODE).startswith("gpuguard:0001 ")
    assert here.perform(wish("release", token="0001")).result == "done"
    slurm.await_state(NODE, "IDLE")


def test_nothing_is_written_to_a_node_that_is_down_or_failing(slurm: Cluster) -> None:
    here = actuator(slurm)
    for word, result in (("down", "deferred"), ("fail", "foreign")):
        slurm.update(NODE, f"state={word}", "reason=Action:Replace")
        stood = slurm.reason(NODE), slurm.states()[NODE]
        for verb in ("drain", "release"):
            outcome = here.perform(wish(verb))
            assert outcome.result == ("done" if verb == "release" else result)
        assert (slurm.reason(NODE), slurm.states()[NODE]) == stood
        slurm.reset()


def test_our_drain_is_not_lifted_from_a_node_that_went_down_meanwhile(slurm: Cluster) -> None:
    here = actuator(slurm)
    assert here.perform(wish("drain")).result == "done"
    slurm.update(NODE, "state=down", "reason=gpuguard:7f3a gpu3 lost xid79")
    outcome = here.perform(wish("release"))
    assert outcome.result == "deferred"
    assert slurm.states()[NODE] == "DOWN+DRAIN"


def test_a_node_in_maintenance_waits(slurm: Cluster) -> None:
    slurm.client(
        "scontrol", "create", "reservation", "ReservationName=window", "StartTime=now", "Duration=60",
        "Users=root", "Flags=maint", f"Nodes={NODE}",
    )  # fmt: skip
    slurm.await_state(NODE, "IDLE+MAINTENANCE+RESERVED")
    outcome = actuator(slurm).perform(wish("drain"))
    assert (outcome.result, outcome.node_state) == ("deferred", "IDLE+MAINTENANCE+RESERVED")
    assert slurm.states()[NODE] == "IDLE+MAINTENANCE+RESERVED"


def test_a_reboot_that_was_asked_for_is_waited_for(slurm: Cluster) -> None:
    slurm.run_job(NODE)
    here = actuator(slurm)
    assert here.perform(wish("drain")).result == "done"
    slurm.client("scontrol", "reboot", "ASAP", "nextstate=RESUME", NODE)
    assert "REBOOT" in slurm.states()[NODE]
    for verb in ("drain", "release", "update_reason"):
        assert here.perform(wish(verb)).result == "deferred"
    slurm.client("scontrol", "cancel_reboot", NODE)


def test_a_controller_that_is_away_puts_the_drain_off_and_then_gets_it(slurm: Cluster) -> None:
    here = actuator(slurm)
    slurm.stop_controller()
    started = time.monotonic()
    outcome = here.perform(wish("drain"))
    assert outcome.result == "deferred"
    assert outcome.retry_after is not None
    assert "slurmctld" in outcome.message
    assert time.monotonic() - started < 6.0
    slurm.start_controller()
    slurm.await_state(NODE, "IDLE")
    assert here.perform(wish("drain")).result == "done"
    slurm.stop_controller()
    slurm.start_controller()
    slurm.await_state(NODE, "IDLE+DRAIN")
    assert here.perform(wish("release")).result == "done", "the reason survives a restart of the controller"


def test_a_controller_that_hangs_costs_no_more_than_the_deadline(slurm: Cluster) -> None:
    pid = slurm.pid("slurmctld")
    here = Slurm(Settings(node=NODE, deadline=1.5, settle=0.2), slurm.environ)  # type: ignore[arg-type]
    os.kill(pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        outcome = here.perform(wish("drain"))
        assert time.monotonic() - started < 2.5
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (outcome.result, "no answer" in outcome.message) == ("deferred", True)
    assert here.perform(wish("drain")).result == "done"


def test_a_node_that_slurm_does_not_know_is_refused(slurm: Cluster) -> None:
    outcome = actuator(slurm, "gpu-renamed-07").perform(wish("drain"))
    assert outcome.result == "refused"
    assert "[actuators.slurm]" in outcome.message


@contextlib.contextmanager
def serving(slurm: Cluster, folder: Path, *, user: str = "root", allow: tuple[str, ...] = ()) -> Iterator[Path]:
    """A `gpuguard-actuator` of its own process for NODE; yields its socket."""
    folder.chmod(0o777)
    config, path = folder / "config.toml", folder / "actuator.sock"
    config.write_text(f'[actuator]\ntarget = "slurm"\n[actuators.slurm]\nnode = "{NODE}"\n')
    command = [sys.executable, "-m", "gpuguard.daemons.actuator", "--config", str(config), "--socket", str(path)]
    for name in allow:
        command += ["--allow-user", name]
    if user != "root":
        command = ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups", *command]
    log = (folder / "log").open("wb")
    child = subprocess.Popen(command, env={**slurm.environ, "PATH": PATH}, stdin=subprocess.DEVNULL, stderr=log)
    try:
        deadline = time.monotonic() + 20.0
        while not path.exists():
            assert child.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.05)  # bound; listening an instant later
        yield path
    finally:
        child.terminate()
        assert child.wait(10) == 0
        log.close()
    assert not path.exists()


def through(path: Path) -> delegate.Delegate:
    return delegate.build(delegate.Settings(socket=str(path)))


def test_the_agents_wish_travels_through_the_privileged_process(slurm: Cluster, short_path: Path) -> None:
    with serving(slurm, short_path) as path:
        agent = through(path)
        assert agent.read_state().state == "IDLE"
        assert agent.perform(wish("drain")).result == "done"
        assert slurm.reason(NODE).startswith("gpuguard:7f3a gpu3 lost xid79 [")
        assert agent.perform(wish("drain")).result == "done"
        assert agent.read_state().ours == "7f3a"
        assert agent.perform(wish("release")).result == "done"
    slurm.await_state(NODE, "IDLE")
    assert '"event":"action.performed"' in (short_path / "log").read_text()


def test_an_unprivileged_process_is_refused_by_slurm(slurm: Cluster, short_path: Path) -> None:
    require("setpriv", os.access("/usr/bin/setpriv", os.X_OK), "`apt install util-linux` brings it")
    with serving(slurm, short_path, user="nobody") as path:
        outcome = through(path).perform(wish("drain"))
    assert outcome.result == "refused"
    assert "SlurmUser" in outcome.message
    assert slurm.states()[NODE] == "IDLE"


def test_another_user_is_turned_away_and_a_named_one_is_served(slurm: Cluster, short_path: Path) -> None:
    ask = (
        "import sys; from gpuguard.actuators.delegate import build, Settings;"
        "report = build(Settings(socket=sys.argv[1])).read_state(); print(report.state, report.error)"
    )

    def as_nobody(path: Path) -> str:
        path.chmod(0o666)  # what the socket's mode would keep out, the peer's credentials must as well
        command = [
            "setpriv",
            "--reuid=nobody",
            "--regid=nogroup",
            "--clear-groups",
            sys.executable,
            "-c",
            ask,
            str(path),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20, cwd="/").stdout

    require("setpriv", os.access("/usr/bin/setpriv", os.X_OK), "`apt install util-linux` brings it")
    with serving(slurm, short_path) as path:
        assert "may not ask" in as_nobody(path)
    with serving(slurm, short_path, allow=("nobody",)) as path:
        assert as_nobody(path).strip() == "IDLE None"


def _without_load(record: str) -> str:
    """A node's record less what changes by itself from second to second."""
    return " ".join(word for word in record.split() if word.partition("=")[0] not in ("CPULoad", "FreeMem"))
