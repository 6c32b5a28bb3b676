"""Dumps of flight recorders as NCCL writes them, and summaries of ranks, made from a few words."""

import pickle
from collections.abc import Mapping, Sequence

from gpuguard.model.flight import FlightSummary, GroupFlight, Waiting

BEGAN = 1_700_000_000.0


def call(
    number: int, state: str = "completed", *, op: str = "nccl:all_reduce", group: tuple[str, str] = ("0", "default_pg"),
    sizes: Sequence[Sequence[int]] = ((4, 8),), at: float = BEGAN, p2p: bool = False, **more: object,
) -> dict[str, object]:  # fmt: skip
    """One entry of a dump, with the keys of version 2.10."""
    frame = {"name": "all_reduce", "filename": "/opt/env/torch/distributed/distributed_c10d.py", "line": 2806}
    return {
        "frames": [frame, {"name": "step", "filename": "/home/user/train.py", "line": 118}],
        "record_id": number, "pg_id": 0, "process_group": group, "thread_name": "python", "thread_id": "1",
        "collective_seq_id": 0 if p2p else number, "p2p_seq_id": number if p2p else 0, "op_id": number,
        "profiling_name": op, "time_created_ns": int((at + number) * 1e9),
        "input_sizes": [list(size) for size in sizes], "input_dtypes": ["Float"],
        "output_sizes": [list(size) for size in sizes], "output_dtypes": ["Float"], "state": state,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": state == "completed",
        "timeout_ms": 600000, "is_p2p": p2p, **more,
    }  # fmt: skip


def dump(entries: Sequence[Mapping[str, object]], *, ranks: str = "[0, 1, 2, 3]", **more: object) -> dict[str, object]:
    """A whole dump of one rank."""
    return {
        "version": "2.10", "comm_lib_version": "2.27.3",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {
            "0": {"last_enqueued_collective": 9, "last_started_collective": 9, "last_completed_collective": 8},
        },
        "entries": [dict(entry) for entry in entries], **more,
    }  # fmt: skip


def pickled(value: object, protocol: int = 2) -> bytes:
    """The value as Python pickles it."""
    return pickle.dumps(value, protocol=protocol)


def flight(
    enqueued: int, completed: int | None = None, *, state: str = "started", op: str = "all_reduce", shape: str = "4x8",
    since: float = BEGAN, group: str = "0", about: str = "default_pg", ranks: str = "0-3", p2p: bool = False,
) -> FlightSummary:  # fmt: skip
    """What a dump says of a rank that called `enqueued` collectives of one group and, unless all are completed, waits
    in the next."""
    done = enqueued if completed is None else completed
    waits = done < enqueued or p2p
    waiting = Waiting(
        number=done + 1, call=op, state="started" if state == "started" else "scheduled", shape=shape, since=since,
        where="train.py:118 in step", p2p=p2p,
    )  # fmt: skip
    return FlightSummary(version="2.10", groups=(
        GroupFlight(
            name=group, about=about, ranks=ranks, enqueued=enqueued, completed=done, waiting=waiting if waits else None
        ),
    ))  # fmt: skip


def both(*summaries: FlightSummary) -> FlightSummary:
    """One rank that is in the groups of all of these."""
    return FlightSummary(version="2.10", groups=tuple(group for one in summaries for group in one.groups))
