"""Real training loops of several processes, stopped in the ways in which that happens, and the agent that notices."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.model.health import Snapshot
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Values, merged
from gpuguard.runtime.board import ask_agent
from tests.support.agents import Agent

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


def test_each_way_to_stop_is_noticed_with_the_rank_that_did(agent: tuple[Agent, Path]) -> None:
    """All at once, as each takes half a minute. From the fault to the verdict no more than a minute goes by."""
    running, socket = agent
    with contextlib.ExitStack() as jobs:
        for fault in FAULTS:
            jobs.enter_context(training(fault, socket))
        stopped = time.monotonic() + AT * 0.03  # when the last of them met its fault, about
        missing = dict(FAULTS)
        while missing:
            seen = snapshot(running)
            for fault, verdict in list(missing.items()):
                told = row(seen, fault)
                if told.get("job_verdict") == verdict and f"job_{verdict}" in codes(seen, fault):
                    assert told.get("job_culprit_rank") == RANKS - 1, (fault, told)
                    del missing[fault]
            assert time.monotonic() < stopped + WITHIN, {fault: row(snapshot(running), fault) for fault in missing}
            time.sleep(0.5)


def test_a_job_that_says_that_it_is_done_is_no_finding_and_one_that_does_not_is(agent: tuple[Agent, Path]) -> None:
    running, socket = agent
    with training("none", socket), training("quiet", socket):
        ends = time.monotonic() + WITHIN
        while "job_unproven" not in codes(snapshot(running), "quiet"):
            assert time.monotonic() < ends, row(snapshot(running), "quiet")
            time.sleep(0.5)
        assert codes(snapshot(running), "none") == set()
