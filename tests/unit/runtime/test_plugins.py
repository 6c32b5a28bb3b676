"""A shelf is what lies in its folder."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuguard.errors import InvariantBroken
from gpuguard.runtime.plugins import sections, shelf

Shelve = Callable[..., str]


@pytest.fixture
def shelve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelve]:
    """Makes a package of these files; gives its name."""
    package = f"shelf_{tmp_path.name.replace('-', '_')}"

    def make(**files: str) -> str:
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").write_text('"""How to add one."""\n')
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        return package

    yield make
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]


SETTINGS = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Settings:\n    lanes: int = {}\n"


def test_files_are_found_by_name_in_order(shelve: Shelve) -> None:
    package = shelve(pcie_width="x = 1", aer="x = 2", _private="raise RuntimeError")
    found = shelf(package)
    assert list(found) == ["aer", "pcie_width"]
    assert found["pcie_width"].x == 1


def test_settings_are_found_under_their_section(shelve: Shelve) -> None:
    modules = shelf(shelve(pcie_width=SETTINGS.format(16), thermal=SETTINGS.format(8), plain="x = 1"))
    found = sections("detectors", modules)
    assert list(found) == ["detectors.pcie_width", "detectors.thermal"]
    assert found["detectors.thermal"]().lanes == 8


@pytest.mark.parametrize("text", ["import no_such_module_anywhere", "def ("])
def test_a_file_that_cannot_be_imported_is_named(shelve: Shelve, text: str) -> None:
    package = shelve(broken=text)
    with pytest.raises(InvariantBroken, match=rf"{package}\.broken cannot be imported"):
        shelf(package)


def test_settings_of_another_kind_are_refused(shelve: Shelve) -> None:
    with pytest.raises(InvariantBroken, match=r"odd\.Settings is not a dataclass"):
        sections("detectors", shelf(shelve(odd="Settings = dict(lanes=1)")))


def test_no_such_shelf() -> None:
    with pytest.raises(InvariantBroken, match=r"no shelf gpuguard\.no_such_shelf"):
        shelf("gpuguard.no_such_shelf")


def test_the_real_shelves_can_be_walked() -> None:
    for package in ("gpuguard.actuators", "gpuguard.sources"):
        for name, module in shelf(package).items():
            assert module.__name__ == f"{package}.{name}"
