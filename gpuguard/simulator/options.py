"""What is typed after a model's name, read into its Settings: every mistake names what can be said instead."""

import re
from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec

from gpuguard.errors import UsageError

Seconds = Annotated[int, msgspec.Meta(ge=0)]
Length = Annotated[float, msgspec.Meta(ge=0)]
Pace = Annotated[float, msgspec.Meta(gt=0, le=1)]
Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]

Read = TypeVar("Read", bound=msgspec.Struct)

_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def read(kind: type[Read], settings: Mapping[str, str], name: str) -> Read:
    """The Settings of this model.

    Shape   as `key=value`; seconds also as 90s, 10m, 1h or 2d, and yes or no
    Raises  UsageError for a key that the model has not, or a value that does not fit it
    """
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    found: dict[str, str] = {}
    for key, typed in settings.items():
        if key not in known:
            raise UsageError(f"model {name} has no setting {key!r}; it has: {', '.join(known) or 'none'}")
        span = _SPAN.fullmatch(typed)
        seconds = float(span[1]) * _SECONDS[span[2]] if span is not None else 0.0
        found[key] = f"{seconds:.12g}" if span is not None else _WORDS.get(typed, typed)
    try:
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        where = str(error).rpartition("$.")[2].rstrip("`")
        default = getattr(kind(), where, None) if where in known else None
        like = f"; say for example {where}={shown(default)}" if default is not None else f"; it has: {', '.join(known)}"
        raise UsageError(
            f"model {name}: {where}={settings.get(where, '')} does not fit ({str(error).partition(' - at')[0]}){like}"
        ) from error


def shown(value: object) -> str:
    """A setting as it could be typed."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
