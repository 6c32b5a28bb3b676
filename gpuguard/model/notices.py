"""What people are told: one thing that stands and that somebody should know of, or that it is over."""

from typing import Literal

import msgspec

from gpuguard.model.ids import EventId, SubjectId, TokenId
from gpuguard.model.instants import Instant

# Most urgent first. page: a person is needed now; warning: soon; notice: good to know.
Urgency = Literal["page", "warning", "notice"]
URGENCIES: tuple[Urgency, ...] = ("page", "warning", "notice")

# What becomes of a notice, by which it is counted: told; not taken by the receiver; no room to wait for its turn; kept
# back because too many were told within the hour, and told later if it stands by then.
Fate = Literal["sent", "failed", "dropped", "kept_back"]
FATES: tuple[Fate, ...] = ("sent", "failed", "dropped", "kept_back")


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that stands, in words, or, with `until`, that it stands no longer.

    `event` is a noun and what became of it (`gpu.failed`, `drain.held`), the same word when it is over. `mark` tells
    apart what is told of one subject by one event: the code of a finding, the token of a drain, the name of a source.
    `id` is the same each time the same thing is told, also after a restart. `code` is the finding it rests on, `token`
    the drain it is about or that stands because of it. `facts` are evidence by name, `because` the events it rests on,
    as `gpuguard why` knows them. `next_step` is for the person who reads it. `bundle` is the path of a support bundle
    on the node, '' for none. `since` is when it began to stand.
    """

    id: str
    node: str
    event: str
    urgency: Urgency
    subject: SubjectId
    mark: str
    title: str
    text: str
    since: Instant
    until: Instant | None = None
    code: str = ""
    token: TokenId | None = None
    next_step: str = ""
    facts: dict[str, str] = {}
    because: tuple[EventId, ...] = ()
    bundle: str = ""

    @property
    def key(self) -> str:
        """What it is about, for all of its life."""
        return f"{self.event}|{self.subject}|{self.mark}"
