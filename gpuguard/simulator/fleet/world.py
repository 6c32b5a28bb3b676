"""The fleet, day after day: one queue of what happens, over all nodes, in order.

Theory. What falls on a node (`faults`, `noise`) is drawn before anything begins, so every policy meets the same. All
else follows: what the driver prints and the library measures, what the agent decides, what the scheduler takes, what
people and robots do about it. Nodes know of each other only what the fleet's book tells them, and that couples them:
so there is one queue, and one process. Nodes at which nothing happens cost nothing (`rhythm`).

Units   seconds since the first day
"""

import heapq
from collections.abc import Callable, Iterator, Sequence

import msgspec

from gpuguard.custody import budget
from gpuguard.custody.token import parse_reason
from gpuguard.model.actions import Action, Outcome
from gpuguard.model.events import AnyEvent
from gpuguard.model.health import Decision
from gpuguard.model.ids import gpu
from gpuguard.ports import AnyDetector
from gpuguard.simulator.chance import stream
from gpuguard.simulator.fleet import lines
from gpuguard.simulator.fleet.agent import Agent
from gpuguard.simulator.fleet.faults import DAY, HOUR, Fault, Recipe, faults
from gpuguard.simulator.fleet.machine import Machine
from gpuguard.simulator.fleet.noise import Kind, Noise, noise, silences
from gpuguard.simulator.fleet.people import People
from gpuguard.simulator.fleet.policies import Policy
from gpuguard.simulator.fleet.rhythm import Pace
from gpuguard.simulator.fleet.scheduler import Scheduler
from gpuguard.simulator.fleet.score import PROBATION, Figures, Score, Seen, counts_for_probation

# How long a run goes on after its last day, so that what began on it is seen.
AFTERWARDS = 2 * HOUR
# How long before an event of noise, or a restart, counts as what led to a drain that tells of nothing else.
LATELY = 1800.0
# Of faults, how many meet an agent that is killed just before or just after it reads of them.
KILLED_AT = 0.04
# How much the wall clock is set by, and how long a node needs to boot.
STEP = 600.0
BOOTS = 600.0
STARTS = 40.0
CAUSE_OF: dict[str, str] = {
    "burst": "program_xid", "slow_call": "slow_or_hung_nvml", "hung_call": "slow_or_hung_nvml", "flap": "flap",
    "rotation": "log_rotation", "clock_step": "clock_step", "blind": "unknown", "crash": "own_crash",
    "config_error": "configuration_error", "silence": "silent_scheduler", "mended": "repaired_fault",
}  # fmt: skip


