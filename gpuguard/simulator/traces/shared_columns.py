"""The columns in which gpuguard's own traces are written, CSV with a header.

Shape   jobs: job_id, submit_s, duration_s, gpus are required; gpu_type, cpus (cores of the whole job), mem (MiB of the
        whole job), user, queue, status, qos, gpu_milli may be there; so may the other fields of a Job by their names
        (account, tier, level, name, nodes, gpu_memory, memory_bandwidth, network_bandwidth, per, walltime, checkpoints,
        preemptible, extends, least_gpus, requeues, exclusive, prepares, proof, pool), those of its wish (within,
        required, wait), and `after`. Of an empty cell the default holds. gpu_type: A|B is either. after: what must come
        first, with ; between: afterok:ID, afterany:ID, singleton, condition:WORD.
        nodes: node_id, gpus, gpu_type, cpus, mem are required; rack, pod, gpu_memory, pool may be there; an empty cell
        does not constrain.
        GPU types: job_id, gpu_type; it constrains jobs of another file
Without a tier, a job is training when it takes whole GPUs. Training never shares one, so a share of a GPU is batch, and
so is work for CPUs alone: as batch, and not as background, it keeps its place in the order of arrival.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.request import LEVELS, TIERS, WHOLE, Dependency, Job, Wish
from gpuguard.scheduler.settings import Settings
from gpuguard.simulator import cells
from gpuguard.simulator.cells import Mistakes, shown
from gpuguard.simulator.trace import STATUSES, Trace, TraceJob

MOST_GPUS_OF_A_NODE = 64
"""A mask of a node's GPUs has as many bits."""

Read = Callable[[str], Any]  # Any: each column has its own type

_types: Read = partial(cells.many, mark="|")
_gpus: Read = partial(cells.whole, most=cells.MOST_GPUS, unit="a count of GPUs")
_cores: Read = partial(cells.number, most=cells.MOST_CORES, unit="cores")
_mib: Read = partial(cells.number, most=cells.MOST_MIB, unit="MiB")
_whole_mib: Read = partial(cells.whole, most=cells.MOST_MIB, unit="MiB")
_mib_per_second: Read = partial(cells.number, most=cells.MOST_MIB, unit="MiB/s")


def _milli(text: str) -> int:
    value = cells.whole(text, most=cells.MOST_GPUS, unit="thousandths of a GPU")
    if value > WHOLE:
        raise ValueError(f"{shown(text)} is more than a whole GPU; write 1 to {WHOLE}, and the count under gpus")
    return value


def _positive(text: str) -> int:
    if (value := int(_gpus(text))) < 1:
        raise ValueError(f"{shown(text)} is too few; write 1 or more, or leave the cell empty")
    return value


def _walltime(text: str) -> int:
    if (value := cells.seconds(text)) < 1:
        raise ValueError(f"{shown(text)} is no time to run in; write seconds, or leave the cell empty")
    return value


def _after(text: str) -> tuple[Dependency, ...]:
    found = []
    for part in cells.many(text, ";"):
        relation, _, name = part.partition(":")
        match relation:
            case "afterok" | "afterany" | "condition" if name:
                found.append(Dependency(relation=relation, name=name))
            case "singleton":
                found.append(Dependency(relation=relation, name=name))
            case _:
                raise ValueError(
                    f"{shown(part)} is not understood; write afterok:ID, afterany:ID, singleton or condition:WORD"
                )
    return tuple(found)


# The column, the field of Job that it fills, and how it is read.
_JOB: Mapping[str, tuple[str, Read]] = {
    "gpus": ("gpus", _gpus), "gpu_type": ("gpu_types", _types), "gpu_milli": ("gpu_milli", _milli),
    "cpus": ("cpus", _cores), "mem": ("memory", _mib), "user": ("user", cells.word), "qos": ("qos", cells.word),
    "account": ("account", cells.word), "tier": ("tier", cells.one_of(TIERS)), "level": ("level", cells.one_of(LEVELS)),
    "name": ("name", cells.word), "nodes": ("nodes", _positive), "gpu_memory": ("gpu_memory", _whole_mib),
    "memory_bandwidth": ("memory_bandwidth", _mib_per_second),
    "network_bandwidth": ("network_bandwidth", _mib_per_second),
    "per": ("per", cells.one_of(("job", "node", "gpu"))), "walltime": ("walltime", _walltime),
    "checkpoints": ("checkpoints", cells.truth), "preemptible": ("preemptible", cells.truth),
    "extends": ("extends", cells.truth), "least_gpus": ("least_gpus", _positive),
    "requeues": ("requeues", partial(cells.whole, most=cells.MOST_GPUS, unit="a count of requeues")),
    "exclusive": ("exclusive", cells.truth), "prepares": ("prepares", cells.truth), "proof": ("proof", cells.truth),
    "after": ("after", _after), "pool": ("pool", cells.word),
}  # fmt: skip
_WISH: Mapping[str, Read] = {
    "within": cells.one_of(("rack", "pod", "any")), "required": cells.truth, "wait": cells.seconds,
}  # fmt: skip
_OWN = ("job_id", "submit_s", "duration_s", "status", "queue")
_status: Read = cells.one_of(STATUSES)

