"""The models by name, and what is typed of them: `NAME[:key=value,...]`.

The index is written out, as everything that is pure; a test holds it to the files.
"""

from collections.abc import Iterable
from types import ModuleType

import msgspec

from gpuguard.errors import UsageError
from gpuguard.simulator.chance import Dice, seed_of, stream
from gpuguard.simulator.engine import Model
from gpuguard.simulator.models import checkpoints, far, faults, manual, preempting, preparing, retries, sessions
from gpuguard.simulator.models.manual import Bypass
from gpuguard.simulator.options import shown

MODELS: dict[str, ModuleType] = {
    "checkpoints": checkpoints, "far": far, "faults": faults, "preempting": preempting, "preparing": preparing,
    "retries": retries, "sessions": sessions,
}  # fmt: skip


BYPASSES: dict[str, ModuleType] = {"manual": manual}
"""Worlds without the scheduler: they take a policy's place."""


def build(asked: Iterable[str], dice: Dice) -> tuple[Model, ...]:
    """The models that were asked for, in the order of their names: what one draws does not hang on who else is there.

    Raises  UsageError for a model or a setting that there is not, or a model that was asked for twice
    """
    seed = seed_of(dice)
    found: dict[str, Model] = {}
    for typed in asked:
        name, settings = parse(typed)
        if name in BYPASSES:
            raise UsageError(f"{name} runs no scheduler, so it is no model of a run: say --policy {name} instead")
        if name not in MODELS:
            raise UsageError(
                f"there is no model {name!r}; there are: {', '.join(MODELS)}; `--model list` tells of each"
            )
        if name in found:
            raise UsageError(f"model {name} is asked for twice: give all its settings at once, as {name}:key=value,...")
        found[name] = MODELS[name].build(settings, stream(seed, name))
    return tuple(found[name] for name in sorted(found))


def bypass(typed: str, dice: Dice) -> Bypass:
    """The world without the scheduler that was asked for.

    Raises  UsageError for one, or a setting, that there is not
    """
    name, settings = parse(typed)
    if name not in BYPASSES:
        raise UsageError(f"there is no world without the scheduler {name!r}; there is: {', '.join(BYPASSES)}")
    world: Bypass = BYPASSES[name].build(settings, stream(seed_of(dice), name))
    return world


def parse(typed: str) -> tuple[str, dict[str, str]]:
    """Name and settings of `NAME[:key=value,...]`.

    Raises  UsageError where a setting has no value
    """
    name, _, rest = typed.partition(":")
    settings: dict[str, str] = {}
    for part in filter(None, rest.replace(":", ",").split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            has = f" ({', '.join(keys(name))})" if name in MODELS | BYPASSES else ""
            raise UsageError(f"model {name}: {part!r} is no setting; say {name}:key=value,...{has}")
        settings[key.strip()] = value.strip()
    return name, settings


def keys(name: str) -> list[str]:
    """The settings of a model with their defaults, as they could be typed."""
    kind = (MODELS | BYPASSES)[name].Settings
    return [f"{field.name}={shown(getattr(kind(), field.name))}" for field in msgspec.structs.fields(kind)]


def lines() -> dict[str, str]:
    """What each model is, in one line."""
    return {name: (module.__doc__ or "").partition("\n")[0] for name, module in (MODELS | BYPASSES).items()}
