"""Loops written by hand with PyTorch: each of these is one line more.

    for batch in steps(loader): ...                     # a step is what happens to one batch
    watch(optimizer)                                    # or: a step is a step of the optimizer
    on_preempt(save=save, barrier=dist.barrier, agree=agree(), every=10)
    DataLoader(..., worker_init_fn=spared())            # loaders outlive SIGTERM long enough to finish the step

Nothing of torch is imported before it is needed; `steps` and `spared` never need it.

Source  docs.pytorch.org: Optimizer.register_step_post_hook, torch.distributed.all_reduce; torch/utils/data/_utils/
        worker.py: worker_init_fn runs after the worker's own signal handlers are set
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, TypeVar

from .. import this_process  # noqa: TID252 - the folder may stand under another name
from ..reporter import Reporter  # noqa: TID252 - the same

Batch = TypeVar("Batch")


def steps(batches: Iterable[Batch], *, start: int = 0, reporter: Reporter | None = None) -> Iterator[Batch]:
    """The same batches; when the loop comes for the next one, the step with the one before is reported as complete.

    `start` is how many steps were complete before: that of the checkpoint it goes on from. A loop that is left by
    `break` or an exception did not complete its last step.
    """
    told = reporter or this_process
    done = start
    for batch in batches:
        yield batch
        done += 1
        told.step(done)


def watch(optimizer: Any, *, start: int = 0, reporter: Reporter | None = None) -> Any:
    """Every step of this optimizer is reported; returns what has `remove()` to end that.

    Any: torch's optimizer and its handle. Steps that a gradient scaler leaves out are not reported. `on_preempt(save=)`
    then saves from within `optimizer.step()`, before a scheduler that follows it has moved.
    """
    told = reporter or this_process
    done = start

    def stepped(_optimizer: object, _args: object, _kwargs: object) -> None:
        nonlocal done
        done += 1
        told.step(done)

    return optimizer.register_step_post_hook(stepped)


def agree() -> Callable[[bool], bool]:
    """For `on_preempt(agree=)`: whether any rank was told to end. It reduces one number over all ranks, and waits."""
    torch = import_module("torch")
    dist = import_module("torch.distributed")

    def any_told(told: bool) -> bool:
        if not (dist.is_available() and dist.is_initialized()):
            return told
        flag = torch.tensor([int(told)], device="cuda" if "nccl" in str(dist.get_backend()) else "cpu")
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    return any_told


def spared(worker_init_fn: Callable[[int], object] | None = None) -> Callable[[int], None]:
    """For `DataLoader(worker_init_fn=)`: its processes take no notice of SIGTERM.

    Slurm sends that to every process of a step: without this the loaders die at once, and the step that was to be
    finished fails for want of them. They still end with their loop, which tells them by their queues, and with the
    process that started them, which they watch.
    """
    return _Spared(worker_init_fn)


class _Spared:
    """An object, as functions within functions cannot be sent to processes that are spawned."""

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._then is not None:
            self._then(worker)
