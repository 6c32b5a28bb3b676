"""Those who look after the nodes: they notice, repair, inspect, decide what was held, maintain, and make mistakes.

    a drain that gpuguard wrote      is repaired when the fault's down time is over: reboot, new board where one is due,
                                     and what a reboot does not clear is acknowledged
    a fault that is a WARNING        is noticed after some hours; the node is drained by hand and repaired
    one that nobody tells of         is noticed after some more, as jobs fail
    a drain that was held            is decided within minutes
    a drain for nothing              is looked at after some hours, and what stands is acknowledged
    of one drain in fifty            a person gives the node back by hand, before it was repaired

Assumes  median times, log-normal with a sigma of 1 (0.7 for decisions): WARNING 4 h, nothing 8 h, inspection 4 h,
         decision 10 min; whoever repairs a node mends all that is broken on it. The down time is the recipe's
Units    seconds
"""

from functools import partial
from typing import TYPE_CHECKING

from gpuguard.simulator.chance import Stream, stream
from gpuguard.simulator.fleet.causes import MENDED, Signature
from gpuguard.simulator.fleet.faults import DAY, HOUR
from gpuguard.simulator.fleet.score import Seen

if TYPE_CHECKING:
    from gpuguard.simulator.fleet.world import World

NOTICED = {"evident": 8 * HOUR, "doubtful": 4 * HOUR, "unseen": 8 * HOUR}
INSPECTED, DECIDED = 4 * HOUR, 600.0
# A fault that came back after so short a time asks for a new board.
COMES_BACK = 30 * DAY
LIFTED = 0.02
# How long after a boot people look whether the node is well, and how long they let it show so by itself.
LOOKS, PATIENT = 1200.0, 6 * HOUR
# A fault that a reboot hid shows again after so long at work.
HIDDEN = 6 * HOUR


