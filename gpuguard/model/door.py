"""What goes through the door of the bundled scheduler: its answers about nodes, and what may be asked of it.

Both sides read this page: the scheduler that serves the door and gpuguard-actuator that comes to it. For people it is
told in docs/scheduler-door.md. A reader passes over keys that it does not know; whatever changes the meaning of a known
one is a new `VERSION`, which is part of each path.

Units   instants are seconds since 1970 by the scheduler's clock
"""

import re
from typing import Final, Literal

import msgspec

VERSION: Final = 1
NODES: Final = f"/v{VERSION}/nodes/"
FLEET: Final = f"/v{VERSION}/fleet"
BOOK: Final = f"/v{VERSION}/book"
# The fleet's book of 4096 entries has 700 kB; written as base64, a third more.
BODY_LIMIT: Final = 1 << 20
# A token of gpuguard's takes 60; a person may say more.
REASON_LIMIT: Final = 400
NAME_LIMIT: Final = 64
NODE_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_LIMIT - 1}}}", re.ASCII)

Running = Literal["keep", "end"]


class Wanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A drain as somebody wishes it to stand.

    `running` says what becomes of the jobs that run there: `end` ends them, and those that may come back go to the
    queue with their checkpoints. `reboot` is the boot id during which a reboot was asked for, None for none: it is
    granted once the node runs another boot.
    """

    reason: str
    running: Running = "keep"
    reboot: str | None = None


class Standing(Wanted, frozen=True, kw_only=True, omit_defaults=True):
    """A drain that stands. `id` is never used again; `since` is when its node was drained, `by` who wrote it last."""

    id: str
    since: float
    by: str = ""


class NodePage(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler says of one node. `words` are the neutral ones of custody, exactly one of OPEN, DOWN and
    UNREGISTERED among them; `revision` changes with whatever stands on this page."""

    node: str
    words: tuple[str, ...]
    drain: Standing | None = None
    revision: str = ""


class DrainWrite(msgspec.Struct, frozen=True, kw_only=True):
    """The node's one drain is to be so, if its page is still of that revision; None lifts it. `by` is who wants it:
    gpuguard, or a person, whose word that a node is well counts more."""

    revision: str
    by: str
    drain: Wanted | None


class FleetDrained(msgspec.Struct, frozen=True, kw_only=True):
    """One node that stands drained, whoever did it."""

    node: str
    reason: str
    since: float


class FleetPage(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes with GPUs take part in the fleet, and which of them stand drained."""

    nodes: int
    drains: tuple[FleetDrained, ...] = ()


class BookPage(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet's book as it was last written, which the scheduler keeps and does not read; and its clock.

    Shape   text: base64 on the wire, empty where nobody wrote yet
    """

    revision: str
    text: bytes
    utc: float


class BookWrite(msgspec.Struct, frozen=True, kw_only=True):
    """The book is to be so, if it is still of that revision."""

    revision: str
    text: bytes


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """The write is on disk."""

    taken: bool = True


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing was written, and why, for a person."""

    error: str
