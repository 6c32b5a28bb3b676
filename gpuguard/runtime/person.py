"""A person's word on its way to whoever decides, and what came of it.

The running agent hears it through its control socket; without one it is decided in this process. Either way the story
holds who said what and why, and the action that follows has its outcome in the memory.
"""

import getpass
import os
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuguard.actuators import dry_run
from gpuguard.custody.token import parse_reason
from gpuguard.errors import ActionRefused, UsageError
from gpuguard.model.actions import Verb
from gpuguard.model.health import Drain
from gpuguard.model.ids import EventId, SubjectId, TokenId
from gpuguard.model.story import OwedAction, StoryEntry
from gpuguard.model.units import Seconds
from gpuguard.ports import Actuator, Clock, NodeReport, StoreReader
from gpuguard.runtime import offline
from gpuguard.runtime.assembly import Parts
from gpuguard.runtime.control import Answer, Word, tell
from gpuguard.store.reader import DATABASE_NAME, open_reader

# The way to the target takes 30 s at most, as it is set by itself (actuators/delegate): after this the answer is an
# outcome that still waits.
PATIENCE = Seconds(32.0)
LOOK_EVERY = Seconds(0.05)
# A person's entries are the newest of the story, unless a storm of faults came in between.
STORY_SEARCHED = 500


def name_of_caller() -> str:
    """Who asks: the person behind sudo where there is one."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.geteuid()}"


def must_say_something(args: Namespace) -> None:
    """The name and the reason that were given are words: the history keeps them for ever.

    Raises  UsageError
    """
    for option, example in (("by", "mia"), ("reason", "'board replaced'")):
        text = getattr(args, option)
        if text is not None and not text.strip():
            raise UsageError(
                f"--{option} must say something, as the history keeps it for ever; try --{option} {example}"
            )
        try:
            (text or "").encode()
        except UnicodeEncodeError:
            # What the shell passed on and is no UTF-8 comes as halves of surrogate pairs, which nothing can keep.
            raise UsageError(
                f"--{option} holds bytes that are no UTF-8, so it cannot be kept; try --{option} {example}"
            ) from None


def speak(folder: Path, parts: Parts, word: Word, *, alive: bool, clock: Clock, target: Actuator | None) -> Answer:
    """The word is written down.

    Raises  ActionRefused when the agent would not take it; ReadFailed when it does not answer; StoreFailed, Absent
    """
    if not alive:
        return offline.say(folder, parts, word, clock=clock, target=target)
    answer = tell(str(folder), word)
    if not answer.ok:
        raise ActionRefused(f"the agent did not take it: {answer.message}")
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """What came of a wish: the sentence for the person, and the action that it led to, if any."""

    answer: str
    action: OwedAction | None


def outcome_of(folder: Path, event_id: str, verb: Verb, *, patience: float = PATIENCE) -> Came:
    """What the memory says of the wish once its action was tried, or after `patience`.

    Units   seconds
    Raises  StoreFailed, Absent
    """
    reader = open_reader(folder / DATABASE_NAME)
    try:
        until = time.monotonic() + patience
        while True:
            came = _came(reader, EventId(event_id), verb)
            tried = came.action is not None and (came.action.state != "owed" or came.action.tries > 0)
            if tried or (came.answer and came.action is None) or time.monotonic() >= until:
                return came
            time.sleep(LOOK_EVERY)
    finally:
        reader.close()


UNWRITTEN = "the agent heard it and has not written it down yet; `gpuguard status` tells whether its disk is full"


def wrote_nothing(owed: OwedAction) -> bool:
    """Whether the action was done in words only: the node observes, or its target is the dry run."""
    return owed.action.key.endswith(":dry") or owed.message.startswith("dry run")


OBSERVES = (
    'Observe-only: nothing is written to the scheduler. To let gpuguard act, set `mode = "drain"` under [policy] and '
    "the scheduler's name as `target` under [actuator] in its configuration, and restart the agent."
)


def _came(reader: StoreReader, event_id: EventId, verb: Verb) -> Came:
    told = [entry for entry in reader.story(limit=STORY_SEARCHED) if entry.event_id == event_id]
    said = next((entry for entry in told if entry.kind == "operator"), None)
    if said is None:
        return Came(answer="", action=None)
    # An action owed to a wish carries the wish's own moment.
    wished = (owed for owed in reader.actions() if owed.action.verb == verb and owed.action.at == said.at)
    return Came(answer=str(said.detail.get("answer", "")), action=next(wished, None))


# --- whose drain it is ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Who holds the node's drain as the scheduler tells it.

    `holder` is nobody, ours, orphan (a gpuguard token whose record is not here), foreign, or unknown when the scheduler
    could not be asked; `token` is what its reason carries.
    """

    holder: str
    token: TokenId | None
    words: str


def owner_of(report: NodeReport, drain: Drain | None, actions: Sequence[OwedAction]) -> Ownership:
    """Who holds the node, in one word and in a sentence."""
    if report.error is not None and report.target == dry_run.DryRun.name:
        return Ownership(holder="unknown", token=None, words="none is asked, as the target is a dry run")
    if report.error is not None:
        return Ownership(holder="unknown", token=None, words=f"not known: {report.error}")
    token = parse_reason(report.reason) if report.drained else None
    records = {owed.action.token for owed in actions} | ({drain.token} if drain is not None else set())
    if token is not None and token in records:
        return Ownership(holder="ours", token=token, words=f"{report.state}, our drain {token}: {report.reason}")
    if token is not None:
        return Ownership(
            holder="orphan", token=token,
            words=f"{report.state}, drain {token} of another gpuguard or of a lost memory (an orphan): {report.reason}",
        )  # fmt: skip
    if report.drained:
        why = f"with the reason {report.reason!r}" if report.reason.strip() else "without a reason"
        return Ownership(holder="foreign", token=None, words=f"{report.state}, somebody else's drain {why}")
    return Ownership(holder="nobody", token=None, words=f"{report.state}, nobody drained it")


def returns_of(entries: Iterable[StoryEntry], subject: SubjectId) -> list[StoryEntry]:
    """When the node was given back after a drain for this subject, oldest first; dry runs do not count."""
    return [
        entry
        for entry in entries
        if entry.kind == "outcome"
        and entry.subject == subject
        and entry.detail.get("result") == "done"
        and str(entry.detail.get("key")).startswith("release:")
        and not str(entry.detail.get("key")).endswith(":dry")
    ]
