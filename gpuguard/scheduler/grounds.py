"""What can stand against a node, the state that each such ground puts it in, and what ends it.

Theory. A node has no state of its own: it is in the gravest state that any ground standing against it asks for, and
up where none stands. So no order of events can make it up while one stands, and it stays out until the last is gone.
Every ground but `silent` is a bar with an id: an asker's (suspected, confirmed) or one that the machine itself put up
(silence, rejoined, failed, lost, flaps), which a person lifts by its id as any other. A bar on some GPUs takes these
out of the pool and moves the node's state not at all.
What ends a ground is in TABLE: evidence (a passed second look) ends doubts, never what is known; a node that is new
again (`joined`) after it was lost or failed its diagnosis is looked into, for an agent that started again repairs
nothing; a node that flaps joins all the time, so a person alone ends that.
"""

from typing import Literal

import msgspec

State = Literal["up", "suspect", "diagnosing", "maintenance"]
STATES: tuple[State, ...] = ("up", "suspect", "diagnosing", "maintenance")

Ground = Literal["silent", "silence", "suspected", "rejoined", "confirmed", "failed", "lost", "flaps"]
Word = Literal["heard", "passed", "joined", "lifted", "lapsed"]
WORDS: tuple[Word, ...] = ("heard", "passed", "joined", "lifted", "lapsed")

# The ground, the state it asks for, and what is left of it after each word; None: nothing.
ROWS: dict[Ground, tuple[State, tuple[Ground | None, ...]]] = {
    #                            heard        passed       joined       lifted  lapsed
    # No heartbeat for less than the threshold. To be looked into and passed is to be heard.
    "silent": ("suspect", (None, None, None, "silent", "silent")),
    # No heartbeat for longer: that it beats again does not say why it did not.
    "silence": ("diagnosing", ("silence", None, "silence", None, None)),
    # A drain for a suspicion.
    "suspected": ("diagnosing", ("suspected", None, "suspected", None, None)),
    # It was lost, or failed its diagnosis, and joined anew.
    "rejoined": ("diagnosing", ("rejoined", None, "rejoined", None, None)),
    # A drain for what is known to be bad.
    "confirmed": ("maintenance", ("confirmed", "confirmed", "confirmed", None, None)),
    # The second look found it bad.
    "failed": ("maintenance", ("failed", "failed", "rejoined", None, None)),
    # It is proven dead.
    "lost": ("maintenance", ("lost", "lost", "rejoined", None, None)),
    # It came back too often.
    "flaps": ("maintenance", ("flaps", "flaps", "flaps", None, None)),
}
STATE_OF: dict[Ground, State] = {ground: state for ground, (state, _) in ROWS.items()}
TABLE: dict[Ground, dict[Word, Ground | None]] = {
    ground: dict(zip(WORDS, left, strict=True)) for ground, (_, left) in ROWS.items()
}

# A person has to act on these, and whoever asked for a drain knows of his own.
FOR_PEOPLE: tuple[Ground, ...] = ("failed", "lost", "flaps")

MOST_GPUS = 1024
"""No node has more; what is numbered higher is no GPU."""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One ground that stands against a node, or against GPUs of it.

    Shape   mask: a bit for each GPU; None: the node. at: when it was put up. seen: when its cause was first seen
    """

    id: str
    ground: Ground
    at: int
    seen: int
    mask: int | None = None
    cause: str = ""
    expires: int | None = None


def mask_of(gpus: tuple[int, ...]) -> int:
    """A bit for each of these GPUs."""
    mask = 0
    for gpu in gpus:
        if 0 <= gpu < MOST_GPUS:
            mask |= 1 << gpu
    return mask


def gpus_of(mask: int) -> tuple[int, ...]:
    """The GPUs whose bit is set, ascending."""
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)


def after(bar: Bar, word: Word, at: int) -> Bar | None:
    """What is left of the bar; one that becomes another ground counts from now."""
    left = TABLE[bar.ground][word]
    if left is None or left == bar.ground:
        return bar if left else None
    return msgspec.structs.replace(bar, ground=left, at=at)


def gravest(bars: tuple[Bar, ...]) -> Bar | None:
    """The bar on the whole node that decides its state: the first put up of those that ask for the worst."""
    wide = [bar for bar in bars if bar.mask is None]
    return min(wide, key=lambda bar: (-STATES.index(STATE_OF[bar.ground]), bar.at, bar.id), default=None)
