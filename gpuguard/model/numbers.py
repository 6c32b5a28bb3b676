"""Lists of whole numbers as people, the kernel and schedulers write them: 0-7,16."""

from collections.abc import Iterable

MOST = 2**17  # numbers that a text is believed to name; the largest jobs known have a tenth as many ranks


def spans(numbers: Iterable[int]) -> str:
    """The numbers in their order, runs as first-last: 0-7,16."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def numbers_in(text: str) -> tuple[int, ...]:
    """The numbers that `spans` wrote; none where it is no such text, or names more than are believed."""
    found: list[int] = []
    for run in text.split(",") if text else ():
        first, dash, last = run.partition("-")
        last = last if dash else first
        if not (_whole(first) and _whole(last)) or int(last) - int(first) + len(found) >= MOST:
            return ()
        found.extend(range(int(first), int(last) + 1))
    return tuple(found)


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
