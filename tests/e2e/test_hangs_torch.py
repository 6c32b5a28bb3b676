"""Real training with PyTorch, stopped in the ways in which that happens, and the agent that names the rank.

Opt-in: it runs where torch is installed, or with the interpreter that GPUGUARD_TORCH_PYTHON names, so that neither the
agent nor pytest needs torch. No GPU is needed: ranks meet in gloo, on the CPU.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuguard.model.health import Snapshot
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Values, merged
from gpuguard.runtime.board import ask_agent
from tests.support.agents import Agent

LOOP = Path(__file__).parents[1] / "support/gloo_loop.py"
RANKS, CULPRIT = 3, 2
WITHIN = 60.0  # seconds from the fault to the verdict
GIVES_UP = 45.0  # seconds after which gloo ends the ranks that wait in it
# A dump is read when two looks, ten seconds apart, found it the same.
READ_WITHIN = 40.0


@pytest.fixture(scope="module")
def interpreter() -> str:
    """A Python that has torch.

    Raises  pytest's Skipped without one; its Failed where the one that is named has none
    """
    named = os.environ.get("GPUGUARD_TORCH_PYTHON")
    if named:
        found = subprocess.run([named, "-c", "import torch.distributed"], capture_output=True, text=True, check=False)
        assert found.returncode == 0, f"GPUGUARD_TORCH_PYTHON={named}: {found.stderr[-400:]}"
        return named
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed, and GPUGUARD_TORCH_PYTHON names no interpreter that has it")
    return sys.executable


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, interpreter: str) -> Iterator[tuple[Agent, Path]]:
    folder = tmp_path_factory.mktemp("torch")
    more = (
        '[agent]\nsources = ["kmsg", "heartbeats", "tasks", "flight_recorder"]\n'
        f'[sources.heartbeats]\nsocket = "{folder / "progress.sock"}"\n'
    )
    with Agent("/", folder, more) as running:
        yield running, folder


@dataclass(frozen=True)
class Job:
    """One job of real processes, as the agent sees it. `stopped` is when it met its fault, by the clock of all."""

    agent: Agent
    name: str
    ranks: tuple[subprocess.Popen[str], ...]
    stopped: float

    def row(self, seen: Snapshot) -> Values:
        return merged(seen.readings.get(SubjectId(self.subject), {}), seen.at)

    def rank(self, seen: Snapshot, number: int) -> Values:
        subject = SubjectId(f"{self.subject.replace('job:', 'rank:')}/{number}")
        return merged(seen.readings.get(subject, {}), seen.at)

    def codes(self, seen: Snapshot) -> set[str]:
        return {finding.code for view in seen.subjects if view.id == self.subject for finding in view.findings}

    @property
    def subject(self) -> str:
        return f"job:claimed/{os.getuid()}-{self.name}"

    def within(self, until: float, so: Callable[[Snapshot], bool]) -> Snapshot:
        """What the agent says as soon as it is so, which it must be by then."""
        while True:
            seen = ask_agent(self.agent.address)
            assert seen is not None
            if so(seen):
                return seen
            assert time.monotonic() < until, (self.name, self.row(seen), self.codes(seen))
            time.sleep(0.5)

    def judged(self, verdict: str, rank: int | None, until: float) -> Values:
        """Its row, once it has this verdict and a finding of it, with this rank as the culprit; None for any."""

        def so(seen: Snapshot) -> bool:
            row = self.row(seen)
            return (
                row.get("job_verdict") == verdict
                and f"job_{verdict}" in self.codes(seen)
                and rank in (None, row.get("job_culprit_rank"))
            )

        return self.row(self.within(until, so))


@pytest.fixture
def train(interpreter: str, agent: tuple[Agent, Path]) -> Iterator[Callable[..., list[Job]]]:
    """Begins jobs, each by its name with what its loop is told, and gives them once all have met their faults."""
    running, folder = agent
    begun: list[subprocess.Popen[str]] = []

    def start(name: str, options: str) -> tuple[subprocess.Popen[str], ...]:
        for rank in range(RANKS):
            begun.append(subprocess.Popen(
                [interpreter, str(LOOP), "--meet", str(folder / f"{name}.meet"), *options.split()],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True,
                env={
                    **os.environ, "PYTHONPATH": str(LOOP.parents[2]), "GPUGUARD_SOCKET": str(folder / "progress.sock"),
                    "GPUGUARD_JOB": name, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "GLOO_SOCKET_IFNAME": "lo",
                    "TORCH_FR_DUMP_TEMP_FILE": str(folder / f"{name}_"), "TORCH_FR_BUFFER_SIZE": "2000",
                },
            ))  # fmt: skip
        return tuple(begun[-RANKS:])

    def jobs(**told: str) -> list[Job]:
        started = {name: start(name, options) for name, options in told.items()}
        found = []
        for name, ranks in started.items():
            said = ranks[CULPRIT].stdout
            assert said is not None
            word = said.readline()
            assert word, f"{name}: rank {CULPRIT} ended with {ranks[CULPRIT].wait(30)} before its fault"
            found.append(Job(agent=running, name=name, ranks=ranks, stopped=float(word)))
        return found

    yield jobs
    for process in begun:
        process.kill()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def test_each_way_to_stop_is_noticed_with_the_rank_that_did(train: Callable[..., list[Job]]) -> None:
    """A rank that is killed has the others' gloo fail at once: they end as well, and nobody waits."""
    lock, stop, read, kill, well = train(
        lock="--fault deadlock --early", stop="--fault stop", read="--fault read", kill="--fault kill", well=""
    )
    stop.judged("paused", CULPRIT, stop.stopped + WITHIN)
    lock.judged("hung", CULPRIT, lock.stopped + WITHIN)
    waits = read.judged("hung", CULPRIT, read.stopped + WITHIN)
    assert f"rank {CULPRIT} waits in " in str(waits["job_signals_for"])
    kill.within(kill.stopped + WITHIN, lambda seen: "job_unproven" in kill.codes(seen))
    assert [rank.wait(30) for rank in kill.ranks] == [1, 1, -signal.SIGKILL]
    assert [rank.wait(30) for rank in well.ranks] == [0, 0, 0]
    assert well.codes(well.within(time.monotonic(), lambda seen: True)) == set()


