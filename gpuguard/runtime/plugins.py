"""Shelves: folders whose files are found by name, so that a new one edits nothing."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping
from types import ModuleType

from gpuguard.errors import InvariantBroken


def shelf(package: str) -> dict[str, ModuleType]:
    """Every module on a shelf by its file name, in the order of the names.

    A name that begins with an underscore is not on the shelf.
    Raises  InvariantBroken when a module cannot be imported, with its name
    """
    try:
        folder = importlib.import_module(package)
    except ImportError as error:
        raise InvariantBroken(f"no shelf {package}: {error}") from error
    found: dict[str, ModuleType] = {}
    for name in sorted(entry.name for entry in pkgutil.iter_modules(folder.__path__)):
        if name.startswith("_"):
            continue
        try:
            found[name] = importlib.import_module(f"{package}.{name}")
        except (ImportError, SyntaxError) as error:
            raise InvariantBroken(f"{package}.{name} cannot be imported: {error}") from error
    return found


def sections(prefix: str, modules: Mapping[str, ModuleType]) -> dict[str, type]:
    """The `Settings` of every module that has one, by the section that fills it (`<prefix>.<file name>`).

    Raises  InvariantBroken for a Settings that is no dataclass
    """
    found: dict[str, type] = {}
    for name, module in modules.items():
        settings = getattr(module, "Settings", None)
        if settings is None:
            continue
        if not (isinstance(settings, type) and dataclasses.is_dataclass(settings)):
            raise InvariantBroken(f"{module.__name__}.Settings is not a dataclass")
        found[f"{prefix}.{name}"] = settings
    return found
