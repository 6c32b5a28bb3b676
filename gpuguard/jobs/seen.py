"""What is measured at one moment, by what it is about, and whose each process is."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gpuguard.jobs import patrol
from gpuguard.model.ids import NODE, JobId, PciAddress, SubjectId, gpu, kind_of
from gpuguard.model.numbers import numbers_in
from gpuguard.model.readings import Row

HIGHEST = 1024  # number of a GPU that is believed

Rows = Mapping[SubjectId, Row]


class Seen:
    """The rows of jobs, ranks, processes and GPUs.

    A process belongs to the job that its keeper knows, else to that of its rank; `owners` has '' for nobody's, and
    lacks those of which that is not known.
    """

    def __init__(self, rows: Rows) -> None:
        self.gpus: dict[SubjectId, Row] = {}
        self.processes: dict[SubjectId, Row] = {}
        self.tasks: dict[int, Row] = {}
        self.reported: dict[str, Row] = {}
        node = rows.get(NODE)
        self.schedules = node is not None and node.number("scheduler_jobs_known") == 1
        for name, row in rows.items():
            match kind_of(name):
                case "gpu":
                    self.gpus[name] = row
                case "process":
                    self.processes[name] = row
                case "task":
                    self.tasks[int(name.partition(":")[2])] = row
                case "job" if "job_alive" in row.values:
                    self.reported[name.partition(":")[2]] = row
        self.ranks = ranks_of(rows)
        self.owners: dict[int, str] = {
            pid: owner for pid, row in self.tasks.items() if (owner := row.text("task_job")) is not None
        }
        for owner, of_job in self.ranks.items():
            for row in of_job.values():
                told = row.number("rank_pid")
                if told is not None and not self.owners.get(int(told)):
                    self.owners[int(told)] = owner
        self._on: dict[SubjectId, list[SubjectId]] = defaultdict(list)
        self._gpus_with: dict[int, list[SubjectId]] = defaultdict(list)
        for name in self.processes:
            held = gpu(PciAddress(name.partition(":")[2].rpartition("/")[0]))
            self._on[held].append(name)
            self._gpus_with[pid_of(name)].append(held)
        # By job, so that what is asked for each of many ranks and jobs does not look through all processes.
        self._pids_of: dict[str, list[int]] = defaultdict(list)
        self._with_number: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._holding: dict[str, list[SubjectId]] = defaultdict(list)
        for pid, owner in self.owners.items():
            self._pids_of[owner].append(pid)
        for pid, row in self.tasks.items():
            if pid in self.owners and (in_environment := row.text("task_rank")) is not None:
                self._with_number[self.owners[pid], in_environment].append(pid)
        for name in self.processes:
            if owner := self.owners.get(pid_of(name)):
                self._holding[owner].append(name)
        self._gpus_of: dict[str, list[SubjectId]] = defaultdict(list)
        for name in self._on:
            for owner in self.jobs_on(name):
                self._gpus_of[owner].append(name)

    def live_jobs(self) -> Iterable[str]:
        """Jobs of which something is seen that lives."""
        names = dict.fromkeys(self._gpus_of)
        for name, row in self.reported.items():
            if row.number("job_alive") == 1 and (row.number("job_gpus_asked") or 0) > 0:
                names[name] = None
        for name, of_job in self.ranks.items():
            if any(row.number("rank_gone") != 1 and row.number("rank_done") != 1 for row in of_job.values()):
                names[name] = None
        return [name for name in names if self.alive(name) is not False]

    def alive(self, name: str) -> bool | None:
        """Whether its scheduler has it; None where no scheduler tells."""
        row = self.reported.get(name)
        told = row.number("job_alive") if row is not None else None
        return None if told is None else told == 1

    def is_suspended(self, name: str) -> bool:
        """Whether its scheduler has stopped it for a while."""
        row = self.reported.get(name)
        return row is not None and (row.text("job_state") or "").upper() in ("SUSPENDED", "STOPPED")

    def alive_jobs(self) -> dict[JobId, bool | None]:
        """The same for all of which a scheduler tells."""
        return {JobId(name): self.alive(name) for name in self.reported}

    def given(self) -> dict[JobId, frozenset[int] | None]:
        """The numbers of the GPUs that were given to each job; None where that is not told."""
        return {JobId(name): _given(row.text("job_gpus_given")) for name, row in self.reported.items()}

    def sees_all(self) -> bool:
        """Whether processes that the driver lists are seen here: not so in a container that has its own."""
        return any(self.lives(pid_of(name)) for name in self.processes)

    def number(self, name: str, column: str) -> float | None:
        row = self.reported.get(name)
        return None if row is None else row.number(column)

    def jobs_on(self, name: SubjectId) -> list[str]:
        """Jobs with processes on this GPU."""
        owners = (self.owners.get(pid_of(process), "") for process in self._on.get(name, ()))
        return sorted({owner for owner in owners if owner})

    def knows_who_is_on(self, name: SubjectId) -> bool:
        """Whether its processes were listed, and of each it is known whose it is."""
        return self.gpus[name].number("process_count") is not None and all(
            pid_of(process) in self.owners for process in self._on.get(name, ())
        )

    def gpus_of(self, name: str) -> Sequence[SubjectId]:
        """GPUs on which it has processes."""
        return sorted(self._gpus_of.get(name, ()))

    def pids_of(self, name: str) -> Sequence[int]:
        """Its processes."""
        return self._pids_of.get(name, ())

    def holds_gpus(self, name: str) -> bool:
        return bool(self._gpus_of.get(name))

    def gpu_of(self, pid: int | None) -> SubjectId | None:
        """The GPU that a process is on; None where it is on none, or on several."""
        on = self._gpus_with.get(pid, ()) if pid is not None else ()
        return on[0] if len(on) == 1 else None

    def pid_of_rank(self, name: str, number: int) -> int | None:
        """The process that has this number in its environment, one that lives before one that is gone; None where there
        is none, or several."""
        found = self._with_number.get((name, str(number)), ())
        found = [pid for pid in found if self.lives(pid)] or found
        return found[0] if len(found) == 1 else None

    def lives(self, pid: int | None) -> bool:
        """Whether the process is seen to live."""
        row = self.tasks.get(pid) if pid is not None else None
        return row is not None and row.number("task_gone") != 1

    def held_by(self, name: str) -> float | None:
        """Bytes of GPUs that its processes hold; None where one does not tell."""
        held = [self.processes[process].number("process_memory_bytes") for process in self._holding.get(name, ())]
        known = [bytes_ for bytes_ in held if bytes_ is not None]
        return sum(known) if held and len(known) == len(held) else None

    def on(self, name: SubjectId) -> list[patrol.Holder] | None:
        """The processes on a GPU; None where nobody could list them."""
        if self.gpus[name].number("process_count") is None:
            return None
        found = []
        for process in self._on.get(name, ()):
            row, pid = self.processes[process], pid_of(process)
            task, owner, uid = self.tasks.get(pid), self.owners.get(pid), None
            if task is not None and task.number("task_uid") is not None:
                uid = int(task.number("task_uid") or 0)
            instance = row.number("process_mig")
            found.append(
                patrol.Holder(
                    pid=pid, started=task.number("task_started_seconds") if task is not None else None,
                    job=JobId(owner) if owner else None, known=owner is not None,
                    gone=task is not None and (task.number("task_gone") == 1 or task.text("task_state") in ("Z", "X")),
                    bytes=row.number("process_memory_bytes"), kind=row.text("process_kind") or "compute",
                    name=row.text("process_name") or "", uid=uid, instance=None if instance is None else int(instance),
                )
            )  # fmt: skip
        return found


def _of_rank(name: SubjectId, row: Row) -> tuple[str | None, float | None]:
    """Job and number of a rank; of one of which only its flight recorder tells, by its name."""
    owner, number = row.text("rank_job"), row.number("rank_number")
    if owner is not None and number is not None:
        return owner, number
    in_name, _, last = name.partition(":")[2].rpartition("/")
    return (in_name, int(last)) if in_name and last.isdecimal() else (None, None)


def _given(text: str | None) -> frozenset[int] | None:
    """The numbers that `0-1,4` names; None where that is not understood."""
    found = frozenset(numbers_in(text or ""))
    return None if text is None or bool(text) != bool(found) or max(found, default=0) > HIGHEST else found


def pid_of(process: SubjectId) -> int:
    """The process of a row `process:<pci>/<pid>`."""
    return int(process.rpartition("/")[2])


def ranks_of(rows: Rows) -> dict[str, dict[int, Row]]:
    """The rows of ranks by job and number."""
    found: dict[str, dict[int, Row]] = {}
    for name, row in rows.items():
        if kind_of(name) == "rank":
            owner, number = _of_rank(name, row)
            if owner is not None and number is not None:
                found.setdefault(owner, {})[int(number)] = row
    return found
