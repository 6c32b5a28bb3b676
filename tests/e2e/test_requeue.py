"""A real Slurm: what it says of jobs, a hung job started anew, and a process that outlived its job ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from gpuguard.actuators import delegate, processes
from gpuguard.actuators.slurm import Settings, Slurm
from gpuguard.health import policy
from gpuguard.health.decide import decide
from gpuguard.health.state import Health
from gpuguard.model.events import ActionOutcome
from gpuguard.model.ids import EventId, SubjectId
from gpuguard.model.readings import Values
from gpuguard.runtime.clock import SystemClock
from gpuguard.sources import slurm as source
from tests.support.core import instant, sweep, tick
from tests.support.job_checks import Hung, Orphans
from tests.support.slurm import Cluster
from tests.support.wishes import reclaim, requeue

pytestmark = pytest.mark.slurm

NODE = "node2"


@contextmanager
def actuator(slurm: Cluster, folder: Path) -> Iterator[delegate.Delegate]:
    """The privileged process as it ships, set to act on the node, and the agent's hand that reaches it."""
    config, path, log = folder / "config.toml", folder / "a.sock", folder / "log"
    config.write_text(
        f'[actuator]\ntarget = "slurm"\nsocket = "{path}"\n'
        f'[actuators.slurm]\nnode = "{NODE}"\nslurm_conf = "{slurm.conf}"\n[actuators.processes]\ngrace = 1.0\n'
    )
    command = [sys.executable, "-m", "gpuguard.daemons.actuator", "--config", str(config)]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            slurm.until("the actuator listens", lambda: path.exists() or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield delegate.build(delegate.Settings(socket=str(path)))
        finally:
            process.terminate()
            process.wait(10)


def submit(slurm: Cluster, *options: str, wrap: str = "exec sleep 600") -> str:
    line = slurm.client("sbatch", "--parsable", "-w", NODE, "-n1", "-o", "/dev/null", *options, "--wrap", wrap)
    return line.strip()


def state(slurm: Cluster, job: str) -> str:
    return slurm.client("squeue", "-h", "-t", "all", "-j", job, "-o", "%T", check=False).strip()


def restarts(slurm: Cluster, job: str) -> str:
    record = slurm.client("scontrol", "-o", "show", "job", job)
    return record.partition(" Restarts=")[2].partition(" ")[0]


def test_the_agent_has_a_hung_job_started_anew_once(slurm: Cluster, short_path: Path) -> None:
    job = submit(slurm, "--gres=gpu:2")
    slurm.until("the job runs", lambda: state(slurm, job) == "RUNNING")
    subject = SubjectId(f"job:slurm/{job}")
    # Slurm says that a job runs a moment before its step's record tells of the node.
    slurm.until("the agent sees the job", lambda: subject in jobs_of(slurm))
    said = jobs_of(slurm)[subject]
    health, rules = Health(now=instant(0.0)), policy.Settings(mode="drain", restart_hung=True)
    owed = []
    for mono in range(20, 400, 20):
        row: Values = {**said, "job_verdict": "hung"}
        for event in (sweep({subject: row}, float(mono), source="jobs"), tick(mono + 0.1)):
            health, decision = decide(health, event, (Hung(),), rules)
            owed += [o.action for o in decision.owed]
    (action,) = owed
    with actuator(slurm, short_path) as hand:
        first = hand.perform(action)
        assert (first.result, first.node_state) == ("done", "RUNNING"), first.message
        assert restarts(slurm, job) == "1"
        again = hand.perform(action)
        assert (again.result, "already" in again.message) == ("done", True)
        slurm.until("the job runs again", lambda: state(slurm, job) == "RUNNING")
        third = hand.perform(action)
        assert (third.result, "already" in third.message) == ("done", True)
    assert (state(slurm, job), restarts(slurm, job)) == ("RUNNING", "1")
    event = ActionOutcome(
        id=EventId("o"), at=instant(401.0), key=action.key, result=first.result, message=first.message,
        node_state=first.node_state,
    )  # fmt: skip
    _, decision = decide(health, event, (Hung(),), rules)
    assert [entry.subject for entry in decision.story] == [subject]


def test_only_what_may_be_started_anew_is(slurm: Cluster) -> None:
    here = Slurm(Settings(node=NODE), slurm.environ)
    fixed, elsewhere = submit(slurm, "--no-requeue"), slurm.run_job("node3")
    slurm.until("the job runs", lambda: state(slurm, fixed) == "RUNNING")
    refused = here.perform(requeue(fixed))
    assert (refused.result, "--requeue" in refused.message) == ("refused", True)
    assert here.perform(requeue(elsewhere)).result == "foreign"
    assert here.perform(requeue("999999")).result == "done"
    assert (state(slurm, fixed), state(slurm, elsewhere)) == ("RUNNING", "RUNNING")


def test_of_an_array_one_task_is_started_anew(slurm: Cluster) -> None:
    array = submit(slurm, "--array=1-3")
    slurm.until("all run", lambda: state(slurm, array).split() == ["RUNNING"] * 3)
    ids = dict(line.split() for line in slurm.client("squeue", "-h", "-o", "%A %i").splitlines())
    assert ids[array] == f"{array}_3", "the last task has the number of the array"
    assert Slurm(Settings(node=NODE), slurm.environ).perform(requeue(array)).result == "done"
    assert {number: restarts(slurm, task) for number, task in ids.items()} == {
        number: "1" if number == array else "0" for number in ids
    }


def test_who_has_no_right_is_told_so(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submit(slurm)
    slurm.until("the job runs", lambda: state(slurm, job) == "RUNNING")
    real = subprocess.Popen

    def as_nobody(command: tuple[str, ...], **more: object) -> "subprocess.Popen[bytes]":
        drop = {"user": 65534, "group": 65534, "extra_groups": []} if "requeue" in command else {}
        return real(command, **more, **drop)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr("gpuguard.child.program.subprocess.Popen", as_nobody)
    outcome = Slurm(Settings(node=NODE), slurm.environ).perform(requeue(job))
    assert (outcome.result, "operators" in outcome.message) == ("refused", True)
    assert state(slurm, job) == "RUNNING"


# --- what Slurm says of jobs -----------------------------------------------------------------------------------------


def jobs_of(slurm: Cluster) -> dict[SubjectId, Values]:
    """What the source says after the round that asks nobody."""
    clock = SystemClock()
    here = source.Slurm(source.Settings(node=NODE), Path("/"), clock, slurm.environ)
    here.rest()
    return here.sweep(clock.now())


def test_the_source_knows_the_jobs_of_this_node_and_their_gpus(slurm: Cluster) -> None:
    forged = "x UserId=a(0) GroupId=b(0) MCS_label=N/A JobState=COMPLETED Restarts=9 Requeue=0\nJobId=1 JobName=y"
    first = submit(slurm, "--gres=gpu:1", "--time=10", "--no-requeue")
    slurm.until("the job runs", lambda: state(slurm, first) == "RUNNING")
    second = submit(slurm, "--gres=gpu:h100:2", "-J", forged, "--comment", forged)
    array = submit(slurm, "--array=1-2", "--gres=gpu:0")
    slurm.run_job("node3")
    slurm.until("they run", lambda: state(slurm, second) + state(slurm, array) == "RUNNINGRUNNING\nRUNNING")
    rows = jobs_of(slurm)
    assert rows[SubjectId("node")] == {"scheduler_jobs_known": 1}
    assert len(rows) == 5, "nobody else's"
    one, two = rows[SubjectId(f"job:slurm/{first}")], rows[SubjectId(f"job:slurm/{second}")]
    assert (one["job_gpus_asked"], one["job_gpus_given"], one["job_requeueable"]) == (1, "0", 0)
    assert one["job_time_limit_seconds"] == 600.0
    assert (two["job_gpus_asked"], two["job_gpus_given"], two["job_requeueable"]) == (2, "1-2", 1)
    assert (two["job_alive"], two["job_state"], two["job_restarts"]) == (1, "RUNNING", 0)
    assert str(two["job_name"]).startswith("x UserId=a(0)")
    assert "job_exit_code" not in two


def test_the_source_tells_how_a_job_ended(slurm: Cluster) -> None:
    clock = SystemClock()
    here = source.Slurm(source.Settings(node=NODE, every=0.5), Path("/"), clock, slurm.environ)  # type: ignore[arg-type]
    here.rest()
    job = submit(slurm, wrap="sleep 1; exit 3")
    slurm.until("the job runs", lambda: state(slurm, job) == "RUNNING")
    subject = SubjectId(f"job:slurm/{job}")
    assert here.sweep(clock.now())[subject]["job_alive"] == 1
    slurm.until("the job is over", lambda: state(slurm, job) == "FAILED")
    slurm.until("that is known", lambda: here.sweep(clock.now())[subject]["job_alive"] == 0)
    row = here.sweep(clock.now())[subject]
    assert (row["job_state"], row["job_exit_code"], row["job_exit_signal"]) == ("FAILED", 3, 0)


def test_the_source_costs_the_controller_one_question_a_job(slurm: Cluster) -> None:
    clock = SystemClock()
    here = source.Slurm(source.Settings(node=NODE), Path("/"), clock, slurm.environ)
    here.rest()
    submit(slurm)
    slurm.until("the job runs", lambda: "RUNNING" in slurm.client("squeue", "-h", "-o", "%T"))
    slurm.client("sdiag", "-r")
    for _ in range(5):
        here.sweep(clock.now())
    asked = [line.split() for line in slurm.client("sdiag").splitlines() if "REQUEST_JOB_INFO" in line]
    assert [line[0] for line in asked] == ["REQUEST_JOB_INFO_SINGLE"], "never the whole list"
    assert "count:1" in asked[0]


def test_the_source_says_unknown_while_the_controller_is_away(slurm: Cluster) -> None:
    slurm.run_job(NODE)
    slurm.stop_controller()
    rows = jobs_of(slurm)
    assert rows == {SubjectId("node"): {"scheduler_jobs_known": None}}


# --- a process that outlived its job ---------------------------------------------------------------------------------


@contextmanager
def left_over(job: str, folder: Path) -> Iterator[tuple["subprocess.Popen[bytes]", float, Path]]:
    """A real process that is said to be in the cgroup of a job, its start, and the /proc that says so.

    These clusters keep their jobs in no cgroups, as making one takes a cgroup file system that can be written.
    """
    with subprocess.Popen(["sleep", "600"]) as process:
        here = folder / "proc" / str(process.pid)
        here.mkdir(parents=True)
        (here / "stat").symlink_to(f"/proc/{process.pid}/stat")
        (here / "cgroup").write_text(f"0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0\n")
        started = int((here / "stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        try:
            yield process, started, folder / "proc"
        finally:
            process.kill()


def test_what_is_left_of_a_job_is_ended_once_the_job_is_over(slurm: Cluster, tmp_path: Path) -> None:
    job = submit(slurm)
    slurm.until("the job runs", lambda: state(slurm, job) == "RUNNING")
    scheduler = Slurm(Settings(node=NODE), slurm.environ)
    with left_over(job, tmp_path) as (process, started, proc):
        here = processes.LeftOver(processes.Settings(), scheduler.runs_here, proc)
        orphans = f"{process.pid}/{started:.2f}"
        health, rules = Health(now=instant(0.0)), policy.Settings(mode="drain", reclaim_orphans=True)
        owed, gpu = [], SubjectId("gpu:0000:4e:00.0")
        for mono in range(20, 700, 20):
            row: Values = {"gpu_orphan_bytes": 2**30, "gpu_orphans": orphans}
            for event in (sweep({gpu: row}, float(mono), source="jobs"), tick(mono + 0.1)):
                health, decision = decide(health, event, (Orphans(),), rules)
                owed += [o.action for o in decision.owed]
        (action,) = owed
        spared = here.perform(action)
        assert (spared.result, process.poll()) == ("foreign", None), spared.message
        slurm.stop_controller()
        spared = here.perform(action)
        assert (spared.result, process.poll()) == ("deferred", None), spared.message
        slurm.start_controller()
        slurm.client("scancel", job)
        slurm.until("the job is over", lambda: state(slurm, job) == "CANCELLED")
        ended = here.perform(action)
        assert (ended.result, process.wait(10)) == ("done", -signal.SIGTERM), ended.message
        assert here.perform(action).result == "done"


def test_the_privileged_process_spares_whom_slurm_did_not_start(slurm: Cluster, short_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as process, actuator(slurm, short_path) as hand:
        try:
            stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            action = reclaim(process.pid, int(stat[19]) / os.sysconf("SC_CLK_TCK"))
            outcome = hand.perform(action)
            assert (outcome.result, process.poll()) == ("refused", None)
            assert "no job of Slurm's" in outcome.message
            began = time.monotonic()
            other = hand.perform(msgspec.structs.replace(action, started=1.0))
            assert (other.result, process.poll()) == ("done", None)
            assert time.monotonic() - began < 5.0
        finally:
            process.kill()
