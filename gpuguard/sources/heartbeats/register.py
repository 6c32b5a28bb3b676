"""What is known of every rank that beats: who may say what, and which of it is believed.

The newest state of a rank counts. A rank belongs to the process that announced it. While that lives, no other user's
process becomes it; one of the same user does when it was started later, which is what a restart looks like. A process
that has ended leaves its rank as it was, gone, until it is taken over or has lingered.

Everything is bounded: ranks in all and of each user, processes met, messages of each process and of each user. What is
refused is counted by its reason and changes nothing else.
"""

from collections.abc import Iterable
from typing import NamedTuple

from gpuguard.model.ids import NODE, JobId, SubjectId, rank
from gpuguard.model.readings import Value, Values
from gpuguard.sources.heartbeats.allowance import Allowance
from gpuguard.sources.heartbeats.door import Received
from gpuguard.sources.heartbeats.message import (
    REASONS,
    Message,
    Reason,
    Refused,
    believe,
    shown,
    understand,
)
from gpuguard.sources.heartbeats.pages import Live, Page
from gpuguard.sources.heartbeats.senders import Sender, Senders, job_of
from gpuguard.sweeping.rounds import Rows

PROVEN = 5.0  # seconds for which a word of a rank proves that its process lives
LIBRARY, DATAGRAM = "library", "datagram"


class Limits(NamedTuple):
    """How much is taken. Messages are of a second, and as many again may come in one go; units: seconds."""

    ranks: int = 1024
    ranks_of_user: int = 256
    pages: int = 512
    messages_of_process: float = 200.0
    messages_of_user: float = 4000.0
    meetings_of_user: float = 300.0
    linger: float = 600.0


class Rank:
    """One rank, as its process told it last."""

    def __init__(self, job: JobId, number: int, sender: Sender) -> None:
        """Nothing was told yet."""
        self.subject: SubjectId = rank(job, number)
        self.job, self.number, self.sender = job, number, sender
        self.page: Page | None = None
        self.gone_since: float | None = None
        self.n: int | None = None
        self.proven = 0.0  # when it was last asked whether its process lives
        self.fresh = False  # it told something since it was looked at last
        self.live = Live(0.0, None, None, None, None, None, None, False, None)
        self._fixed: Values = {}
        self._message: Message | None = None

    def tell(self, message: Message, now: float) -> None:
        """What the message says is its state, but for what its page says newer.

        Raises  Refused: replayed
        """
        if message.n is not None:
            if self.n is not None and message.n <= self.n:
                raise Refused("replayed")
            self.n = message.n
        self.fresh = True
        at = message.at if message.at is not None else now
        self._message = message
        # Of the same moment its page says more than a message that announces it again.
        if self.page is None or at > self.live.at:
            loss = message.loss
            self.live = Live(
                at=at, step=message.step, phase=message.phase, since=message.since,
                loss=float(loss) if loss is not None else None, saved=message.saved, saved_at=message.saved_at,
                done=bool(message.done), preempt=message.preempt, flat=message.flat,
            )  # fmt: skip
        self._fixed = {}

    def adopt(self, descriptor: int) -> None:
        """Its newest state is read from this page from now on; one that it announces again is the one that it has."""
        page = Page(descriptor)
        # What a process that has ended still had under way is its last word, and its page is read no more.
        if self.gone_since is not None or (self.page is not None and self.page.identity == page.identity):
            page.close()
            return
        if self.page is not None:
            self.page.close()
        self.page, self._fixed = page, {}

    def look(self, now: float) -> None:
        """What its page says now is its state.

        Raises  Refused: future, before_start, replayed, not_understood
        """
        live = self.page.read() if self.page is not None else None
        if live is None:
            return
        self.fresh = True
        believe(live.at, live.since, live.saved_at, now=now, started=self.sender.started)
        if live.at >= self.live.at:
            self.live = live

    def row(self, now: float) -> Values:
        """All that is known of it, as of now. Made anew each time is only what changes from step to step."""
        live, loss = self.live, self.live.loss
        values = dict(self._fixed or self._fix())
        values["rank_done"] = int(live.done)
        values["rank_progress_seconds"] = max(0.0, now - live.at)
        if live.since is not None:
            values["rank_phase_seconds"] = max(0.0, now - live.since)
        if live.saved_at is not None:
            values["rank_saved_seconds"] = max(0.0, now - live.saved_at)
        if live.phase is not None:
            values["rank_phase"] = shown(live.phase)
        if loss is not None:
            nan = not float("-inf") < loss < float("inf")
            values["rank_loss_nan"] = int(nan)
            if not nan:
                values["rank_loss"] = loss
        for column, value in (
            ("rank_step", live.step), ("rank_saved_step", live.saved), ("rank_preempt", live.preempt),
            ("rank_loss_flat_steps", live.flat),
        ):  # fmt: skip
            if value is not None:
                values[column] = value
        return values

    def end(self, now: float) -> None:
        """Its process has ended; nothing is read any more."""
        self.gone_since, self._fixed = now, {}
        self.drop()

    def drop(self) -> None:
        """Its page is given back."""
        if self.page is not None:
            self.page.close()

    def _fix(self) -> Values:
        """The columns that stay as they are until something new is told."""
        message = self._message
        told: dict[str, Value] = {}
        via = DATAGRAM if self.page is None else LIBRARY
        if message is not None:
            via = LIBRARY if message.via == LIBRARY else via
            told = {
                "rank_world": message.world, "rank_restart": message.restart, "rank_host": message.host,
                "rank_save_blocked_seconds": message.blocked, "rank_save_holds": message.holds,
                "rank_devices": message.devices, "rank_flight": message.flight,
            }  # fmt: skip
        self._fixed = {
            "rank_job": self.job, "rank_number": self.number, "rank_pid": self.sender.pid,
            "rank_uid": self.sender.uid, "rank_via": via, "rank_gone": int(self.gone_since is not None),
            **{k: shown(v) if isinstance(v, str) else v for k, v in told.items() if v is not None},
        }  # fmt: skip
        return self._fixed


