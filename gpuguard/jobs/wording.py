"""Words for people about jobs: spans of time, sizes, and what a job calls itself, which may be anything."""

import re
from collections.abc import Mapping

WORDS_KEPT = 64
_GPU = re.compile(r"gpu:[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


def clean(text: str, limit: int = WORDS_KEPT) -> str:
    """The text on one line, no longer than that; what cannot be printed is a question mark."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def lasting(seconds: float) -> str:
    """A span of time in the unit that a person would take."""
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200.0 else f"{seconds / 3600:.1f} h"


def counted(number: float, one: str, many: str = "") -> str:
    """So many of them: 1 GPU, 8 GPUs."""
    return f"{number:,.0f} {one if number == 1 else many or one + 's'}"


def size(bytes_: float) -> str:
    """A size in GiB, or in MiB where it is less than one."""
    return f"{bytes_ / 2**30:.1f} GiB" if bytes_ >= 2**30 else f"{bytes_ / 2**20:.0f} MiB"


def with_numbers(told: str, called: Mapping[str, str]) -> str:
    """The text with each GPU by its number, where it has the name of its subject; `called` are those that are known."""
    return _GPU.sub(lambda match: f"GPU {called[match[0]]}" if match[0] in called else match[0], told)
