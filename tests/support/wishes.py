"""Actions as the core owes them, for tests of who carries them out."""

from gpuguard.custody.token import make_reason
from gpuguard.model.actions import Action, Verb
from gpuguard.model.ids import BootId, SubjectId, TokenId
from gpuguard.model.instants import Instant


def requeue(number: str = "8123", restarts: int | None = 0, token: str = "7f3a") -> Action:
    """A job of Slurm's is to be started anew, which was so often before."""
    return Action(
        key=f"requeue:{token}:1", verb="requeue", token=TokenId(token), subject=SubjectId(f"job:slurm/{number}"),
        reason=make_reason(TokenId(token), f"job{number}", "hung", "requeue"),
        at=Instant(boot=BootId("3f6c"), mono=100.0), restarts=restarts,
    )  # fmt: skip


def reclaim(pid: int, started: float, token: str = "7f3a") -> Action:
    """A leftover process is to be ended."""
    return Action(
        key=f"reclaim:{token}:1", verb="reclaim", token=TokenId(token), subject=SubjectId("gpu:0000:8d:00.0"),
        reason=make_reason(TokenId(token), "gpu3", "leftover", f"pid{pid}"),
        at=Instant(boot=BootId("3f6c"), mono=100.0), pid=pid, started=started,
    )  # fmt: skip


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


def remedy(verb: Verb, subject: str = "node", token: str = "7f3a", boot: str = "3f6c", key: str = "") -> Action:
    """A test, a reset, a reboot or an eviction, while the drain `token` stands."""
    return Action(
        key=key or f"{verb}:{token}:1", verb=verb, token=TokenId(token), subject=SubjectId(subject),
        reason=make_reason(TokenId(token), "gpu3", "lost", "xid79"), at=Instant(boot=BootId(boot), mono=100.0),
        drain=TokenId(token),
    )  # fmt: skip
