"""The Trainer of Lightning, 2.0 and later (`lightning` or `pytorch_lightning`).

    Trainer(..., callbacks=[ProgressCallback(preempt="/srv/checkpoints/preempted.ckpt")])

Reports steps, validation and tests as evaluation, checkpoints, and the end of `fit` as `done`. With `preempt`, which is
a path, a SIGTERM makes it save there and stop, in all ranks at the same step.

Lightning tells when a checkpoint is put together and not when it is written. As it is written before anything else
happens, the next hook of any kind means that it is. With a plug-in that writes in the background that is too early:
give `saves=False` and call `saved` where yours is complete.

Source  lightning/pytorch/callbacks/callback.py (the hooks), trainer/connectors/checkpoint_connector.py (what is called
        when, and only for full checkpoints), callback_connector.py (callbacks that save come last),
        signal_connector.py and loops/training_epoch_loop.py (what Lightning makes of SIGTERM)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import this_process  # noqa: TID252 - the folder may stand under another name
from ..preemption import Preemption  # noqa: TID252 - the same
from ..reporter import Phase, Reporter  # noqa: TID252 - the same
from ..wire import CHECKPOINT, EVALUATION  # noqa: TID252 - the same
from . import pytorch

if TYPE_CHECKING:
    Base = object
else:
    try:
        from lightning.pytorch.callbacks import Callback as Base
    except ImportError:
        from pytorch_lightning.callbacks import Callback as Base


class ProgressCallback(Base):
    """Any: arguments are Lightning's Trainer and module, read by attribute as of each version."""

    def __init__(
        self,
        *,
        preempt: str | None = None,
        agree: Callable[[bool], bool] | None = None,
        every: int = 10,
        loss_every: int = 0,
        holds: str | None = "model optimizer loader",
        saves: bool = True,
        reporter: Reporter | None = None,
    ) -> None:
        """`agree` and `every` as for `on_preempt`, by default over torch's ranks. `loss_every` steps the loss is told,
        which waits for the GPU; 0 never. `holds` is what the checkpoints hold: Lightning saves no random seeds."""
        self._given = reporter
        self._path, self._agree, self._every = preempt, agree, every
        self._loss_every, self._holds, self._saves = loss_every, holds, saves
        self._guard: Preemption | None = None
        self._open: Phase | None = None
        self._saving: int | None = None  # the step of the checkpoint that is being written
        self._stopped = False

    @property
    def _reporter(self) -> Reporter:
        return self._given or this_process

    def _turn(self, name: str | None) -> None:
        """That phase begins, whatever was before it; None: it is back to steps."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = None if name is None else self._reporter.phase(name)
        if self._open is not None:
            self._open.__enter__()

    def _settle(self) -> None:
        """A checkpoint that was begun is written by now."""
        if self._saving is not None:
            self._reporter.saved(self._saving, self._holds)
            self._saving = None
            self._turn(None)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """It is there."""
        self._reporter.alive()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """It will obey if it is to. Lightning's own handler ends the loop after the batch, before all have agreed or
        anything is saved: it stands by now, and is not called."""
        if self._path is not None:
            self._stopped = False
            self._guard = self._reporter.on_preempt(
                agree=self._agree or pytorch.agree(), every=self._every, chain=False
            )

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """What came before is over."""
        self._settle()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """What came before is over."""
        self._settle()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A step is complete, or one of the batches whose gradients are added up."""
        self._settle()
        step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._reporter.step(step, loss=loss if self._loss_every and step % self._loss_every == 0 else None)
        if self._guard is not None and self._guard.told and not self._stopped:
            self._stopped = trainer.should_stop = True
            trainer.save_checkpoint(self._path)
            self._settle()

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning tries the validation before it trains."""
        self._turn(EVALUATION)

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """That worked."""
        self._turn(None)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation begins."""
        self._settle()
        self._turn(EVALUATION)

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """It gets on."""
        self._reporter.alive()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Validation is over."""
        self._turn(None)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """A test begins."""
        self._turn(EVALUATION)

    def on_test_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """It gets on."""
        self._reporter.alive()

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """The test is over."""
        self._turn(None)

    def on_predict_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """It gets on."""
        self._reporter.alive()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """A checkpoint is put together, and written next; the one before it is written."""
        self._settle()
        if self._saves:
            self._saving = trainer.global_step
            self._turn(CHECKPOINT)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Whatever was being written may not be."""
        self._saving = None
        self._turn(None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The last step is complete; a last checkpoint may follow."""
        self._settle()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """The work is complete, unless it was told to end before."""
        self._settle()
        if not self._stopped:
            self._reporter.done()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Signals do again what they did before."""
        self._settle()
        if self._guard is not None:
            self._guard.disarm()
            self._guard = None