_NODE: Mapping[str, tuple[str, Read]] = {
    "gpus": ("gpus", _gpus), "gpu_type": ("gpu_type", cells.word), "cpus": ("cpus", _cores), "mem": ("memory", _mib),
    "rack": ("rack", cells.word), "pod": ("pod", cells.word), "gpu_memory": ("gpu_memory", _whole_mib),
    "pool": ("pool", cells.word),
}  # fmt: skip


class _Row:
    """One row's cells, read one by one; what cannot be is a mistake at its place."""

    __slots__ = ("cells", "line", "mistakes", "wrong")

    def __init__(self, line: int, found: Mapping[str, str], mistakes: Mistakes) -> None:
        self.line, self.cells, self.mistakes, self.wrong = line, found, mistakes, False

    def mistake(self, column: str, what: str) -> None:
        self.wrong = True
        self.mistakes.at(self.line, column, what)

    def get(self, column: str, read: Read, otherwise: Any = None) -> Any:  # Any: each column has its own type
        if (text := self.cells.get(column)) is None:
            return otherwise
        try:
            return read(text)
        except ValueError as error:
            self.mistake(column, str(error))
            return otherwise

    def must(self, column: str, read: Read, step: str) -> Any:  # Any: as above
        if column not in self.cells:
            self.mistake(column, f"the cell is empty; {step}")
        return self.get(column, read)

    def fields(self, columns: Mapping[str, tuple[str, Read]]) -> dict[str, Any]:  # Any: as above
        found = {}
        for column in self.cells:
            if (known := columns.get(column)) is not None:
                found[known[0]] = self.get(column, known[1])
        return found

    def id(self, column: str, seen: dict[str, int]) -> str:
        """The row's own name, which no row before it has."""
        name = self.must(column, cells.word, "give each row a name of its own") or ""
        if name and (first := seen.setdefault(name, self.line)) != self.line:
            self.mistake(column, f"{shown(name)} is also in line {first}; give each row a name of its own")
        return name


def jobs(lines: Iterable[str], file: str, queues: Collection[str] = tuple(Settings().queues)) -> Trace:
    """All jobs of the file, in its order, each as its owner would submit it, without a walltime unless one is told.

    Shape   queues: those that the scheduler has. Under another name (a virtual cluster of its own) a job is submitted
            to the default queue, and `TraceJob.queue` keeps the name
    Raises  ConfigInvalid with every mistake (at most ten) by file, line and column
    """
    mistakes = Mistakes(file)
    table = cells.rows(
        lines, mistakes, required=("job_id", "submit_s", "duration_s", "gpus"), known=(*_OWN, *_JOB, *_WISH)
    )
    _, header = next(table)
    seen: dict[str, int] = {}
    found: list[TraceJob] = []
    children: list[tuple[int, Dependency]] = []
    for line, row in table:
        traced = _job(_Row(line, row, mistakes), seen, queues)
        if traced is not None:
            found.append(traced)
            children.extend((line, what) for what in traced.job.after if what.relation in {"afterok", "afterany"})
    for line, dependency in children:
        if dependency.name not in seen:
            mistakes.at(line, "after", f"no job {shown(dependency.name)} is in the file; add it, or take this out")
    if not seen and not len(mistakes):
        mistakes.at(2, "job_id", "the file has no jobs; write one a line")
    mistakes.settle()
    unread = tuple(name for name in header if name not in _JOB and name not in _WISH and name not in _OWN)
    return Trace(jobs=tuple(found), unread=unread)


