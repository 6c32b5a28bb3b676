"""The part of YAML that gpuguard writes: block lists and tables, plain or double-quoted values, comments.

Anything else is refused, so that a text which is read here is read alike by every reader of YAML.
"""

import re

Yaml = str | int | bool | list["Yaml"] | dict[str, "Yaml"]
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.,/\[\]-]*")
WORDS = {"y", "n", "yes", "no", "on", "off", "null"}


def read(text: str) -> Yaml:
    """What the text tells.

    Raises  ValueError on what is no such YAML
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    rows = [(len(line) - len(line.lstrip(" ")), line.strip()) for line in lines]
    found, rest = _block(rows, rows[0][0])
    if rest:
        raise ValueError(f"not inside of anything: {rest[0][1]}")
    return found


def _block(rows: list[tuple[int, str]], depth: int) -> tuple[Yaml, list[tuple[int, str]]]:
    items: list[Yaml] = []
    table: dict[str, Yaml] = {}
    while rows and rows[0][0] == depth:
        words = rows[0][1]
        if words.startswith("- "):
            if re.match(r"- [a-z_]+:", words):
                value, rows = _block([(depth + 2, words[2:]), *rows[1:]], depth + 2)
            else:
                value, rows = _scalar(words[2:]), rows[1:]
            items.append(value)
            continue
        key, colon, told = words.partition(":")
        if not colon or key in table or (told and told[0] != " "):
            raise ValueError(f"no table: {words}")
        rows = rows[1:]
        if told:
            table[key] = _scalar(told[1:])
        elif rows and rows[0][0] > depth:
            table[key], rows = _block(rows, rows[0][0])
        else:
            raise ValueError(f"{key} has nothing")
    if rows and rows[0][0] > depth:
        raise ValueError(f"too far in: {rows[0][1]}")
    if bool(items) == bool(table):
        raise ValueError("neither a list nor a table")
    return items or table, rows


def _scalar(text: str) -> Yaml:
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"0|[1-9][0-9]*", text):
        return int(text)
    if re.fullmatch(r'"[^"\\]*"', text):
        return text[1:-1]
    if not PLAIN.fullmatch(text) or text.lower() in WORDS:
        raise ValueError(f"no plain value: {text}")
    return text
