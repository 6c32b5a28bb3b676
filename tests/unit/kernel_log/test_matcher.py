"""Both matchers find the same lines."""

import pytest

from gpuguard.kernel_log.matcher import Matcher, build_finder, build_hyperscan, build_test
from gpuguard.kernel_log.shelves import all_markers
from tests.support.kernel_lines import FIXTURES

MARKERS = all_markers()


def _lines_hit(matcher: Matcher, block: bytes) -> set[int]:
    return {block.count(b"\n", 0, at) for at in matcher(block)}


def _whole() -> bytes:
    return b"".join(path.read_bytes() + b"between\n" for path in sorted(FIXTURES.rglob("*.*")))


def test_finder_hits_each_line_that_has_a_marker() -> None:
    block = _whole()
    wanted = {n for n, line in enumerate(block.split(b"\n")) if any(marker in line for marker in MARKERS)}
    assert _lines_hit(build_finder(MARKERS), block) == wanted


def test_hyperscan_agrees() -> None:
    pytest.importorskip("hyperscan", reason="hyperscan is missing: there is no wheel for this machine")
    fast = build_hyperscan(MARKERS)
    block = _whole()
    assert _lines_hit(fast, block) == _lines_hit(build_finder(MARKERS), block)
    assert list(fast(b"")) == []
    hits = fast(block)
    assert list(hits) == sorted(hits)


def test_test_agrees_with_the_finder() -> None:
    test, finder = build_test(MARKERS), build_finder(MARKERS)
    for line in _whole().split(b"\n"):
        assert test(line) == bool(finder(line))
    for marker in MARKERS:
        assert test(marker)
        assert not test(marker[:-1])
