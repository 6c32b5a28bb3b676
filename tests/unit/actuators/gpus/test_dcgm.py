"""DCGM's answers as they are published, and everything else that a program may print."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.actuators.gpus.dcgm import findings, numbers, verdict
from gpuguard.actuators.gpus.parts import Part, joined
from gpuguard.child.program import Answer
from gpuguard.errors import NotUnderstood
from tests.support.gpu_machine import document

CHECKOUT = Path(__file__).resolve().parents[4]
PRINTED = CHECKOUT / "fixtures" / "actuators" / "gpus"


def said(text: str, code: int = 0, gpus: tuple[int, ...] = (0,)) -> Part:
    return verdict(Answer(code, text, ""), gpus)


@pytest.mark.parametrize(
    ("name", "code", "verdicts"),
    [
        ("dcgm4_pass", 0, {0: "pass", 1: "pass", 2: "unknown"}),
        ("dcgm4_memory_fails", 226, {0: "unknown", 1: "fail"}),
        ("dcgm4_persistence_off", 226, {0: "unknown", 1: "unknown"}),
        ("dcgm4_not_allowed", 0, {0: "pass"}),
        ("dcgm3_level2", 0, {0: "pass", 1: "pass"}),
        ("dcgm3_fails", 226, {0: "unknown", 1: "fail"}),
        ("dcgm4_runtime_error", 1, {0: "unknown"}),
    ],
)
def test_each_published_form_is_read_for_each_gpu(name: str, code: int, verdicts: dict[int, str]) -> None:
    text = (PRINTED / f"{name}.json").read_text()
    assert {gpu: said(text, code, (gpu,)).verdict for gpu in verdicts} == verdicts


def test_a_fault_is_told_with_its_test_and_words() -> None:
    part = said((PRINTED / "dcgm4_memory_fails.json").read_text(), 226, (1,))
    assert part.words.startswith("memory GPU 1 (")


def test_what_was_skipped_is_named() -> None:
    assert "skipped memory, pcie" in said((PRINTED / "dcgm4_not_allowed.json").read_text()).words


@pytest.mark.parametrize(
    ("word", "code", "expected"),
    [("Pass", 0, "pass"), ("PASS", 0, "pass"), ("Pass", 3, "unknown"), ("Fail", 0, "fail"), ("FAIL", 226, "fail"),
     ("Warn", 0, "unknown"), ("Skip", 0, "skip"), ("Not Run", 0, "skip"), ("", 0, "unknown"), ("Well", 0, "unknown")],
)  # fmt: skip
def test_each_word_means_one_thing(word: str, code: int, expected: str) -> None:
    assert said(json.dumps(document(("memory", 0, word))), code).verdict == expected


def test_one_strange_word_beside_passes_is_no_pass() -> None:
    text = json.dumps(document(("software", 0, "Pass"), ("memory", 0, "Isolate")))
    assert said(text).verdict == "unknown"


def test_words_around_the_document_are_passed_over() -> None:
    text = f"Warning: something\n{json.dumps(document(('memory', 0, 'Pass')))}\nbye\n"
    assert said(text).verdict == "pass"


def test_a_result_that_names_no_gpu_concerns_all() -> None:
    text = '{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "x", "results": [{"status": "Fail"}]}]}]}}'
    assert said(text, 1, (7,)).verdict == "fail"


@pytest.mark.parametrize("text", ["", "x", "{}", "[]", "{", '{"a": 1}', '{"DCGM Diagnostic": 5}', "{" * 100_000])
def test_what_is_no_document_says_nothing(text: str) -> None:
    with pytest.raises(NotUnderstood):
        findings(text)
    assert said(text).verdict == "unknown"


WORDS = st.sampled_from(["Pass", "Fail", "Skip", "Warn", "Not Run", "", "passed?", None, 3, True, ["Pass"]])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["DCGM Diagnostic", "test_categories", "tests", "results", "name", "status", "entity_id", "gpu_id",
             "entity_group", "warnings", "error_severity", "test_summary", "runtime_error"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


def pass_in(text: str) -> bool:
    return '"pass' in text.lower()


@given(value=JSON, code=st.integers(0, 255), gpus=st.lists(st.integers(0, 3), max_size=3, unique=True))
def test_no_document_passes_without_a_pass_and_a_clean_exit(value: object, code: int, gpus: list[int]) -> None:
    text = json.dumps({"DCGM Diagnostic": value})
    part = said(text, code, tuple(gpus))
    if part.verdict == "pass":
        assert pass_in(text)
        assert code == 0
        assert gpus
        found = [finding for finding in findings(text) if finding.gpu is None or finding.gpu in gpus]
        assert not any(finding.word == "fail" for finding in found)
        assert all(any(f.word == "pass" and f.gpu in (gpu, None) for f in found) for gpu in gpus)
    assert part.words.isprintable()


@given(text=st.text(max_size=200), code=st.integers(0, 255))
def test_whatever_is_printed_there_is_a_verdict_and_no_pass(text: str, code: int) -> None:
    assert said(text, code).verdict == "unknown"


@given(
    st.lists(
        st.builds(
            Part, name=st.just("x"), verdict=st.sampled_from(["pass", "fail", "unknown", "skip"]), words=st.text()
        )
    )
)
def test_the_sum_passes_only_by_a_pass_with_nothing_against_it(parts: list[Part]) -> None:
    outcome, verdicts = joined(parts), {part.verdict for part in parts}
    assert (outcome.result == "done") == ("pass" in verdicts and not verdicts & {"fail", "unknown"})
    assert (outcome.result == "failed") == ("fail" in verdicts)
    assert outcome.message.isprintable()


def test_the_numbers_are_dcgms_own() -> None:
    text = (PRINTED / "discovery.txt").read_text()
    assert numbers(text) == {"0000:1b:00.0": 0, "0000:43:00.0": 1}
    assert numbers("garbage\n| 3 | Name:\n| | PCI Bus ID: zz\n") == {}
