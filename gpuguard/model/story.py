"""What is written down: the story, the actions with what came of them, and the change that holds both."""

from typing import Literal

import msgspec

from gpuguard.model.actions import Action
from gpuguard.model.events import Cursor, LogLine
from gpuguard.model.ids import EventId, SubjectId
from gpuguard.model.instants import Instant

OwedState = Literal["owed", "done", "foreign", "refused", "held", "failed", "cancelled"]
OWED_STATES: tuple[OwedState, ...] = ("owed", "done", "foreign", "refused", "held", "failed", "cancelled")

DetailScalar = str | int | float | bool | None

# Kinds of story entry that no retention deletes: verdicts on hardware, what was done about them, a person's word.
KEPT_FOREVER: frozenset[str] = frozenset(
    {
        "verdict",
        "drain",
        "release",
        "adopt",
        "requeue",
        "reclaim",
        "evict",
        "test",
        "reset",
        "reboot",
        "outcome",
        "acknowledged",
        "operator",
    }
)


class StoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence of what happened, in the order it was decided.

    `event_id` is the line it rests on; `cause` the id of what led to it (an incident, a token, an action's key).
    """

    at: Instant
    kind: str
    subject: SubjectId
    text: str
    event_id: EventId | None = None
    cause: str | None = None
    detail: dict[str, DetailScalar] = {}


class OwedAction(msgspec.Struct, frozen=True, kw_only=True):
    """An action and how far it came; it is sent until its state is something else than `owed`.

    `tries` counts how often it was asked since the target last answered; `not_before` is when it is asked again;
    `message` is the target's last word.
    """

    action: Action
    state: OwedState = "owed"
    tries: int = 0
    not_before: Instant | None = None
    message: str = ""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that becomes true together: all of it is on disk, or none.

    `puts` and `deletes` are about the core's own state, by key (`subject/gpu:...`, `memory/fault_codes/gpu:...`);
    deletes come first. `actions` replace what stood under the same `action.key`. An event that is known by its id
    stays as it is.
    """

    cursors: tuple[Cursor, ...] = ()
    puts: dict[str, bytes] = {}
    deletes: tuple[str, ...] = ()
    story: tuple[StoryEntry, ...] = ()
    events: tuple[LogLine, ...] = ()
    actions: tuple[OwedAction, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.cursors or self.puts or self.deletes or self.story or self.events or self.actions)
