"""Cuts one table out of a TOML text without parsing the rest.

The fault catalogue has six hundred tables and most questions are about one of them. Parsing all of it costs 65 ms of
CPU, six starts of an interpreter, and a cut costs 0.1 ms (Python 3.11, one core of an AMD EPYC). No imports here, so
that a command can use it at no further cost.
"""

UNKNOWN = "unknown"


def lookup_text(toml_text: str, code: int | str) -> str | None:
    """The table `[code]` with its sub-tables, as TOML text of its own; None when there is none.

    Shape   headers stand alone at the start of a line, as in the files of rules/detectors/fault_codes/
    """
    header = f"\n[{code}]\n"
    text = "\n" + toml_text
    start = text.find(header) + 1
    if start == 0:
        return None
    end = start + len(header) - 2
    while (end := text.find("\n[", end)) != -1:
        if not text.startswith((f"[{code}.", f"[[{code}."), end + 1):
            return text[start : end + 1]
        end += 1
    return text[start:]


def codes_in(toml_text: str) -> tuple[int, ...]:
    """Every code that has a table, in the order of the file."""
    lines = toml_text.split("\n")
    return tuple(int(line[1:-1]) for line in lines if line[:1] == "[" and line[1:-1].isdigit())