class Register:
    """All ranks of this node that beat."""

    def __init__(self, senders: Senders, limits: Limits) -> None:
        """Nobody was heard yet."""
        self._senders, self._limits = senders, limits
        self._ranks: dict[SubjectId, Rank] = {}
        self._met: dict[int, Sender] = {}
        # What a sender spoke for, by what it called it: found again without asking anew whose job that is.
        self._spoken: dict[tuple[int, int, int, str | None], Rank] = {}
        self._ended: set[int] = set()  # pids that are a rank's and were found to have ended
        self._of_process = Allowance[tuple[int, int]](limits.messages_of_process, limits.messages_of_process)
        self._of_user = Allowance[int](limits.messages_of_user, limits.messages_of_user)
        self._meetings = Allowance[int](limits.meetings_of_user, limits.meetings_of_user)
        self.refused: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self.flooding: dict[int, int] = {}  # what was refused of each user as a flood; who reads it empties it
        self.heard = 0

    def hear(self, came: Iterable[Received], now: float) -> None:
        """What came is known, or counted as refused; of each sender the newest is looked at first."""
        by_sender: dict[tuple[int, int], list[Received]] = {}
        for one in came:
            by_sender.setdefault((one.pid, one.uid), []).append(one)
        for (pid, uid), said in by_sender.items():
            self.heard += len(said)
            allowed = self._of_process.take((pid, uid), len(said), now)
            allowed = self._of_user.take(uid, allowed, now)
            unheard = len(said) - allowed
            if unheard:
                self.refused["flood"] += unheard
                self.flooding[uid] = self.flooding.get(uid, 0) + unheard
            for one in said[:unheard]:
                _give_back(one.page)
            self._hear_sender(pid, uid, said[unheard:], now)

    def _hear_sender(self, pid: int, uid: int, said: list[Received], now: float) -> None:
        """Of each rank that it speaks for the newest message was taken or refused; it makes those before it
        superfluous, and what cannot be read is counted."""
        newest: dict[int, tuple[Message, int | None]] = {}
        mark: bytes | None = None
        for one in reversed(said):
            page = one.page
            self.refused["page"] += one.stray
            # Most of what comes is an older word of the same rank: it is not even decoded.
            if mark is not None and page is None and mark in one.data:
                continue
            try:
                if one.cut:
                    raise Refused("oversized")
                message = understand(one.data)
                # Before it can hide one that is right; when its process was started is not known yet.
                believe(message.at, message.since, message.saved_at, now=now, started=0.0)
            except Refused as refused:
                self.refused[refused.reason] += 1
                _give_back(page)
                continue
            number = message.rank
            if number not in newest:
                newest[number] = (message, page)
                mark = b'"rank":%d,' % number
            elif newest[number][1] is None:
                newest[number] = (newest[number][0], page)
            else:
                _give_back(page)
        for message, page in newest.values():
            try:
                self._take(message, pid, uid, page, now)
            except Refused as refused:
                self.refused[refused.reason] += 1
                _give_back(page)

    def _take(self, message: Message, pid: int, uid: int, page: int | None, now: float) -> None:
        sender = self._sender(pid, uid, now)
        believe(message.at, message.since, message.saved_at, now=now, started=sender.started)
        spoken = self._spoken.get((pid, sender.ticks, message.rank, message.job))
        if spoken is not None and self._ranks.get(spoken.subject) is spoken:
            held = spoken
        else:
            job = job_of(sender, message.job)
            known = self._ranks.get(rank(job, message.rank))
            same = known is not None and known.sender[:2] == sender[:2]
            held = known if known is not None and same else self._make_place(job, message.rank, sender, known)
        held.tell(message, now)
        self._ranks[held.subject] = held
        self._spoken[pid, sender.ticks, message.rank, message.job] = held
        if page is not None:
            if held.page is None and self._pages() >= self._limits.pages:
                raise Refused("too_many")
            held.adopt(page)

    def _sender(self, pid: int, uid: int, now: float) -> Sender:
        """The process that sent it. One that has ended since it was met is still the one, unless its pid was given
        anew.

        Raises  Refused: unseen, flood
        """
        known = self._met.get(pid)
        if known is not None and known.uid == uid and pid not in self._ended:
            return known
        if not self._meetings.take(uid, 1, now):
            raise Refused("flood")
        met = self._senders.meet(pid, uid)
        if met is not None:
            self._met[pid] = met
            self._ended.discard(pid)
            return met
        if known is not None and known.uid == uid:
            return known
        raise Refused("unseen")

    def _pages(self) -> int:
        return sum(one.page is not None and one.gone_since is None for one in self._ranks.values())

    def _make_place(self, job: JobId, number: int, sender: Sender, held: Rank | None) -> Rank:
        """The rank, now that sender's.

        Raises  Refused: foreign_rank, superseded, too_many
        """
        if held is not None:
            if self._senders.lives(held.sender):
                if held.sender.uid != sender.uid:
                    raise Refused("foreign_rank")
                if held.sender.ticks > sender.ticks:
                    raise Refused("superseded")
            held.drop()
            return Rank(job, number, sender)
        own = [one for one in self._ranks.values() if one.sender.uid == sender.uid]
        if len(own) >= self._limits.ranks_of_user:
            self._forget_one(own)
        elif len(self._ranks) >= self._limits.ranks:
            self._forget_one(list(self._ranks.values()))
        return Rank(job, number, sender)

    def _forget_one(self, ranks: list[Rank]) -> None:
        """There is place for another one: that of whom has been gone the longest.

        Raises  Refused: too_many
        """
        gone = [(one.gone_since, one.subject) for one in ranks if one.gone_since is not None]
        if not gone:
            raise Refused("too_many")
        del self._ranks[min(gone)[1]]

    def look(self, now: float) -> None:
        """Pages are read, who has ended is known, and who has been gone for long is forgotten."""
        for held in list(self._ranks.values()):
            if held.gone_since is not None:
                if now - held.gone_since >= self._limits.linger:
                    del self._ranks[held.subject]
                continue
            self._look_at(held, now)
            # Who told something new lives; to ask each time would cost more than all else. But a page outlives its
            # process while another one has it.
            told, held.fresh = held.fresh, False
            if told and now - held.proven < PROVEN:
                continue
            held.proven = now
            if not self._senders.lives(held.sender):
                self._look_at(held, now)  # what stands there now is the last that it said
                held.end(now)
                self._ended.add(held.sender.pid)
        self._forget(now)

    def _look_at(self, held: Rank, now: float) -> None:
        try:
            held.look(now)
        except Refused as refused:
            self.refused[refused.reason] += 1

    def _forget(self, now: float) -> None:
        """What is no longer of use is not kept."""
        pids = {held.sender.pid for held in self._ranks.values()}
        self._met = {pid: sender for pid, sender in self._met.items() if pid in pids}
        self._ended &= pids
        if len(self._spoken) > len(self._ranks):
            self._spoken = {key: one for key, one in self._spoken.items() if self._ranks.get(one.subject) is one}
        for allowance in (self._of_process, self._of_user, self._meetings):
            allowance.forget(now)

    @property
    def living(self) -> int:
        """How many ranks there are whose processes live."""
        return sum(held.gone_since is None for held in self._ranks.values())

    @property
    def lingering(self) -> bool:
        """Whether there are ranks at all."""
        return bool(self._ranks)

    @property
    def by_datagram(self) -> bool:
        """Whether a living rank can tell of itself by messages alone."""
        return any(held.gone_since is None and held.page is None for held in self._ranks.values())

    def rows(self, now: float) -> Rows:
        """A row for each rank, and one of the node."""
        rows: Rows = {held.subject: held.row(now) for held in self._ranks.values()}
        rows[NODE] = {
            "heartbeats_total": self.heard, "heartbeat_ranks": self.living,
            "heartbeats_refused_total": tuple(part for pair in self.refused.items() for part in pair),
        }  # fmt: skip
        return rows


def _give_back(descriptor: int | None) -> None:
    """A page that nobody wants is closed."""
    if descriptor is not None:
        Page(descriptor).close()
