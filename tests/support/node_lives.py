"""One life for each state a node can be in and why, and what each event makes of it: the table of states and events."""

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
from gpuguard.scheduler.grounds import State
from gpuguard.scheduler.nodes import NodeEvent, NodeLife, born, fold, tick
from gpuguard.scheduler.settings import Care

CARE = Care()
NODE = "n1"
NOW = 5000
"""When the event of a row comes; all of the lives below have come to rest earlier."""


def joined(at: int = 0, gpus: int = 8) -> NodeJoined:
    return NodeJoined(at=at, node=NODE, gpus=gpus)


def asked(at: int, id: str, gpus: tuple[int, ...] = (), **words: object) -> DrainAsked:
    fields: dict[str, object] = {"severity": "confirmed", "cause": "xid 79", "seen": at, **words}
    return DrainAsked(at=at, id=id, node=NODE, gpus=gpus, **fields)  # type: ignore[arg-type]


def lifted(at: int, id: str, by: str = "") -> DrainLifted:
    return DrainLifted(at=at, id=id, node=NODE, by=by)


def looked(at: int, passed: bool) -> Diagnosed:
    return Diagnosed(at=at, node=NODE, passed=passed)


def lost(at: int) -> HeartbeatLost:
    return HeartbeatLost(at=at, node=NODE)


def back(at: int) -> HeartbeatBack:
    return HeartbeatBack(at=at, node=NODE)


def dead(at: int) -> NodeLost:
    return NodeLost(at=at, node=NODE)


def orphan(at: int, *gpus: int) -> OrphanFound:
    return OrphanFound(at=at, node=NODE, gpus=gpus)


def cleaned(at: int, *gpus: int) -> Cleaned:
    return Cleaned(at=at, node=NODE, gpus=gpus)


def life_of(*events: NodeEvent, care: Care = CARE, until: int | None = None) -> NodeLife:
    """The life that these events make, the time after them passed."""
    life = born(joined())
    for event in events:
        life = fold(life, event, care).life
    return life if until is None else tick(life, until, care)[0]


def flapping(times: int) -> list[NodeEvent]:
    """A drain asked and lifted so often, by an agent, once in 100 s from 1000 on."""
    pairs = ((asked(1000 + 100 * n, f"f{n}"), lifted(1050 + 100 * n, f"f{n}")) for n in range(times))
    return [event for pair in pairs for event in pair]


LIVES: dict[str, tuple[State, NodeLife]] = {
    "up": ("up", life_of()),
    "up, one GPU drained": ("up", life_of(asked(1000, "own", gpus=(3,)))),
    "suspect: silent": ("suspect", life_of(lost(NOW - 10))),
    "diagnosing: silence": ("diagnosing", life_of(lost(4800), until=4900)),
    "diagnosing: suspected": ("diagnosing", life_of(asked(4800, "own", severity="suspect"))),
    "diagnosing: rejoined": ("diagnosing", life_of(dead(4000), joined(4800))),
    "maintenance: confirmed": ("maintenance", life_of(asked(1000, "own"))),
    "maintenance: failed": ("maintenance", life_of(looked(1000, passed=False))),
    "maintenance: lost": ("maintenance", life_of(dead(1000))),
    "maintenance: flaps": ("maintenance", life_of(*flapping(3))),
}
OWN = {"diagnosing: silence": "silence@4800", "diagnosing: rejoined": "lost@4000", "maintenance: failed": "failed@1000",
       "maintenance: lost": "lost@1000", "maintenance: flaps": "flaps@1250"}  # fmt: skip
"""The bars that the machine put up itself."""

EVENTS = ("joined", "suspect drain", "confirmed drain", "GPU drain", "own bar lifted", "other id lifted", "passed",
          "failed", "heartbeat lost", "heartbeat back", "node lost", "orphan", "cleaned")  # fmt: skip


def event_of(name: str, life: str) -> NodeEvent:
    """The event of a column, for the life of a row."""
    return {
        "joined": joined(NOW),
        "suspect drain": asked(NOW, "new", severity="suspect"),
        "confirmed drain": asked(NOW, "new"),
        "GPU drain": asked(NOW, "new", gpus=(1,)),
        "own bar lifted": lifted(NOW, OWN.get(life, "own"), by="anna"),
        "other id lifted": lifted(NOW, "none", by="anna"),
        "passed": looked(NOW, passed=True),
        "failed": looked(NOW, passed=False),
        "heartbeat lost": lost(NOW),
        "heartbeat back": back(NOW),
        "node lost": dead(NOW),
        "orphan": orphan(NOW, 5),
        "cleaned": cleaned(NOW, 5),
    }[name]


def moves() -> dict[str, tuple[State, ...]]:
    """By life, the state after each of EVENTS, as the machine has it."""
    return {
        name: tuple(fold(life, event_of(event, name), CARE).life.state for event in EVENTS)
        for name, (_, life) in LIVES.items()
    }
