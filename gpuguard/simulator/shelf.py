"""The models by name, and what is typed of them: `NAME[:key=value,...]`.

The index is written out, as everything that is pure; a test holds it to the files.
"""

from collections.abc import Iterable
from types import ModuleType

import msgspec

from gpuguard.errors import UsageError
from gpuguard.simulator.chance import Dice, seed_of, stream
from gpuguard.simulator.engine import Model
from gpuguard.simulator.models import checkpoints, far, faults, preempting, preparing, retries, sessions
from gpuguard.simulator.options import shown

MODELS: dict[str, ModuleType] = {
    "checkpoints": checkpoints, "far": far, "faults": faults, "preempting": preempting, "preparing": preparing,
    "retries": retries, "sessions": sessions,
}  # fmt: skip


def build(asked: Iterable[str], dice: Dice) -> tuple[Model, ...]:
    """The models that were asked for, in the order of their names: what one draws does not hang on who else is there.

    Raises  UsageError for a model or a setting that there is not, or a model that was asked for twice
    """
    seed = seed_of(dice)
    found: dict[str, Model] = {}
    for typed in asked:
        name, _, rest = typed.partition(":")
        if name not in MODELS:
            raise UsageError(f"there is no model {name!r}; there are: {', '.join(MODELS)}")
        if name in found:
            raise UsageError(f"model {name} is asked for twice: give all its settings at once, as {name}:key=value,...")
        settings: dict[str, str] = {}
        for part in filter(None, rest.replace(":", ",").split(",")):
            key, equals, value = part.partition("=")
            if not equals:
                raise UsageError(
                    f"model {name}: {part!r} is no setting; say {name}:key=value,... ({', '.join(keys(name))})"
                )
            settings[key.strip()] = value.strip()
        found[name] = MODELS[name].build(settings, stream(seed, name))
    return tuple(found[name] for name in sorted(found))


def keys(name: str) -> list[str]:
    """The settings of a model with their defaults, as they could be typed."""
    kind = MODELS[name].Settings
    return [f"{field.name}={shown(getattr(kind(), field.name))}" for field in msgspec.structs.fields(kind)]


def lines() -> dict[str, str]:
    """What each model is, in one line."""
    return {name: (module.__doc__ or "").partition("\n")[0] for name, module in MODELS.items()}