def test_of_ranks_at_the_same_step_the_flight_recorder_tells_who_has_not_called(
    train: Callable[..., list[Job]],
) -> None:
    """Steps are told when they are over, and one that takes a lock waits as those do that wait for it."""
    (job,) = train(even="--fault deadlock")
    assert "job_culprit_rank" not in job.judged("hung", None, job.stopped + WITHIN)
    for process in job.ranks:
        process.send_signal(signal.SIGUSR2)
    asked = time.monotonic()
    told = job.judged("hung", CULPRIT, asked + READ_WITHIN)
    assert "all_reduce" in str(told["job_why"])
    seen = job.within(asked + READ_WITHIN, lambda seen: "flight_enqueued" in job.rank(seen, CULPRIT))
    called = [job.rank(seen, number)["flight_enqueued"] for number in range(RANKS)]
    assert called[0] == called[1] == int(str(called[CULPRIT])) + 1
    assert job.rank(seen, CULPRIT)["flight_waits_in"] == ""
    assert str(job.rank(seen, 0)["flight_waits_in"]).startswith("all_reduce")


def test_ranks_that_time_out_are_not_the_ones_that_hold_it_up(train: Callable[..., list[Job]]) -> None:
    patience = f"--patience {GIVES_UP}"
    locked, stopped = train(locked=f"--fault deadlock {patience}", stopped=f"--fault stop {patience}")
    for job in (locked, stopped):
        for number in set(range(RANKS)) - {CULPRIT}:
            assert job.ranks[number].wait(GIVES_UP + WITHIN) == 1
    ended = time.monotonic()
    locked.judged("hung", CULPRIT, ended + WITHIN)
    seen = stopped.within(ended + WITHIN, lambda seen: stopped.row(seen).get("job_ranks_gone") == RANKS - 1)
    told = stopped.row(seen)
    assert (told["job_verdict"], told.get("job_culprit_rank")) == ("paused", CULPRIT)
