"""A node's memory as the agent would leave it: kernel lines through the real grammars, core, loop and store.

The clock is a ManualClock and the scheduler a few lines of Python that keep one node by the real ownership table.
"""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from gpuguard import __version__
from gpuguard.commands import module_of
from gpuguard.custody.ownership import judge
from gpuguard.custody.token import parse_reason
from gpuguard.health.snapshot import take
from gpuguard.kernel_log.reader import parse_text
from gpuguard.model.actions import Action, Outcome
from gpuguard.model.events import ActionOutcome, AnyEvent, Batch, Cursor, GpuProbed, LogLine, Sweep, Tick
from gpuguard.model.health import SourceView
from gpuguard.model.ids import EventId, JobId, PciAddress, job
from gpuguard.ports import NodeReport
from gpuguard.runtime.assembly import DATABASE, Parts, assemble, remember
from gpuguard.runtime.cache import Cache
from gpuguard.runtime.clock import ManualClock
from gpuguard.runtime.control import ControlServer, Word, as_event
from gpuguard.runtime.loop import Loop
from gpuguard.runtime.tally import Tally
from gpuguard.store.sqlite import open_store

Mode = Literal["observe", "drain"]

# Modelled after the driver's formats "NVRM: GPU at %s: %s", "NVRM: GPU Board Serial Number: %s" and
# "NVRM: Xid (PCI:%s): %d, pid=%d, name=%s, ..."; addresses, serials and names are made up.
UUID = "GPU-5b1de6a7-0c42-4f0e-9d5e-6a1f0b3c9d21"
IDENTITY = (
    f"NVRM: GPU at PCI:0000:c1:00: {UUID}",
    "NVRM: GPU Board Serial Number: 1663924000417",
)
LOST = "NVRM: Xid (PCI:0000:c1:00): 79, pid=20417, name=lammps, GPU has fallen off the bus."
CHANNEL = "NVRM: Xid (PCI:0000:c1:00): 45, pid=20417, name=lammps, Ch 00000012"
PROGRAM = "NVRM: Xid (PCI:0000:a4:00): 31, pid=3391, name=gmx, Ch 0000000b, intr 00000000. MMU Fault"
REMAP = "NVRM: Xid (PCI:0000:a4:00): 64, pid='<unknown>', name=<unknown>, Row Remapper: Error"


def config_text(mode: Mode, extra: str = "") -> str:
    """A site's file for this mode, with nothing of the machine that the test runs on."""
    target = '[actuator]\ntarget = "slurm"\n\n' if mode == "drain" else ""
    hand = '[actuators.delegate]\nsocket = "/nonexistent/gpuguard.sock"\n'
    return f'[policy]\nmode = "{mode}"\n\n{target}{hand}{extra}'


_PARTS: dict[Mode, Parts] = {}


def parts(mode: Mode, config: Path) -> Parts:
    """The parts under this mode; building them takes 0.2 s, so that they are kept."""
    if mode not in _PARTS:
        _PARTS[mode] = assemble(config)
    return _PARTS[mode]


class Scheduler:
    """One node of a scheduler that works by the ownership table: a fake with manners."""

    name = "slurm"

    def __init__(self) -> None:
        self.flags: tuple[str, ...] = ("IDLE",)
        self.reason = ""
        self.error: str | None = None
        self.refuses: str | None = None

    def read_state(self) -> NodeReport:
        """What stands now."""
        drained = "DRAIN" in self.flags
        return NodeReport(
            target=self.name, node="node7", state="+".join(self.flags), flags=self.flags, drained=drained,
            reason=self.reason, ours=parse_reason(self.reason) if drained else None, error=self.error,
        )  # fmt: skip

    def perform(self, action: Action) -> Outcome:
        """The wish, if the table lets it be written."""
        if self.refuses is not None:
            return Outcome(result="refused", message=self.refuses)
        report = self.read_state()
        judgement = judge(report, action.verb, action.token)
        if judgement.call == "write":
            self.flags = ("IDLE",) if action.verb == "release" else ("IDLE", "DRAIN")
            self.reason = "" if action.verb == "release" else action.reason
            return Outcome(result="done", message=f"{action.verb} written", node_state=report.state)
        result: Literal["done", "deferred", "foreign"]
        result = "done" if judgement.call == "done" else "deferred" if judgement.call == "wait" else "foreign"
        message = report.error or judgement.why
        return Outcome(
            result=result, message=message, retry_after=judgement.retry_after, node_state=report.state or None
        )


