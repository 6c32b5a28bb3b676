"""What the ranks of a job on this node say of themselves, taken together as the job's.

Only what needs no memory: a rank that nobody tells of any more is not in it. A job saved when any of its ranks says
so, as mostly one does; where several do, the newest complete checkpoint counts, and the save that held up a loop
longest.
"""

from collections.abc import Mapping

from gpuguard.model.readings import Value, Values

# What its progress must be known by for a rank to be able to say that it is done.
CAN_SAY_DONE = ("library",)
SAVED = 3  # of rank_preempt: it was told to end, and saved
NUMBERS_KEPT = 32


def roll_call(ranks: Mapping[int, Mapping[str, Value]]) -> Values:
    """Columns of the job, from the rows of its ranks by their numbers; nothing at all where there are none.

    Shape   job_ranks, job_ranks_gone, job_gone_ranks, job_ranks_telling, job_ranks_done, job_loss_nan; where any of
            them saved: job_saved_step, job_saved_seconds, job_save_blocked_seconds, job_save_holds
    """
    if not ranks:
        return {}
    done = {number for number, rank in ranks.items() if rank.get("rank_done") == 1}
    gone = sorted(number for number, rank in ranks.items() if rank.get("rank_gone") == 1 and number not in done)
    # Who saved and ended because it was told to has kept its word: that is no end without one.
    obeyed = {number for number, rank in ranks.items() if rank.get("rank_preempt") == SAVED and number in gone}
    telling = {number for number, rank in ranks.items() if rank.get("rank_via") in CAN_SAY_DONE}
    more = " ..." if len(gone) > NUMBERS_KEPT else ""
    return {
        "job_ranks": len(ranks), "job_ranks_gone": len(gone),
        "job_gone_ranks": " ".join(map(str, gone[:NUMBERS_KEPT])) + more,
        "job_ranks_telling": len(telling), "job_ranks_done": len(telling & (done | obeyed)),
        # One that is gone trains no more, whatever its last loss was.
        "job_loss_nan": sum(rank.get("rank_loss_nan") == 1 and rank.get("rank_gone") != 1 for rank in ranks.values()),
        **_saved(ranks),
    }  # fmt: skip


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
