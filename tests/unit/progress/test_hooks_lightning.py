"""The callback for Lightning's Trainer, driven in the order in which its Trainer calls it."""

import importlib
import pickle
import signal
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpuguard.progress import Reporter, wire
from tests.support.listener import Listener

NAME = "gpuguard.progress.hooks.lightning"


class Callback:
    """Its base: hooks that are not overridden do nothing."""


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("lightning.pytorch.callbacks")
    module.Callback = Callback  # type: ignore[attr-defined]  # a module is made up
    for name in ("lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "lightning.pytorch.callbacks", module)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    return importlib.import_module(NAME)


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    yield found
    found.close()


@pytest.fixture
def reporter(listener: Listener) -> Iterator[Reporter]:
    before = signal.getsignal(signal.SIGTERM)
    made = Reporter(environ={"GPUGUARD_SOCKET": listener.path})
    yield made
    made.close()
    signal.signal(signal.SIGTERM, before)


class Trainer:
    """As much of Lightning's Trainer as calls callbacks; what saves comes after ours, and writes after it told."""

    def __init__(self, callback: Any, listener: Listener) -> None:
        self.callback, self._listener = callback, listener
        self.global_step = 0
        self.should_stop = False
        self.page: Any = None
        self.seen: list[tuple[str, str]] = []  # what was done, in which phase
        self.paths: list[str] = []

    def hook(self, name: str, *more: Any) -> None:
        method = getattr(self.callback, name, None)
        if method is not None:
            method(self, SimpleNamespace(), *more)

    def stands(self) -> wire.Page:
        return wire.Page(*self.page())

    def does(self, what: str) -> None:
        self.seen.append((what, self.page().phase))

    def save_checkpoint(self, path: str) -> None:
        self.hook("on_save_checkpoint", {})
        self.does("write")
        self.paths.append(path)

    def validate(self) -> None:
        self.hook("on_validation_start")
        self.does("validate")
        self.hook("on_validation_batch_end", None, None, 0, 0)
        self.hook("on_validation_end")

    def fit(self, steps: int, *, save: int = 0, validate: int = 0, signal_at: int = 0, fail_at: int = 0) -> wire.Page:
        self.hook("setup", "fit")
        self.page = self._listener.expect().page
        self.hook("on_sanity_check_start")
        self.validate()
        self.hook("on_sanity_check_end")
        # Its own handler stands before training starts, and ends the loop after the batch.
        received: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
        self.hook("on_train_start")
        self.hook("on_train_epoch_start")
        while self.global_step < steps and not self.should_stop:
            self.hook("on_train_batch_start", None, self.global_step)
            self.does("step")
            self.global_step += 1
            if self.global_step == signal_at:
                signal.raise_signal(signal.SIGTERM)
            self.hook("on_train_batch_end", {"loss": 1.0 / self.global_step}, None, self.global_step - 1)
            if save and self.global_step % save == 0:
                self.save_checkpoint("best")
                self.save_checkpoint("last")
            if received:
                raise SystemExit(0)
            if self.global_step == fail_at:
                self.hook("on_exception", OSError("disk full"))
                self.hook("teardown", "fit")
                return self.stands()
            if validate and self.global_step % validate == 0:
                self.validate()
        self.hook("on_train_end")
        signal.signal(signal.SIGTERM, before)
        self.hook("on_fit_end")
        self.hook("teardown", "fit")
        return self.stands()


def test_steps_validation_checkpoints_and_the_end(hook: Any, reporter: Reporter, listener: Listener) -> None:
    trainer = Trainer(hook.ProgressCallback(loss_every=4, reporter=reporter), listener)
    page = trainer.fit(4, save=2, validate=4)
    assert trainer.seen == [
        ("validate", "evaluation"), ("step", "start"), ("step", "step"), ("write", "checkpoint"),
        ("write", "checkpoint"), ("step", "step"), ("step", "step"), ("write", "checkpoint"), ("write", "checkpoint"),
        ("validate", "evaluation"),
    ]  # fmt: skip
    assert (page.step, page.saved, page.loss, page.done, page.phase) == (4, 4, 0.25, True, "step")
    assert isinstance(trainer.callback, Callback)
    assert listener.all()[-1].message["holds"] == "model optimizer loader"


def test_a_checkpoint_counts_only_once_it_is_written(hook: Any, reporter: Reporter, listener: Listener) -> None:
    trainer = Trainer(hook.ProgressCallback(reporter=reporter), listener)
    page = trainer.fit(8, save=4, fail_at=4)
    assert (page.step, page.saved, page.done, page.phase) == (4, 4, False, "step")  # "best" was, "last" may not be
    broken = Trainer(hook.ProgressCallback(reporter=reporter), listener)
    reporter.init()
    broken.hook("on_save_checkpoint", {})
    broken.hook("on_exception", OSError("disk full"))
    broken.hook("teardown", "fit")
    assert "saved" not in listener.all()[-1].message


def test_writers_in_the_background_tell_themselves(hook: Any, reporter: Reporter, listener: Listener) -> None:
    page = Trainer(hook.ProgressCallback(saves=False, reporter=reporter), listener).fit(2, save=1)
    assert (page.step, page.saved) == (2, None)


def test_told_to_end_it_saves_there_and_stops_and_is_not_done(
    hook: Any, reporter: Reporter, listener: Listener
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    callback = hook.ProgressCallback(preempt="/p.ckpt", agree=lambda told: told, every=4, reporter=reporter)
    trainer = Trainer(callback, listener)
    page = trainer.fit(100, signal_at=3)
    assert trainer.paths == ["/p.ckpt"]
    assert (page.step, page.saved, page.preempt, page.done) == (4, 4, 3, False)
    assert signal.getsignal(signal.SIGTERM) == before


def test_tests_and_predictions(hook: Any, reporter: Reporter, listener: Listener) -> None:
    trainer = Trainer(hook.ProgressCallback(reporter=reporter), listener)
    trainer.hook("setup", "test")
    page = listener.expect().page
    trainer.hook("on_test_start")
    assert page().phase == "evaluation"
    at = page().at
    trainer.hook("on_test_batch_end", None, None, 0, 0)
    trainer.hook("on_test_end")
    trainer.hook("on_predict_batch_end", None, None, 0, 0)
    assert page().phase == "start"
    assert page().at >= at


def test_it_can_be_sent_to_processes_that_are_spawned(hook: Any) -> None:
    sent = pickle.loads(pickle.dumps(hook.ProgressCallback(preempt="/p.ckpt")))
    assert isinstance(sent, hook.ProgressCallback)


def test_the_real_trainer_has_these_hooks() -> None:
    """Opt-in: runs where Lightning is installed."""
    callbacks = pytest.importorskip("lightning.pytorch.callbacks", reason="lightning is not installed")
    sys.modules.pop(NAME, None)
    hook = importlib.import_module(NAME)
    ours = {name for name in vars(hook.ProgressCallback) if name.startswith("on_")} | {"setup", "teardown"}
    assert ours <= set(dir(callbacks.Callback))
