"""docs/scheduler.md explains every rule word that the scheduler can say, and no other; its example is what happens."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from gpuguard.scheduler.admission import Admission
from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import NodeJoined, Submitted
from gpuguard.scheduler.grounds import ROWS
from gpuguard.scheduler.reasons import Rule
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import HOUR, Settings
from gpuguard.scheduler.state import State

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = (CHECKOUT / "docs" / "scheduler.md").read_text()
CORE = sorted((CHECKOUT / "gpuguard" / "scheduler").glob("*.py"))

# Calls that take a rule, or the word that becomes one, without its name: which arguments.
PLACES = {"kill": (1, 2), "_over": (1, 2), "_lose": (1,), "Failed": (0,), "_start": (3,)}


def words(node: ast.expr) -> Iterator[str]:
    """The texts that the expression can be; * for a part that is only known at run time."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr():
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
        case ast.IfExp():
            yield from words(node.body)
            yield from words(node.orelse)
        case ast.Dict():
            for value in node.values:
                yield from words(value)
        case ast.Tuple():
            for value in node.elts:
                yield from words(value)
        case ast.Subscript():
            yield from words(node.value)


def said(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [keyword.value for keyword in node.keywords if keyword.arg == "rule"]
            for value in [*given, *(node.args[at] for at in PLACES.get(name, ()) if at < len(node.args))]:
                yield from words(value)
        elif isinstance(node, ast.Assign):
            names = {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
            # `rule` itself, and `word`, which `kill` makes the rule of what ends by it.
            if names & {"rule", "word"}:
                yield from words(node.value)
        elif isinstance(node, ast.FunctionDef):
            args = node.args.args
            for arg, default in zip(args[len(args) - len(node.args.defaults) :], node.args.defaults, strict=True):
                if arg.arg == "rule":
                    yield from words(default)


@cache
def spoken() -> frozenset[str]:
    found = {word for path in CORE if path.name not in {"preemption.py"} for word in said(ast.parse(path.read_text()))}
    return frozenset(found | set(get_args(Rule)) | set(ROWS))


def explained() -> set[str]:
    rows = re.findall(r"^\| ((?:`[a-z_]+` ?)+)\|", PAGE, flags=re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([a-z_]+)`", row)}


def test_each_rule_word_is_explained() -> None:
    page = explained()
    missing = [
        word for word in sorted(spoken()) if not any(re.fullmatch(word.replace("*", "[a-z]+"), known) for known in page)
    ]
    assert missing == []


def test_no_word_is_explained_that_nobody_says() -> None:
    patterns = [word.replace("*", "[a-z]+") for word in spoken()]
    assert [word for word in sorted(explained()) if not any(re.fullmatch(pattern, word) for pattern in patterns)] == []


@pytest.mark.parametrize(
    "word", ["never_satisfiable", "queue_limit", "walltime", "window", "room", "silence", "orphan"]
)
def test_the_search_for_words_finds_those_that_are_known(word: str) -> None:
    assert word in spoken()


def test_the_example_is_what_the_queue_computes() -> None:
    rows = re.findall(
        r"^\| ([A-C]) \| (\d+) h \| (\d+) h \| (\d+) \|.*\*\*(-?[\d.]+) h\*\* \|$", PAGE, flags=re.MULTILINE
    )
    assert [row[0] for row in rows] == ["A", "B", "C"]
    state = State()
    cycle(state, [NodeJoined(at=0, node=f"n{number}", gpus=8) for number in range(4)], 0)
    full = Job(id="full", gpus=32, walltime=HOUR)
    cycle(state, [Submitted(at=0, job=full)], 0)
    for name, submitted, walltime, gpus, _ in rows:
        job = Job(id=name, gpus=int(gpus), walltime=int(walltime) * HOUR, user=f"user-{name}")
        cycle(state, [Submitted(at=int(submitted) * HOUR, job=job)], 60)
    told = {name: float(virtual) for name, _, _, _, virtual in rows}
    assert {entry.job.id: round(entry.key[1] / HOUR, 1) for entry in state.queue.in_order()} == told
    assert [entry.job.id for entry in state.queue.in_order()] == ["B", "C", "A"]


def test_the_defaults_on_the_page_are_those_of_the_settings() -> None:
    site = Settings()
    order, preemption, care = site.order, site.preemption, site.care
    assert (order.size, order.length, order.share, order.most) == (18.0, 18.0, 24.0, 7 * 24.0)
    assert (order.several, site.pools["training"].wait, site.turning.length) == (48.0, 86400, 2 * 86400)
    assert (site.turning.share, round(1 / site.turning.most)) == (2.0, 6)
    assert f"The first {site.reservations} of those who cannot start" in PAGE
    assert f"hold {site.high_share:.0%}".replace("%", " %") in PAGE
    assert f"more than {order.patience // 86400} days" in PAGE
    assert f"has run for {preemption.least_run // 60} min" in PAGE
    assert f"not yielded in the last {preemption.cooldown // 3600} h" in PAGE
    assert f"at most {preemption.gpus_per_hour} GPUs in an hour" in PAGE
    assert f"for at most {preemption.hold // 60} min more" in PAGE
    assert f"came back {care.flaps} times in {care.flap_window // 3600} h" in PAGE
    assert f"under {care.heartbeat} s" in PAGE
    assert f"({site.cores_per_gpu:.0f} a\n  GPU unless said)" in PAGE
    assert f"at most {Job(id='a').requeues} times" in PAGE
    assert f"more than {site.queued_share:.0%} of all jobs".replace("%", " %") in PAGE
    assert Admission(site, ()).refusals(Job(id="a"), ())[0].rule == "no_walltime"
