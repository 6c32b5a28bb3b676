"""What a rank showed of its progress, and what of that is learned.

Theory. Progress is whatever a rank says: a step, a phase that begins or ends, a word of life. The time since then is
its silence, and is measured from the moment of that sign, not from when somebody heard of it: a source that is away for
a minute makes nobody silent, and a rank whose source is gone grows silent all the same while its process is seen to
live, as it may have stopped with it.
Several steps between two looks are as many gaps of equal length, unless the last look saw a silence that is longer
than that: then they were told all at once, as by a log that has a line for every hundred steps, and are one gap. A gap
belongs to the phase in which it began.

A rank that comes back as another process, or after another start of its job, is another one. The page of one that ended
may be read for a while longer; it says nothing any more.
"""

import msgspec

from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.readings import Row, Value

# How long its steps took of late, and usually, are means over so many seconds.
PACE, USUAL = 30.0, 1800.0
PAUSE = 3.0
# One that was told of as living so long ago, and is gone now, ended just now. Units: seconds.
JUST_NOW = 15.0
START = "start"


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """One rank as it was told of last.

    `moved` is when it last showed progress; `began` when its phase did. `pace` is how long its steps took of late,
    `usual` over all. `flat` is over how many steps its loss has not moved at all, as it says. `ended` is when its
    process was seen to end, where it was.
    """

    number: int
    moved: Instant
    began: Instant
    pid: int | None = None
    restart: int = 0
    step: int | None = None
    phase: str = ""
    pace: float | None = None
    usual: float | None = None
    done: bool = False
    gone: bool = False
    ended: Instant | None = None
    flat: int | None = None

    def silent(self, at: Instant) -> float:
        """Since when it showed no progress, in seconds."""
        return max(0.0, seconds_between(self.moved, at) or 0.0)

    @property
    def started(self) -> bool:
        """Whether it tells of a step, and is past its start."""
        return self.phase != START and self.step is not None


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """So many gaps of this length between signs of progress, in that phase. Units: seconds."""

    phase: str
    seconds: float
    times: int = 1


def same(state: RankState, row: Row) -> bool:
    """Whether the row tells of the process that is known under this rank."""
    pid, restart = row.number("rank_pid"), row.number("rank_restart")
    return (pid is None or state.pid is None or pid == state.pid) and (restart or 0) == state.restart


def first_seen(number: int, row: Row) -> RankState:
    """What is known of a rank that nobody knew."""
    return _read(number, row, None)


def told(state: RankState, row: Row, heard: Instant | None = None) -> tuple[RankState, tuple[Gap, ...]]:
    """The rank as this row has it, and the gaps that lie between the two; `heard` is when `state` was last told of.

    A row that does not know how long ago it moved tells nothing of its progress, as when a file system hangs.
    """
    new = _read(state.number, row, state)
    if row.values.get("rank_progress_seconds") is None:
        return msgspec.structs.replace(state, gone=new.gone, done=state.done or new.done), ()
    between = seconds_between(state.moved, new.moved) or 0.0
    steps = (new.step or 0) - (state.step or 0) if new.step is not None and state.step is not None else 0
    if between <= 0.0 and steps <= 0 and new.phase == state.phase:
        return msgspec.structs.replace(new, moved=state.moved, began=state.began), ()
    gaps = _gaps(state, new, between, max(0, steps))
    seen = 0.0 if heard is None else state.silent(heard)
    learned = tuple(_at_once(gap) if gap.phase == state.phase and gap.seconds < seen else gap for gap in gaps)
    stepping = next((gap for gap in gaps if gap.phase in ("", "step")), None)
    if stepping is None:
        return new, learned
    # One pause is no pace: it counts as a step that is three times as long as usual at most.
    lately = stepping.seconds if state.usual is None else min(stepping.seconds, PAUSE * state.usual)
    return msgspec.structs.replace(
        new, pace=_nearer(state.pace, lately, stepping.times, PACE),
        usual=_nearer(state.usual, stepping.seconds, stepping.times, USUAL),
    ), learned  # fmt: skip


def _at_once(gap: Gap) -> Gap:
    """The same as one gap: nobody told anything while all of it passed."""
    return Gap(phase=gap.phase, seconds=gap.seconds * gap.times)


def _nearer(before: float | None, seconds: float, times: int, over: float) -> float:
    """The mean length of a step over the last while, with so many that took so long."""
    return seconds if before is None else before + min(1.0, seconds * times / over) * (seconds - before)


def _read(number: int, row: Row, before: RankState | None) -> RankState:
    """The rank as the row has it; what only time tells is as it was before."""
    values, at = row.values, row.at
    moved, phased = values.get("rank_progress_seconds"), values.get("rank_phase_seconds")
    step, pid, flat = values.get("rank_step"), values.get("rank_pid"), values.get("rank_loss_flat_steps")
    phase, restart = values.get("rank_phase"), values.get("rank_restart")
    known = step if isinstance(step, int) else None
    if values.get("rank_loss_nan") == 1:
        flat = None  # no number stands still
    return RankState(
        number=number, moved=_ago(at, moved), began=_ago(at, phased), pid=pid if isinstance(pid, int) else None,
        restart=restart if isinstance(restart, int) else 0, step=known,
        phase=phase if isinstance(phase, str) and phase else "" if known is not None else START,
        pace=None if before is None else before.pace, usual=None if before is None else before.usual,
        done=values.get("rank_done") == 1, gone=values.get("rank_gone") == 1,
        flat=flat if isinstance(flat, int) and flat >= 0 else None,
    )  # fmt: skip


def dated(before: RankState, now: RankState, heard: Instant | None, at: Instant) -> RankState:
    """With when its process ended, where somebody saw that; `heard` is when `before` was told. Of one that ended while
    nobody looked it is not known."""
    if not now.gone:
        return now
    since = None if heard is None else seconds_between(heard, at)
    just_now = not before.gone and since is not None and since <= JUST_NOW
    return msgspec.structs.replace(now, ended=at if just_now else before.ended)


def _gaps(state: RankState, new: RankState, between: float, steps: int) -> tuple[Gap, ...]:
    if new.phase == state.phase:
        times = max(1, steps)
        return (Gap(phase=state.phase, seconds=between / times, times=times),) if between > 0 else ()
    # The old phase ended when the new one began, where it is told when; phases in between were too short to be seen.
    ended = seconds_between(state.moved, new.began)
    last = max(0.0, min(between, ended if ended is not None else between))
    gaps = [Gap(phase=state.phase, seconds=last)]
    if between - last > 0 and steps > 1:
        gaps.append(Gap(phase=new.phase, seconds=(between - last) / (steps - 1), times=steps - 1))
    return tuple(gaps)


def _ago(at: Instant, seconds: Value) -> Instant:
    ago = seconds if isinstance(seconds, int | float) else 0.0
    return Instant(boot=at.boot, mono=at.mono - ago, utc=None if at.utc is None else at.utc - ago)
