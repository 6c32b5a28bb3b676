"""The life of a node and of its GPUs as the scheduler sees it: whether new work may start, and what must be done.

Theory. `fold` keeps facts: the bars that stand (see `grounds`), when the node was last heard, which GPUs hold memory
of nobody. The phase, that is the state and what was asked of others, follows from the facts and from the phase before
the instant; events of one instant can therefore come in any order. An event that is older than the newest one adds
its fact, and time stays where it is. Nothing here runs by a timer: `due` says when `tick` has something to do, and
ticks more often change nothing.
Silence takes no new work at once, with no decision, as blips are commoner than deaths. At `care.heartbeat` the node is
drained and looked into; at `care.dead` people are told. Neither proves death: what runs is kept until the node is told
to be lost, or fails its diagnosis while it is silent. A passed diagnosis is a sign of life too: where the silence
lasts, it has to be told again. Of one second, the loss counts and the heartbeat does not, the orphan and not its
cleaning, and a diagnosis answers only doubts of earlier seconds; but who joins in the second of its loss has joined.
"""

from typing import NamedTuple

import msgspec

from gpuguard.errors import InvariantBroken
from gpuguard.model.numbers import spans
from gpuguard.scheduler.events import (
    Cleaned,
    Diagnosed,
    DrainAsked,
    DrainLifted,
    HeartbeatBack,
    HeartbeatLost,
    NodeJoined,
    NodeLost,
    OrphanFound,
)
from gpuguard.scheduler.grounds import FOR_PEOPLE, STATE_OF, Bar, Ground, State, Word, after, gpus_of, gravest, mask_of
from gpuguard.scheduler.plan import Alert, Diagnose, Drain, Reclaim, Undrain
from gpuguard.scheduler.settings import Care

NodeEvent = (
    NodeJoined | DrainAsked | DrainLifted | Diagnosed | HeartbeatLost | HeartbeatBack | NodeLost | OrphanFound | Cleaned
)
NodeDecision = Drain | Undrain | Diagnose | Reclaim | Alert

ASKS = 3
"""How often the same is asked before a person is told instead: a plan must come to rest though nobody answers."""
SPENT_KEPT = 64
"""Ids of bars that are over, of one node: what is told again of them is still the same event."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """When something was last asked for, and how often; more often than ASKS: a person was told."""

    at: int
    times: int


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from the facts.

    Shape   drained: Drain is the last that was told of the node. returns: when it came up again after that, as far as
            the flap guard counts it. look: the Diagnose that waits for its answer. reclaims: by GPU. dead: people
            were told that the silence lasts
    """

    state: State = "up"
    since: int
    drained: bool = False
    returns: tuple[int, ...] = ()
    look: Asked | None = None
    reclaims: tuple[tuple[int, Asked], ...] = ()
    dead: bool = False


