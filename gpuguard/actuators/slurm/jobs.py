"""What may be done about one job of this node's, and what Slurm's answers to it mean.

`scontrol requeue` ends the job's steps and puts it back into the queue; it counts `Restarts` up in the same moment, by
which a second wish, from here or from another node of the job, is told from a first.

Source  Slurm 22.05.8 as observed; src/common/slurm_errno.c for the complaints
"""

from typing import Literal

from gpuguard.child.program import Answer
from gpuguard.child.slurm import JOB_NUMBER, NOT_ALIVE, Job
from gpuguard.errors import ActionDeferred, ActionRefused, GpuguardError
from gpuguard.model.actions import Action

SUBJECT = "job:slurm/"


def number_of(action: Action) -> str:
    """The job's number, which is digits and nothing else.

    Raises  ActionRefused for any other subject, or without the count of restarts that makes a second sending harmless
    """
    number = action.subject.removeprefix(SUBJECT)
    if not action.subject.startswith(SUBJECT) or JOB_NUMBER.fullmatch(number) is None:
        raise ActionRefused(f"{action.subject[:60]!r} is no job of Slurm's; this is a bug, please report it")
    if action.restarts is None:
        raise ActionRefused(f"it is not told how often job {number} was started anew; this is a bug, please report it")
    return number


def over(job: Job | None, action: Action) -> str | None:
    """Why nothing is left to do; None while the job runs as it did when it was found to hang."""
    if job is None:
        return "Slurm knows no such job any more"
    if job.restarts is not None and action.restarts is not None and job.restarts > action.restarts:
        return f"Slurm started it anew already: Restarts={job.restarts}, it is {job.state}"
    if job.state in NOT_ALIVE or job.state == "COMPLETING":
        return f"it does not run any more: it is {job.state}"
    return None


def hindered(job: Job, node: str) -> GpuguardError | Literal["elsewhere"] | None:
    """What forbids to start a running job anew."""
    alive = job.alive_on(node)
    if alive is None:
        return ActionDeferred(f"job {job.number} is {job.state[:40]}, a state that this gpuguard does not know", 60.0)
    if not alive:
        return "elsewhere"
    if job.restarts is None:
        return ActionRefused(f"Slurm does not say how often job {job.number} was started anew")
    if job.part:
        return ActionRefused(f"job {job.number} is a component of a heterogeneous job; only its owner can requeue it")
    if not job.batch:
        return ActionRefused(f"job {job.number} is interactive: Slurm can requeue only what sbatch submitted")
    if not job.requeue:
        return ActionRefused(
            f"job {job.number} may not be requeued; submit it with --requeue, or set JobRequeue=1 in slurm.conf"
        )
    return None


def complaint(answer: Answer, number: str) -> GpuguardError | None:
    """The error that a failed `scontrol requeue` stands for; None where the job is past it."""
    said = answer.said
    text = said.lower()
    if any(
        words in text for words in ("pending execution", "invalid job id", "already completing", "already finished")
    ):
        return None
    if "presently disabled" in text or "batch job" in text:
        return ActionRefused(
            f"Slurm may not requeue job {number} ({said}); submit it with sbatch --requeue, or set JobRequeue=1"
        )
    if "permission denied" in text or "invalid user id" in text:
        return ActionRefused(
            f"Slurm lets only root, SlurmUser and operators requeue others' jobs; run gpuguard-actuator as one ({said})"
        )
    return ActionDeferred(f"scontrol failed with exit code {answer.code} and said: {said}", 10.0)
