"""The job's side: how a training program tells that it gets on. Standard library only; the folder may be copied alone.

    from gpuguard import progress

    for n, batch in enumerate(loader, 1):
        loss = train(batch)
        progress.step(n, loss=loss.item() if n % 100 == 0 else None)
        if n % 1000 == 0:
            with progress.phase("checkpoint"):
                save(n)
            progress.saved(n)
    progress.done()

No call waits, raises or costs more than a few microseconds, whether an agent listens or not. Which rank of which job
this is, the environment tells; `init` tells what it does not. Hooks for loops of PyTorch, Lightning and the Trainer of
Hugging Face are in `hooks`. How to go without Python, or without changing the program: docs/heartbeats.md.
"""

from .preemption import Preemption
from .reporter import Phase, Reporter

__all__ = [
    "Phase",
    "Preemption",
    "Reporter",
    "alive",
    "done",
    "init",
    "on_preempt",
    "phase",
    "saved",
    "step",
    "this_process",
]

this_process = Reporter()
init = this_process.init
step = this_process.step
phase = this_process.phase
alive = this_process.alive
saved = this_process.saved
done = this_process.done
on_preempt = this_process.on_preempt
