"""Failures and drains: nodes die, GPUs and links go bad, are noticed, drained and mended.

Each node has its own process, whatever runs on it: faults of the background, each of which causes further ones on its
node within days, and days on which many nodes are hit by one cause. A dead node stops its jobs at once; it is silent
after `detect`, and proven dead `fence` later. A bad GPU ends the jobs on it at random moments, those that start on it
before the drain too. A bad link does so to jobs that span nodes. When it is mended, the drain is lifted or the node
joins anew, and every diagnosis tells the truth.

Assumes  a bad GPU is noticed `detect` after it went bad, and is drained alone; a job on it dies after a time that is
         exponential with mean `crash`; nothing that works is drained. Software bugs (13 % in the first source) are the
         jobs' own and not here
Source   4 faults per 1,000 node-days, 0.6 of them of the background, each causing 0.4 after 10 days on the mean; one
         day in 35 that hits 2 to 5 % of the nodes, on top of that; mix of 268 GPU, 46 node and 42 link faults in 16,384
         H100 over 54 days (Llama 3 405B); down time log-normal with median 20 h and sigma 1.9, and half of the repeats
         of the class before, in 400 nodes over 349 days (InfiniteHBD)
"""

from collections.abc import Mapping
from functools import partial
from typing import Literal

import msgspec

from gpuguard.scheduler.events import Diagnosed, DrainAsked, DrainLifted, HeartbeatLost, NodeLost
from gpuguard.scheduler.plan import Alert, AnyDecision, Diagnose, Share, Start
from gpuguard.scheduler.settings import DAY, HOUR
from gpuguard.simulator.chance import Dice, Stream, seed_of, stream
from gpuguard.simulator.engine import Model, World
from gpuguard.simulator.options import Length, Part, Seconds, read

Kind = Literal["gpu", "node", "link"]
KINDS: tuple[Kind, ...] = ("gpu", "node", "link")

LONG = 400 * DAY
"""Nothing breaks this long after the last submit: a run whose jobs cannot end shall not go on for ever."""

ABORTED = 134
"""Exit code of a program that its driver or NCCL ended."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Shape   rate: faults per 1,000 node-days without the common days. again: further faults that one causes. common:
    days between two on which many nodes are hit, 0: none. gpu, node, link: how the kinds are to each other. down: the
    median. looks: how long a diagnosis takes. whole: a bad GPU takes its node out with it. end: the agent has jobs
    ended on a GPU that it drains

    Units   seconds; soon in days
    """

    rate: Length = 4.0
    again: Part = 0.4
    soon: Length = 10.0
    common: Length = 35.0
    gpu: Length = 268.0
    node: Length = 46.0
    link: Length = 42.0
    down: Length = 20.0 * HOUR
    sigma: Length = 1.9
    detect: Seconds = 60
    fence: Seconds = 120
    crash: Length = 300.0
    looks: Seconds = 300
    whole: bool = False
    end: bool = True


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. `gpu`: which GPU of the node, where it is one's."""

    id: str
    node: str
    kind: Kind
    gpu: int
    at: int
    until: int