class People:
    """Of the whole fleet, and its robot where the policy has one."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._up_at: dict[int, float] = {}
        self._mended: dict[tuple[int, int, Signature], float] = {}
        self._robot: dict[int, list[float]] = {}
        self._number = 0

    # --- whether a node is up ----------------------------------------------------------------------------------------

    def is_down(self, node: int) -> bool:
        """Whether it is being rebooted."""
        return node in self._up_at

    def up_at(self, node: int) -> float:
        """When it will be up again."""
        return self._up_at[node]

    def down(self, node: int, until: float) -> None:
        """It is rebooted."""
        self._up_at[node] = until

    def up(self, node: int) -> None:
        """It is back."""
        self._up_at.pop(node, None)

    # --- faults ------------------------------------------------------------------------------------------------------

    def breaks(self, seen: Seen, at: float) -> None:
        """Something broke: sooner or later it is noticed, and repaired."""
        fault, dice = seen.fault, self._dice(seen.fault.node)
        at_once = fault.cause == "host_maintenance"
        notice = at + (60.0 if at_once else dice.lognormal(NOTICED[fault.sight], 1.0))
        self._world.later(notice, lambda now: self._notice(seen, now))
        if self._world.policy.robot and fault.sight == "evident":
            return  # its robot repairs, or gives up
        earliest = at + HOUR if fault.sight == "evident" else notice + HOUR / 2
        self._world.later(max(at + fault.down, earliest), partial(self.repair, seen))

    def _notice(self, seen: Seen, at: float) -> None:
        if seen.mended is not None:
            return
        self._takes_out(seen.fault.node, at, "ops: broken node")
        by_hand = self._world.scheduler.holdings[seen.fault.node].by
        if self._world.policy.robot and seen.fault.sight == "evident" and by_hand:
            # The robot undoes drains of gpuguard's alone.
            self._world.later(at + seen.fault.down, partial(self.repair, seen))

    def _takes_out(self, node: int, at: float, reason: str) -> None:
        if not self.is_down(node) and self._world.scheduler.drain_by_hand(node, "ops", reason):
            self._world.score.by_hand += 1
            self._world.stands(node, at)

    def repair(self, seen: Seen, at: float) -> None:
        """All that is broken on the node is mended, it is rebooted, and given back to whom it belongs."""
        world, node = self._world, seen.fault.node
        if seen.mended is not None:
            return
        if self.is_down(node):
            world.later(self.up_at(node) + LOOKS, partial(self.repair, seen))
            return
        self._takes_out(node, at, "ops: repair")

        def mends(now: float) -> None:
            machine = world.agents[node].machine
            for broken in world.open[node]:
                fault = broken.fault
                if fault.sight == "doubtful" and broken.asked is None:
                    world.found(world.agents[node], broken, now)  # it may have stood already when the fault came
                last = self._mended.get((node, fault.gpu, fault.signature))
                again = fault.sight == "evident" and last is not None and now - last < COMES_BACK
                if fault.signature == "no_spare_row" or again:
                    machine.replace(fault.gpu)
                self._mended[node, fault.gpu, fault.signature] = now
                broken.mended = now
            machine.mend()
            world.open[node] = []

        world.reboot(node, at, mends, lambda now: world.later(now + LOOKS, lambda then: self._give_back(node, then)))

    def _give_back(self, node: int, at: float) -> None:
        """What people took they give back; what gpuguard took it gives back itself, once it is well."""
        world, agent = self._world, self._world.agents[node]
        holding = world.scheduler.holdings[node]
        if world.open[node] or self.is_down(node) or not holding.drained:
            return  # something else broke, and will be repaired
        if holding.by:
            world.scheduler.resume_by_hand(node, at)
            world.stands(node, at)
        if not agent.alive:
            world.later(at + HOUR, lambda now: self._give_back(node, now))
            return
        agent.acknowledge(at, "ops")
        drain = agent.health.drain
        if drain is None:
            return
        if drain.by != "gpuguard":
            agent.asked(at, "release", "ops")
        world.later(at + PATIENT, lambda now: self._insist(node, str(drain.token), now))

    def _insist(self, node: int, token: str, at: float) -> None:
        """It should long have been given back: a person does it."""
        agent = self._world.agents[node]
        drain = agent.health.drain
        if drain is None or drain.token != token or self._world.open[node] or self.is_down(node):
            return
        if agent.alive:
            agent.acknowledge(at, "ops")
            agent.asked(at, "release", "ops")
        self._world.later(at + PATIENT, lambda now: self._insist(node, token, now))

    # --- what gpuguard did -------------------------------------------------------------------------------------------

    def drained(self, node: int, at: float, *, falsely: bool) -> None:
        """gpuguard drained the node."""
        dice = self._dice(node)
        if self._world.policy.robot:
            self._world.later(at + self._world.policy.robot_after, lambda now: self._robots(node, now))
        elif falsely:
            self._world.later(at + dice.lognormal(INSPECTED, 1.0), lambda now: self._give_back(node, now))
        if dice.random() < LIFTED:
            self._world.later(at + dice.lognormal(2 * HOUR, 1.0), lambda now: self._lifts(node, now))

    def _lifts(self, node: int, at: float) -> None:
        """A person needs the node, and gives it back whatever the reason says."""
        world = self._world
        holding = world.scheduler.holdings[node]
        if holding.drained and not holding.by and not self.is_down(node):
            world.score.lifted += 1
            world.scheduler.resume_by_hand(node, at)
            world.stands(node, at)

    def held(self, node: int, at: float) -> None:
        """The fleet's budget said no, and a person was paged."""

        def decides(now: float) -> None:
            if not self._world.open[node] or self.is_down(node):
                return
            if self._world.agents[node].alive:
                self._world.agents[node].asked(now, "drain", "ops")
            self._world.later(now + 60.0, lambda then: self._takes_out(node, then, "ops: held drain"))

        self._world.later(at + self._dice(node).lognormal(DECIDED, 0.7), decides)

    # --- reboots and maintenance -------------------------------------------------------------------------------------

    def maintain(self, node: int, at: float, lasts: float, dice: Stream) -> None:
        """The node is drained by hand, rebooted, and given back by the same hand."""
        world = self._world
        # One of ten leaves no reason.
        reason = "" if dice.random() < 0.1 else "ops: firmware update"
        if world.open[node] or not world.scheduler.drain_by_hand(node, "maintenance", reason):
            return
        world.score.by_hand += 1
        world.stands(node, at)

        def ends(now: float) -> None:
            if world.scheduler.holdings[node].by == "maintenance":
                world.scheduler.resume_by_hand(node, now)
                world.stands(node, now)

        world.later(at + lasts / 2, lambda now: self._reboots(node, now))
        world.later(at + lasts + HOUR / 4, ends)

    def must_reboot(self, node: int, at: float, dice: Stream) -> None:
        """The driver hangs: a WARNING, until somebody reboots the node."""

        def acts(now: float) -> None:
            if not self._world.open[node]:
                self.maintain(node, now, HOUR, dice)

        self._world.later(at + dice.lognormal(NOTICED["doubtful"], 1.0), acts)

    def _reboots(self, node: int, at: float) -> None:
        if not self.is_down(node) and not self._world.open[node]:
            self._world.reboot(node, at, lambda now: None, lambda now: None)

    def _robots(self, node: int, at: float) -> None:
        """The robot of the policy reboots the node, which clears whatever stands, whether or not it mended anything."""
        world, policy = self._world, self._world.policy
        if self.is_down(node) or not world.scheduler.holdings[node].drained:
            return
        tried = [when for when in self._robot.get(node, []) if at - when < policy.robot_within]
        self._robot[node] = [*tried, at]
        if len(tried) >= policy.robot_tries:
            for seen in list(world.open[node]):
                world.later(at + max(HOUR, seen.fault.down), partial(self.repair, seen))
            return
        hidden: list[Seen] = []

        def boots(now: float) -> None:
            machine = world.agents[node].machine
            for seen in [s for s in world.open[node] if s.fault.sight == "evident"]:
                if self._dice(node).random() < MENDED.get(seen.fault.signature, 0.0):
                    seen.mended = now
                    world.open[node].remove(seen)
                else:
                    seen.hidden = True
                    hidden.append(seen)
                if seen.fault.signature in machine.broken.get(seen.fault.gpu, []):
                    machine.broken[seen.fault.gpu].remove(seen.fault.signature)

        def clears(now: float) -> None:
            agent = world.agents[node]
            agent.acknowledge(now, "robot")
            for seen in hidden:
                world.later(now + self._dice(node).exponential(HIDDEN), partial(self._again, seen))

        world.reboot(node, at, boots, clears)

    def _again(self, seen: Seen, at: float) -> None:
        """What a reboot only hid shows once more."""
        node = seen.fault.node
        if seen.mended is not None:
            return
        if self.is_down(node):
            self._world.later(self.up_at(node) + LOOKS, partial(self._again, seen))
            return
        seen.again += 1
        seen.hidden = False
        self._world.shows(seen, at)

    def _dice(self, node: int) -> Stream:
        """Of one thing that somebody does about a node."""
        self._number += 1
        return stream(self._world.seed, "people", node, self._number)
