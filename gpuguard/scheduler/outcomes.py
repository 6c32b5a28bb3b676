"""What an end means: a zero alone proves nothing, and a job that we told to end did not fail.

Theory. Any code but zero, and any signal, is abnormal. Zero is not enough: frameworks have died of memory with the code
of a normal end, and the run was not started again until somebody looked. So where a job promises proof (last step,
final checkpoint, a mark), zero without it is suspicious. A job that we told to leave may return what it likes: we sent
the signal and know when, so what ended before it is still judged by its code.
"""

from typing import Literal

Outcome = Literal["completed", "failed", "suspicious", "preempted"]


def classify_end(
    code: int,
    signal: int,
    proof: bool | None,
    signalled_at: int | None,
    wants_proof: bool,
    ended_at: int | None = None,
) -> Outcome:
    """How a job ended.

    Shape   proof: it showed that it completed; None: nothing was said. signalled_at: when it was told to make room;
            None: never. ended_at: an end before that is the job's own
    """
    clean = code == 0 and signal == 0
    if clean and proof:
        # Done is done: it beat the signal or ignored it, and nothing is left to resume.
        return "completed"
    if signalled_at is not None and (ended_at is None or ended_at >= signalled_at):
        # Handlers that save and leave return whatever they like, zero included; only a proof says it was the end.
        return "preempted"
    if not clean:
        return "failed"
    return "suspicious" if wants_proof else "completed"
