"""One TOML file configures it all.

`[sources.kmsg]` fills the `Settings` of `sources/kmsg.py`, and so on. Defaults are complete; for detectors and the
policy, the numbers in `rules/detectors/<name>.toml` and `rules/policy.toml` come between the defaults and the site's
file. A `Settings` says in `__post_init__` what is out of range, by `ValueError("key: what is wrong")`.
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NewType, Union, cast, get_args, get_origin

from gpuguard.errors import Absent, ConfigInvalid, InvariantBroken
from gpuguard.model.units import Secret
from gpuguard.runtime.assets import asset
from gpuguard.runtime.files import read_toml

DEFAULT_PATH = Path("/etc/gpuguard/config.toml")
HIDDEN = "[left out]"  # stands for what is secret

# Sections, or shelves of them, whose numbers stand in rules/ for a site to read and tune.
RULED = ("detectors", "policy")

Value = object  # whatever tomllib reads: text, numbers, dates, lists, tables


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """The settings of every section, valid. `path` is the site's file, None when there is none."""

    path: Path | None
    _settings: Mapping[str, object]

    def settings(self, section: str) -> Any:  # Any: each section has a Settings type of its own
        """The `Settings` of one section.

        Raises  InvariantBroken for a section that was not asked for
        """
        if section not in self._settings:
            raise InvariantBroken(f"section [{section}] was not loaded; loaded are {', '.join(self._settings)}")
        return self._settings[section]

    def as_table(self) -> dict[str, dict[str, object]]:
        """Every setting that is in force, by section and key, less what is secret; what support needs to see."""
        return {name: _shown(settings) for name, settings in self._settings.items()}


def load_config(
    path: Path | None, sections: Mapping[str, type], *, whole: bool = True, rules: Path | None = None
) -> Config:
    """The settings of all `sections`, each filled from its defaults, its rules file and the site's file.

    `path` None means DEFAULT_PATH where that exists. A process that needs only its own sections passes `whole=False`:
    what other sections say is then none of its business. `rules` is the folder `rules`, found by itself when None.
    Raises  ConfigInvalid with every mistake in every file
    """
    mistakes: list[str] = []
    found: dict[str, _Section] = {name: _Section(name, kind) for name, kind in sections.items()}
    for section in found.values():
        if file := _rules_file(section.name, rules):
            section.fill(file, _read(file, mistakes), mistakes)
    if path is None and _stands(DEFAULT_PATH):
        path = DEFAULT_PATH
    if path is not None:
        for name, table in _tables(_read(path, mistakes), sections, path, mistakes, whole=whole):
            found[name].fill(path, table, mistakes)
    built = {name: section.build(mistakes, path or DEFAULT_PATH) for name, section in found.items()}
    if mistakes:
        raise ConfigInvalid(mistakes)
    return Config(path, types.MappingProxyType(built))


def _stands(path: Path) -> bool:
    """Whether there is such a file; one that this user may not even look for is one too, and cannot be read."""
    try:
        return path.exists()
    except PermissionError:
        return True