class NodeLife(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a node's fitness.

    Shape   last: the newest instant. phase: at that instant; before: when the instant began. bars: that stand, by id.
            spent: ids of those that are over, and when. silence: the first and the last loss since it was heard.
            vouched: when a person last lifted something. orphans, cleaned: GPU and instant. bad: mask of the GPUs that
            are out of the pool though the node is in it
    """

    node: str
    gpus: int
    last: int
    phase: Phase
    before: Phase
    joined: int
    heard: int
    bars: tuple[Bar, ...] = ()
    spent: tuple[tuple[int, str], ...] = ()
    silence: tuple[int, int] | None = None
    passed: int | None = None
    vouched: int | None = None
    orphans: tuple[tuple[int, int], ...] = ()
    cleaned: tuple[tuple[int, int], ...] = ()
    bad: int = 0

    @property
    def state(self) -> State:
        return self.phase.state

    @property
    def since(self) -> int:
        return self.phase.since

    def knows(self, id: str) -> bool:
        """A bar of this id stands or stood."""
        return any(bar.id == id for bar in self.bars) or any(spent == id for _, spent in self.spent)


class Ends(msgspec.Struct, frozen=True, kw_only=True):
    """Running work that is lost, or has to end.

    Shape   mask: jobs that hold any of these GPUs; None: every job on the node. until: jobs that started later than
            this are not meant
    """

    node: str
    mask: int | None
    until: int
    rule: str
    why: str
    cause: str


class Fold(NamedTuple):
    life: NodeLife
    decisions: tuple[NodeDecision, ...]
    ends: Ends | None


def born(event: NodeJoined) -> NodeLife:
    """The life of a node that was not known."""
    phase = Phase(since=event.at)
    return NodeLife(
        node=event.node, gpus=event.gpus, last=event.at, phase=phase, before=phase, joined=event.at, heard=event.at
    )


def usable(life: NodeLife) -> bool:
    """New work may start on the node, on GPUs that are not `bad_gpus`."""
    return life.phase.state == "up"


def bad_gpus(life: NodeLife) -> int:
    """Mask of the GPUs that take no new work though their node does."""
    return life.bad


def fold(life: NodeLife, event: NodeEvent, care: Care) -> Fold:
    """The life after the event, what is to be done for it, and the running work that it ends.

    What was due by the event's instant happens first. An event that tells nothing new changes nothing.
    """
    if event.node != life.node:
        raise InvariantBroken(
            f"an event of {event.node} reached the life of {life.node}: report it with the event log of this cycle"
        )
    life, due_first = tick(life, event.at, care)
    now = max(life.last, event.at)
    told, ends = _hear(life, event, now)
    told = _without_doubts(told)
    if told == life:
        return Fold(life, due_first, None)
    moved, decisions = _settle(_at(told, now), life, care)
    return Fold(moved, due_first + decisions, ends)


def tick(life: NodeLife, now: int, care: Care) -> tuple[NodeLife, tuple[NodeDecision, ...]]:
    """The life after all that falls due until `now`, each at its own instant; the same life where nothing does."""
    decisions: tuple[NodeDecision, ...] = ()
    while (at := due(life, care)) is not None and at <= now:
        life, more = _settle(_at(life, at), life, care)
        decisions += more
    return life, decisions


def due(life: NodeLife, care: Care) -> int | None:
    """When `tick` has next something to do; None: not before another event."""
    phase = life.phase
    if phase.state == "up" and not (life.bars or life.orphans):
        return None
    instants = [bar.expires for bar in life.bars if bar.expires is not None]
    asked = [look for _, look in phase.reclaims]
    if phase.look is not None:
        asked.append(phase.look)
    instants += [ask.at + _again(care) for ask in asked if ask.times <= ASKS]
    if life.silence is not None:
        first = life.silence[0]
        if not life.knows(f"silence@{first}"):
            instants.append(first + care.heartbeat)
        if not phase.dead:
            instants.append(first + care.dead)
    return min(instants, default=None)


def _again(care: Care) -> int:
    # Twice in one second is no repetition.
    return max(care.again, 1)


def _at(life: NodeLife, now: int) -> NodeLife:
    """The life at a later instant: what its phase was is what it was before."""
    return msgspec.structs.replace(life, last=now, before=life.phase) if now > life.last else life


# What an event says


def _hear(life: NodeLife, event: NodeEvent, now: int) -> tuple[NodeLife, Ends | None]:
    """The facts with the event's fact, and the work it ends; an equal life where it tells nothing new."""
    match event:
        case DrainAsked():
            return _ask(life, event, now)
        case DrainLifted():
            return _lift(life, event), None
        case NodeLost():
            return _condemn(life, "lost", event.at, "")
        case Diagnosed(passed=False):
            return _condemn(life, "failed", event.at, event.cause)
        case Diagnosed():
            passed = event.at if life.passed is None else max(life.passed, event.at)
            return msgspec.structs.replace(_heard(life, event.at), passed=passed), None
        case NodeJoined():
            return _join(life, event), None
        case HeartbeatLost():
            return _unheard(life, event.at), None
        case HeartbeatBack():
            return _heard(life, event.at), None
        case OrphanFound():
            return msgspec.structs.replace(life, orphans=_noted(life.orphans, event.gpus, event.at)), None
        case Cleaned():
            return msgspec.structs.replace(life, cleaned=_noted(life.cleaned, event.gpus, event.at)), None


def _ask(life: NodeLife, event: DrainAsked, now: int) -> tuple[NodeLife, Ends | None]:
    ground: Ground = "suspected" if event.severity == "suspect" else "confirmed"
    answered = ground == "suspected" and life.passed is not None and event.at < life.passed
    if life.knows(event.id) or answered or (event.expires is not None and event.expires <= now):
        return life, None
    mask = mask_of(event.gpus) if event.gpus else None
    bar = Bar(
        id=event.id, ground=ground, at=event.at, seen=event.seen, mask=mask, cause=event.cause, expires=event.expires
    )
    ends = None
    if event.running == "end":
        what = "the node" if mask is None else f"GPU {spans(gpus_of(mask))}"
        why = f"{life.node}: {event.cause or event.severity}: work on {what} has to end"
        ends = Ends(node=life.node, mask=mask, until=now, rule=ground, why=why, cause=event.id)
    return _with(life, bar), ends


def _lift(life: NodeLife, event: DrainLifted) -> NodeLife:
    lifted = next((bar for bar in life.bars if bar.id == event.id), None)
    # Whoever ends the flap guard's bar vouches for the node, or it would be barred again by the return itself.
    if event.by or (lifted is not None and lifted.ground == "flaps"):
        vouched = event.at if life.vouched is None else max(life.vouched, event.at)
        life = msgspec.structs.replace(life, vouched=vouched)
    # A lift that overtook its drain counts when that comes.
    return _without(life, (event.id,), event.at)


def _condemn(life: NodeLife, ground: Ground, at: int, cause: str) -> tuple[NodeLife, Ends | None]:
    """The node is lost, or failed; what the same second or a later one says of its joining is known already."""
    bar = Bar(id=f"{ground}@{at}", ground=ground, at=at, seen=at, cause=cause)
    if life.knows(bar.id):
        return life, None
    proven = ground == "lost" or life.silence is not None
    why = f"{life.node} is lost" if ground == "lost" else f"{life.node} is silent and failed its diagnosis"
    ends = Ends(node=life.node, mask=None, until=at, rule=ground, why=why, cause=bar.id) if proven else None
    if at <= life.joined:
        bar = after(bar, "joined", life.joined) or bar
    return _with(life, bar), ends


def _without_doubts(life: NodeLife) -> NodeLife:
    """Doubts that a diagnosis has answered are over, also those that are told of after it."""
    passed = life.passed
    if passed is None:
        return life
    answered = tuple(bar.id for bar in life.bars if bar.at < passed and after(bar, "passed", passed) is None)
    return _without(life, answered, passed) if answered else life


def _join(life: NodeLife, event: NodeJoined) -> NodeLife:
    gpus = life.gpus
    if event.at >= life.joined:
        gpus = event.gpus if event.at > life.joined else max(gpus, event.gpus)
    word: Word = "joined"
    bars = (after(bar, word, event.at) if bar.at <= event.at else bar for bar in life.bars)
    return msgspec.structs.replace(
        _heard(life, event.at), gpus=gpus, joined=max(life.joined, event.at), bars=tuple(bar for bar in bars if bar)
    )


def _unheard(life: NodeLife, at: int) -> NodeLife:
    if at < life.heard:
        return life
    first, last = life.silence or (at, at)
    return msgspec.structs.replace(life, silence=(min(first, at), max(last, at)))


def _heard(life: NodeLife, at: int) -> NodeLife:
    """The silence is over, but for a loss that was told of a later instant."""
    heard, silence = max(life.heard, at), life.silence
    if silence is not None and silence[0] < heard:
        silence = (silence[1], silence[1]) if silence[1] >= heard else None
    return msgspec.structs.replace(life, heard=heard, silence=silence)


def _noted(noted: tuple[tuple[int, int], ...], gpus: tuple[int, ...], at: int) -> tuple[tuple[int, int], ...]:
    """The newest instant by GPU."""
    newest = dict(noted)
    for gpu in gpus_of(mask_of(gpus)):
        newest[gpu] = max(newest.get(gpu, at), at)
    return tuple(sorted(newest.items()))


def _with(life: NodeLife, bar: Bar) -> NodeLife:
    return msgspec.structs.replace(life, bars=tuple(sorted((*life.bars, bar), key=lambda bar: bar.id)))


def _without(life: NodeLife, ids: tuple[str, ...], at: int) -> NodeLife:
    """These bars are over, and remembered as such."""
    known = {id for _, id in life.spent}
    spent = sorted((*life.spent, *((at, id) for id in ids if id not in known)))
    bars = tuple(bar for bar in life.bars if bar.id not in ids)
    return msgspec.structs.replace(life, bars=bars, spent=tuple(spent[-SPENT_KEPT:]))


# What follows from the facts


def _settle(life: NodeLife, old: NodeLife, care: Care) -> tuple[NodeLife, tuple[NodeDecision, ...]]:
    """The life with what time ended and with the phase that follows; the decisions are what differs from the old."""
    now = life.last
    for bar in life.bars:
        if bar.expires is not None and bar.expires <= now:
            life = _without(life, (bar.id,), bar.expires)
    silent_for = None if life.silence is None else now - life.silence[0]
    if life.silence is not None and now >= life.silence[0] + care.heartbeat:
        first = life.silence[0]
        bar = Bar(id=f"silence@{first}", ground="silence", at=now, seen=first)
        life = life if life.knows(bar.id) else _with(life, bar)
    # The flap guard's word on this instant is found anew: another event of it may have kept the node from returning.
    flaps = f"flaps@{now}"
    life = msgspec.structs.replace(life, bars=tuple(bar for bar in life.bars if bar.id != flaps))
    state, before, returns = _state(life), life.before, life.before.returns
    if state == "up" and before.drained and (life.vouched is None or now > life.vouched):
        window = now - care.flap_window
        returns = (*(at for at in returns if at > window and (life.vouched is None or at > life.vouched)), now)
        if 0 < care.flaps <= len(returns) and not life.knows(flaps):
            life = _with(life, Bar(id=flaps, ground="flaps", at=now, seen=returns[0]))
            state = _state(life)
    quarantined = _quarantined(life)
    asked = dict(before.reclaims)
    phase = Phase(
        state=state,
        since=before.since if state == before.state else now,
        drained=before.drained if state == "suspect" else state != "up",
        returns=returns,
        look=_asked(before.look, now, care) if state == "diagnosing" else None,
        reclaims=tuple((gpu, _asked(asked.get(gpu), now, care)) for gpu in gpus_of(quarantined)),
        dead=silent_for is not None and silent_for >= care.dead,
    )
    bad = quarantined
    for bar in life.bars:
        bad |= bar.mask or 0
    new = msgspec.structs.replace(life, phase=phase, bad=bad & ((1 << life.gpus) - 1))
    return new, _decisions(old, new)


def _state(life: NodeLife) -> State:
    worst = gravest(life.bars)
    if worst is not None:
        return STATE_OF[worst.ground]
    return "up" if life.silence is None else STATE_OF["silent"]


def _quarantined(life: NodeLife) -> int:
    cleaned = dict(life.cleaned)
    return mask_of(tuple(gpu for gpu, found in life.orphans if found >= cleaned.get(gpu, found)))


def _asked(before: Asked | None, now: int, care: Care) -> Asked:
    if before is None:
        return Asked(at=now, times=1)
    if before.times <= ASKS and now >= before.at + _again(care):
        return Asked(at=now, times=before.times + 1)
    return before


# What is to be done


def _decisions(old: NodeLife, new: NodeLife) -> tuple[NodeDecision, ...]:
    return (*_of_node(old, new), *_of_gpus(old, new), *_of_orphans(old, new), *_for_people(old, new))


def _of_node(old: NodeLife, new: NodeLife) -> list[NodeDecision]:
    was, phase, node = old.phase, new.phase, new.node
    found: list[NodeDecision] = []
    rule, why, cause = _reason(new)
    if phase.drained and phase.state != was.state:
        found.append(Drain(node=node, state=phase.state, rule=rule, why=why, cause=cause))
    elif was.drained and not phase.drained:
        found.append(Undrain(node=node, rule="clear", why=f"{node}: nothing stands against it any more"))
    if phase.look is not None and phase.look != was.look:
        if phase.look.times <= ASKS:
            found.append(Diagnose(node=node, rule=rule, why=why, cause=cause))
        else:
            why = f"{node} was to be looked into {ASKS} times and no result came: look at it, then tell the result"
            found.append(Alert(about=node, rule="unanswered", why=why, cause=cause))
    return found


def _of_gpus(old: NodeLife, new: NodeLife) -> list[NodeDecision]:
    found: list[NodeDecision] = []
    left = new.bad & ~old.bad
    for bar in sorted(new.bars, key=lambda bar: (bar.at, bar.id)):
        gpus = gpus_of(left & (bar.mask or 0))
        if gpus:
            why = f"{new.node}: GPU {spans(gpus)}: {bar.cause or bar.ground}, first seen at {bar.seen}"
            state = new.phase.state
            found.append(Drain(node=new.node, gpus=gpus, state=state, rule=bar.ground, why=why, cause=bar.id))
            left &= ~mask_of(gpus)
    if left:
        gpus = gpus_of(left)
        why = f"{new.node}: GPU {spans(gpus)} out of the pool: memory that no job owns"
        found.append(Drain(node=new.node, gpus=gpus, state=new.phase.state, rule="orphan", why=why))
    back = gpus_of(old.bad & ~new.bad & ((1 << new.gpus) - 1))
    if back:
        why = f"{new.node}: nothing stands against GPU {spans(back)} any more"
        found.append(Undrain(node=new.node, gpus=back, rule="clear", why=why))
    return found


def _of_orphans(old: NodeLife, new: NodeLife) -> list[NodeDecision]:
    was = dict(old.phase.reclaims)
    fresh = [(gpu, ask) for gpu, ask in new.phase.reclaims if ask != was.get(gpu)]
    found: list[NodeDecision] = []
    asked = tuple(gpu for gpu, ask in fresh if ask.times <= ASKS)
    if asked:
        why = f"{new.node}: memory that no job owns on GPU {spans(asked)}"
        found.append(Reclaim(node=new.node, gpus=asked, rule="orphan", why=why))
    given_up = tuple(gpu for gpu, ask in fresh if ask.times > ASKS)
    if given_up:
        why = (
            f"{new.node}: GPU {spans(given_up)} was to be cleaned {ASKS} times and no word came: "
            "end what holds its memory, or reset it, then tell that it is clean"
        )
        found.append(Alert(about=new.node, rule="unanswered", why=why))
    return found


def _for_people(old: NodeLife, new: NodeLife) -> list[NodeDecision]:
    node = new.node
    found: list[NodeDecision] = []
    stood = {bar.id: bar.ground for bar in old.bars}
    for bar in new.bars:
        if bar.ground in FOR_PEOPLE and stood.get(bar.id) != bar.ground:
            how = "lift" if bar.ground == "flaps" else "let it join anew, or lift"
            why = f"{_told(new, bar)}: put it right, then {how} {bar.id}"
            found.append(Alert(about=node, rule=bar.ground, why=why, cause=bar.id))
    if new.phase.dead and not old.phase.dead and new.silence is not None:
        why = (
            f"{node} is silent since {new.silence[0]}; what runs there is kept until it is told to be lost: look at it"
        )
        found.append(Alert(about=node, rule="silence", why=why, cause=f"silence@{new.silence[0]}"))
    return found


def _reason(life: NodeLife) -> tuple[str, str, str]:
    """Rule, sentence and cause of the state that the node is in."""
    worst = gravest(life.bars)
    if worst is None:
        return "silent", f"{life.node}: no heartbeat", ""
    return worst.ground, _told(life, worst), worst.id


def _told(life: NodeLife, bar: Bar) -> str:
    words: dict[Ground, str] = {
        "silence": f"no heartbeat since {bar.seen}",
        "suspected": f"suspected: {bar.cause or 'no cause told'}, first seen at {bar.seen}",
        "confirmed": f"{bar.cause or 'no cause told'}, first seen at {bar.seen}",
        "rejoined": f"joined anew at {bar.at}, after it was lost or failed its diagnosis",
        "failed": f"failed its diagnosis at {bar.at}" + (f": {bar.cause}" if bar.cause else ""),
        "lost": f"lost at {bar.at}",
        "flaps": f"came back {len(life.phase.returns)} times since {bar.seen}",
    }
    return f"{life.node}: {words[bar.ground]}"
