"""What a detector concluded about one subject: a level, not a shout."""

from typing import Literal

import msgspec

from gpuguard.model.ids import EventId, SubjectId
from gpuguard.model.instants import Instant

Severity = Literal["info", "degraded", "critical"]
Remedy = Literal["none", "test", "reset", "reboot", "replace"]
Clear = Literal["quiet", "reset", "reboot", "replace", "ack"]
Advice = Literal["none", "watch", "test", "drain"]
Blame = Literal["hardware", "program", "driver", "firmware", "host", "configuration", "unknown"]

SEVERITIES: tuple[Severity, ...] = ("info", "degraded", "critical")
REMEDIES: tuple[Remedy, ...] = ("none", "test", "reset", "reboot", "replace")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A detector says that something stands, or that it stands no longer.

    `code` names it everywhere: `xid79`, `sxid20034`, `gpu_lost`, `source_blind`. `self_evident` findings need no
    second witness. A `latched` finding never clears by `quiet`. `clears` lists what ends it; `quiet_after` is the
    time in seconds without a repeat after which `quiet` does. `because` are the events it rests on, `source` the
    source that saw them. `count` is how many reports this finding speaks for. `advice` is what the fault asks for;
    whether it is done is for `health/policy`. `ladder` are the remedies in the order in which they are tried when the
    fault comes back after the one before. `consequence` marks what never decides alone. `proves` says that a remedy
    was seen to be applied to the subject. `silent` marks a check that asked and got no answer: the subject becomes
    unknown, not bad. `level` marks what is measured again and again: it stands until its detector says that it does
    not, or a remedy or a person ends it, and its repeats are no news. The core sets it.
    """

    subject: SubjectId
    check: str
    code: str
    at: Instant
    stands: bool = True
    severity: Severity = "info"
    remedy: Remedy = "none"
    blame: Blame = "unknown"
    self_evident: bool = False
    latched: bool = False
    clears: tuple[Clear, ...] = ("quiet", "ack")
    quiet_after: float = 3600.0
    reason: str = ""
    source: str = ""
    because: tuple[EventId, ...] = ()
    count: int = 1
    advice: Advice = "none"
    ladder: tuple[Remedy, ...] = ()
    consequence: bool = False
    proves: Clear | None = None
    silent: bool = False
    level: bool = False
