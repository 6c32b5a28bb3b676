"""Actions as the core owes them, for tests of who carries them out."""

from gpuguard.custody.token import make_reason
from gpuguard.model.actions import Action, Verb
from gpuguard.model.ids import BootId, SubjectId, TokenId
from gpuguard.model.instants import Instant


def wish(verb: Verb, token: str = "7f3a", code: str = "xid79") -> Action:
    """One action about the fourth GPU, with a reason that carries its token."""
    return Action(
        key=f"{verb}-{token}",
        verb=verb,
        token=TokenId(token),
        subject=SubjectId("gpu:0000:8d:00.0"),
        reason=make_reason(TokenId(token), "gpu3", "lost", code),
        at=Instant(boot=BootId("3f6c"), mono=100.0),
    )
