"""Which jobs wait for something, and who may run or never will when something happens.

Theory. An edge always points to a job that was added before: parents must be known at submit, jobs submitted together
are added parents first, and a singleton waits for those of its name that stood before it. So the graph has no cycle,
and what waits can always be reached. A job that can never run counts as ended without success: those that wanted its
success never run either, those that only wanted its end may run.

Only jobs that wait, are waited for, or have a name are held; any other costs one look into a dictionary. An event costs
as much as it changes. Order is that of adding, never that of hashes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from gpuguard.scheduler.request import Job, Relation

Standing = Literal["eligible", "waits", "never"]
Need = tuple[Relation, str]
Line = tuple[str, str]
"""Those of one user and name, in the order of their adding."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What an event changed.

    Shape   eligible: may start now. held: might have started, and may no longer. never: (job, the job it waited for):
            it can never run, and counts as ended
    """

    eligible: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    never: tuple[tuple[str, str], ...] = ()


NOTHING = Change()


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """What a job waits for: a relation, and the job, the name or the word that it names."""

    relation: Relation
    name: str

    def __str__(self) -> str:
        match self.relation:
            case "afterok":
                return f"waits until job {self.name} has completed"
            case "afterany":
                return f"waits until job {self.name} has ended"
            case "singleton":
                return f"waits until no other job named {self.name} is before it or runs"
            case "condition":
                return f"waits until {self.name} is told"


class Dependencies:
    """The jobs that wait, and for what. Not for two threads."""

    def __init__(self) -> None:
        self._needs: dict[str, dict[Need, None]] = {}  # of each job with dependencies that has not ended: what is unmet
        self._lengths: dict[str, int | None] = {}  # their walltimes
        self._children: dict[str, dict[str, None]] = {}
        self._askers: dict[str, dict[str, None]] = {}  # word of a condition -> jobs
        self._words: dict[str, tuple[str, ...]] = {}  # and back
        self._met: dict[str, None] = {}
        self._lines: dict[Line, dict[str, bool]] = {}  # True: a singleton
        self._line_of: dict[str, Line] = {}
        self._busy: dict[Line, int] = {}
        self._started: dict[str, None] = {}  # those with dependencies or a name
        self._prepares: dict[str, None] = {}

    def copy(self) -> "Dependencies":
        """The same, and on its own from here."""
        other = Dependencies()
        other._needs = {job: needs.copy() for job, needs in self._needs.items()}
        other._children = {job: children.copy() for job, children in self._children.items()}
        other._askers = {word: jobs.copy() for word, jobs in self._askers.items()}
        other._lines = {line: jobs.copy() for line, jobs in self._lines.items()}
        other._lengths, other._words, other._met = self._lengths.copy(), self._words.copy(), self._met.copy()
        other._line_of, other._busy = self._line_of.copy(), self._busy.copy()
        other._started, other._prepares = self._started.copy(), self._prepares.copy()
        return other

    def add(self, job: Job, outcome: Callable[[str], bool | None]) -> Standing:
        """The job is known, and may start, waits, or never can; one that never can is not kept.

        Shape   outcome: how a job that is waited for ended: True with success, False without, None not yet. It is asked
                for parents alone. A parent must have been added before
        """
        if not job.after:
            if job.name:
                self._stand(job, singleton=False)
            if job.prepares:
                self._prepares[job.id] = None
            return "eligible"
        needs: dict[Need, None] = {}
        words: list[str] = []
        singleton = False
        for dependency in job.after:
            match dependency.relation:
                case "singleton":
                    singleton = True
                case "condition":
                    words.append(dependency.name)
                    if dependency.name not in self._met:
                        needs["condition", dependency.name] = None
                case "afterok" | "afterany":
                    ended = outcome(dependency.name)
                    if ended is None:
                        needs[dependency.relation, dependency.name] = None
                    elif not ended and dependency.relation == "afterok":
                        return "never"
        for relation, name in needs:
            if relation != "condition":
                self._children.setdefault(name, {})[job.id] = None
        for word in words:
            self._askers.setdefault(word, {})[job.id] = None
        if words:
            self._words[job.id] = tuple(words)
        self._needs[job.id] = needs
        self._lengths[job.id] = job.walltime
        if job.prepares:
            self._prepares[job.id] = None
        if job.name:
            line = self._stand(job, singleton=singleton)
            if singleton and len(self._lines[line]) > 1:
                needs["singleton", job.name] = None
        return "waits" if needs else "eligible"

    def ended(self, job: str, ok: bool) -> Change:
        """A job has ended for good (not to be started again); a second time, or one that nobody knows, changes nothing.

        Shape   ok: it did what those wanted that wait for its success
        """
        if job not in self._children and job not in self._needs and job not in self._line_of:
            self._prepares.pop(job, None)
            return NOTHING
        eligible: list[str] = []
        never: list[tuple[str, str]] = []
        ends = [(job, ok)]
        for name, passed in ends:  # grows while it is walked: depth costs no stack
            self._needs.pop(name, None)
            self._leave(name, eligible)
            for child in self._children.pop(name, ()):
                needs = self._needs.get(child)
                if needs is None:
                    continue
                if not passed and ("afterok", name) in needs:
                    del self._needs[child]
                    never.append((child, name))
                    ends.append((child, False))
                    continue
                needs.pop(("afterany", name), None)
                needs.pop(("afterok", name), None)
                if not needs:
                    eligible.append(child)
        return Change(eligible=tuple(eligible), never=tuple(never))

    def told(self, word: str, met: bool = True) -> Change:
        """The word of a condition is met, or no longer: those that wait for it and have not started follow."""
        if met == (word in self._met):
            return NOTHING
        if met:
            self._met[word] = None
        else:
            del self._met[word]
        need: Need = ("condition", word)
        changed: list[str] = []
        for job in self._askers.get(word, ()):
            needs = self._needs[job]
            if met:
                needs.pop(need, None)
                free = not needs
            else:
                free = not needs
                needs[need] = None
            if free and job not in self._started:
                changed.append(job)
        return Change(eligible=tuple(changed)) if met else Change(held=tuple(changed))

    def started(self, job: str) -> Change:
        """The job runs. A singleton of its name that might have started may no longer."""
        line = self._line_of.get(job)
        if job in self._started or (line is None and job not in self._needs):
            return NOTHING
        self._started[job] = None
        if line is None:
            return NOTHING
        self._busy[line] = self._busy.get(line, 0) + 1
        held: list[str] = []
        self._look(line, [], held)
        return Change(held=tuple(held))

    def requeued(self, job: str) -> Change:
        """The job waits again, in its old place. It is among the eligible, or the held, where it has dependencies."""
        if job not in self._started:
            return NOTHING
        del self._started[job]
        eligible: list[str] = []
        line = self._line_of.get(job)
        if line is not None:
            self._rest(line)
            self._look(line, eligible, [])
        needs = self._needs.get(job)
        if needs:
            return Change(eligible=tuple(eligible), held=(job,))
        if needs is not None and job not in eligible:
            eligible.append(job)
        return Change(eligible=tuple(eligible))

    def held(self, job: str) -> bool:
        """It waits for something."""
        return bool(self._needs.get(job))

    def blocked(self, job: str) -> tuple[Reason, ...]:
        """What the job waits for, in the order in which it was said or came about; nothing: it may start."""
        return tuple(Reason(relation=relation, name=name) for relation, name in self._needs.get(job, ()))

    def waiters(self, job: str) -> tuple[str, ...]:
        """Those that wait for this one's end."""
        return tuple(child for child in self._children.get(job, ()) if child in self._needs)

    def parents(self, job: str) -> tuple[str, ...]:
        """Those whose end this one names and still waits for."""
        return tuple(
            dict.fromkeys(name for relation, name in self._needs.get(job, ()) if relation in {"afterok", "afterany"})
        )

    def room_for(self, job: str) -> tuple[str, ...]:
        """The data preparations, queued or running, for which this job waits, near ones first, however far up."""
        if not self._prepares or not self._needs.get(job):
            return ()
        seen = dict.fromkeys(self.parents(job))
        ahead = list(seen)
        for name in ahead:
            for parent in self.parents(name):
                if parent not in seen:
                    seen[parent] = None
                    ahead.append(parent)
        return tuple(name for name in ahead if name in self._prepares)

    def expected(self, job: str, ends: Callable[[str], int | None]) -> int | None:
        """The instant by which all that the job waits for should have ended: its place can be planned from then on.

        Shape   ends: the expected end of a job that runs or might start now; those between last their walltimes. 0: it
                waits for nothing. None: nobody can say, for a condition is unmet or somebody has no walltime
        """
        if not self.held(job):
            return 0
        starts: dict[str, int | None] = {}
        opened: dict[str, None] = {}
        before: dict[Line, dict[str, list[str]]] = {}
        way = [job]
        while way:
            name = way[-1]
            if name in starts:
                way.pop()
                continue
            if self._untold(name):
                starts[name] = None
                continue
            ahead = self._ahead(name, before)
            if name not in opened:
                opened[name] = None
                way.extend(other for other in ahead if other not in starts and self._waits(other))
            else:
                starts[name] = self._latest(ahead, starts, ends)
        return starts[job]

    def _latest(
        self, ahead: Iterable[str], starts: dict[str, int | None], ends: Callable[[str], int | None]
    ) -> int | None:
        latest = 0
        for name in ahead:
            if self._waits(name):
                start, length = starts.get(name), self._lengths[name]
                end = None if start is None or length is None else start + length
            else:
                end = ends(name)
            if end is None:
                return None
            latest = max(latest, end)
        return latest

    def _waits(self, job: str) -> bool:
        return job not in self._started and self.held(job)

    def _untold(self, job: str) -> bool:
        return any(word not in self._met for word in self._words.get(job, ()))

    def _ahead(self, job: str, before: dict[Line, dict[str, list[str]]]) -> Sequence[str]:
        """Those whose end decides when the job may start; `before` keeps what was found of a line."""
        named = self.parents(job)
        line = self._line_of.get(job)
        if line is None or ("singleton", line[1]) not in self._needs[job]:
            return named
        if line not in before:
            before[line] = self._before(line)
        return (*named, *before[line][job])

    def _before(self, line: Line) -> dict[str, list[str]]:
        """Of each singleton, those up to the singleton before it: that one waits for the rest."""
        found: dict[str, list[str]] = {}
        running = [name for name in self._lines[line] if name in self._started]
        since: list[str] = []
        for name, singleton in self._lines[line].items():
            if not singleton:
                since.append(name)
                continue
            found[name] = since + running
            since = [name]
            if name not in self._started:
                running = []
        return found

    def _stand(self, job: Job, *, singleton: bool) -> Line:
        line = (job.user, job.name)
        self._lines.setdefault(line, {})[job.id] = singleton
        self._line_of[job.id] = line
        return line

    def _leave(self, job: str, eligible: list[str]) -> None:
        """The job stands nowhere any more."""
        self._lengths.pop(job, None)
        self._prepares.pop(job, None)
        for word in self._words.pop(job, ()):
            if askers := self._askers.get(word):
                askers.pop(job, None)
                if not askers:
                    del self._askers[word]
        started = job in self._started
        self._started.pop(job, None)
        line = self._line_of.pop(job, None)
        if line is None:
            return
        if started:
            self._rest(line)
        stand = self._lines[line]
        del stand[job]
        if stand:
            self._look(line, eligible, [])
        else:
            del self._lines[line]

    def _rest(self, line: Line) -> None:
        self._busy[line] -= 1
        if not self._busy[line]:
            del self._busy[line]

    def _look(self, line: Line, eligible: list[str], held: list[str]) -> None:
        """The first of a line, if it is a singleton, waits or may start; those behind it wait in any case."""
        first, singleton = next(iter(self._lines[line].items()))
        if not singleton or first in self._started:
            return
        needs = self._needs.get(first)
        if needs is None:
            return
        need: Need = ("singleton", line[1])
        if self._busy.get(line):
            if not needs:
                held.append(first)
            needs[need] = None
        elif need in needs:
            del needs[need]
            if not needs:
                eligible.append(first)
