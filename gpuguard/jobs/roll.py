"""What the ranks of a job on this node say of themselves, taken together as the job's.

Only what needs no memory: a rank that nobody tells of any more is not in it. A job saved when any of its ranks says
so, as mostly one does; where several do, the newest complete checkpoint counts, and the save that held up a loop
longest.
"""

from collections.abc import Mapping

from gpuguard.model.readings import Value, Values

# What its progress must be known by for a rank to be able to say that it is done.
CAN_SAY_DONE = ("library",)
OBEYED = 3  # of rank_preempt: it was told to end, and saved
NUMBERS_KEPT = 32


def roll_call(ranks: Mapping[int, Mapping[str, Value]]) -> Values:
    """Columns of the job, from the rows of its ranks by their numbers; nothing at all where there are none.

    Shape   job_ranks, job_ranks_gone, job_gone_ranks, job_ranks_telling, job_ranks_done, job_ranks_obeyed,
            job_loss_nan; where any of them saved: job_saved_step, job_saved_seconds, job_save_blocked_seconds,
            job_save_holds
    """
    if not ranks:
        return {}
    ranks = _of_last_start(ranks)
    done = {number for number, rank in ranks.items() if rank.get("rank_done") == 1}
    gone = sorted(number for number, rank in ranks.items() if rank.get("rank_gone") == 1 and number not in done)
    telling = {number for number, rank in ranks.items() if rank.get("rank_via") in CAN_SAY_DONE}
    obeyed = {number for number, rank in ranks.items() if rank.get("rank_preempt") == OBEYED}
    more = " ..." if len(gone) > NUMBERS_KEPT else ""
    return {
        "job_ranks": len(ranks), "job_ranks_gone": len(gone),
        "job_gone_ranks": " ".join(map(str, gone[:NUMBERS_KEPT])) + more,
        "job_ranks_telling": len(telling), "job_ranks_done": len(telling & done),
        # One that is gone trains no more, whatever its last loss was.
        "job_loss_nan": sum(_is_broken(rank) for rank in ranks.values()),
        "job_ranks_obeyed": len(telling & (done | obeyed)) if obeyed else 0,
        **_saved(ranks),
    }  # fmt: skip


def _of_last_start(ranks: Mapping[int, Mapping[str, Value]]) -> Mapping[int, Mapping[str, Value]]:
    """Without those that ended before the job was started anew last: with fewer ranks than before, nobody takes their
    numbers."""
    counts = [_number(rank, "rank_restart") or 0 for rank in ranks.values() if rank.get("rank_gone") != 1]
    newest = max(counts or [_number(rank, "rank_restart") or 0 for rank in ranks.values()])
    return {
        number: rank for number, rank in ranks.items()
        if rank.get("rank_gone") != 1 or (_number(rank, "rank_restart") or 0) >= newest
    }  # fmt: skip


def _is_broken(rank: Mapping[str, Value]) -> bool:
    """Whether its loss is no number, and was none again: one that is told every hundredth step may be of a step that
    was skipped. Only the library counts that."""
    again = rank.get("rank_via") not in CAN_SAY_DONE or _number(rank, "rank_loss_flat_steps") != 0
    return rank.get("rank_loss_nan") == 1 and rank.get("rank_gone") != 1 and again


def _saved(ranks: Mapping[int, Mapping[str, Value]]) -> Values:
    found: Values = {}
    ages = {number: age for number, rank in ranks.items() if (age := _number(rank, "rank_saved_seconds")) is not None}
    if ages:
        newest = ranks[min(ages, key=lambda number: (ages[number], number))]
        found["job_saved_seconds"] = min(ages.values())
        if (step := _number(newest, "rank_saved_step")) is not None:
            found["job_saved_step"] = step
        if isinstance(holds := newest.get("rank_save_holds"), str) and holds:
            found["job_save_holds"] = holds
    blocked = [b for rank in ranks.values() if (b := _number(rank, "rank_save_blocked_seconds")) is not None]
    if blocked:
        found["job_save_blocked_seconds"] = max(blocked)
    return found


def _number(rank: Mapping[str, Value], name: str) -> int | float | None:
    value = rank.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
