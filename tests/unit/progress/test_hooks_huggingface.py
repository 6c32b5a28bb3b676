"""The callback for Hugging Face's Trainer, driven in the order in which its Trainer calls it."""

import importlib
import signal
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpuguard.progress import Reporter
from gpuguard.progress.wire import Page
from tests.support.listener import Listener


class TrainerCallback:
    """Its base: hooks that are not overridden do nothing."""


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("transformers")
    module.TrainerCallback = TrainerCallback  # type: ignore[attr-defined]  # a module is made up
    monkeypatch.setitem(sys.modules, "transformers", module)
    monkeypatch.delitem(sys.modules, "gpuguard.progress.hooks.huggingface", raising=False)
    return importlib.import_module("gpuguard.progress.hooks.huggingface")


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
    """As much of transformers' Trainer as calls callbacks: step, then log, evaluate, save, each with its flag."""

    def __init__(self, callback: Any, listener: Listener, reporter: Reporter, **args: Any) -> None:
        self.callback, self._listener, self._reporter = callback, listener, reporter
        self.args = SimpleNamespace(**args)
        self.state = SimpleNamespace(global_step=0)
        self.control = SimpleNamespace(
            should_training_stop=False, should_log=False, should_evaluate=False, should_save=False
        )
        self.page: Any = None
        self.seen: list[tuple[str, str]] = []  # what was done, in which phase

    def event(self, name: str, **more: Any) -> None:
        method = getattr(self.callback, name, None)
        if method is not None:
            self.control = method(self.args, self.state, self.control, model=None, **more) or self.control

    def _does(self, what: str) -> None:
        self.seen.append((what, self.page().phase))

    def train(self, steps: int, *, evaluate: int = 0, save: int = 0, log: int = 0, signal_at: int = 0) -> Page:
        self.event("on_train_begin")
        self.page = self._listener.expect().page
        for number in range(1, steps + 1):
            self.control.should_log = self.control.should_evaluate = self.control.should_save = False
            self.event("on_step_begin")
            if number == signal_at:
                signal.raise_signal(signal.SIGTERM)
            self._does("step")
            self.state.global_step = number
            self.control.should_log = bool(log) and number % log == 0
            self.control.should_evaluate = bool(evaluate) and number % evaluate == 0
            self.control.should_save = bool(save) and number % save == 0
            self.event("on_step_end")
            if self.control.should_log:
                self.event("on_log", logs={"loss": 1.0 / number})
            if self.control.should_evaluate:
                self._does("evaluate")
                self.event("on_prediction_step")
                self.event("on_log", logs={"eval_loss": 9.0})
                self.control.should_evaluate = False
                self.event("on_evaluate", metrics={})
            if self.control.should_save:
                self._does("save")
                self.control.should_save = False
                self.event("on_save")
            if self.control.should_training_stop:
                break
        self.event("on_train_end")
        page: Page = self.page()
        return page


def test_steps_evaluation_checkpoints_and_the_end(hook: Any, reporter: Reporter, listener: Listener) -> None:
    trainer = Trainer(hook.ProgressCallback(reporter=reporter), listener, reporter)
    page = trainer.train(4, evaluate=2, save=2, log=4)
    assert trainer.seen == [
        ("step", "start"), ("step", "step"), ("evaluate", "evaluation"), ("save", "checkpoint"),
        ("step", "step"), ("step", "step"), ("evaluate", "evaluation"), ("save", "checkpoint"),
    ]  # fmt: skip
    assert (page.step, page.saved, page.loss, page.done, page.phase) == (4, 4, 0.25, True, "step")
    assert isinstance(trainer.callback, TrainerCallback)


@pytest.mark.parametrize(
    ("args", "holds"),
    [
        ({}, "model optimizer loader seeds"),
        ({"ignore_data_skip": True}, "model optimizer seeds"),
        ({"save_only_model": True}, "model"),
    ],
)
def test_what_its_checkpoints_hold(
    hook: Any, reporter: Reporter, listener: Listener, args: dict[str, bool], holds: str
) -> None:
    trainer = Trainer(hook.ProgressCallback(reporter=reporter), listener, reporter, **args)
    trainer.train(1, save=1)
    assert listener.all()[-1].message["holds"] == holds


def test_told_to_end_it_saves_and_stops_and_is_not_done(hook: Any, reporter: Reporter, listener: Listener) -> None:
    before = signal.getsignal(signal.SIGTERM)
    callback = hook.ProgressCallback(preempt=True, agree=lambda told: told, every=2, reporter=reporter)
    trainer = Trainer(callback, listener, reporter)
    page = trainer.train(100, signal_at=3)
    assert trainer.seen[-2:] == [("step", "step"), ("save", "checkpoint")]
    assert (page.step, page.saved, page.preempt, page.done) == (4, 4, 3, False)
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_evaluation_that_a_program_starts_by_itself(hook: Any, reporter: Reporter, listener: Listener) -> None:
    trainer = Trainer(hook.ProgressCallback(reporter=reporter), listener, reporter)
    trainer.train(1)
    trainer.event("on_prediction_step")
    assert trainer.page().phase == "evaluation"
    trainer.event("on_predict", metrics={})
    assert trainer.page().phase == "step"


def test_the_real_trainer_has_these_events() -> None:
    """Opt-in: runs where transformers is installed."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sys.modules.pop("gpuguard.progress.hooks.huggingface", None)
    hook = importlib.import_module("gpuguard.progress.hooks.huggingface")
    ours = {name for name in vars(hook.ProgressCallback) if name.startswith("on_")}
    assert ours <= set(dir(transformers.TrainerCallback))
