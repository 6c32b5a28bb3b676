"""The layout is what the docs say: every place explains itself, and the linter would notice a wrong import."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = CHECKOUT / "gpuguard"
# A file that needs more is a table or wants to be two.
LONGEST = 600
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".service", ".socket", ".conf", ".sh", ".txt", ".scn", ""}
TOP = ("gpuguard", "tests", "fixtures", "rules", "exporters", "systemd", "bench", "docs", "deploy")
# First folders of paths that any Linux machine has, or that a text may make up.
ROOTS = {
    "bin", "boot", "dev", "etc", "home", "lib", "lib64", "mnt", "nonexistent", "no", "opt", "proc", "root", "run",
    "sbin", "srv", "sys", "tmp", "usr", "var",
}  # fmt: skip


def _files(folder: Path, *suffixes: str) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and (not suffixes or path.suffix in suffixes)
    )


def _named(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def _texts() -> list[Path]:
    top = [path for path in CHECKOUT.iterdir() if path.is_file() and not path.name.startswith(".")]
    found = [*top, CHECKOUT / ".ci" / "run"]
    for name in TOP:
        found += [path for path in _files(CHECKOUT / name) if path.suffix in TEXT]
    return found


@pytest.mark.parametrize("path", _files(PACKAGE, ".py"), ids=_named)
def test_each_file_says_what_it_is(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, "it has no docstring"
    assert docstring.splitlines()[0].strip(), "the docstring's first line is empty"


def test_no_file_is_too_long_to_read() -> None:
    files = [path for folder in ("gpuguard", "tests", "bench") for path in _files(CHECKOUT / folder, ".py")]
    assert files
    assert [_named(path) for path in files if path.read_text().count("\n") > LONGEST] == []


def test_each_folder_of_the_package_is_one() -> None:
    folders = {path.parent for path in _files(PACKAGE, ".py")}
    assert [_named(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_no_file_names_a_place_of_one_machine_only() -> None:
    """Paths are of any Linux, of the checkout, or of nothing at all: what is true of one workplace is not told."""
    strange = []
    for path in _texts():
        if "kernel_log" in path.parts or "nodes" in path.parts or path.name == "LICENSE":
            continue  # logs of machines, which name what they like
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            for found in re.finditer(r"(?:(?<=[\s\"'`(=])|^)/([a-z][a-z0-9_-]*)/[a-z]", line):
                if found[1] not in ROOTS and found[1] not in {"metrics", "api", "apis", "v1", "v2"}:  # pages
                    strange.append(f"{_named(path)}:{number}: {line.strip()[:100]}")
    assert strange == []


def test_the_linter_passes_and_would_notice(tmp_path: Path) -> None:
    """The contracts hold; with a wrong import of each kind planted in a copy, the contract that forbids it breaks."""
    done = _lint(CHECKOUT)
    assert done.returncode == 0, done.stdout[-3000:]

    shutil.copytree(PACKAGE, tmp_path / "gpuguard", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    planted = {
        "model/ids.py": ("gpuguard.health", "Imports point down the list"),
        "detectors/log_loss.py": ("os", "The core is pure"),
        "metrics/health.py": ("gpuguard.custody", "Metrics are computed from the model alone"),
        "health/decide.py": ("gpuguard.detectors", "Health gets detectors and grammars handed in"),
        "sources/logfile.py": ("gpuguard.health", "Sources read logs and nothing of the core"),
        "actuators/dry_run.py": ("gpuguard.detectors", "Actuators know custody and nothing of the core"),
        "store/rows.py": ("gpuguard.health", "The store keeps what it is given"),
        "kernel_log/grammars/oom.py": ("gpuguard.kernel_log.grammars.xid", "Grammars do not know each other"),
        "commands/scan.py": ("gpuguard.commands.xid", "Commands do not know each other"),
    }
    for name, (wanted, _) in planted.items():
        with (tmp_path / "gpuguard" / name).open("a") as file:
            file.write(f"\nimport {wanted}\n")
    done = _lint(tmp_path)
    assert done.returncode != 0
    for _, contract in planted.values():
        assert re.search(rf"^{contract}.* BROKEN", done.stdout, flags=re.MULTILINE), contract


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


def test_the_wheel_holds_all_that_an_installed_gpuguard_needs(tmp_path: Path) -> None:
    """Code, rules, units, exporters and recorded machines; neither tests nor benchmarks."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("gpuguard-*.whl")
    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(wheel)], capture_output=True, text=True, check=True
    ).stdout
    inside = {line.split()[0] for line in listed.splitlines()[1:]}
    for asset, source in {
        "rules": "rules",
        "systemd": "systemd",
        "exporters": "exporters",
        "nodes": "fixtures/nodes",
    }.items():
        wanted = {
            f"gpuguard/_assets/{asset}/{path.relative_to(CHECKOUT / source)}" for path in _files(CHECKOUT / source)
        }
        assert wanted, f"{source} is empty"
        assert wanted <= inside
    assert {str(path.relative_to(CHECKOUT)) for path in _files(PACKAGE, ".py")} <= inside
    assert not {name for name in inside if name.startswith(("tests/", "bench/"))}
