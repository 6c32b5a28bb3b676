"""What one node saw of its jobs at one moment, in the form in which nodes' words are put together.

`gpuguard hang --json` prints a NodeSight; `gpuguard hang --merge` reads those of several nodes. Ages are seconds before
`at` of the same sight, so that clocks that differ between nodes do harm only where nodes are compared.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpuguard.errors import NotUnderstood
from gpuguard.jobs.wording import with_numbers
from gpuguard.model.flight import FlightSummary
from gpuguard.model.ids import SubjectId, kind_of
from gpuguard.model.instants import Instant
from gpuguard.model.jobs import Verdict
from gpuguard.model.readings import Row, Value
from gpuguard.model.units import Int64

VERSION = 1
LARGEST = 64 * 2**20  # bytes of one sight; 64 ranks with their groups make 300 KB


class RankSight(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank. What is not known is None, or an empty text.

    `behind` are steps behind the farthest rank; `state` is the kernel's letter of its process; `still` for how long
    that did nothing at all; `gpu` where it is, `called` that GPU's number; `activity` how busy that is, and `pattern`
    what it does, by `words`; `flight` what its collectives did, when its dump was taken `flight_age` ago;
    `dump_problem` why its newest dump could not be read.

    Units   silent, limit, still, flight_age: seconds; activity: of 1
    """

    number: Int64
    host: str = ""
    pid: Int64 | None = None
    step: Int64 | None = None
    behind: Int64 | None = None
    phase: str = ""
    silent: float | None = None
    limit: float | None = None
    state: str = ""
    still: float | None = None
    gone: bool = False
    done: bool = False
    gpu: str = ""
    called: str = ""
    activity: float | None = None
    pattern: str = ""
    words: str = ""
    waits_in: str = ""
    flight: FlightSummary | None = None
    flight_age: float | None = None
    dump_problem: str = ""

    @property
    def share(self) -> float | None:
        """How much of its limit it has been silent for; None where that is not known."""
        return self.silent / self.limit if self.silent is not None and self.limit else None


