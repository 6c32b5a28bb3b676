"""Values to store, each recognisable by its number."""

from gpuguard.model.actions import Action
from gpuguard.model.events import Cursor, LogLine, Parsed
from gpuguard.model.ids import BootId, EventId, PciAddress, SubjectId, TokenId
from gpuguard.model.instants import Instant
from gpuguard.model.story import Change, OwedAction, OwedState, StoryEntry

BOOT = BootId("5a1e0000-0000-4000-8000-00000000c0de")
GPU = SubjectId("gpu:0000:3b:00.0")


def instant(number: float) -> Instant:
    """`number` seconds after a fixed start."""
    return Instant(boot=BOOT, mono=100.0 + number, utc=1_700_000_000.0 + number)


def entry(number: int, kind: str = "verdict", subject: SubjectId = GPU, event_id: str | None = None) -> StoryEntry:
    """The story entry with this number in its text."""
    return StoryEntry(
        at=instant(number),
        kind=kind,
        subject=subject,
        text=f"sentence {number}",
        event_id=None if event_id is None else EventId(event_id),
        cause=f"incident-{number}",
        detail={"number": number, "share": 0.5, "fresh": True, "serial": None},
    )


def line(number: int) -> LogLine:
    """The kernel line with this number as its sequence."""
    return LogLine(
        id=EventId(f"kmsg:5a1e:{number}"),
        at=instant(number),
        source="kmsg",
        parsed=Parsed(kind="xid", xid=79, pci=PciAddress("0000:3b:00.0"), detail={"words": ["a", 1, {"b": None}]}),
        raw=f"NVRM: Xid (PCI:0000:3b:00): 79, pid={number}, GPU has fallen off the bus.",
    )


def owed(number: int, state: OwedState = "owed", tries: int = 0, due: float | None = None) -> OwedAction:
    """The drain with this number in its key."""
    action = Action(
        key=f"drain/{number}",
        verb="drain",
        token=TokenId("c0de"),
        subject=GPU,
        reason="gpuguard:c0de gpu3 lost xid79",
        at=instant(number),
    )
    due_at = None if due is None else instant(due)
    return OwedAction(action=action, state=state, tries=tries, not_before=due_at, message=f"answer {number}")


def change(number: int) -> Change:
    """A change that touches every table; all of its parts tell its number."""
    return Change(
        cursors=(Cursor(source="kmsg", boot=BOOT, position=str(number)),),
        puts={"subject/gpu": b"%d" % number, f"memory/{number % 5}": b"%d" % number},
        deletes=(f"memory/{(number + 1) % 5}",),
        story=(entry(number, event_id=f"kmsg:5a1e:{number}"),),
        events=(line(number),),
        actions=(owed(number),),
    )
