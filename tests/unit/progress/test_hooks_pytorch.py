"""Hooks for loops of PyTorch, against its shape; with torch itself where it is installed."""

import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpuguard.progress.hooks import pytorch
from gpuguard.progress.hooks.pytorch import agree, spared, steps, watch


class Told:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def step(self, n: int) -> None:
        self.steps.append(n)


@pytest.fixture
def told() -> Any:
    return Told()


def test_a_step_is_complete_when_the_next_batch_is_asked_for(told: Any) -> None:
    seen = []
    for batch in steps("abc", start=10, reporter=told):
        seen.append((batch, list(told.steps)))
    assert seen == [("a", []), ("b", [11]), ("c", [11, 12])]
    assert told.steps == [11, 12, 13]


def test_a_loop_that_is_left_did_not_complete_its_step(told: Any) -> None:
    for batch in steps("abc", reporter=told):
        if batch == "b":
            break
    assert told.steps == [1]


class Optimizer:
    """As much of torch's as is used: hooks are called with it, its arguments and its keywords."""

    def __init__(self) -> None:
        self._hooks: dict[int, Callable[..., None]] = {}

    def register_step_post_hook(self, hook: Callable[..., None]) -> Any:
        self._hooks[id(hook)] = hook
        return SimpleNamespace(remove=lambda: self._hooks.pop(id(hook)))

    def step(self) -> None:
        for hook in self._hooks.values():
            hook(self, (), {})


def test_an_optimizer_s_steps(told: Any) -> None:
    optimizer = Optimizer()
    handle = watch(optimizer, start=100, reporter=told)
    optimizer.step()
    optimizer.step()
    handle.remove()
    optimizer.step()
    assert told.steps == [101, 102]


class Distributed(ModuleType):
    """torch.distributed, with one other rank whose flag is known."""

    ReduceOp = SimpleNamespace(MAX="max")

    def __init__(self, *, up: bool, backend: str, other: int) -> None:
        super().__init__("torch.distributed")
        self._up, self._backend, self._other = up, backend, other

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self._up

    def get_backend(self) -> str:
        return self._backend

    def all_reduce(self, flag: Any, op: str) -> None:
        assert op == "max"
        flag.value = max(flag.value, self._other)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[str]]]:
    def install(**how: Any) -> list[str]:
        devices: list[str] = []

        def tensor(values: list[int], device: str) -> Any:
            devices.append(device)
            made = SimpleNamespace(value=values[0])
            made.item = lambda: made.value
            return made

        module = ModuleType("torch")
        module.tensor = tensor  # type: ignore[attr-defined]  # a module is made up
        monkeypatch.setitem(sys.modules, "torch", module)
        monkeypatch.setitem(sys.modules, "torch.distributed", Distributed(**how))
        return devices

    return install  # type: ignore[return-value]  # a fixture that only returns


@pytest.mark.parametrize(
    ("told", "other", "any_told"), [(False, 0, False), (True, 0, True), (False, 1, True), (True, 1, True)]
)
def test_all_agree_when_one_was_told(torch: Any, told: bool, other: int, any_told: bool) -> None:
    devices = torch(up=True, backend="nccl", other=other)
    assert agree()(told) is any_told
    assert devices == ["cuda"]


def test_other_backends_reduce_on_the_processor_and_one_rank_agrees_with_itself(torch: Any) -> None:
    assert torch(up=True, backend="gloo", other=0) == []
    decide = agree()
    assert decide(True) is True
    devices = torch(up=False, backend="gloo", other=1)
    assert agree()(False) is False
    assert devices == []


def test_loaders_outlive_sigterm() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[int] = []
    try:
        spared(seen.append)(3)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        assert seen == [3]
        pickle.loads(pickle.dumps(spared()))(0)  # loaders that are spawned are sent it
    finally:
        signal.signal(signal.SIGTERM, before)


def test_nothing_of_torch_is_imported_for_it() -> None:
    assert not {name for name in vars(pytorch) if name.startswith("torch")}


def test_the_real_torch(told: Any) -> None:
    """Opt-in: runs where torch is installed."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    handle = watch(optimizer, reporter=told)
    loader = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=1)
    for _ in loader:
        (weight * 1.0).sum().backward()
        optimizer.step()
    handle.remove()
    assert told.steps == [1, 2, 3, 4]
    assert agree()(True) is True
