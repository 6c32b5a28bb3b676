"""Real training loops of several processes, stopped in the ways in which that happens, and the agent that notices."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuguard.child.stacks import found
from gpuguard.jobs.sights import NodeSight
from gpuguard.model.health import Snapshot
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Values, merged
from gpuguard.runtime.board import ask_agent
from tests.support.agents import Agent
from tests.support.require import require

RANKS, AT = 3, 60
WITHIN = 60.0
# Fault -> the verdict, in which the last rank is the culprit.
FAULTS = {"deadlock": "hung", "stop": "paused", "read": "hung", "kill": "hung"}


@contextlib.contextmanager
def training(fault: str, socket: Path) -> Iterator[list[int]]:
    """The processes of a job that meets this fault; all of them are ended with the block."""
    loop = subprocess.Popen(
        [sys.executable, "-m", "gpuguard.progress.example", "--job", fault, "--fault", fault, "--ranks", str(RANKS),
         "--at", str(AT)],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "GPUGUARD_SOCKET": str(socket), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert loop.stdout is not None
    try:
        yield [int(word) for word in loop.stdout.readline().split()]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(loop.pid, signal.SIGKILL)
        loop.wait(30)
        loop.stdout.close()


def gpuguard(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "gpuguard.cli", *arguments], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


def snapshot(agent: Agent) -> Snapshot:
    found = ask_agent(agent.address)
    assert found is not None
    return found


def row(seen: Snapshot, job: str) -> Values:
    return merged(seen.readings.get(SubjectId(f"job:claimed/{os.getuid()}-{job}"), {}), seen.at)


def codes(seen: Snapshot, job: str) -> set[str]:
    return {
        finding.code for view in seen.subjects for finding in view.findings
        if view.id.startswith((f"job:claimed/{os.getuid()}-{job}", f"rank:claimed/{os.getuid()}-{job}"))
    }  # fmt: skip


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Agent, Path]]:
    folder = tmp_path_factory.mktemp("hangs")
    socket = folder / "progress.sock"
    more = f'[agent]\nsources = ["kmsg", "heartbeats", "tasks"]\n[sources.heartbeats]\nsocket = "{socket}"\n'
    with Agent("/", folder, more) as running:
        yield running, socket


def until_hung(agent: Agent, stopped: float) -> None:
    """It is told that it hangs, and for long enough to be sure of."""
    while "job_hung" not in codes(snapshot(agent), "deadlock"):
        assert time.monotonic() < stopped + WITHIN, row(snapshot(agent), "deadlock")
        time.sleep(0.5)


@pytest.fixture(scope="module")
def stuck(agent: tuple[Agent, Path]) -> Iterator[tuple[Agent, float]]:
    """The agent while jobs meet their faults, and when the last of them does, about: all at once, as each takes half a
    minute."""
    running, socket = agent
    with contextlib.ExitStack() as jobs:
        for fault in FAULTS:
            jobs.enter_context(training(fault, socket))
        yield running, time.monotonic() + AT * 0.03


def test_each_way_to_stop_is_noticed_with_the_rank_that_did(stuck: tuple[Agent, float]) -> None:
    """From the fault to the verdict no more than a minute goes by."""
    running, stopped = stuck
    missing = dict(FAULTS)
    while missing:
        seen = snapshot(running)
        for fault, verdict in list(missing.items()):
            told = row(seen, fault)
            if told.get("job_verdict") == verdict and f"job_{verdict}" in codes(seen, fault):
                assert told.get("job_culprit_rank") == RANKS - 1, (fault, told)
                del missing[fault]
        # Another test may have had the agent before: what is found at the first look was found in time by then.
        late = time.monotonic() >= stopped + WITHIN
        assert not (missing and late), {fault: row(snapshot(running), fault) for fault in missing}
        time.sleep(0.5)


def test_nodes_that_each_see_a_part_of_it_find_the_rank_together(stuck: tuple[Agent, float], tmp_path: Path) -> None:
    """What the command says on this node, as two nodes would have said it of which none has a suspect."""
    running, stopped = stuck
    job = f"claimed/{os.getuid()}-deadlock"
    until_hung(running, stopped)
    told = gpuguard("hang", "--json", "--job", job, *running.memory)
    assert told.returncode == 1, told.stderr
    sight = msgspec.json.decode(told.stdout, type=NodeSight)
    (whole,) = sight.jobs
    assert (whole.verdict, whole.rank, len(whole.ranks)) == ("hung", RANKS - 1, RANKS)
    for node, ranks in (("n07", whole.ranks[:-1]), ("n08", whole.ranks[-1:])):
        part = msgspec.structs.replace(whole, ranks=ranks, verdict="waiting", rank=None, why="", speaks_for=())
        file = tmp_path / f"{node}.json"
        file.write_bytes(msgspec.json.encode(msgspec.structs.replace(sight, node=node, jobs=(part,))))
    together = gpuguard("hang", "--merge", str(tmp_path))
    assert together.returncode == 1, together.stderr
    assert f"{RANKS} of {RANKS} ranks on 2 nodes" in together.stdout
    assert f"culprit     rank {RANKS - 1}, pid {whole.ranks[-1].pid}, node n08" in together.stdout


def test_the_stacks_name_the_line_it_hangs_in(stuck: tuple[Agent, float]) -> None:
    require("py-spy", found() is not None, "pip install py-spy")
    running, stopped = stuck
    until_hung(running, stopped)
    told = gpuguard("hang", "--stacks", "--job", f"claimed/{os.getuid()}-deadlock", *running.memory)
    assert told.returncode == 1, told.stderr
    assert f"looking at rank {RANKS - 1}, pid " in told.stderr
    assert re.search(r"\n +meet \(.*progress/example\.py:\d+\)\n", told.stdout), told.stdout


def test_a_job_that_says_that_it_is_done_is_no_finding_and_one_that_does_not_is(agent: tuple[Agent, Path]) -> None:
    running, socket = agent
    with training("none", socket), training("quiet", socket):
        ends = time.monotonic() + WITHIN
        while "job_unproven" not in codes(snapshot(running), "quiet"):
            assert time.monotonic() < ends, row(snapshot(running), "quiet")
            time.sleep(0.5)
        assert codes(snapshot(running), "none") == set()
