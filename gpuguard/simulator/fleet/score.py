"""What the fleet's days came to: delays, false drains by their cause, faults that were missed, and what it all cost.

Theory. The truth is known: which fault is on which node from when until when. A drain that gpuguard wrote is *false*
when nothing was broken on the node as it was asked for; its cause is what the events told of on which it rests. A fault
that is evident is *missed* when no drain was asked for until people mended it. One whose drain the fleet's budget or a
common cause held back was found, and was a person's from that moment: it is `handed_over`, not missed; so is one of a
GPU whose drain a person had lifted. One that was mended before any agent ran on its node again is told apart as well
(`no_agent`): nobody was there to miss it.

Units   seconds since the first day; GPU-hours
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpuguard.simulator.fleet.causes import CAUSES, STORM
from gpuguard.simulator.fleet.faults import DAY, HOUR, Fault

# What a false drain may come from; each is told, also when there was none.
FALSE_CAUSES = (
    "program_xid", "unknown", "own_crash", "configuration_error", "silent_scheduler", "slow_or_hung_nvml", "flap",
    "log_rotation", "clock_step", "repaired_fault", "other",
)  # fmt: skip
PROBATION = 7 * DAY
Figures = dict[str, Any]  # Any: the answer is JSON, which mixes types


class Seen:
    """What became of one fault."""

    __slots__ = ("again", "asked", "covered", "fault", "held", "hidden", "mended", "ran", "watched")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.asked: float | None = None
        self.held: float | None = None
        self.watched = False
        self.ran = False  # an agent ran on the node while it was there
        self.covered = False  # its node was out of service already, for this GPU
        self.mended: float | None = None
        self.hidden = False  # a reboot made it look well
        self.again = 0  # how often it showed once more, as nobody had mended it


class Score:
    """Counts while the days go by."""

    def __init__(self, nodes: int, gpus: int, end: float) -> None:
        self.end = end
        self.faults: list[Seen] = []
        self.false: Counter[str] = Counter(dict.fromkeys(FALSE_CAUSES, 0))
        self.drains = self.releases = self.held = self.lifted = self.refused = 0
        self.by_hand = self.crashes = self.reboots = self.interruptions = 0
        self.on_probation = self.while_out = 0
        self._nodes, self._gpus = nodes, gpus
        self._in: list[str] = ["in service"] * nodes
        self._since = [0.0] * nodes
        self._spent: dict[str, float] = {}
        self._mended = [False] * nodes
        self._back: list[float | None] = [None] * nodes
        self._probation = 0.0

    # --- the state of nodes ------------------------------------------------------------------------------------------

    def stands(self, node: int, at: float, how: str) -> None:
        """The node is `how` from now on: in service, or spoiled, or out for one reason or another."""
        if how == self._in[node]:
            return
        self._add(node, at)
        was, self._in[node] = self._in[node], how
        self._mended[node] = self._mended[node] or how == "drained, broken"
        if is_out(was) and how == "in service" and self._mended[node]:
            self._back[node], self._mended[node] = at, False

    def returned(self, node: int, at: float) -> None:
        """Its return was before the first day."""
        self._back[node] = at

    def _add(self, node: int, at: float) -> None:
        since, at = self._since[node], min(at, self.end)
        self._since[node] = at
        if at <= since:
            return
        how = self._in[node]
        self._spent[how] = self._spent.get(how, 0.0) + at - since
        back = self._back[node]
        if not is_out(how) and back is not None:
            self._probation += max(0.0, min(at, back + PROBATION) - since)

    def hit(self, node: int, at: float) -> None:
        """Something breaks on the node: is it one that came back from a repair less than seven days ago?"""
        back = self._back[node]
        out = is_out(self._in[node])
        self.while_out += out
        self.on_probation += back is not None and not out and at - back < PROBATION

    # --- what is told ------------------------------------------------------------------------------------------------

    def figures(self) -> Figures:
        """All of it, as one JSON object."""
        for node in range(self._nodes):
            self._add(node, self.end)
        total = self._nodes * self.end
        hours = {how: seconds * self._gpus / HOUR for how, seconds in sorted(self._spent.items())}
        in_service = self._spent.get("in service", 0.0)
        evident = [seen for seen in self.faults if seen.fault.sight == "evident"]
        on_nodes = [seen for seen in self.faults if counts_for_probation(seen.fault)]
        unfound = [seen for seen in evident if seen.asked is seen.held is None and self._had_time(seen)]
        lost = {how: round(spent, 1) for how, spent in hours.items() if how != "in service"}
        return {
            "node_days": round(total / DAY), "nodes": self._nodes, "gpus_per_node": self._gpus,
            "faults": len(self.faults), "faults_per_1000_node_days": _rounded(1000 * len(self.faults) * DAY / total),
            "evident": len(evident), "missed": sum(1 for seen in unfound if seen.ran),
            "no_agent": sum(1 for seen in unfound if not seen.ran),
            "handed_over": sum(1 for seen in evident if seen.held is not None),
            "doubtful": _doubtful(self.faults), "unseen": _unseen(self.faults),
            "program": sum(1 for seen in self.faults if seen.fault.sight == "program"),
            "faults_by_cause": _by_cause(self.faults),
            "drains": self.drains, "held": self.held, "lifted_by_people": self.lifted, "refused": self.refused,
            "drains_by_hand": self.by_hand,
            "false_drains": sum(self.false.values()), "false_drains_by_cause": dict(self.false),
            "false_drains_per_1000_node_days": _rounded(1000 * sum(self.false.values()) * DAY / total),
            "detection_s": _delays(
                [seen.asked - seen.fault.at for seen in evident if seen.asked is not None and not seen.covered]
            ),
            "releases": self.releases, "availability": _rounded(in_service / total, 5),
            "lost_gpu_hours": round(sum(lost.values()), 1), "lost_gpu_hours_by": lost,
            "interruptions": self.interruptions,
            "shown_again": sum(seen.again for seen in self.faults),
            "probation": {
                "faults_share": _rounded(self.on_probation / max(1, len(on_nodes)), 4),
                "while_out_share": _rounded(self.while_out / max(1, len(on_nodes)), 4),
                "node_time_share": _rounded(self._probation / total, 4),
            },
            "agent_restarts": self.crashes, "reboots": self.reboots,
        }  # fmt: skip

    def _had_time(self, seen: Seen) -> bool:
        """One that came in the last hour may be found in the next."""
        return (seen.mended if seen.mended is not None else self.end) - seen.fault.at >= HOUR


def counts_for_probation(fault: Fault) -> bool:
    """Whether the fault is of the recipe's process on nodes: no program's, and no storm, which comes on top."""
    return fault.sight != "program" and fault.cause != STORM.name


def is_out(how: str) -> bool:
    """Whether a node in this state takes no work."""
    return how not in ("in service", "spoiled")


def _doubtful(faults: Sequence[Seen]) -> Figures:
    found = [seen for seen in faults if seen.fault.sight == "doubtful"]
    return {
        "faults": len(found), "watched": sum(1 for seen in found if seen.watched),
        "drained": sum(1 for seen in found if seen.asked is not None),
    }  # fmt: skip


def _unseen(faults: Sequence[Seen]) -> dict[str, int]:
    return dict(sorted(Counter(seen.fault.cause for seen in faults if seen.fault.sight == "unseen").items()))


def _by_cause(faults: Sequence[Seen]) -> dict[str, int]:
    counts = Counter(seen.fault.cause for seen in faults)
    return {cause.name: counts[cause.name] for cause in (*CAUSES, STORM) if counts[cause.name]}


def _delays(found: Sequence[float]) -> Mapping[str, float | None]:
    """Nearest ranks: a delay that was, not one between two."""
    if not found:
        return {"count": 0, "p50": None, "p99": None, "max": None}
    order = sorted(found)
    rank = {name: order[max(0, -(-share * len(order) // 100) - 1)] for name, share in (("p50", 50), ("p99", 99))}
    return {"count": len(order), **{k: round(v, 3) for k, v in rank.items()}, "max": round(order[-1], 3)}


def _rounded(value: float, digits: int = 3) -> float:
    return round(value, digits)