class Faults(Model):
    """Shape   happened: every fault, in order; crashes: job, fault and instant of every run that one ended"""

    name = "faults"
    loses = "failure"

    def __init__(self, settings: Settings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._dead: dict[str, Fault] = {}
        self._bad: dict[str, list[Fault]] = {}
        self._failed: dict[str, None] = {}
        self._horizon = 0
        self.happened: list[Fault] = []
        self.crashes: list[tuple[str, str, int]] = []

    # -- when something breaks ----------------------------------------------------------------------------------------

    def begin(self, world: World, start: int, end: int) -> None:
        self._horizon = end + LONG
        # The nodes join in the first pass, so they are known from one second later on.
        world.call(start, partial(self._prepare, world))

    def _prepare(self, world: World, now: int) -> None:
        for node in world.state.joined:
            self._background(world, node, stream(self._seed, "node", node), now)
        if self._settings.common:
            self._common(world, stream(self._seed, "common"), now)

    def _background(self, world: World, node: str, draws: Stream, now: int) -> None:
        """The next fault of the background, and after it the next."""
        per_day = self._settings.rate * (1.0 - self._settings.again) / 1000.0
        if per_day <= 0:
            return
        at = now + 1 + int(draws.exponential(DAY / per_day))
        if at < self._horizon:
            world.call(at, partial(self._strike, world, node, draws))

    def _strike(self, world: World, node: str, draws: Stream, now: int) -> None:
        kind = self._kind(draws)
        self._fault(world, node, kind, stream(self._seed, node, now), now)
        self._background(world, node, draws, now)

    def _common(self, world: World, draws: Stream, now: int) -> None:
        at = now + 1 + int(draws.exponential(self._settings.common * DAY))
        if at < self._horizon:
            world.call(at, partial(self._hit_many, world, draws))

    def _hit_many(self, world: World, draws: Stream, now: int) -> None:
        kind, part = self._kind(draws), draws.between(0.02, 0.05)
        for node in list(world.state.joined):
            own = stream(self._seed, "common", now, node)
            if own.random() < part:
                at = now + int(own.random() * DAY)
                world.call(at, partial(self._fault, world, node, kind, own))
        self._common(world, draws, now)

    def _kind(self, draws: Stream) -> Kind:
        site = self._settings
        weights = (site.gpu, site.node, site.link)
        left = draws.random() * sum(weights)
        for kind, weight in zip(KINDS, weights, strict=True):
            left -= weight
            if left < 0:
                return kind
        return KINDS[0]

    def _fault(self, world: World, node: str, kind: Kind, own: Stream, now: int) -> None:
        """A node breaks, and what this will cause on it is drawn, whether or not it was broken already."""
        joined = world.state.joined.get(node)
        for _ in range(own.poisson(self._settings.again)):
            at = now + 1 + int(own.exponential(self._settings.soon * DAY))
            follows = kind if own.random() < 0.5 else self._kind(own)
            if at < self._horizon:
                world.call(at, partial(self._fault, world, node, follows, stream(self._seed, node, at, "again")))
        down = max(1, int(own.lognormal(self._settings.down, self._settings.sigma)))
        gpu = own.whole(0, max(0, (joined.gpus if joined is not None else 1) - 1))
        fault = Fault(id=f"{kind}-{node}-{now}", node=node, kind=kind, gpu=gpu, at=now, until=now + down)
        if joined is None or node in self._dead:
            return
        if any(other.kind == kind and (kind != "gpu" or other.gpu == gpu) for other in self._bad.get(node, ())):
            return
        self.happened.append(fault)
        if kind == "node":
            self._die(world, fault, now)
        else:
            self._spoil(world, fault, now)

    # -- what breaks --------------------------------------------------------------------------------------------------

    def _die(self, world: World, fault: Fault, now: int) -> None:
        node, site = fault.node, self._settings
        self._dead[node] = fault
        for job in self._on(world, node):
            self._stall(world, job)
            self.crashes.append((job, fault.id, now))
        silent = now + site.detect
        if fault.until > silent:
            world.later(silent, HeartbeatLost(at=silent, node=node))
            lost = min(silent + site.fence, fault.until)
        else:
            lost = fault.until  # it is back before anybody missed it, and says that it was started anew
        world.later(lost, NodeLost(at=lost, node=node))
        world.call(max(fault.until, lost + 1), partial(self._mend_node, world, fault))

    def _mend_node(self, world: World, fault: Fault, now: int) -> None:
        self._dead.pop(fault.node, None)
        self._join(world, fault.node, now)

    def _join(self, world: World, node: str, now: int) -> None:
        self._failed.pop(node, None)
        joined = world.state.joined.get(node)
        if joined is not None:
            world.later(now, msgspec.structs.replace(joined, at=now))

    def _spoil(self, world: World, fault: Fault, now: int) -> None:
        """A GPU or a link goes bad, which is noticed later."""
        site = self._settings
        self._bad.setdefault(fault.node, []).append(fault)
        for job in self._on(world, fault.node):
            self._meet(world, fault, job, now)
        if fault.until <= now + site.detect:
            world.call(fault.until, partial(self._mend, world, fault))
            return
        alone = fault.kind == "gpu" and not site.whole
        drain = DrainAsked(
            at=now + site.detect, id=fault.id, node=fault.node, gpus=(fault.gpu,) if alone else (),
            severity="confirmed", cause=f"{fault.kind} fault", seen=now,
            running="end" if site.end and alone else "keep",
        )  # fmt: skip
        world.later(drain.at, drain)
        world.call(fault.until, partial(self._mend, world, fault))

    def _mend(self, world: World, fault: Fault, now: int) -> None:
        self._bad[fault.node].remove(fault)
        world.later(now, DrainLifted(at=now, id=fault.id, node=fault.node, by="repair"))
        if fault.node in self._failed and self._sound(fault.node):
            self._join(world, fault.node, now)

    def _on(self, world: World, node: str) -> list[str]:
        """Who runs there now."""
        return [job for job in world.state.running if any(share.node == node for share in world.lives[job].shares)]

    def _meet(self, world: World, fault: Fault, job: str, now: int) -> None:
        """The job dies of the fault sooner or later, if it uses what is bad."""
        life = world.lives[job]
        if not _touches(fault, life.shares):
            return
        own = stream(self._seed, fault.id, job, life.began)
        at = now + 1 + int(own.exponential(self._settings.crash))
        if life.ends is None or at < life.ends:
            began = life.began
            world.call(at, lambda then: self._crash(world, fault, job, began, then))

    def _crash(self, world: World, fault: Fault, job: str, began: int, now: int) -> None:
        life = world.lives[job]
        if life.shares and life.began == began:
            self.crashes.append((job, fault.id, now))
            world.end(job, now, ABORTED)

    def _stall(self, world: World, job: str) -> None:
        world.pace(job, "failure", 0.0)

    # -- what is decided meanwhile ------------------------------------------------------------------------------------

    def takes(self, world: World, decision: AnyDecision, now: int) -> bool:
        if not isinstance(decision, Diagnose):
            return False
        world.call(now + self._settings.looks, partial(self._answer, world, decision.node))
        return True

    def _sound(self, node: str) -> bool:
        """A diagnosis would find nothing against the node as a whole."""
        if node in self._dead:
            return False
        return not any(fault.kind != "gpu" or self._settings.whole for fault in self._bad.get(node, ()))

    def _answer(self, world: World, node: str, now: int) -> None:
        passed = self._sound(node)
        if not passed:
            self._failed[node] = None
        world.later(now, Diagnosed(at=now, node=node, passed=passed, cause="" if passed else "found bad"))

    def decided(self, world: World, decision: AnyDecision, now: int) -> None:
        if isinstance(decision, Alert) and decision.rule == "flaps":
            # Somebody looks at a node that came back too often, on the next day, and vouches for it.
            at = now + DAY
            world.later(at, DrainLifted(at=at, id=decision.cause, node=decision.about, by="operator"))
        if not isinstance(decision, Start):
            return
        for share in decision.shares:
            dead = self._dead.get(share.node)
            if dead is not None:
                self._stall(world, decision.job)
                self.crashes.append((decision.job, dead.id, now))
            for fault in self._bad.get(share.node, ()):
                self._meet(world, fault, decision.job, now)


def _touches(fault: Fault, shares: tuple[Share, ...]) -> bool:
    if fault.kind == "link":
        return len(shares) > 1
    return any(share.node == fault.node and share.mask >> fault.gpu & 1 for share in shares)


def build(settings: Mapping[str, str], dice: Dice) -> Faults:
    """The model with a seed of its own."""
    return Faults(read(Settings, settings, "faults"), seed_of(dice))
