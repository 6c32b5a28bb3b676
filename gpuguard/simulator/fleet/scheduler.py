"""The scheduler of the fleet: who holds each node, who may write that, and the book that all nodes share.

Theory. It keeps one drain with one reason a node and obeys whoever writes, as Slurm does. gpuguard's way to it is that
of its actuator: the fleet's book is asked, the node is read, `custody.ownership.judge` decides, and a moment later the
write comes. The scheduler judges each of these writes once more, by what is true when it arrives: one that the table
does not allow then is a foreign write, and counted. Administrators are judged by nobody.
"""

from dataclasses import dataclass, field

from gpuguard.custody import budget
from gpuguard.custody.ownership import about_the_drain, judge
from gpuguard.custody.token import parse_reason
from gpuguard.model.actions import Action, DrainVerb, Outcome
from gpuguard.ports import FleetDrain, FleetReport, NodeReport
from gpuguard.simulator.fleet.machine import EPOCH

# A target that gives no answer is given up after so long, and one that does takes so long. Units: seconds
GIVES_UP = 10.0
TAKES = 0.013


@dataclass(slots=True)
class Holding:
    """What the scheduler holds of one node. `by` is the person who drained it by hand, '' for nobody."""

    flags: set[str] = field(default_factory=lambda: {"OPEN"})
    reason: str = ""
    by: str = ""

    @property
    def drained(self) -> bool:
        """Whether it takes no new work."""
        return "DRAIN" in self.flags


class Scheduler:
    """Of all nodes. `silent` while it answers nobody."""

    def __init__(self, nodes: int, limits: budget.Limits) -> None:
        """Every node is open."""
        self.holdings = [Holding() for _ in range(nodes)]
        self.silent = False
        self.foreign_writes = 0
        self._limits = limits
        self._book = budget.Book()
        self._drains: dict[str, FleetDrain] = {}

    # --- what gpuguard does ------------------------------------------------------------------------------------------

    def begin(self, node: int, action: Action, at: float) -> Outcome | None:
        """The first half of an action: the book is asked and the node is read. None where a write is to follow."""
        if not about_the_drain(action.verb):
            return Outcome(result="refused", message=f"the simulated node performs no {action.verb}")
        if self.silent:
            return Outcome(result="deferred", message="the scheduler does not answer")
        guarded = action.verb == "drain"
        if guarded:
            ask = budget.Ask(
                node=_name(node), key=_key(node, action), token=action.token, code=action.code, by=action.by
            )
            self._book, answer = budget.weigh(self._book, ask, self.fleet(), self._limits, EPOCH + at)
            if not answer.granted:
                return Outcome(result="held", message=answer.text)
        said = judge(self.report(node), action.verb, action.token)
        if said.call == "write":
            return None
        if guarded and said.call != "done":
            self._book = budget.withdraw(self._book, _key(node, action))
        return _told(said.call, said.why, said.retry_after)

    def finish(self, node: int, action: Action, at: float) -> Outcome:
        """The second half: the write arrives."""
        assert about_the_drain(action.verb), "begin() refuses the others"
        said = judge(self.report(node), action.verb, action.token)
        if said.call != "write":
            # The actuator had read something else, and wrote: a scheduler would have taken it.
            self.foreign_writes += said.holder in ("foreign", "unexplained", "sibling")
            return _told(said.call, said.why, said.retry_after)
        self._write(node, action.verb, action, at)
        return Outcome(result="done", message="written", node_state="IDLE")

    def _write(self, node: int, verb: DrainVerb, action: Action, at: float) -> None:
        holding = self.holdings[node]
        if verb == "release":
            holding.flags.discard("DRAIN")
            holding.reason = ""
            self._drains.pop(_name(node), None)
            self._book = budget.give_back(self._book, _name(node), action.token, EPOCH + at)
            return
        holding.flags.add("DRAIN")
        holding.reason = action.reason
        shown = FleetDrain(node=_name(node), token=action.token, code=action.code, since_utc=EPOCH + at, by=action.by)
        self._drains[_name(node)] = shown

    # --- what people do ----------------------------------------------------------------------------------------------

    def drain_by_hand(self, node: int, by: str, reason: str) -> bool:
        """An administrator drains the node; whether it was not drained before."""
        holding = self.holdings[node]
        if holding.drained:
            return False
        holding.flags.add("DRAIN")
        holding.reason, holding.by = reason, by
        return True

    def resume_by_hand(self, node: int, at: float) -> None:
        """An administrator gives the node back, whoever drained it."""
        holding = self.holdings[node]
        token = parse_reason(holding.reason)
        holding.flags.discard("DRAIN")
        holding.reason = holding.by = ""
        self._drains.pop(_name(node), None)
        if token is not None:
            self._book = budget.give_back(self._book, _name(node), token, EPOCH + at)

    def goes_down(self, node: int) -> None:
        """The node is rebooted: the scheduler sees it down."""
        self.holdings[node].flags = {*self.holdings[node].flags - {"OPEN"}, "DOWN"}

    def comes_up(self, node: int) -> None:
        """It registered again; its drain stands as it stood."""
        self.holdings[node].flags = {*self.holdings[node].flags - {"DOWN"}, "OPEN"}

    # --- what it says ------------------------------------------------------------------------------------------------

    def report(self, node: int) -> NodeReport:
        """What it says of one node, in the words that the bundled scheduler and Kubernetes have."""
        holding = self.holdings[node]
        return NodeReport(
            target="bundled", node=_name(node), flags=tuple(sorted(holding.flags)), drained=holding.drained,
            reason=holding.reason,
        )  # fmt: skip

    def fleet(self) -> FleetReport:
        """What it says of all."""
        return FleetReport(target="bundled", nodes=len(self.holdings), drains=tuple(self._drains.values()))


def _name(node: int) -> str:
    return f"n{node}"


def _key(node: int, action: Action) -> str:
    """What the book knows the drain by: unlike any other of the fleet's."""
    return f"{_name(node)}/{action.key}"


def _told(call: str, why: str, retry_after: float | None) -> Outcome:
    match call:
        case "done":
            return Outcome(result="done", message=why, node_state="IDLE")
        case "wait":
            return Outcome(result="deferred", message=why, node_state="IDLE", retry_after=retry_after)
    return Outcome(result="foreign", message=why, node_state="IDLE")
