"""The written-out index is what lies in the folders."""

import pkgutil
from types import ModuleType

from gpuguard.kernel_log import forms, grammars
from gpuguard.kernel_log.reader import marker_pattern
from gpuguard.kernel_log.shelves import FORMS, GRAMMARS, all_markers
from tests.support.kernel_lines import kinds


def _files(package: ModuleType) -> set[str]:
    return {module.name for module in pkgutil.iter_modules(package.__path__)}


def test_forms_are_all_there_and_named_as_their_files() -> None:
    assert {form.name for form in FORMS} == _files(forms)
    assert all(type(form).__module__.endswith(f".{form.name}") for form in FORMS)
    assert FORMS[-1].name == "plain"


def test_grammars_are_all_there_with_cases_beside_them() -> None:
    assert {type(grammar).__module__.rpartition(".")[2] for grammar in GRAMMARS} == _files(grammars) == set(kinds())


def test_no_marker_holds_another_or_a_newline() -> None:
    markers = all_markers()
    assert len(set(markers)) == len(markers)
    assert not any(a != b and a in b for a in markers for b in markers)
    assert not any(b"\n" in marker or b"\\" in marker for marker in markers)
    assert marker_pattern().count(b"|") == len(markers) - 1
