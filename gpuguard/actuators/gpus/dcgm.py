"""`dcgmi diag -j`: run for some GPUs, and read for them alone.

The form has changed and is not promised, so it is read with patience, but in one direction: what is not understood is
unknown. A pass is a `Pass` that was read for each GPU that was asked for, with no word against it and a clean exit.

Shape   {"DCGM Diagnostic" or "DCGM GPU Diagnostic": {"test_categories": [{"category", "tests": [{"name", "results":
        [{"entity_group": "GPU", "entity_id": 0 (4.x) or "gpu_id": "0" (3.x), "status": "Pass", "warnings": [...]}],
        "test_summary": {"status"}}]}], "runtime_error"}, ...}; status is Pass, Fail, Warn, Skip or Not Run, in any case
        of letters; a warning of 4.x is {"warning", "error_id", "error_category", "error_severity"}, of 3.x a text
Source  DCGM 3.3 and 4.2: dcgmi/Diag.cpp, testing/python3/tests; dcgmlib/dcgm_errors.h, dcgmErrorSeverity_enum
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from gpuguard.actuators.gpus.parts import Part
from gpuguard.child.program import Answer
from gpuguard.errors import NotUnderstood
from gpuguard.model.ids import PciAddress, parse_pci_address

NAME: Final = "dcgmi"
# A setting is not as DCGM wishes (persistence mode off, for one): nothing about the GPU.
CONFIG: Final = 5
STRANGER: Final = -1  # a number that is none
_PASS, _FAIL, _WARN, _SKIP = "pass", "fail", "warn", "skip"
_WORDS: Final = {
    "pass": _PASS, "passed": _PASS, "fail": _FAIL, "failed": _FAIL, "warn": _WARN, "warning": _WARN,
    "skip": _SKIP, "skipped": _SKIP, "not run": _SKIP, "notrun": _SKIP,
}  # fmt: skip
_FOUND = re.compile(r"^\|\s*(?P<id>\d{1,3})\s*\|\s*Name:", re.ASCII)
_BUS = re.compile(r"PCI Bus ID:\s*(?P<pci>[0-9A-Fa-f:.]{8,20})", re.ASCII)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result: of which test, for which GPU (None for all), in which word, and what it complains of."""

    test: str
    gpu: int | None
    word: str
    complaint: str = ""
    setting: bool = False


def numbers(text: str) -> dict[PciAddress, int]:
    """DCGM's own number of each GPU, which need not be NVML's.

    Reads   `dcgmi discovery -l`
    Shape   a table: `| 0 | Name: NVIDIA H100 |`, then rows with an empty first column, one with `PCI Bus ID: ...`
    """
    found: dict[PciAddress, int] = {}
    number: int | None = None
    for line in text.splitlines():
        if match := _FOUND.match(line):
            number = int(match["id"])
        if number is not None and (bus := _BUS.search(line)):
            try:
                found[parse_pci_address(bus["pci"])] = number
            except NotUnderstood:
                continue
    return found


def verdict(answer: Answer, gpus: Sequence[int]) -> Part:
    """What one run says of the GPUs with these numbers."""
    try:
        found = findings(answer.out)
    except NotUnderstood as error:
        return _part("unknown", f"{error} (exit code {answer.code}, it says: {answer.said})")
    if any(finding.gpu == STRANGER for finding in found):
        return _part("unknown", "a result names no GPU that can be understood")
    mine = [finding for finding in found if finding.gpu is None or finding.gpu in gpus]
    failed = [finding for finding in mine if finding.word == _FAIL]
    if faults := [finding for finding in failed if not finding.setting]:
        return _part("fail", _listed(faults))
    if failed:
        return _part("unknown", f"a setting keeps it from an answer: {_listed(failed)}")
    if strange := [finding for finding in mine if finding.word not in (_PASS, _WARN, _SKIP)]:
        return _part("unknown", f"words that this gpuguard does not know: {_listed(strange)}")
    passed = [finding for finding in mine if finding.word == _PASS]
    if answer.code != 0:
        return _part("unknown", f"it names no fault, yet ended with exit code {answer.code}")
    silent = [gpu for gpu in gpus if not any(finding.gpu in (gpu, None) for finding in passed)]
    if not gpus or silent:
        only_skipped = bool(mine) and all(finding.word == _SKIP for finding in mine)
        return _part(
            "skip" if only_skipped else "unknown", f"no test passed for GPU {', '.join(map(str, silent)) or '?'}"
        )
    warned = [finding for finding in mine if finding.word == _WARN]
    skipped = sorted({finding.test for finding in mine if finding.word == _SKIP})
    words = f"passed {', '.join(sorted({finding.test for finding in passed}))}"
    words += f"; warned: {_listed(warned)}" if warned else ""
    return _part("pass", f"{words}; skipped {', '.join(skipped)}" if skipped else words)


