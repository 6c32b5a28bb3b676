"""One watch as it is followed from look to look: what its files did, and what that says of the rank."""

from collections.abc import Callable

from gpuguard.model.ids import JobId, rank
from gpuguard.model.readings import Values
from gpuguard.progress import wire
from gpuguard.sources.watchers.looks import CheckpointsLook, FileLook, LogLook, Sight
from gpuguard.sources.watchers.patterns import Pattern
from gpuguard.sources.watchers.watch import Watch

FILE, LOG, PATTERN, CHECKPOINTS = "file", "log", "pattern", "checkpoints"
Look = Callable[[float], Sight]


class Followed:
    """One watch. `place` makes a path of the watch one that can be opened here; `owner` is whose files alone are read,
    None where root or the site named them."""

    def __init__(
        self, watch: Watch, job: JobId, uid: int | None, owner: int | None, place: Callable[[str], str]
    ) -> None:
        """Raises  NotUnderstood for a pattern that is none"""
        self.watch, self.job, self.uid = watch, job, uid
        self.subject = rank(job, watch.rank)
        self.ticks: int | None = None  # when its process was started, once that was seen
        self.gone_since: float | None = None
        self.paths: dict[str, str] = {}
        self.looks: dict[str, Look] = {}
        if watch.log:
            via = PATTERN if watch.pattern else LOG
            self.paths[via] = place(watch.log)
            pattern = Pattern(watch.pattern) if watch.pattern else None
            self.looks[via] = LogLook(self.paths[via], owner, pattern).look
        if watch.file:
            self.paths[FILE] = place(watch.file)
            self.looks[FILE] = FileLook(self.paths[FILE], owner).look
        if watch.checkpoints:
            self.paths[CHECKPOINTS] = place(watch.checkpoints)
            self.looks[CHECKPOINTS] = CheckpointsLook(self.paths[CHECKPOINTS], owner).look
        self._began: float | None = None
        self._sights: dict[str, Sight | None] = {}
        self._moves: dict[str, int] = {}
        self._changed: dict[str, float] = {}

    @property
    def _shows(self) -> tuple[str, ...]:
        """What shows its progress: checkpoints alone where nothing else does."""
        return tuple(via for via in self.looks if via != CHECKPOINTS) or (CHECKPOINTS,)

    def saw(self, sights: dict[str, Sight | None], now: float) -> None:
        """What the looks of this round found; None is what could not be looked at."""
        self._began = now if self._began is None else self._began
        self._sights = {via: sights.get(via) for via in self.looks}
        for via, sight in self._sights.items():
            if sight is None or not sight.seen:
                continue
            if via not in self._moves:
                # At first its own date tells when it changed. The clock of a server may be wrong by a little.
                self._changed[via] = now - max(0.0, sight.age)
            elif sight.moves != self._moves[via]:
                self._changed[via] = now
            self._moves[via] = sight.moves

    def row(self, now: float) -> Values:
        """The rank as its files show it; what could not be looked at is unknown, and no sign that it stands still."""
        watch, shows = self.watch, self._shows
        values: Values = {
            "rank_job": self.job, "rank_number": watch.rank, "rank_via": shows[0],
            "rank_progress_seconds": self._progress(now),
        }  # fmt: skip
        if watch.world is not None:
            values["rank_world"] = watch.world
        if watch.pid is not None:
            values |= {"rank_pid": watch.pid, "rank_gone": int(self.gone_since is not None)}
        if self.uid is not None:
            values["rank_uid"] = self.uid
        steps = [sight.step for via in shows if (sight := self._sights.get(via)) is not None and sight.step is not None]
        if steps:
            values["rank_step"] = max(steps)
        moved = any(self._moves.get(via, 0) for via in shows)
        values["rank_phase"] = wire.STEP if moved or steps else wire.START
        if CHECKPOINTS in self.looks:
            sight = self._sights.get(CHECKPOINTS)
            if sight is None:
                values |= {"rank_saved_step": None, "rank_saved_seconds": None}
            elif sight.seen:
                values["rank_saved_seconds"] = max(0.0, now - self._changed[CHECKPOINTS])
                if sight.step is not None:
                    values["rank_saved_step"] = sight.step
        return values

    def _progress(self, now: float) -> float | None:
        if self._began is None or any(self._sights.get(via) is None for via in self._shows):
            return None
        # What has not turned up yet has been waited for since it is watched.
        return max(0.0, now - max(self._changed.get(via, self._began) for via in self._shows))