class JobSight(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job as its node judged it, with its ranks there. `world` is how many it has over all nodes; `gpus` what those
    that it holds are called, and `activity` how busy they are; `silent` is of the rank that was judged.

    Units   silent: seconds; activity, confidence: of 1
    """

    job: str
    name: str = ""
    user: str = ""
    world: Int64 | None = None
    gpus: tuple[str, ...] = ()
    activity: float | None = None
    silent: float | None = None
    ended: bool = False
    verdict: Verdict | None = None
    confidence: float = 0.0
    rank: Int64 | None = None
    gpu: str = ""
    why: str = ""
    speaks_for: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    ranks: tuple[RankSight, ...] = ()


class NodeSight(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs of one node. `at` is seconds since 1970 by the node's own clock; `boot` names its boot. Without
    `attributed` it is not known whose all of its GPUs are."""

    node: str
    at: float
    boot: str = ""
    jobs: tuple[JobSight, ...] = ()
    attributed: bool = True
    version: int = VERSION


_DECODER = msgspec.json.Decoder(NodeSight)
_FLIGHT = msgspec.json.Decoder(FlightSummary)
_VERDICTS: dict[str, Verdict] = {
    "hung": "hung", "straggler": "straggler", "data_starved": "data_starved", "storage_stalled": "storage_stalled",
    "paused": "paused", "slow_start": "slow_start", "waiting": "waiting",
}  # fmt: skip


def sight_of(
    rows: Mapping[SubjectId, Mapping[str, Value]], *, node: str, at: Instant, called: Mapping[str, str] | None = None,
    held: Mapping[str, Sequence[SubjectId]] | None = None, attributed: bool = True,
) -> NodeSight:  # fmt: skip
    """What the rows of a node say of its jobs. `called` are the numbers of its GPUs; `held` names the jobs that are
    wanted, with the GPUs of each: without it all that rows are of.

    Shape   rows by subject, as merged from a Snapshot's readings; of kinds job, rank, task and gpu
    Raises  NotUnderstood where the moment has no date: sights could not be put in order
    """
    if at.utc is None:
        raise NotUnderstood("the snapshot carries no date; is the clock of this node set?")
    known = {name: Row(subject=name, at=at, source="", values=values) for name, values in rows.items()}
    ranks: dict[str, list[RankSight]] = {}
    for name, row in known.items():
        number = row.bits("rank_number")
        if kind_of(name) == "rank" and number is not None:
            job = name.partition(":")[2].rpartition("/")[0]
            ranks.setdefault(job, []).append(_rank(row, number, known, called or {}))
    if held is None:
        held = dict.fromkeys({name.partition(":")[2] for name in known if kind_of(name) == "job"} | ranks.keys(), ())
    return NodeSight(
        node=node, at=at.utc, boot=at.boot, attributed=attributed,
        jobs=tuple(_job(job, known, ranks.get(job, ()), held[job], called or {}) for job in sorted(held)),
    )  # fmt: skip


def _job(
    job: str, known: Mapping[SubjectId, Row], found: Iterable[RankSight], held: Sequence[SubjectId],
    called: Mapping[str, str],
) -> JobSight:  # fmt: skip
    ranks = sorted(found, key=lambda rank: rank.number)
    gpus = tuple(called.get(gpu, gpu) for gpu in held)
    row = known.get(SubjectId(f"job:{job}"))
    told = (known.get(SubjectId(f"rank:{job}/{rank.number}")) for rank in ranks)
    worlds = [world for one in told if one is not None and (world := one.bits("rank_world")) is not None]
    if row is None:
        return JobSight(job=job, world=max(worlds, default=None), gpus=gpus, ranks=tuple(ranks))
    world = row.bits("job_world")
    return JobSight(
        job=job, name=_text(row, "job_name"), user=_text(row, "job_user"),
        world=world if world is not None else max(worlds, default=None), gpus=gpus,
        activity=row.number("job_gpu_activity_ratio"), silent=row.number("job_progress_seconds"),
        ended=row.number("job_ended") == 1, verdict=_VERDICTS.get(_text(row, "job_verdict")),
        confidence=row.number("job_confidence") or 0.0, rank=row.bits("job_culprit_rank"),
        gpu=_text(row, "job_culprit_gpu"), why=with_numbers(_text(row, "job_why"), called),
        speaks_for=_list(row, "job_signals_for", called), against=_list(row, "job_signals_against", called),
        ranks=tuple(ranks),
    )  # fmt: skip


def _rank(row: Row, number: int, known: Mapping[SubjectId, Row], called: Mapping[str, str]) -> RankSight:
    pid = row.bits("rank_pid")
    nothing = Row(subject=row.subject, at=row.at, source="", values={})
    task = known.get(SubjectId(f"task:{pid}"), nothing)
    gpu = _text(row, "rank_gpu")
    card = known.get(SubjectId(gpu), nothing)
    state, active = _text(task, "task_state"), card.number("sm_active_ratio")
    return RankSight(
        number=number, host=_text(row, "rank_host"), pid=pid, step=_whole(row, "rank_step"),
        behind=_whole(row, "rank_behind_steps"), phase=_text(row, "rank_phase"),
        silent=row.number("rank_progress_seconds"), limit=row.number("rank_limit_seconds"), state=state,
        still=row.number("rank_still_seconds"),
        gone=row.number("rank_gone") == 1 or task.number("task_gone") == 1 or state in ("Z", "X"),
        done=row.number("rank_done") == 1, gpu=gpu, called=called.get(gpu, ""),
        activity=active if active is not None else card.number("utilization_ratio"), pattern=_text(card, "gpu_pattern"),
        words=_text(card, "gpu_pattern_words"), waits_in=_text(row, "flight_waits_in"),
        flight=_flight(row), flight_age=row.number("flight_age_seconds"),
        dump_problem=_text(row, "flight_problem"),
    )  # fmt: skip


def _flight(row: Row) -> FlightSummary | None:
    text = row.text("flight_groups")
    if not text:
        return None
    try:
        return _FLIGHT.decode(text)
    except msgspec.MsgspecError:
        return None  # another version's agent wrote it; the columns beside it still say where the rank is


def _text(row: Row, column: str) -> str:
    return row.text(column) or ""


def _list(row: Row, column: str, called: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(part.strip() for part in with_numbers(_text(row, column), called).split(";") if part.strip())


def _whole(row: Row, column: str) -> int | None:
    value = row.number(column)
    return None if value is None else int(value)


def read_sight(name: str, text: bytes) -> NodeSight:
    """The sight in a file.

    Raises  NotUnderstood with what to do about it
    """
    again = "write it anew with `gpuguard hang --json` on that node"
    if len(text) > LARGEST:
        raise NotUnderstood(f"{name}: {len(text)} bytes; a sight has at most {LARGEST}; {again}")
    try:
        sight = _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotUnderstood(f"{name}: no sight of a node: {error}; {again}") from error
    if sight.version != VERSION:
        raise NotUnderstood(f"{name}: version {sight.version} of a sight; {VERSION} is understood; {again}")
    if not sight.node:
        raise NotUnderstood(f"{name}: a sight without the name of its node; {again}")
    return sight