def findings(text: str) -> list[Finding]:
    """Every result in the document.

    Raises  NotUnderstood when there is none, or the run ended with an error of its own
    """
    begin, end = text.find("{"), text.rfind("}")
    try:
        document = msgspec.json.decode(text[begin : end + 1]) if 0 <= begin < end else None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise NotUnderstood("its answer is no JSON") from error
    if not isinstance(document, dict):
        raise NotUnderstood("its answer holds no document")
    roots = [value for key, value in document.items() if "diagnostic" in key.lower() and isinstance(value, dict)]
    root = roots[0] if roots else document
    for key, value in root.items():
        if key.lower().replace("_", " ") in ("runtime error", "error") and value:
            raise NotUnderstood(f"it broke off: {_short(value)}")
    found = [finding for test in _tests(root) for finding in _of_test(test)]
    if not found:
        raise NotUnderstood("no result of a test is in its answer")
    return found


def _tests(root: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    for category in (*_dicts(root.get("test_categories")), root):
        yield from _dicts(category.get("tests"))


def _of_test(test: Mapping[str, object]) -> Iterator[Finding]:
    name = _short(test.get("name") or "a test")
    results = _dicts(test.get("results"))
    for result in results:
        group = result.get("entity_group")
        if isinstance(group, str) and group.upper() != "GPU":
            continue
        for gpu in _gpus(result):
            yield _finding(name, gpu, result)
    summary = test.get("test_summary")
    if isinstance(summary, dict) and _word(summary) not in (_PASS, _SKIP, *map(_word, results)):
        # The summary can only add to what stands against a GPU, and what another GPU's result says is that one's.
        yield _finding(name, None, summary)


def _gpus(result: Mapping[str, object]) -> list[int | None]:
    """Whom a result concerns; one that names nobody concerns all, and one whose number is none nobody can tell."""
    told = next((result[key] for key in ("entity_id", "gpu_id", "gpu_ids") if key in result), None)
    parts = str(told).split(",") if isinstance(told, str | int) and not isinstance(told, bool) else []
    numbers = [int(part) for part in map(str.strip, parts) if part.isascii() and part.isdigit() and len(part) < 5]
    if told is None:
        return [None]
    return [*numbers] if numbers and len(numbers) == len(parts) else [STRANGER]


def _finding(test: str, gpu: int | None, result: Mapping[str, object]) -> Finding:
    warnings = result.get("warnings")
    listed = warnings if isinstance(warnings, list) else [warnings] if warnings else []
    severities = [entry.get("error_severity") if isinstance(entry, dict) else None for entry in listed]
    texts = [_short(entry.get("warning", "") if isinstance(entry, dict) else entry) for entry in listed]
    return Finding(
        test=test, gpu=gpu, word=_word(result), complaint=texts[0] if texts else "",
        setting=bool(severities) and all(severity == CONFIG for severity in severities),
    )  # fmt: skip


def _word(result: Mapping[str, object]) -> str:
    said = str(result.get("status", "")).strip().lower().replace("_", " ")
    return _WORDS.get(said, f"? {_short(said)}")


def _dicts(value: object) -> list[Mapping[str, object]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _listed(found: Sequence[Finding]) -> str:
    shown = [
        f"{finding.test}{'' if finding.gpu is None else f' GPU {finding.gpu}'}"
        f"{f' ({finding.complaint})' if finding.complaint else ''}"
        for finding in found[:4]
    ]
    return ", ".join(shown) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def _short(value: object) -> str:
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in str(value)[:120])


def _part(what: str, words: str) -> Part:
    return msgspec.convert({"name": NAME, "verdict": what, "words": words}, Part)
