"""One job as it is seen at one moment, from all that is known of its ranks, its processes and its GPUs."""

from dataclasses import dataclass, field
from typing import Literal

from gpuguard.jobs.flight import Comparison
from gpuguard.model.ids import JobId, SubjectId
from gpuguard.model.jobs import Verdict

# What a GPU did within the window. `spinning`: kernels run and nothing is computed or moved, as while a collective
# waits; `sawtooth`: bursts of work and long gaps, again and again; `unknown`: not enough was measured to tell.
Pattern = Literal["working", "spinning", "idle", "sawtooth", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """One GPU of a job. `worked` is whether it was ever seen working for this job; `pattern_seconds` for how long it
    has been so; `activity` is the mean of the last minute or two; `sm` the share of its SMs that were held at the last
    look: few by a collective that waits, often all by another kernel that never ends. `words` what was measured, for
    people: "SM 98 %, tensor 0 %, 164 of 700 W"."""

    gpu: SubjectId
    pattern: Pattern = "unknown"
    pattern_seconds: float = 0.0
    activity: float | None = None
    sm: float | None = None
    worked: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """One process of a job. Rates are over the last twenty seconds or so; None where they are not known. `rank` is the
    number that its environment gives it.

    `still` is for how many seconds it has neither used a processor nor gone to sleep by itself nor moved a byte, its
    children included; `state_seconds` for how long it has been in its state; `io_stalled` the share of that time in
    which its cgroup waited for storage.
    """

    pid: int
    rank: int | None = None
    gpu: SubjectId | None = None
    name: str = ""
    state: str = ""
    state_seconds: float = 0.0
    gone: bool = False
    cpu: float | None = None
    children: int = 0
    children_cpu: float | None = None
    io_bytes_per_second: float | None = None
    io_stalled: float | None = None
    still: float = 0.0
    waits_in: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank on this node. `silent` is since when it showed no progress, `limit` after how long that is a hang, both
    in seconds; `learned` says that the limit comes from its own past. `behind` are steps to the farthest rank here;
    `slower` how many times longer its steps take than they usually do. `ended` is how long ago its process ended, in
    seconds, None where it lives or nobody saw it end. `started` is whether it made its first step."""

    number: int
    pid: int | None = None
    step: int | None = None
    phase: str = ""
    silent: float | None = None
    limit: float = 0.0
    learned: bool = False
    behind: int = 0
    slower: float | None = None
    done: bool = False
    gone: bool = False
    ended: float | None = None
    started: bool = True
    gpu: SubjectId | None = None
    task: TaskView | None = None
    collective: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job on this node. `world` is how many ranks it has over all nodes, None where nobody told; `elsewhere` says
    that some of them are on other nodes; `seen` for how many seconds it has been seen. `flight` is what its flight
    recorders say together, by dumps that were written since its ranks stopped; `suspended` that its scheduler stopped
    it for a while."""

    job: JobId
    seen: float = 0.0
    world: int | None = None
    elsewhere: bool = False
    ranks: tuple[RankView, ...] = ()
    gpus: tuple[GpuView, ...] = ()
    tasks: tuple[TaskView, ...] = ()
    flight: Comparison | None = None
    suspended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What holds the job up, and how sure that is. `verdict` is None where nothing does.

    `confidence` lies between 0 and 1; from `Settings.sure` on it is a finding. `speaks_for` and `against` are short
    sentences.
    """

    verdict: Verdict | None = None
    confidence: float = 0.0
    rank: int | None = None
    gpu: SubjectId | None = None
    why: str = ""
    speaks_for: tuple[str, ...] = field(default=())
    against: tuple[str, ...] = field(default=())
