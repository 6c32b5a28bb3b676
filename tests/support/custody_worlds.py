"""The world of each target that has a scheduler: Slurm, the bundled scheduler, Kubernetes."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from gpuguard.actuators import bundled, slurm
from gpuguard.child.program import Answer as Printed
from gpuguard.custody.ownership import Condition
from gpuguard.custody.token import parse_reason
from gpuguard.errors import ActionDeferred
from gpuguard.model.door import NODES, DrainWrite, Wanted
from gpuguard.ports import Actuator
from gpuguard.scheduler.door import booted
from gpuguard.scheduler.events import DrainAsked, DrainLifted, HeartbeatBack, HeartbeatLost, NodeJoined, NodeLost
from gpuguard.web.client import Answer, NoAnswer
from tests.support.bundled_scheduler import Scheduler
from tests.support.custody_world import NODE, Failure, How, World


class InSlurm(World):
    """Slurm, as `scontrol` shows it."""

    name = "slurm"
    modules = (slurm,)
    compare_and_set = False
    WORDS: ClassVar[Mapping[Condition, str]] = {
        "unreadable": "MIXED", "strange": "IDLE+HIBERNATING", "rebooting": "IDLE+REBOOT_ISSUED",
        "failing": "ALLOCATED+FAIL", "maintenance": "IDLE+MAINTENANCE", "powered": "IDLE+CLOUD+POWERED_DOWN",
        "unregistered": "FUTURE", "down": "DOWN", "silent": "IDLE+NOT_RESPONDING", "settled": "MIXED",
    }  # fmt: skip

    def __init__(self) -> None:
        self.words, self.drained, self.reason = ["IDLE"], False, ""
        super().__init__()

    def start(self) -> Actuator:
        actuator = slurm.Slurm(slurm.Settings(node=NODE), {})
        actuator._scontrol = self  # type: ignore[assignment]  # only `run` is asked for
        return actuator

    def be(self, condition: Condition) -> None:
        self.words = self.WORDS[condition].split("+")
        self.away = Failure("garbled", before=True) if condition == "unreadable" else None

    def standing(self) -> str | None:
        return self.reason if self.drained else None

    def drain(self, reason: str) -> None:
        self.drained, self.reason = True, reason

    def lift(self) -> None:
        self.drained, self.reason = False, ""

    def settle(self) -> None:
        self.words = ["IDLE"]

    def reboot(self, boot: str) -> None:
        # As `scontrol reboot nextstate=RESUME` leaves it.
        if self.drained and parse_reason(self.reason):
            self.lift()

    def run(self, arguments: tuple[str, ...], until: float) -> Printed:
        """In place of the program."""
        do = self._show if arguments[0] == "-o" else lambda: self._update(arguments[2:])
        return self.call(until, do)

    def fail(self, how: How, until: float) -> Printed:
        if how == "hang":
            raise ActionDeferred("scontrol gave no answer in time; is slurmctld up?", 5.0)
        if how == "garbled":
            return Printed(0, f"NodeName={NODE} Arch=x86_64 Sta", "")
        return Printed(1, "", "slurm_load_node error: Unable to contact slurm controller (connect failure)\n")

    def _show(self) -> Printed:
        state = "+".join([*self.words, "DRAIN"] if self.drained else self.words)
        tail = f" Reason={self.reason} [root@2026-03-04T19:02:55]" if self.reason else ""
        return Printed(0, f"NodeName={NODE} Arch=x86_64 OS=Linux 6.8.0 State={state} ThreadsPerCore=2{tail}\n", "")

    def _update(self, assignments: tuple[str, ...]) -> Printed:
        before = self.standing()
        for key, value in (word.split("=", 1) for word in assignments):
            match key, value:
                case "state", "drain":
                    self.drained = True
                case "state", ("undrain" | "resume"):
                    if not self.drained:
                        return Printed(1, "", "slurm_update error: Invalid node state specified\n")
                    self.drained, self.reason = False, ""
                case "reason", _:
                    self.reason = value
                case _:
                    return Printed(1, "", f"Invalid input: {key}={value}\n")
        self.wrote(" ".join(assignments), before)
        return Printed(0, "", "")


class InBundled(World):
    """The bundled scheduler: its real door over real lives of nodes."""

    name = "bundled"
    modules = (bundled,)
    compare_and_set = True
    states = frozenset(
        state
        for state in World.states
        # Nothing asks for a node through FAIL there, and of one that never joined no drain is kept.
        if state[0] != "failing" and (state[0] != "unregistered" or state[1] == "nobody")
    )
    remedies = ("evict", "reboot")

    def __init__(self) -> None:
        self.scheduler = Scheduler(NODE, "n2")
        super().__init__()

    def start(self) -> Actuator:
        actuator = bundled.Bundled(bundled.Settings(node=NODE))
        actuator._door._client = self  # type: ignore[assignment]  # only `ask` is asked for
        return actuator

    def be(self, condition: Condition) -> None:
        now = self.scheduler.now
        match condition:
            case "unreadable":
                self.away = Failure("garbled", before=True)
            case "unregistered":
                del self.scheduler.lives[NODE]
            case "silent":
                self.scheduler.tell(HeartbeatLost(at=now, node=NODE))
            case "down":
                self.scheduler.tell(NodeLost(at=now, node=NODE))
            case "strange":
                self.scheduler.mark(NODE, "HIBERNATING")  # type: ignore[arg-type]  # a word of a later release
            case "settled":
                pass
            case _:
                self.scheduler.mark(NODE, condition.upper())  # type: ignore[arg-type]  # the neutral words
        if condition != "unreadable":
            self.away = None

    def standing(self) -> str | None:
        drain = self.scheduler.page(NODE).drain
        return drain.reason if drain is not None else None

    def drain(self, reason: str) -> None:
        if not reason:  # the door takes none without a reason; the core does, from elsewhere
            self.lift()
            id = f"x{self.scheduler.now}"
            self.scheduler.tell(
                DrainAsked(at=self.scheduler.now, id=id, node=NODE, severity="confirmed", seen=self.scheduler.now)
            )
            self.scheduler.pass_time(1)
            return
        wish = DrainWrite(revision=self.scheduler.page(NODE).revision, by="bob", drain=Wanted(reason=reason))
        status, said = self.scheduler.ask("PUT", f"{NODES}{NODE}/drain", msgspec.json.encode(wish))
        assert status == 200, said

    def lift(self) -> None:
        life = self.scheduler.lives[NODE]
        now = self.scheduler.now
        self.scheduler.tell(*(DrainLifted(at=now, id=bar.id, node=NODE, by="bob") for bar in life.bars))

    def settle(self) -> None:
        self.scheduler.mark(NODE)
        self.scheduler.pass_time(1)
        self.scheduler.tell(HeartbeatBack(at=self.scheduler.now, node=NODE))
        for bar in self.scheduler.lives[NODE].bars:
            if bar.ground not in ("suspected", "confirmed"):
                self.scheduler.tell(DrainLifted(at=self.scheduler.now, id=bar.id, node=NODE, by="bob"))

    def reboot(self, boot: str) -> None:
        self.scheduler.pass_time(1)
        self.scheduler.tell(NodeJoined(at=self.scheduler.now, node=NODE, gpus=8))
        self.scheduler.door = booted(self.scheduler.door, self.scheduler.lives[NODE], boot)

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        self.scheduler.pass_time(int(seconds))

    def ask(
        self,
        method: str,
        path: str,
        *,
        until: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """In place of the client."""
        return self.call(until, lambda: self._served(method, path, body or b""))

    def fail(self, how: How, until: float) -> Answer:
        if how == "hang":
            raise NoAnswer("unix:/run/d: timed out", sent=True)
        if how == "garbled":
            return Answer(status=200, body=b'{"node": "he')
        return Answer(status=503, body=b'{"error": "starting"}')

    def _served(self, method: str, path: str, body: bytes) -> Answer:
        before = self.standing() if method == "PUT" else None
        status, said = self.scheduler.ask(method, path, body)
        if method == "PUT" and status == 200:
            self.wrote(body.decode(), before)
        return Answer(status=status, body=said)


WORLDS: Mapping[str, type[World]] = {world.name: world for world in (InSlurm, InBundled)}
