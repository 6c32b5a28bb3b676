"""Where the files that are not Python stand: rules, units, exporters, recorded machines.

In a source checkout they lie beside the package, in an installed one inside it (`_assets`). Nothing else in gpuguard
knows that. Cheap to import, because `xid explain` and the hooks read one file and end.
"""

import os
from typing import TYPE_CHECKING

from gpuguard.errors import Absent

if TYPE_CHECKING:
    from pathlib import Path

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_INSTALLED = os.path.join(_PACKAGE, "_assets")

# The wheel holds the recorded machines alone of fixtures/ (pyproject.toml, force-include).
_INSTALLED_AS = {("fixtures", "nodes"): ("nodes",)}

KINDS = ("rules", "systemd", "exporters", "fixtures")


def find(*parts: str) -> str:
    """The path of a file or folder that ships with gpuguard, as in a checkout: `find("rules", "alerts")`.

    Raises  Absent when it is not there, with what to do
    """
    beside = os.path.join(os.path.dirname(_PACKAGE), *parts)
    inside = os.path.join(_INSTALLED, *parts)
    for path in (inside, beside):
        if os.path.exists(path):
            return path
    for checkout, installed in _INSTALLED_AS.items():
        if parts[: len(checkout)] == checkout:
            path = os.path.join(_INSTALLED, *installed, *parts[len(checkout) :])
            if os.path.exists(path):
                return path
    raise Absent(
        f"{os.path.join(*parts)} is missing; looked in {_INSTALLED} and {os.path.dirname(_PACKAGE)}; "
        "reinstall gpuguard, or run it from a complete checkout"
    )


def asset(*parts: str) -> "Path":
    """As `find`, for who needs a Path."""
    from pathlib import Path

    return Path(find(*parts))


def read_text(*parts: str) -> str:
    """The text of a file that ships with gpuguard.

    Raises  Absent when it is not there or cannot be read, with what to do
    """
    path = find(*parts)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise Absent(f"{path} cannot be read: {error}; reinstall gpuguard or correct the file") from error
