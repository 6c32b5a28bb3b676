"""Patterns: which are taken, what they find, and that none can take long."""

import pytest

from gpuguard.errors import NotUnderstood
from gpuguard.sources.watchers.patterns import LINE, Pattern, step_in


@pytest.mark.parametrize(
    ("pattern", "line", "found"),
    [
        (r"iteration\s+(\d+)/", b" iteration      100/    5000 | loss 2.5", (True, 100)),
        (r"step=(?P<step>\d+)", b"epoch=3 step=77", (True, 77)),
        (r"epoch=(\d+) step=(?P<step>\d+)", b"epoch=3 step=77", (True, 77)),
        (r"^\[\d+\] (?:done)", b"[12] done", (True, None)),
        ("step [^|]*[|] loss", b"step 5 | loss", (True, None)),
        ("it/s$", b"3.1 it/s", (True, None)), ("it/s$", b"3.1 it/s]", (False, None)),
        (r"a\.b\(", b"a.b(", (True, None)), (r"a\.b", b"axb", (False, None)),
        (r"step \d{1,9}", b"step 1", (True, None)), ("^$", b"", (True, None)),
        ("[]x]y", b"]y", (True, None)), ("caf\u00e9", "café".encode(), (True, None)),
        (r"step (\w+)", b"step ten", (True, None)),
        ("x{2}y{,2}z", b"xxyz", (True, None)), ("x{2,}y", b"xy", (False, None)),
    ],
)  # fmt: skip
def test_what_is_found(pattern: str, line: bytes, found: tuple[bool, int | None]) -> None:
    assert Pattern(pattern).find(line) == found


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "1 to 256"), ("x" * 257, "1 to 256"), ("(a+)+$", "group may not be repeated"), ("(a|b)", "may not stand"),
        ("(ab){2,}c", "group may not be repeated"), (".*a", "can be what follows"), (r"\d+\d", "can be what follows"),
        (r"\w*\s*\d+x", "can be what follows"), ("a.*b.*c", "can be what follows"), (r"(a)\1", "not known"),
        ("(?=a)b", "groups only"), ("(?i)a", "groups only"), ("a**", "may not be repeated"), ("a+?b", "nor be lazy"),
        ("*a", "may not stand"), ("(a", "bracket"), ("a)", "bracket"), ("[a", "not known"), ("[z-a]", "no set"),
        ("a*", "every line"), (r"a{5,2}b", "no regular"), (r"\bstep", "not known"),
        ("a\\", "not known"), ("a{,}a{,}a{,}b", "may not stand"), ("a{}b", "may not stand"), ("a{,3}a", "can be what"),
        ("\udc80", "is text"),
    ],
)  # fmt: skip
def test_what_is_not_taken(pattern: str, why: str) -> None:
    with pytest.raises(NotUnderstood, match=why):
        Pattern(pattern)


def test_so_much_of_a_line_is_looked_at() -> None:
    """The worst that is taken runs from every place to the end of the line: what is beyond is left out."""
    pattern = Pattern("[ab]+c")
    assert pattern.find(b"a" * (LINE - 1) + b"c") == (True, None)
    assert pattern.find(b"a" * LINE + b"c") == (False, None)


def test_steps() -> None:
    assert [step_in(text) for text in (b" 12\n", b"", b"-1", b"1e3", b"9" * 18, b"9" * 19)] == [
        12,
        None,
        None,
        None,
        10**18 - 1,
        None,
    ]