class World:
    """One run of one policy. `agents` and `scheduler` are there to be looked at; `journal` notes what gpuguard did, as
    (when, node, verb, result, code), where `noted`."""

    def __init__(
        self, policy: Policy, detectors: Sequence[AnyDetector], *, nodes: int, days: float, seed: int, gpus: int = 8,
        recipe: Recipe | None = None, rates: dict[Kind, float] | None = None, limits: budget.Limits | None = None,
        pace: Pace | None = None, whole: bool = False, noted: bool = False,
    ) -> None:  # fmt: skip
        """All that will fall on the nodes is drawn; nothing has happened."""
        self.policy, self.seed, self.end = policy, seed, days * DAY
        self.scheduler = Scheduler(nodes, limits or budget.Limits())
        self.score = Score(nodes, gpus, self.end)
        self.journal: list[tuple[float, int, str, str, str]] | None = [] if noted else None
        self.open: list[list[Seen]] = [[] for _ in range(nodes)]
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self.agents = [
            Agent(
                Machine(node, gpus), self.scheduler, detectors, policy.core, pace=pace or Pace(), whole=whole,
                later=self.later, listener=self,
            )
            for node in range(nodes)
        ]  # fmt: skip
        self.people = People(self)
        self._lately: list[list[tuple[float, str]]] = [[] for _ in range(nodes)]
        self._asked: list[dict[str, str]] = [{} for _ in range(nodes)]  # by token: '' or the cause of a false drain
        self._written: list[set[str]] = [set() for _ in range(nodes)]
        self._draw(nodes, gpus, recipe or Recipe(), rates)

    def _draw(self, nodes: int, gpus: int, recipe: Recipe, rates: dict[Kind, float] | None) -> None:
        for node, agent in enumerate(self.agents):
            # They were started over some minutes, so that their looks do not fall on the same instants.
            self.later(stream(self.seed, "start", node).between(0.0, 600.0), agent.start)
        for fault in faults(self.seed, nodes, gpus, self.end, recipe):
            if fault.at >= 0:
                self.later(fault.at, self._fault(fault))
            elif fault.sight != "program" and -PROBATION < fault.at + fault.down <= 0:
                self.score.returned(fault.node, fault.at + fault.down)
        for event in noise(self.seed, nodes, self.end, rates):
            self.later(event.at, self._noise(event))
        for silence in silences(self.seed, self.end):
            self.later(silence.at, self._falls_silent)
            self.later(silence.at + silence.lasts, self._answers)

    # --- the queue ---------------------------------------------------------------------------------------------------

    def later(self, at: float, what: Callable[[float], None]) -> None:
        """It happens at that moment; of those of one moment, in the order in which they were told."""
        self._number += 1
        heapq.heappush(self._queue, (at, self._number, what))

    def run(self) -> Iterator[tuple[int, int]]:
        """All of it; gives now and then how many node-days are over, and of how many."""
        nodes, told = len(self.agents), 0.0
        total = round(nodes * self.end / DAY)
        while self._queue and self._queue[0][0] <= self.end + AFTERWARDS:
            at, _, what = heapq.heappop(self._queue)
            what(at)
            if at - told >= self.end / 400:
                told = at
                yield min(total, round(nodes * at / DAY)), total
        yield total, total

    def figures(self) -> Figures:
        """What it came to."""
        for node in range(len(self.agents)):
            self.stands(node, self.end)
        found = self.score.figures()
        found["foreign_writes"] = self.scheduler.foreign_writes
        found["failed_checks"] = sorted({name for agent in self.agents for name in agent.failed})
        return found

    # --- what falls on nodes -----------------------------------------------------------------------------------------

    def _fault(self, fault: Fault) -> Callable[[float], None]:
        def breaks(at: float) -> None:
            if at > self.end:
                return
            if self.people.is_down(fault.node):
                self.later(self.people.up_at(fault.node) + 60.0, breaks)
                return
            seen = Seen(fault if at == fault.at else _moved(fault, at))
            self.score.faults.append(seen)
            if counts_for_probation(fault):
                self.score.hit(fault.node, at)
            if fault.sight != "program":
                self.open[fault.node].append(seen)
                self._met(seen, at)
            self.shows(seen, at)
            if fault.sight != "program":
                self.people.breaks(seen, at)

        return breaks

    def _met(self, seen: Seen, at: float) -> None:
        """Whether the GPU was unfit already: its drain stands for this fault too, or a person has lifted it."""
        agent = self.agents[seen.fault.node]
        subject = agent.health.subjects.get(gpu(agent.machine.address(seen.fault.gpu)))
        if subject is None or subject.state != "unfit":
            return
        seen.covered = True
        drain = agent.health.drain
        if drain is not None and drain.state != "overridden":
            seen.asked = at
        else:
            seen.held = at

    def shows(self, seen: Seen, at: float) -> None:
        """The fault is there: the driver prints, the library measures, the bus falls silent."""
        fault, agent = seen.fault, self.agents[seen.fault.node]
        if not self.scheduler.holdings[fault.node].drained:
            self.score.interruptions += 1
        dice = stream(self.seed, "shows", fault.id, seen.again)
        if fault.sight in ("evident", "doubtful"):
            agent.measures(at, lambda: agent.machine.breaks(fault.gpu, fault.signature))
        if fault.signature == "nvml_wedged":
            agent.hangs(at)
        if agent.machine.lost(fault.gpu):
            self.later(at + dice.between(0.0, 60.0), lambda now: agent.probe(now, fault.gpu))
        machine = agent.machine
        where = lines.place(machine.address(fault.gpu), fault.gpu, machine.uuid(fault.gpu))
        told = lines.printed(fault.signature, where, dice)
        origin = "burst" if fault.sight == "program" else f"fault:{fault.id}"
        self._print(fault.node, at, told, origin)
        if told and dice.random() < KILLED_AT:
            when = at + told[0].after + (-0.001 if dice.random() < 0.5 else 0.005)
            self.later(max(at, when), lambda now: self.kill(fault.node, now, 3.0, "crash"))
        self.stands(fault.node, at)

    def _print(self, node: int, at: float, told: Sequence[lines.Printed], origin: str) -> None:
        """The lines are printed, unless the machine is rebooted before."""
        agent = self.agents[node]
        boots = agent.machine.boots

        def printing(line: lines.Printed) -> Callable[[float], None]:
            def prints(now: float) -> None:
                if agent.machine.boots == boots and not self.people.is_down(node):
                    agent.prints(now, line.text, line.repeated, origin)

            return prints

        for line in told:
            self.later(at + line.after, printing(line))

    def _noise(self, event: Noise) -> Callable[[float], None]:
        node, agent = event.node, self.agents[event.node]
        dice = stream(event.seed, event.kind)

        def happens(at: float) -> None:
            if self.people.is_down(node):
                return
            if event.kind != "rotation":
                self._lately[node] = [*self._lately[node][-7:], (at, event.kind)]
            match event.kind:
                case "burst":
                    slot = dice.whole(0, agent.machine.gpus - 1)
                    where = lines.place(agent.machine.address(slot), slot, agent.machine.uuid(slot))
                    self._print(node, at, lines.printed("program", where, dice), "burst")
                case "slow_call":
                    agent.hangs(at)
                    self.later(at + max(event.lasts, 20.0), self._unless_wedged(agent))
                case "hung_call":
                    agent.hangs(at)
                    self.people.must_reboot(node, at, dice)
                case "flap":
                    agent.measures(at, lambda: agent.machine.flap(dice.whole(0, 7)), ("infiniband",))
                case "rotation":
                    agent.rotated(at, at - DAY)
                case "clock_step":
                    self._step(agent, at, dice.between(-STEP, STEP))
                case "blind":
                    agent.blinded(at)
                    self.later(at + event.lasts, agent.sees)
                case "crash" | "config_error":
                    self.kill(node, at, event.lasts, event.kind)
                case "maintenance":
                    self.people.maintain(node, at, event.lasts, dice)

        return happens

    def _unless_wedged(self, agent: Agent) -> Callable[[float], None]:
        return lambda at: None if agent.machine.wedged else agent.answers_again(at)

    def _step(self, agent: Agent, at: float, by: float) -> None:
        """The wall clock is set; what runs on monotonic time does not notice."""
        if agent.alive:
            agent.before(at)
        agent.machine.clock += by

    def kill(self, node: int, at: float, lasts: float, why: str) -> None:
        """The agent is gone, and started again later: whether by systemd or by a person."""
        agent = self.agents[node]
        if not agent.alive:
            return
        self.score.crashes += 1
        self._lately[node] = [*self._lately[node][-7:], (at + lasts, why)]
        agent.kill(at)
        boots = agent.machine.boots
        self.later(at + lasts, lambda now: agent.start(now) if agent.machine.boots == boots else None)

    def _falls_silent(self, at: float) -> None:
        self.scheduler.silent = True

    def _answers(self, at: float) -> None:
        self.scheduler.silent = False
        for node in range(len(self.agents)):
            self._lately[node] = [*self._lately[node][-7:], (at, "silence")]

    # --- what gpuguard does ------------------------------------------------------------------------------------------

    def decided(self, agent: Agent, at: float, event: AnyEvent, decision: Decision) -> None:
        """The agent decided something: was it right, and which fault did it find?"""
        node = agent.machine.node
        if decision.owed:
            self._owed(agent, at, decision)
        for seen in self.open[node]:
            seen.ran = True
        if self.open[node] and (decision.transitions or decision.owed):
            for seen in self.open[node]:
                if seen.asked is None:
                    self.found(agent, seen, at)

    def _owed(self, agent: Agent, at: float, decision: Decision) -> None:
        node, drain = agent.machine.node, agent.health.drain
        for owed in decision.owed:
            action = owed.action
            if owed.cancelled:
                continue
            if self.journal is not None:
                code = drain.code if drain is not None else ""
                self.journal.append((round(at, 6), node, action.verb, "owed", code))
            if action.verb == "drain" and drain is not None and drain.by == "gpuguard":
                real = any(seen.fault.at <= at for seen in self.open[node])
                self._asked[node].setdefault(action.token, "" if real else self._cause(agent, at))

    def found(self, agent: Agent, seen: Seen, at: float) -> None:
        """Whether the agent knows of the fault now: a WARNING for what is doubtful, a drain for the subject."""
        drain = agent.health.drain
        subject = agent.health.subjects.get(gpu(agent.machine.address(seen.fault.gpu)))
        if seen.fault.sight == "doubtful":
            seen.watched = seen.watched or any(
                standing.finding.severity != "info"
                for other in agent.health.subjects.values() for standing in other.standing
            )  # fmt: skip
        if subject is not None and subject.state == "unfit" and drain is not None and drain.state != "overridden":
            seen.asked = at

    def _cause(self, agent: Agent, at: float) -> str:
        """What a drain rests on that no fault of the node asks for."""
        drain = agent.health.drain
        told = {agent.origins.get(event, "") for event in drain.because} if drain is not None else set()
        if "burst" in told:
            return "program_xid"
        lately = [kind for when, kind in self._lately[agent.machine.node] if at - when <= LATELY]
        if any(origin.startswith("fault:") for origin in told):
            # A line of what is mended long since was taken for news, perhaps as the agent read it a second time.
            again = next((kind for kind in reversed(lately) if kind in ("crash", "config_error", "blind")), "mended")
            return CAUSE_OF[again]
        return CAUSE_OF[lately[-1]] if lately else "other"

    def answered(self, agent: Agent, at: float, action: Action, outcome: Outcome) -> None:
        """The scheduler took the action, or did not."""
        node = agent.machine.node
        if self.journal is not None and outcome.result != "deferred":
            self.journal.append((round(at, 6), node, action.verb, outcome.result, ""))
        match action.verb, outcome.result:
            case "drain", "done" if action.token not in self._written[node] and action.by == "gpuguard":
                self._written[node].add(action.token)
                self.score.drains += 1
                cause = self._asked[node].get(action.token, "")
                if cause:
                    self.score.false[cause] += 1
                self.people.drained(node, at, falsely=bool(cause))
            case "release", "done" if outcome.message == "written":
                self.score.releases += 1
            case "drain", "held":
                self.score.held += 1
                for seen in self.open[node]:
                    seen.held = at if seen.held is None else seen.held
                self.people.held(node, at)
            case _, "refused":
                self.score.refused += 1
        self.stands(node, at)

    # --- how nodes stand ---------------------------------------------------------------------------------------------

    def stands(self, node: int, at: float) -> None:
        """What the node is good for from now on, for the score."""
        holding = self.scheduler.holdings[node]
        broken = self.open[node]
        if self.people.is_down(node):
            how = "rebooting"
        elif holding.drained and broken:
            how = "drained, broken"
        elif holding.drained:
            falsely = self._asked[node].get(str(parse_reason(holding.reason)))
            how = "drained by people" if holding.by else "drained for nothing" if falsely else "drained, whole"
        else:
            how = (
                "spoiled" if any(seen.fault.sight == "evident" and not seen.hidden for seen in broken) else "in service"
            )
        self.score.stands(node, at, how)

    def reboot(self, node: int, at: float, before: Callable[[float], None], after: Callable[[float], None]) -> None:
        """The node goes down, `before` is done while it is, and `after` once its agent runs again."""
        agent = self.agents[node]
        self.score.reboots += 1
        agent.kill(at)
        self.scheduler.goes_down(node)
        self.people.down(node, at + BOOTS)
        self.stands(node, at)

        def up(now: float) -> None:
            before(now)
            agent.reboots(now)
            self.people.up(node)
            self.scheduler.comes_up(node)
            for seen in self.open[node]:
                machine = agent.machine
                where = lines.place(machine.address(seen.fault.gpu), seen.fault.gpu, machine.uuid(seen.fault.gpu))
                self._print(node, now, lines.again(seen.fault.signature, where), f"fault:{seen.fault.id}")
            self.stands(node, now)
            self.later(now + STARTS, start)

        def start(now: float) -> None:
            agent.start(now)
            after(now)

        self.later(at + BOOTS, up)


def _moved(fault: Fault, at: float) -> Fault:
    """The fault at a later moment: while a node is down nothing happens on it."""
    return msgspec.structs.replace(fault, at=at)
