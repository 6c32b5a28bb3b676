"""One file a sub-command. To add one, write `commands/<name>.py` and its row in COMMANDS.

A command's module has: a docstring (first line: what the command answers), `EXAMPLE` (one command line),
`arguments(parser)` and `run(args) -> exit code`. Heavy imports stand inside the function that needs them.
The index below is written out because looking into the folder at each start would cost more than many a command;
tests/contract/test_commands.py holds it against the folder.
"""

import importlib
from argparse import ArgumentParser, Namespace
from typing import Protocol, cast

COMMANDS: dict[str, str] = {
    "agent": "the daemon: watches this node",
    "check": "may this node run jobs now?",
    "status": "agent, sources, cursor, actuator, drains and who owns them",
    "gpus": "the GPUs now: health, load, memory, who",
    "jobs": "what runs on which GPU, how far it is, what nobody owns",
    "hang": "is a job hung, and which rank holds it up?",
    "topo": "how GPUs, NVLink, cards and processors are wired; what differs",
    "why": "why is this GPU or node drained, degraded, slow to return?",
    "history": "faults, actions and returns, by GPU",
    "scan": "which events are in these kernel logs?",
    "replay": "what would gpuguard have done with this log?",
    "simulate": "what would this trace have done on this cluster?",
    "xid": "what is Xid N, who is to blame, what happens, what clears it",
    "sxid": "the same for an NVSwitch's SXid N",
    "ack": "a person clears a latched finding",
    "drain": "takes this node out of service (dry run unless --yes)",
    "resume": "gives it back, if the drain is ours (dry run unless --yes)",
    "pause": "keeps gpuguard's hands off this node for a while",
    "support-bundle": "one tar with verdicts, log excerpts and configuration",
    "scheduler": "our tiers, queues and preemption for Slurm or Volcano",
    "record": "this machine as a folder that --root plays, without names",
    "selftest": "does the chain work, end to end, on this node?",
    "demo": "plays a recorded incident, from log line to drain",
}


class Command(Protocol):
    """What a module on this shelf offers."""

    EXAMPLE: str
    __doc__: str | None

    def arguments(self, parser: ArgumentParser) -> None: ...

    def run(self, args: Namespace) -> int: ...


def module_of(name: str) -> Command:
    """The module that implements a command."""
    return cast(Command, importlib.import_module(f"gpuguard.commands.{name.replace('-', '_')}"))
