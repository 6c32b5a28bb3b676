from pathlib import Path

import pytest

from gpuguard.errors import Absent
from gpuguard.runtime import assets


def test_a_checkout_has_its_files_beside_the_package() -> None:
    assert assets.asset("rules", "detectors", "fault_codes", "xid.toml").is_file()
    assert assets.read_text("rules", "detectors", "fault_codes", "xid.toml").startswith("#")


def test_an_installed_package_has_them_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "gpuguard"
    (package / "_assets" / "rules").mkdir(parents=True)
    (package / "_assets" / "rules" / "one.toml").write_text("a = 1\n")
    (package / "_assets" / "nodes" / "h100x8").mkdir(parents=True)
    monkeypatch.setattr(assets, "_PACKAGE", str(package))
    monkeypatch.setattr(assets, "_INSTALLED", str(package / "_assets"))
    assert assets.read_text("rules", "one.toml") == "a = 1\n"
    assert assets.asset("fixtures", "nodes", "h100x8") == package / "_assets" / "nodes" / "h100x8"
    with pytest.raises(Absent, match="reinstall"):
        assets.find("fixtures", "nodes", "none")


def test_what_is_missing_or_unreadable_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Absent, match=r"rules/none\.toml is missing"):
        assets.find("rules", "none.toml")
    package = tmp_path / "gpuguard"
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "binary.toml").write_bytes(b"\xff\xfe")
    monkeypatch.setattr(assets, "_PACKAGE", str(package))
    monkeypatch.setattr(assets, "_INSTALLED", str(package / "_assets"))
    with pytest.raises(Absent, match="cannot be read"):
        assets.read_text("rules", "binary.toml")
