"""The agent's core with what it owes, over a world of custody: told, written down, carried out, killed at any instant.

What is on disk is the health and the actions still owed, changed together: that is what is left after a crash.
"""

from collections.abc import Callable

import msgspec

from gpuguard.custody.token import parse_reason
from gpuguard.health import policy
from gpuguard.model.actions import Action, Outcome
from gpuguard.model.events import Acknowledged, ActionOutcome, AnyEvent, Booted, OperatorAsked, SourceChanged, Tick
from gpuguard.model.ids import BootId, EventId, TokenId
from gpuguard.model.instants import Instant
from tests.support.core import Core, xid
from tests.support.custody_world import World
from tests.support.faults import SELF_EVIDENT

RECOVERED = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
# Answers that a queue of owed actions can take before something goes round in circles.
ENOUGH = 40
# Once the target answers and nobody else holds the node, the rest takes no longer. Units: rounds of two minutes
ROUNDS = 12
# A subject that is so has not come back yet.
BAD = ("unfit", "returning")


class Agent:
    """One node's agent; time moves only forward, the wall clock as it likes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.core = Core(policy.Settings(mode="drain"))
        self.mono, self.utc, self.boots = 10.0, 1_750_000_000.0, 1
        self.queue: dict[str, Action] = {}
        self.keys: set[str] = set()
        self.tokens: set[str] = set()
        # Subjects for which a person took our drain away: to be obeyed.
        self.lifted: set[str] = set()
        # A person asked gpuguard for the release of what stands now.
        self.asked_back = False
        # What was written for a key, and how often anybody had touched the node by then.
        self.written: dict[str, int] = {}
        self.touched = 0
        self.number = 0

    def now(self) -> Instant:
        return Instant(boot=BootId(f"aaaaaaaa-0000-4000-8000-{self.boots:012d}"), mono=self.mono, utc=self.utc)

    def id(self) -> EventId:
        self.number += 1
        return EventId(f"e{self.number}")

    def tell(self, event: AnyEvent) -> None:
        """Decided and written down."""
        decision = self.core.tell(msgspec.structs.replace(event, at=self.now()))
        for owed in decision.owed:
            key = owed.action.key
            if owed.cancelled:
                self.queue.pop(key, None)
            elif key not in self.queue:
                assert key not in self.keys, f"the key {key} was used before"
                self.keys.add(key)
                self.tokens.add(owed.action.token)
                self.queue[key] = owed.action
                if owed.action.verb == "drain":
                    self.asked_back = False
        self.lifted &= self.unfit()

    def unfit(self) -> set[str]:
        subjects = self.core.health.subjects.values()
        return {f"{s.id}@{s.since.boot}:{s.since.mono}" for s in subjects if s.state == "unfit"}

    def ours(self) -> bool:
        """What stands carries a token that this agent made."""
        return parse_reason(self.world.standing() or "") in self.tokens

    def pass_time(self, seconds: float) -> None:
        self.mono, self.utc = self.mono + seconds, self.utc + seconds
        self.world.pass_time(seconds)
        self.tell(Tick(id=self.id(), at=self.now()))

    def touch(self, deed: Callable[[], None]) -> None:
        """Somebody else does something to the node."""
        self.touched += 1
        deed()

    # --- what is owed ------------------------------------------------------------------------------------------------

    def carry(self, *, die: bool = False) -> None:
        """Every owed action is tried once, those that follow from the answers too. `die`: killed before the first
        answer was written down."""
        tried: set[str] = set()
        for _ in range(ENOUGH):
            key = next((k for k in self.queue if k not in tried), None)
            if key is None:
                return
            tried.add(key)
            self.mono, self.utc = self.mono + 0.2, self.utc + 0.2
            action = self.queue[key]
            outcome = self.perform(action)
            if die:
                self.restart()
                return
            self.hear(action, outcome)
        raise AssertionError(f"what is owed goes round in circles: {list(self.queue)}")

    def hear(self, action: Action, outcome: Outcome) -> None:
        """The answer is written down, and what is still owed afterwards."""
        if outcome.result not in ("deferred", "foreign") or (outcome.result == "foreign" and action.verb != "drain"):
            self.queue.pop(action.key)
        self.tell(
            ActionOutcome(
                id=self.id(), at=self.now(), key=action.key, result=outcome.result, message=outcome.message,
                retry_after=outcome.retry_after, node_state=outcome.node_state,
            )
        )  # fmt: skip

    def perform(self, action: Action) -> Outcome:
        """What came of it, and what must hold of each single write."""
        before = self.world.standing()
        self.world.count_anew()
        outcome = self.world.perform(action)
        assert self.world.trampled == [], f"{action.verb} wrote over {self.world.trampled}"
        if self.world.writes:
            if self.written.get(action.key) == self.touched:
                raise AssertionError(f"{action.key} was written twice: {self.world.writes}")
            self.touched += 1
            self.written[action.key] = self.touched
        if before is not None and self.world.standing() is None:
            assert parse_reason(before) == action.token, f"{action.verb} lifted {before!r}"
            self.proven(action)
        return outcome

    def proven(self, action: Action) -> None:
        """A release of what stands for faults rests on every subject having come back, or on a person's word."""
        drain = self.core.health.drain
        if self.asked_back or drain is None or drain.token != action.token:
            return  # or it was written after it was no longer wanted
        bad = {s.id: s.state for s in self.core.health.subjects.values() if s.state in BAD}
        assert not bad, f"released without proof: {bad}"

    # --- what happens ------------------------------------------------------------------------------------------------

    def fault(self, address: str, code: int) -> None:
        self.tell(xid(address, code, self.mono, SELF_EVIDENT[code]))

    def reset(self, address: str) -> None:
        self.tell(xid(address, 154, self.mono, RECOVERED))

    def acknowledge(self, *codes: int) -> None:
        for code in codes:
            said = Acknowledged(id=self.id(), at=self.now(), code=f"xid{code}", subject=None, by="jo", reason="r")
            self.tell(said)

    def watch(self) -> None:
        """The kernel log is read, without which no probation passes."""
        self.tell(SourceChanged(id=self.id(), at=self.now(), source="kmsg", level="watching", reason=""))

    def restart(self) -> None:
        self.tell(Booted(id=self.id(), at=self.now(), previous=self.now().boot))
        self.watch()

    def reboot(self, clock: float) -> None:
        """The node comes back from a reboot; its wall clock is `clock` seconds ahead."""
        before = self.now().boot
        self.boots, self.mono, self.utc = self.boots + 1, 5.0, self.utc + clock
        self.touch(lambda: self.world.reboot(self.now().boot))
        self.tell(Booted(id=self.id(), at=self.now(), previous=before))
        self.watch()

    def ask(self, wish: str, token: str | None = None) -> None:
        asked = OperatorAsked(
            id=self.id(),
            at=self.now(),
            wish=wish,  # type: ignore[arg-type]  # one of its words
            by="kim",
            reason="r",
            token=TokenId(token) if token else None,
        )
        self.tell(asked)
        self.asked_back = self.asked_back or wish == "release"

    def lift(self) -> None:
        """A person puts the node back into service, past gpuguard."""
        if self.ours():
            self.lifted = self.unfit()
        self.touch(self.world.lift)

    def take_over(self, reason: str) -> None:
        """A person writes another reason over what stands: from then on it is theirs to lift."""
        if self.ours():
            self.lifted = self.unfit()
        self.touch(lambda: self.world.drain(reason))

    # --- what must hold in the end -----------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """The target answers again, and nobody else holds the node."""
        self.world.away = None
        self.world.failing.clear()
        self.world.settle()
        if self.world.standing() is not None and not self.ours():
            self.touch(self.world.lift)
        self.restart()
        for _ in range(ROUNDS):
            self.pass_time(120.0)
            self.world.settle()
            self.carry()

    def check(self) -> None:
        """Drained while a subject is unfit and nobody said otherwise; free of us when none is."""
        drain, standing = self.core.health.drain, self.world.standing()
        missed = self.unfit() - self.lifted
        assert standing is not None or not missed, f"{missed} unfit and the node in service; drain {drain}"
        sick = [s.id for s in self.core.health.subjects.values() if s.state in BAD]
        wanted = sick or (drain is not None and drain.by != "gpuguard")
        assert not self.ours() or wanted, f"our drain is left over; drain {drain}"
