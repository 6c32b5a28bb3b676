"""The Trainer of Hugging Face's transformers.

    Trainer(..., callbacks=[ProgressCallback(preempt=True)])

Reports steps, the losses it logs, evaluation and checkpoints as phases, what a checkpoint holds, and the end of
training as `done`. With `preempt` a SIGTERM makes it save a checkpoint and stop, in all ranks at the same step.

Source  transformers, trainer_callback.py (the events and their order; a callback that is added comes after the one that
        sets `should_save`), trainer.py `_maybe_log_save_evaluate` (log, evaluate, save) and `_save_checkpoint`
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
    from transformers import TrainerCallback as Base


class ProgressCallback(Base):
    """Any: arguments are TrainingArguments, TrainerState and TrainerControl, read by attribute as of each version."""

    def __init__(
        self,
        *,
        preempt: bool = False,
        agree: Callable[[bool], bool] | None = None,
        every: int = 10,
        reporter: Reporter | None = None,
    ) -> None:
        """With `preempt` it obeys SIGTERM; `agree` and `every` as for `on_preempt`, by default over torch's ranks."""
        self._given = reporter
        self._preempt, self._agree, self._every = preempt, agree, every
        self._guard: Preemption | None = None
        self._open: Phase | None = None

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

    def _turn_to_what_is_due(self, control: Any) -> None:
        if control.should_evaluate:
            self._turn(EVALUATION)
        elif control.should_save:
            self._turn(CHECKPOINT)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """It is there, and will obey if it is to."""
        self._reporter.alive()
        if self._preempt:
            self._guard = self._reporter.on_preempt(agree=self._agree or pytorch.agree(), every=self._every)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Whatever phase was announced is over."""
        if self._open is not None:
            self._turn(None)

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """One of the batches whose gradients are added up."""
        self._reporter.alive()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """A step is complete; what the Trainer does next is announced."""
        self._reporter.step(state.global_step)
        if self._guard is not None and self._guard.told and not control.should_training_stop:
            control.should_save = control.should_training_stop = True
        self._turn_to_what_is_due(control)
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """With a strategy by epochs, what follows is known only here."""
        self._turn_to_what_is_due(control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """The loss, where it is logged; the Trainer has waited for it already."""
        if logs and "loss" in logs:
            self._reporter.step(state.global_step, loss=logs["loss"])

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A batch of an evaluation, which a program may also have started by itself."""
        if self._open is None:
            self._turn(EVALUATION)
        self._reporter.alive()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The evaluation is over; a checkpoint may be next."""
        self._turn(CHECKPOINT if control.should_save else None)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        """The prediction is over."""
        self._turn(None)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A checkpoint is complete."""
        holds = ["model"]
        if not getattr(args, "save_only_model", False):
            holds += ["optimizer", "seeds"]
            if not getattr(args, "ignore_data_skip", False):  # it counts its steps and skips as many batches
                holds.append("loader")
        self._reporter.saved(state.global_step, holds)
        self._turn(None)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The work is complete, unless it was told to end before."""
        self._turn(None)
        if self._guard is None or not self._guard.told:
            self._reporter.done()
        if self._guard is not None:
            self._guard.disarm()
            self._guard = None
