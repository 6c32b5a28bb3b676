"""Words for people about jobs: spans of time, sizes, and what a job calls itself, which may be anything."""

WORDS_KEPT = 64


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
    return f"{number:g} {one if number == 1 else many or one + 's'}"


def size(bytes_: float) -> str:
    """A size in GiB, or in MiB where it is less than one."""
    return f"{bytes_ / 2**30:.1f} GiB" if bytes_ >= 2**30 else f"{bytes_ / 2**20:.0f} MiB"