class _Section:
    """What the files say about one section; values that passed, each with the file it came from."""

    def __init__(self, name: str, kind: type) -> None:
        if not dataclasses.is_dataclass(kind):
            raise InvariantBroken(f"Settings of [{name}] is not a dataclass: {kind!r}")
        self.name = name
        self._kind: Callable[..., object] = kind
        self._fields = {field.name: field for field in dataclasses.fields(kind)}
        self._hints = typing.get_type_hints(kind)
        self._values: dict[str, object] = {}
        self._files: dict[str, Path] = {}

    def fill(self, file: Path, table: Mapping[str, Value], mistakes: list[str]) -> None:
        """Every key of the table is taken over, or stands among the mistakes."""
        for key, value in table.items():
            where = f"{file}: [{self.name}] {key}"
            if key not in self._fields:
                mistakes.append(f"{where}: there is no such key; {_nearest(key, self._fields, 'the keys are')}")
                continue
            try:
                self._values[key] = _converted(value, self._hints[key])
                self._files[key] = file
            except _Unfit as unfit:
                default = self._default(key)
                mistakes.append(f"{where}: {self._toml(key, value)} is not {unfit.expected}; correct it{default}")

    def build(self, mistakes: list[str], file: Path) -> object:
        """The Settings; None when there were mistakes, which are added."""
        for key, field in self._fields.items():
            bare = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if bare and key not in self._values:
                expected = _wording(self._hints[key])
                mistakes.append(f"{file}: [{self.name}] {key}: must be set, it has no default; set it to {expected}")
                return None
        left_out = False
        while True:
            try:
                return self._kind(**self._values)
            except ValueError as error:
                key, colon, what = str(error).partition(":")
                if colon and key in self._values:
                    # One value out of range hides the next: leave it out and look again.
                    left_out, shown = True, self._toml(key, self._values.pop(key))
                    mistakes.append(
                        f"{self._files[key]}: [{self.name}] {key}: {shown} {what.strip()}; correct it"
                        f"{self._default(key)}"
                    )
                    continue
                if self._values:
                    mistakes.append(f"{file}: [{self.name}] {error}; correct what this section says")
                elif not left_out:
                    raise InvariantBroken(f"the defaults of [{self.name}] are out of range: {error}") from error
                return None

    def _toml(self, key: str, value: object) -> str:
        """The value as a mistake may quote it."""
        return HIDDEN if _is_secret(self._hints[key]) else _toml(value)

    def _default(self, key: str) -> str:
        default = self._fields[key].default
        return "" if default is dataclasses.MISSING else f", or remove the line (the default is {_toml(default)})"


def _rules_file(section: str, rules: Path | None) -> Path | None:
    shelf, _, name = section.partition(".")
    if shelf not in RULED:
        return None
    parts = (shelf, f"{name}.toml") if name else (f"{shelf}.toml",)
    if rules is None:
        try:
            return asset("rules", *parts)
        except Absent:
            return None
    file = rules.joinpath(*parts)
    return file if file.exists() else None


def _read(path: Path, mistakes: list[str]) -> dict[str, Value]:
    try:
        return read_toml(path)
    except OSError as error:
        mistakes.append(
            f"{path}: cannot be read ({error.strerror}); make it a file that this user may read, or name another with "
            "--config"
        )
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        mistakes.append(f"{path}: line {line}: is not UTF-8 text; save the file as UTF-8")
    except ValueError as error:
        mistakes.append(f"{path}: is not TOML: {error}; correct that line, see https://toml.io")
    return {}


def _tables(
    tree: Mapping[str, Value], sections: Mapping[str, type], path: Path, mistakes: list[str], *, whole: bool
) -> Iterator[tuple[str, dict[str, Value]]]:
    """Name and keys of every known section in the file; what belongs to none stands among the mistakes."""

    def walk(table: Mapping[str, Value], above: str) -> Iterator[tuple[str, dict[str, Value]]]:
        own: dict[str, Value] = {}
        for key, value in table.items():
            name = f"{above}.{key}" if above else key
            group = any(section.startswith(f"{name}.") for section in sections)
            if name not in sections and not group:
                if above in sections:
                    own[key] = value
                elif whole:
                    mistakes.append(_stray(path, name, value, sections))
            elif isinstance(value, dict):
                yield from walk(value, name)
            else:
                mistakes.append(f"{path}: {name}: is a section, not a value; write it as [{name}] on a line of its own")
        if own:
            yield above, own

    yield from walk(tree, "")


def _stray(path: Path, name: str, value: Value, sections: Mapping[str, type]) -> str:
    if isinstance(value, dict):
        return f"{path}: [{name}]: there is no such section; {_nearest(name, sections, 'the sections are')}"
    parent, _, key = name.rpartition(".")
    where = f"[{parent}] {key}" if parent else key
    return f"{path}: {where}: stands outside of any section; {_nearest(parent or name, sections, 'the sections are')}"


def _nearest(name: str, known: Mapping[str, object], otherwise: str) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"{otherwise} {', '.join(sorted(known))}" if known else "remove it"


# TOML promises 64 bits; beyond, a number is a slip of the keyboard. Infinity and not-a-number are no settings either.
_LARGEST = 2**63 - 1