def _job(row: _Row, seen: dict[str, int], queues: Collection[str]) -> TraceJob | None:
    """The row's job; None when it has a mistake."""
    name = row.id("job_id", seen)
    submit = row.must("submit_s", cells.seconds, "write seconds from the trace's first instant")
    duration = row.get("duration_s", cells.seconds)
    status = row.get("status", _status, "unknown")
    queue = row.get("queue", cells.word, "")
    if "gpus" not in row.cells:
        row.mistake("gpus", "the cell is empty; write 0 for work on CPUs alone")
    fields = row.fields(_JOB)
    _share(row, fields)
    if any(column in row.cells for column in _WISH):
        fields["wish"] = Wish(**{key: row.get(key, read) for key, read in _WISH.items() if key in row.cells})
    if row.wrong:
        return None
    if "tier" not in fields and (fields["gpus"] == 0 or fields.get("gpu_milli", WHOLE) < WHOLE):
        fields["tier"] = "batch"
    if queue in queues:
        fields["queue"] = queue
    return TraceJob(job=Job(id=name, **fields), submit_s=submit, duration_s=duration, status=status, queue=queue)


def _share(row: _Row, fields: dict[str, Any]) -> None:  # Any: the fields of a Job
    """What the row takes of each GPU makes sense beside how many it takes."""
    gpus, milli = fields.get("gpus"), fields.get("gpu_milli")
    if gpus == 0:
        fields.pop("gpu_milli", None)  # traces write 0 here; there is no GPU to take a share of
    elif gpus is not None and milli is not None and milli < WHOLE:
        if milli == 0:
            row.mistake("gpu_milli", f"0 of a GPU is none; write 1 to {WHOLE}, or 0 under gpus")
        elif gpus > 1:
            row.mistake("gpu_milli", f"a share is of one GPU, and gpus is {gpus}; write {WHOLE} here, or 1 under gpus")


def nodes(lines: Iterable[str], file: str) -> tuple[NodeJoined, ...]:
    """All nodes of the file, in its order, as they join an empty cluster at instant 0.

    Raises  ConfigInvalid with every mistake (at most ten) by file, line and column
    """
    mistakes = Mistakes(file)
    known = ("node_id", *_NODE)
    table = cells.rows(lines, mistakes, required=("node_id", "gpus", "gpu_type", "cpus", "mem"), known=known)
    next(table)
    seen: dict[str, int] = {}
    found: list[NodeJoined] = []
    for line, cells_of_row in table:
        row = _Row(line, cells_of_row, mistakes)
        name = row.id("node_id", seen)
        if "gpus" not in row.cells:
            row.mistake("gpus", "the cell is empty; write 0 for a node without GPUs")
        fields = row.fields(_NODE)
        if (gpus := fields.get("gpus")) is not None and gpus > MOST_GPUS_OF_A_NODE:
            row.mistake(
                "gpus", f"{gpus} is more than one node holds; write at most {MOST_GPUS_OF_A_NODE}, or more rows"
            )
        if not row.wrong:
            found.append(NodeJoined(at=0, node=name, **fields))
    if not seen and not len(mistakes):
        mistakes.at(2, "node_id", "the file has no nodes; write one a line")
    mistakes.settle()
    return tuple(found)


def gpu_types(lines: Iterable[str], file: str) -> dict[str, tuple[str, ...]]:
    """Which GPU types each job may run on, by job_id. Raises ConfigInvalid as `jobs` does."""
    mistakes = Mistakes(file)
    table = cells.rows(lines, mistakes, required=("job_id", "gpu_type"), known=("job_id", "gpu_type"))
    next(table)
    seen: dict[str, int] = {}
    found: dict[str, tuple[str, ...]] = {}
    for line, cells_of_row in table:
        row = _Row(line, cells_of_row, mistakes)
        name = row.id("job_id", seen)
        types = row.get("gpu_type", _types, ())
        if not row.wrong:
            found[name] = types
    mistakes.settle()
    return found


def with_gpu_types(trace: Trace, types: Mapping[str, tuple[str, ...]]) -> tuple[Trace, int]:
    """The trace with these constraints in place of its own, and how many of them name a job that it does not have."""
    constrained = tuple(
        msgspec.structs.replace(traced, job=msgspec.structs.replace(traced.job, gpu_types=types[traced.job.id]))
        if traced.job.id in types else traced
        for traced in trace.jobs
    )  # fmt: skip
    strangers = len(types.keys() - {traced.job.id for traced in trace.jobs})
    return msgspec.structs.replace(trace, jobs=constrained), strangers
