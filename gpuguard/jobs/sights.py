"""What one node saw of its jobs at one moment, in the form in which nodes' words are put together.

`gpuguard hang --json` prints a NodeSight; `gpuguard hang --merge` reads those of several nodes. Ages are seconds before
`at` of the same sight, so that clocks that differ between nodes do harm only where nodes are compared.
"""

from collections.abc import Mapping

import msgspec

from gpuguard.errors import NotUnderstood
from gpuguard.model.flight import FlightSummary
from gpuguard.model.ids import SubjectId, kind_of
from gpuguard.model.instants import Instant
from gpuguard.model.jobs import Verdict
from gpuguard.model.readings import Row, Value

VERSION = 1
LARGEST = 64 * 2**20  # bytes of one sight; 64 ranks with their groups make 300 KB


class RankSight(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank. What is not known is None, or an empty text.

    `state` is the kernel's letter of its process; `still` for how long that did nothing at all; `gpu` where it is, and
    `pattern` what that does, by `words`; `flight` what its collectives did, when its dump was taken `flight_age` ago.

    Units   silent, limit, still, flight_age: seconds
    """

    number: int
    host: str = ""
    pid: int | None = None
    step: int | None = None
    phase: str = ""
    silent: float | None = None
    limit: float | None = None
    state: str = ""
    still: float | None = None
    gone: bool = False
    done: bool = False
    gpu: str = ""
    pattern: str = ""
    words: str = ""
    waits_in: str = ""
    flight: FlightSummary | None = None
    flight_age: float | None = None


class JobSight(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job as its node judged it, with its ranks there. `world` is how many it has over all nodes."""

    job: str
    name: str = ""
    world: int | None = None
    ended: bool = False
    verdict: Verdict | None = None
    confidence: float = 0.0
    rank: int | None = None
    gpu: str = ""
    why: str = ""
    speaks_for: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    ranks: tuple[RankSight, ...] = ()


class NodeSight(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs of one node. `at` is seconds since 1970 by the node's own clock; `boot` names its boot."""

    node: str
    at: float
    boot: str = ""
    jobs: tuple[JobSight, ...] = ()
    version: int = VERSION


_DECODER = msgspec.json.Decoder(NodeSight)
_FLIGHT = msgspec.json.Decoder(FlightSummary)
_VERDICTS: dict[str, Verdict] = {
    "hung": "hung", "straggler": "straggler", "data_starved": "data_starved", "storage_stalled": "storage_stalled",
    "paused": "paused", "slow_start": "slow_start", "waiting": "waiting",
}  # fmt: skip


def sight_of(rows: Mapping[SubjectId, Mapping[str, Value]], *, node: str, at: Instant) -> NodeSight:
    """What the rows of a node say of its jobs.

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
            ranks.setdefault(job, []).append(_rank(row, number, known))
    jobs = {name.partition(":")[2] for name in known if kind_of(name) == "job"} | ranks.keys()
    return NodeSight(
        node=node, at=at.utc, boot=at.boot,
        jobs=tuple(_job(job, known, sorted(ranks.get(job, ()), key=lambda rank: rank.number)) for job in sorted(jobs)),
    )  # fmt: skip


def _job(job: str, known: Mapping[SubjectId, Row], ranks: list[RankSight]) -> JobSight:
    row = known.get(SubjectId(f"job:{job}"))
    told = (known.get(SubjectId(f"rank:{job}/{rank.number}")) for rank in ranks)
    worlds = [world for one in told if one is not None and (world := one.bits("rank_world")) is not None]
    if row is None:
        return JobSight(job=job, world=max(worlds, default=None), ranks=tuple(ranks))
    world = row.bits("job_world")
    return JobSight(
        job=job, name=_text(row, "job_name"), world=world if world is not None else max(worlds, default=None),
        ended=row.number("job_ended") == 1, verdict=_VERDICTS.get(_text(row, "job_verdict")),
        confidence=row.number("job_confidence") or 0.0, rank=row.bits("job_culprit_rank"),
        gpu=_text(row, "job_culprit_gpu"), why=_text(row, "job_why"), speaks_for=_list(row, "job_signals_for"),
        against=_list(row, "job_signals_against"), ranks=tuple(ranks),
    )  # fmt: skip


def _rank(row: Row, number: int, known: Mapping[SubjectId, Row]) -> RankSight:
    pid = row.bits("rank_pid")
    nothing = Row(subject=row.subject, at=row.at, source="", values={})
    task = known.get(SubjectId(f"task:{pid}"), nothing)
    gpu = _text(row, "rank_gpu")
    card = known.get(SubjectId(gpu), nothing)
    state = _text(task, "task_state")
    return RankSight(
        number=number, host=_text(row, "rank_host"), pid=pid, step=_whole(row, "rank_step"),
        phase=_text(row, "rank_phase"), silent=row.number("rank_progress_seconds"),
        limit=row.number("rank_limit_seconds"), state=state, still=row.number("rank_still_seconds"),
        gone=row.number("rank_gone") == 1 or task.number("task_gone") == 1 or state in ("Z", "X"),
        done=row.number("rank_done") == 1, gpu=gpu, pattern=_text(card, "gpu_pattern"),
        words=_text(card, "gpu_pattern_words"), waits_in=_text(row, "flight_waits_in"),
        flight=_flight(row), flight_age=row.number("flight_age_seconds"),
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


def _list(row: Row, column: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in _text(row, column).split(";") if part.strip())


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


def read_sights(files: Mapping[str, bytes]) -> tuple[tuple[NodeSight, ...], tuple[str, ...]]:
    """The sights of all files that can be understood, and what is wrong with the others."""
    sights, wrong = [], []
    for name in sorted(files):
        try:
            sights.append(read_sight(name, files[name]))
        except NotUnderstood as error:
            wrong.append(str(error))
    return tuple(sights), tuple(wrong)