class _Unfit(Exception):
    """A value does not have the type its key asks for."""

    def __init__(self, expected: str) -> None:
        self.expected = expected


def _converted(value: Value, hint: object) -> object:
    """The value as the type that a field declares.

    Raises  _Unfit
    """
    declared, hint = hint, _bare(hint)
    origin, parts = get_origin(hint), get_args(hint)
    number = isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST
    if hint is float and number:
        return float(cast(float, value))
    if hint is int and number and isinstance(value, int):
        return value
    # No name of a file or of anything else holds a NUL; the system calls would raise what nobody expects.
    if hint in (str, Path) and isinstance(value, str) and "\0" in value:
        raise _Unfit(f"{_wording(declared)} without NUL")
    if (hint is bool and isinstance(value, bool)) or (hint is str and isinstance(value, str)):
        return value
    if hint is Path and isinstance(value, str) and value:
        return Path(value)
    if origin is Literal and any(value == choice and type(value) is type(choice) for choice in parts):
        return value
    if origin is tuple and isinstance(value, list):
        return _items(value, hint, parts)
    if origin in (dict, Mapping) and isinstance(value, dict):
        try:
            return types.MappingProxyType({key: _converted(item, parts[1]) for key, item in value.items()})
        except _Unfit as unfit:
            raise _Unfit(_wording(declared)) from unfit
    if origin in (Union, types.UnionType):
        for part in parts:
            try:
                return _converted(value, part)
            except _Unfit:
                continue
    raise _Unfit(_wording(declared))


def _items(value: list[Value], hint: object, parts: tuple[object, ...]) -> tuple[object, ...]:
    endless = len(parts) == 2 and parts[1] is Ellipsis
    kinds = [parts[0]] * len(value) if endless else list(parts)
    if len(kinds) != len(value):
        raise _Unfit(_wording(hint))
    try:
        return tuple(_converted(item, kind) for item, kind in zip(value, kinds, strict=True))
    except _Unfit as unfit:
        raise _Unfit(_wording(hint)) from unfit


def _bare(hint: object) -> object:
    """The type behind a NewType such as Seconds."""
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    return hint


_WORDS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    Path: "a path in quotes",
    type(None): "nothing",
}


def _wording(hint: object) -> str:
    """What a person must write, in words."""
    unit = f" ({hint.__name__.lower()})" if isinstance(hint, NewType) else ""
    hint = _bare(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(_toml, parts))}"
    if origin is tuple:
        if len(parts) == 2 and parts[1] is Ellipsis:
            return f"a list, each of it {_wording(parts[0])}"
        return f"a list of {len(parts)}: {', '.join(map(_wording, parts))}"
    if origin in (dict, Mapping):
        return f"a table, each value of it {_wording(parts[1])}"
    if origin in (Union, types.UnionType):
        return " or ".join(_wording(part) for part in parts if part is not type(None))
    return _WORDS.get(hint, str(hint)) + unit


def _toml(value: Value) -> str:
    """The value as one would write it in the file, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value if len(value) <= 60 else f"{value[:60]}..."
        return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'
    if isinstance(value, list | tuple):
        shown = ", ".join(map(_toml, value[:5])) + (", ..." if len(value) > 5 else "")
        return f"[{shown}]"
    if isinstance(value, Mapping):
        shown = ", ".join(f"{key} = {_toml(item)}" for key, item in list(value.items())[:5])
        return f"{{ {shown}{', ...' if len(value) > 5 else ''} }}"
    if isinstance(value, int) and abs(value) > _LARGEST:
        return "a number beyond 64 bits"
    return "not set" if value is None else str(value)


def _shown(settings: object) -> dict[str, object]:
    fields = dataclasses.fields(settings)  # type: ignore[arg-type]  # _Section made it of a dataclass
    hints = typing.get_type_hints(type(settings))
    values = {field.name: getattr(settings, field.name) for field in fields}
    return {name: HIDDEN if value and _is_secret(hints[name]) else _built_in(value) for name, value in values.items()}


def _is_secret(hint: object) -> bool:
    return hint is Secret


def _built_in(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _built_in(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_built_in(item) for item in value]
    return value
