"""What must hold for every check that judges what is measured, whatever a machine answers."""

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuguard.model.findings import Finding
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Quantity, Row, Value, Values
from gpuguard.ports import RowDetector
from gpuguard.runtime.assembly import quantities
from gpuguard.runtime.plugins import shelf
from tests.support.core import detectors
from tests.support.stories import swept

UTC = 1_750_000_000.0
NAMES = {
    "node": "node", "gpu": "gpu:0000:1b:00.0", "mig": "mig:0000:1b:00.0/1", "process": "process:0000:1b:00.0/4711",
    "nvswitch": "nvswitch:0000:c1:00.0", "port": "port:mlx5_0/1", "disk": "disk:state",
    "job": "job:slurm/8123", "rank": "rank:slurm/8123/0", "task": "task:4711",
}  # fmt: skip
CHECKS = [
    pytest.param(check, id=check.name) for check in detectors() if hasattr(check, "of") and hasattr(check, "observe")
]
EXAMPLES = 60
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "detectors"
_SWEEP = re.compile(r"\S+ sweep \S+ (.+)")
# Words in the code that ask a row for a column, beside those of `reads`.
_ASKS = re.compile(r"""row\.(?:number|bits|text|parts|values\.get)\(\s*"(\w+)"|"(\w+)" in row\.values""")
# What no quantity allows: a source gives None instead; where one forgets, a check may be wrong but never breaks. NaN is
# left out, as it is refused wherever a value comes in.
ABSURD: tuple[Value, ...] = (
    -1, -0.5, 0, 2**47, 2**62, 1e300, float("inf"), float("-inf"), True, "", "N/A", "[Not Supported]", (), (None,),
    (1, None, "x", -3.5), (0,) * 80,
)  # fmt: skip


@cache
def known() -> dict[str, Quantity]:
    return quantities(shelf("gpuguard.sources"))


@cache
def columns(check: RowDetector) -> tuple[str, ...]:
    """Every column that the check looks at."""
    text = inspect.getsource(inspect.getmodule(type(check)) or type(check))
    asked = {name for pair in _ASKS.findall(text) for name in pair if name}
    named = set(re.findall(r'"(\w+)"', text)) & known().keys()
    return tuple(sorted({*check.reads, *asked, *named}))


@cache
def plain(name: str) -> st.SearchStrategy[Value]:
    """What a healthy or an ill machine may say in a column, edges and plain values."""
    quantity = known().get(name)
    if quantity is None or quantity.kind == "text":
        return st.sampled_from((0, 1, 2, 8, 18, "R570", "yes"))
    low = quantity.low if quantity.low is not None else 0.0
    high = quantity.high if quantity.high is not None else 1e9
    edges = st.sampled_from((low, high, min(low + 1, high), min(low + 3, high)))
    numbers = edges | st.integers(int(low), int(min(high, low + 200))) | st.floats(low, high)
    if quantity.each:
        return st.lists(numbers | st.none(), max_size=20).map(tuple)
    return numbers


@cache
def faults(check: RowDetector) -> tuple[Values, ...]:
    """What the rows of its own story of a fault say, each with what was said before."""
    said: dict[SubjectId, Values] = {}
    found: list[Values] = []
    for line in (FIXTURES / check.name / "fault.scn").read_text(encoding="utf-8").splitlines():
        if match := _SWEEP.match(line):
            for subject, told in swept(match[1].split()).items():
                said[subject] = {**said.get(subject, {}), **told}
                found.append(said[subject])
    return tuple(found)


@cache
def rows(check: RowDetector) -> st.SearchStrategy[list[Row]]:
    """Up to ten rows of one subject, in order of time, some of another boot; half say what the one before said."""
    steps = st.sampled_from((0.0, 1.0, 30.0, 60.0, 60.0, 130.0, 400.0, 4000.0, None))
    odd = st.none() | st.sampled_from(ABSURD)
    first = st.fixed_dictionaries({}, optional={name: plain(name) for name in columns(check)})
    whole = st.fixed_dictionaries({name: plain(name) for name in columns(check)})
    changes = st.dictionaries(st.sampled_from(columns(check)), odd, max_size=3) | first
    looks = st.lists(st.tuples(steps, st.just({}) | st.just({}) | changes), max_size=9)
    return st.builds(_story, st.sampled_from(check.of), first | whole | st.sampled_from(faults(check)), looks)


def _story(kind: str, first: Values, looks: list[tuple[float | None, Values]]) -> list[Row]:
    boot, mono, utc, values, story = 0, 100.0, UTC, {}, []
    for step, said in [(0.0, first), *looks]:
        # No step: the machine was started anew.
        boot, mono, utc = (boot + 1, 5.0, utc + 300.0) if step is None else (boot, mono + step, utc + step)
        values = {**values, **said}
        at = Instant(boot=BootId(f"boot-{boot}"), mono=mono, utc=utc)
        story.append(Row(subject=SubjectId(NAMES[kind]), at=at, source="nvml", values=values))
    return story


def levels(findings: object) -> list[tuple[object, ...]]:
    """What the core acts on."""
    return [(f.subject, f.code, f.stands, f.severity, f.remedy, f.advice) for f in findings]  # type: ignore[attr-defined]


def judged(check: RowDetector, story: list[Row]) -> Iterator[tuple[Row, Any, Any, list[Finding]]]:
    """Each row with the memory before it, the memory after it and what was found."""
    memory = check.start()
    for row in story:
        after, findings = check.observe(memory, row.subject, row)
        yield row, memory, after, list(findings)
        memory = after


@pytest.mark.parametrize("check", CHECKS)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_it_judges_whatever_it_is_shown_and_nobody_else(check: RowDetector, data: st.DataObject) -> None:
    for row, before, after, findings in judged(check, data.draw(rows(check))):
        assert isinstance(after, check.memory)
        assert {finding.subject for finding in findings} <= {row.subject}
        assert {finding.check for finding in findings} <= {check.name}
        codes = [finding.code for finding in findings]
        assert len(codes) == len(set(codes))
        assert all(finding.reason for finding in findings if finding.stands)
        # A row that is judged twice says the same twice.
        assert levels(check.observe(after, row.subject, row)[1]) == levels(findings)
        # A memory from disk judges as the one that was written.
        read = msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=check.memory)
        assert read == before
        again, said = check.observe(read, row.subject, row)
        assert again == after
        assert levels(said) == levels(findings)


@pytest.mark.parametrize("check", CHECKS)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_it_says_nothing_of_what_it_cannot_know(check: RowDetector, data: st.DataObject) -> None:
    nothing: Values = {name: None for name in columns(check) if data.draw(st.booleans())}
    for row, _, after, _ in judged(check, data.draw(rows(check))):
        blind = msgspec.structs.replace(row, values=nothing)
        for memory in (check.start(), after):
            assert list(check.observe(memory, row.subject, blind)[1]) == []