class Machine:
    """A node with an agent at work, one event at a time. Everything it learns is in `state_dir`."""

    def __init__(self, folder: Path, *, mode: Mode = "drain", scheduler: Scheduler | None = None) -> None:
        self.state_dir = folder / "state"
        self.state_dir.mkdir(exist_ok=True)
        self.config = folder / f"config-{mode}.toml"
        self.clock = ManualClock(mono=5000.0)
        self.scheduler = scheduler or Scheduler()
        self.config.write_text(config_text(mode))
        self.parts = parts(mode, self.config)
        self._lines = 0
        self._outcomes = 0
        self._sent: list[Action] = []
        self.start()

    def start(self) -> None:
        """An agent runs, from the memory that is there."""
        self.running = True
        self.store = open_store(self.state_dir / DATABASE, clock=self.clock).store
        health, booted, _ = remember(self.store, self.parts, self.clock)
        self.tally = Tally(version=__version__, mode=self.parts.policy.mode, policy=self.parts.policy.name)
        self.loop = Loop(
            store=self.store, health=health, detectors=self.parts.detectors, clock=self.clock, tally=self.tally,
            rules=self.parts.policy, settings=self.parts.loop, act=self._sent.append, ask=lambda _: None,
            told=lambda _: None,
        )  # fmt: skip
        self.event(booted)

    def event(self, event: AnyEvent, cursor: Cursor | None = None) -> None:
        """The event is decided and written, and what followed was tried once."""
        self.loop.take(Batch(source="kmsg", events=(event,), cursor=cursor))
        while self._sent:
            action = self._sent.pop(0)
            outcome = self.scheduler.perform(action) if not action.key.endswith(":dry") else Outcome(
                result="done", message=f"dry run: would {action.verb}; nothing was written"
            )  # fmt: skip
            self._outcomes += 1
            now = self.clock.now()
            told = ActionOutcome(
                id=EventId(f"outcome:{action.key}:{self._outcomes}"), at=now, key=action.key, result=outcome.result,
                message=outcome.message, retry_after=outcome.retry_after, node_state=outcome.node_state,
            )  # fmt: skip
            self.loop.take(Batch(source="actuator", events=(told,)))

    def line(self, text: str, *, after: float = 1.0) -> None:
        """The kernel prints this line, `after` seconds after the last."""
        now = self.clock.advance(after)
        parsed = parse_text(text)
        assert parsed is not None, text
        self._lines += 1
        event = LogLine(
            id=EventId(f"kmsg:{now.boot[:8]}:{self._lines}"), at=now, source="kmsg", parsed=parsed, raw=text
        )
        self.event(event, Cursor(source="kmsg", boot=now.boot, position=str(self._lines)))

    def probed(self, pci: str, *, answers: bool) -> None:
        """The second witness looked at the GPU's config space."""
        now = self.clock.advance(0.1)
        event_id = EventId(f"probe:{pci}:{now.mono}")
        self.event(
            GpuProbed(id=event_id, at=now, source="pci_config", pci=PciAddress(pci), present=True, answers=answers)
        )

    def tick(self, after: float) -> None:
        """Time went by."""
        now = self.clock.advance(after)
        self.event(Tick(id=EventId(f"tick:{now.mono}"), at=now))

    def looks(self) -> None:
        """Ten minutes and more of looks that find nothing: what was mended may be used again."""
        for _ in range(3):
            self.tick(200.5)

    def person(self, verb: str, *, reason: str = "a test", by: str = "mia", **more: str) -> None:
        """A person's word reaches the agent."""
        self.clock.advance(1.0)
        self._lines += 1
        self.event(as_event(Word(verb=verb, by=by, reason=reason, **more), self.clock, f"p{self._lines}"))

    def reboot(self, number: int) -> None:
        """The machine is started anew, and its agent with it."""
        self.stop()
        self.clock.reboot(f"b007000{number}-0000-4000-8000-000000000001")
        self._lines = 0
        self.start()

    def publish(self, *sources: SourceView) -> None:
        """The snapshot is on disk."""
        kmsg = SourceView(
            name="kmsg", level="watching", reason="", last_success_utc=self.clock.now().utc, lost=0, restarts=0
        )
        facts = self.tally.facts(sources or (kmsg,), self.loop.action_counts(), 0)
        facts = msgspec.structs.replace(facts, cpu_seconds=0.5, resident_bytes=40_000_000)
        snapshot = take(self.loop.health, facts, self.clock.now())
        assert Cache(str(self.state_dir)).write(msgspec.json.encode(snapshot))
        started = 1_700_000_000.0
        os.utime(self.state_dir / "agent.lock", (started, started))

    def stop(self) -> None:
        """The agent has ended, everything is on disk."""
        if self.running:
            self.running = False
            self.loop.write_when_due(now=True)
            self.store.close()

    def listen(self, *, writes: bool = True) -> None:
        """The agent hears people's words, until the process ends; without `writes` its disk takes none of them."""

        def put(batch: Batch) -> None:
            for event in batch.events if writes else ():
                self.event(event)
            server.taken(batch)

        server = ControlServer(str(self.state_dir), self.clock, put)
        server.start()


def parsed_args(command: str, line: str | list[str]) -> Namespace:
    """The options of a command as its line gives them."""
    parser = ArgumentParser()
    module_of(command).arguments(parser)
    return parser.parse_args(line.split() if isinstance(line, str) else line)


Answer = Callable[..., int]


def job_without_a_number(machine: Machine, *names: str) -> None:
    """For more than a minute the losses of these jobs are no numbers."""
    for number in range(4):
        machine.clock.advance(30.0)
        machine.event(
            Sweep(
                id=EventId(f"losses:{number}"), at=machine.clock.now(), source="heartbeats", rate="fast",
                valid_for=60.0, rows={job(JobId(name)): {"job_loss_nan": 1, "job_ended": 0} for name in names},
            )
        )  # fmt: skip


def lost_gpu(machine: Machine) -> None:
    """A GPU whose identity is known fell off the bus, seconds after a program on another one faulted."""
    for text in IDENTITY:
        machine.line(text)
    machine.line(PROGRAM, after=20.0)
    machine.line(LOST, after=60.0)
    machine.line(CHANNEL, after=0.25)


def ask(machine: Machine, command: str, *line: str, **more: object) -> int:
    """Exit code of a command about this machine, by the machine's own clock."""
    places = ["--state-dir", str(machine.state_dir), "--config", str(machine.config)]
    answer: Answer = vars(module_of(command))["answer"]
    return answer(parsed_args(command, [*line, *places]), machine.clock, **more)
