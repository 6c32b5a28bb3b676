"""The real agent on the fake NVML library: a call that never returns costs nothing else, and a lost GPU is noticed."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.fake_nvml import FakeNvml, lacking
from tests.support.live_agent import LiveAgent
from tests.support.machines import machine
from tests.support.require import require

# A second GPU's own log line, as syslog prints it; the file stands in for the kernel's ring, which tests share.
LINE = "Nov 29 12:00:00 node1 kernel: [  100.000000] NVRM: Xid (PCI:0000:43:00): 48, pid='<unknown>', name=<unknown>\n"
CONFIG = """\
[agent]
sources = ["logfile", "nvml"]
[sources.logfile]
paths = ["{log}"]
every = 0.1
[sources.nvml]
first_wait = {first_wait:.1f}
"""
NOTICED_WITHIN = 10.0  # seconds; what is asked of the agent with its settings as they ship
# A machine that runs eight other things answers late; an agent that waits for the driver does not answer at all.
ANSWERS_WITHIN = 5.0
HUNG = 'gpuguard_findings{code="nvml_unresponsive"'
GPUS = 8
NUMBER_3 = "0000:61:00.0"


@pytest.fixture(autouse=True)
def _compiler() -> None:
    require(lacking(), not lacking(), "apt-get install gcc libc6-dev; pip install nvidia-nvml-dev")


@contextmanager
def watched(folder: Path, *, first_wait: float = 10.0) -> Iterator[tuple[FakeNvml, LiveAgent, Path]]:
    """An agent that has seen eight healthy GPUs, the library below it, and a kernel log to write to."""
    log = folder / "kern.log"
    log.touch()
    config = CONFIG.format(log=log, first_wait=first_wait)
    with FakeNvml(machine("h100x8")) as nvml, LiveAgent(folder, config, nvml.env()) as agent:
        agent.wait_for("\ngpuguard_power_watts{", GPUS)
        yield nvml, agent, log


def answers(agent: LiveAgent) -> dict[str, float]:
    """How long each way to ask takes, in seconds."""
    took = {}
    for name, ask in (
        ("check", lambda: agent.run("check", "--json")),
        ("status", lambda: agent.run("status", "--json")),
        ("metrics", agent.page),
    ):
        began = time.monotonic()
        ask()
        took[name] = time.monotonic() - began
    return took


@pytest.mark.parametrize("deep", [False, True], ids=["in the library", "in the kernel"])
def test_a_call_that_never_returns_is_found_and_holds_nothing_else_up(tmp_path: Path, deep: bool) -> None:
    with watched(tmp_path) as (nvml, agent, log):
        before = answers(agent)
        assert HUNG not in agent.page()
        (child,) = agent.children()
        hang = nvml.hang("nvmlDeviceGetPowerUsage", device=NUMBER_3, deep=deep)

        ends = time.monotonic() + NOTICED_WITHIN
        while not nvml.hits(hang):
            assert time.monotonic() < ends
            time.sleep(0.05)
        during = answers(agent)  # the call hangs, and nobody has noticed yet
        assert agent.wait_for(HUNG, within=NOTICED_WITHIN) < NOTICED_WITHIN

        with log.open("a") as file:
            file.write(LINE)
        assert agent.wait_for('gpuguard_findings{code="xid48"', within=ANSWERS_WITHIN) < ANSWERS_WITHIN
        after = answers(agent)
        for name, seconds in before.items():
            assert max(during[name], after[name]) < seconds + ANSWERS_WITHIN, name
        checked = json.loads(agent.run("check", "--json").stdout)
        assert "nvml_unresponsive" in json.dumps(checked)
        ends = time.monotonic() + NOTICED_WITHIN
        while child in agent.children():  # it was killed, and is buried when the agent next looks
            assert time.monotonic() < ends, "the process that hung is still there"
            time.sleep(0.1)


def test_once_the_driver_answers_again_the_finding_is_taken_back(tmp_path: Path) -> None:
    with watched(tmp_path, first_wait=1.0) as (nvml, agent, _):
        hang = nvml.hang("nvmlDeviceGetPowerUsage", device=NUMBER_3)
        agent.wait_for(HUNG, within=2 * NOTICED_WITHIN)
        nvml.heal(hang)
        ends = time.monotonic() + 3 * NOTICED_WITHIN
        while HUNG in agent.page():
            assert time.monotonic() < ends, agent.words()
            time.sleep(0.1)
        assert len(agent.children()) == 1


def test_a_gpu_that_is_lost_without_a_line_in_the_log_is_found(tmp_path: Path) -> None:
    with watched(tmp_path) as (nvml, agent, _):
        nvml.lose(NUMBER_3)
        assert agent.wait_for('gpuguard_findings{code="nvml_lost"', within=NOTICED_WITHIN) < NOTICED_WITHIN
        lost = [line for line in agent.page().splitlines() if 'code="nvml_lost"' in line]
        assert [NUMBER_3 in line for line in lost] == [True]
        up = [line for line in agent.page().splitlines() if line.startswith("gpuguard_gpu_up{")]
        assert sorted(line.rpartition(" ")[2] for line in up) == ["0.0", *["1.0"] * (GPUS - 1)]


def test_an_xid_that_the_driver_reports_is_heard_though_no_log_has_it(tmp_path: Path) -> None:
    with watched(tmp_path) as (nvml, agent, _):
        nvml.event(NUMBER_3, 8, 48)
        agent.wait_for('gpuguard_findings{code="xid48"', within=NOTICED_WITHIN)


def test_an_agent_whose_child_hangs_can_be_ended(tmp_path: Path) -> None:
    with watched(tmp_path) as (nvml, agent, _):
        (child,) = agent.children()
        hang = nvml.hang("nvmlDeviceGetPowerUsage", deep=True)
        ends = time.monotonic() + NOTICED_WITHIN
        while not nvml.hits(hang):
            assert time.monotonic() < ends
            time.sleep(0.05)
        began = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - began < NOTICED_WITHIN
        while Path(f"/proc/{child}/status").exists() and "zombie" not in Path(f"/proc/{child}/status").read_text():
            assert time.monotonic() < began + 2 * NOTICED_WITHIN, "the child that hung outlives its agent"
            time.sleep(0.05)
