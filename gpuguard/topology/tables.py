"""TOML that a person wrote, read in a time that does not depend on what is in it.

Source    CPython Lib/tomllib: a dotted key takes time that grows with the square of its parts, one of 60,000 a minute;
          a number of more than 4,300 digits is a ValueError of its own, not a TOMLDecodeError
"""

import re
import tomllib
from typing import Any

MOST_PARTS = 16  # of a dotted key; ours have two
_STRING = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'")


def load(text: str) -> dict[str, Any]:  # Any: as TOML holds
    """The tables of a text.

    Raises  ValueError where it is no TOML, or none that a person would write
    """
    for number, line in enumerate(text.splitlines(), 1):
        if _STRING.sub("", line).partition("#")[0].count(".") > MOST_PARTS:
            raise ValueError(f"a key of more than {MOST_PARTS} parts (at line {number})")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("brackets in brackets, too many of them") from error
