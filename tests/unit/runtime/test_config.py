"""A wrong configuration is told whole: every mistake, each with its file, its key and what to do."""

import os
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Literal

import pytest

from gpuguard.errors import ConfigInvalid, InvariantBroken
from gpuguard.model.units import Seconds
from gpuguard.runtime import config
from gpuguard.runtime.config import load_config


@dataclass(frozen=True, slots=True, kw_only=True)
class Kmsg:
    path: Path = Path("/dev/kmsg")
    trust_user_records: bool = False
    batch: int = 64
    hold: Seconds = Seconds(30.0)
    names: tuple[str, ...] = ("kern",)
    window: tuple[int, float] = (1, 2.0)
    node: str | None = None
    mode: Literal["observe", "drain"] = "observe"
    limits: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError("batch: must be at least 1")
        if self.hold < 0:
            raise ValueError("hold: must not be negative")
        if self.batch > 1000 and self.mode == "observe":
            raise ValueError("a batch above 1000 makes no sense while observing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    limit: float = 90.0
    grace: Seconds = Seconds(5.0)

    def __post_init__(self) -> None:
        if self.limit > 200:
            raise ValueError("limit: is hotter than any GPU survives")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str


SECTIONS: dict[str, type] = {"sources.kmsg": Kmsg, "detectors.thermal": Thermal}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


@pytest.fixture(autouse=True)
def nothing_in_etc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "DEFAULT_PATH", tmp_path / "etc" / "config.toml")


def mistakes(file: Path, text: str, **given: object) -> list[str]:
    """The mistakes in a file of this text, without the file's name."""
    file.write_text(text)
    with pytest.raises(ConfigInvalid) as caught:
        load_config(file, SECTIONS, rules=file.parent, **given)  # type: ignore[arg-type]  # whole=
    assert str(caught.value) == "\n".join(caught.value.mistakes)
    assert all(mistake.startswith(f"{file}: ") for mistake in caught.value.mistakes)
    return [mistake.removeprefix(f"{file}: ") for mistake in caught.value.mistakes]


def test_without_a_file_the_defaults_are_complete(tmp_path: Path) -> None:
    loaded = load_config(None, SECTIONS, rules=tmp_path)
    assert loaded.path is None
    assert loaded.settings("sources.kmsg") == Kmsg()
    assert loaded.settings("detectors.thermal") == Thermal()


def test_the_file_in_etc_is_read_when_it_is_there(tmp_path: Path) -> None:
    config.DEFAULT_PATH.parent.mkdir()
    config.DEFAULT_PATH.write_text("[sources.kmsg]\nbatch = 5\n")
    loaded = load_config(None, SECTIONS, rules=tmp_path)
    assert loaded.path == config.DEFAULT_PATH
    assert loaded.settings("sources.kmsg").batch == 5


def test_every_type_is_filled(file: Path) -> None:
    file.write_text(
        """
        [sources.kmsg]
        path = "/tmp/ring"
        trust_user_records = true
        batch = 7
        hold = 3
        names = ["kern", "user"]
        window = [2, 1]
        node = "gpu-12"
        mode = "drain"
        limits = { xid = 5 }
        """
    )
    found = load_config(file, SECTIONS, rules=file.parent).settings("sources.kmsg")
    assert found == Kmsg(
        path=Path("/tmp/ring"),
        trust_user_records=True,
        batch=7,
        hold=Seconds(3.0),
        names=("kern", "user"),
        window=(2, 1.0),
        node="gpu-12",
        mode="drain",
        limits={"xid": 5},
    )
    assert isinstance(found.hold, float)
    with pytest.raises(FrozenInstanceError):
        found.batch = 8


def test_rules_stand_between_defaults_and_the_site(file: Path, tmp_path: Path) -> None:
    (tmp_path / "detectors").mkdir()
    (tmp_path / "detectors" / "thermal.toml").write_text("limit = 85.0\ngrace = 7.0\n")
    file.write_text("[detectors.thermal]\ngrace = 9.0\n")
    found = load_config(file, SECTIONS, rules=tmp_path).settings("detectors.thermal")
    assert found == Thermal(limit=85.0, grace=Seconds(9.0))


def test_a_mistake_in_the_rules_names_their_file(file: Path, tmp_path: Path) -> None:
    rules = tmp_path / "detectors" / "thermal.toml"
    rules.parent.mkdir()
    rules.write_text("limit = 500.0\ngrase = 1.0\n")
    file.write_text("[sources.kmsg]\nbatch = 0\n")
    with pytest.raises(ConfigInvalid) as caught:
        load_config(file, SECTIONS, rules=tmp_path)
    assert caught.value.mistakes == (
        f"{rules}: [detectors.thermal] grase: there is no such key; did you mean grace?",
        f"{file}: [sources.kmsg] batch: 0 must be at least 1; correct it, or remove the line (the default is 64)",
        f"{rules}: [detectors.thermal] limit: 500.0 is hotter than any GPU survives; correct it, or remove the line "
        "(the default is 90.0)",
    )


def test_all_mistakes_come_at_once(file: Path) -> None:
    text = """
    stray = 1
    [sources]
    kmsgs = 4
    [sources.kmsg]
    batch = "many"
    hold = true
    trust_user_record = true
    mode = "drian"
    names = ["kern", 5]
    window = [1]
    node = 3
    path = ""
    limits = { xid = "x" }
    [sources.kmgs]
    batch = 1
    [zzz]
    """
    assert mistakes(file, text) == [
        "stray: stands outside of any section; the sections are detectors.thermal, sources.kmsg",
        "[sources] kmsgs: stands outside of any section; did you mean sources.kmsg?",
        '[sources.kmsg] batch: "many" is not a whole number; correct it, or remove the line (the default is 64)',
        "[sources.kmsg] hold: true is not a number (seconds); correct it, or remove the line (the default is 30.0)",
        "[sources.kmsg] trust_user_record: there is no such key; did you mean trust_user_records?",
        '[sources.kmsg] mode: "drian" is not one of "observe", "drain"; correct it, or remove the line '
        '(the default is "observe")',
        '[sources.kmsg] names: ["kern", 5] is not a list, each of it text in quotes; correct it, or remove the line '
        '(the default is ["kern"])',
        "[sources.kmsg] window: [1] is not a list of 2: a whole number, a number; correct it, or remove the line "
        "(the default is [1, 2.0])",
        "[sources.kmsg] node: 3 is not text in quotes; correct it, or remove the line (the default is not set)",
        '[sources.kmsg] path: "" is not a path in quotes; correct it, or remove the line (the default is /dev/kmsg)',
        '[sources.kmsg] limits: { xid = "x" } is not a table, each value of it a whole number; correct it, or '
        "remove the line (the default is not set)",
        "[sources.kmgs]: there is no such section; did you mean sources.kmsg?",
        "[zzz]: there is no such section; the sections are detectors.thermal, sources.kmsg",
    ]


def test_every_value_out_of_range_is_told_not_the_first_alone(file: Path) -> None:
    assert mistakes(file, "[sources.kmsg]\nbatch = 0\nhold = -1\n") == [
        "[sources.kmsg] batch: 0 must be at least 1; correct it, or remove the line (the default is 64)",
        "[sources.kmsg] hold: -1.0 must not be negative; correct it, or remove the line (the default is 30.0)",
    ]


def test_a_rule_over_several_keys_names_the_section(file: Path) -> None:
    assert mistakes(file, "[sources.kmsg]\nbatch = 2000\n") == [
        "[sources.kmsg] a batch above 1000 makes no sense while observing; correct what this section says"
    ]


@pytest.mark.parametrize("value", ["inf", "nan", "9223372036854775808", "0x" + "f" * 4000, "1979-05-27", "[]", "{}"])
def test_what_is_no_number_is_refused(file: Path, value: str) -> None:
    (found,) = mistakes(file, f"[sources.kmsg]\nhold = {value}\n")
    assert "is not a number (seconds)" in found


@pytest.mark.parametrize("value", ["1.0", "true", "9223372036854775808"])
def test_what_is_no_whole_number_is_refused(file: Path, value: str) -> None:
    (found,) = mistakes(file, f"[sources.kmsg]\nbatch = {value}\n")
    assert "is not a whole number" in found


def test_a_section_that_is_a_value(file: Path) -> None:
    assert mistakes(file, "[sources]\nkmsg = 5\n") == [
        "sources.kmsg: is a section, not a value; write it as [sources.kmsg] on a line of its own"
    ]


def test_a_setting_without_default_must_be_set(file: Path) -> None:
    file.write_text("")
    with pytest.raises(ConfigInvalid, match=r"\[target\] name: must be set, it has no default; set it to text"):
        load_config(file, {"target": Target})
    file.write_text('[target]\nname = "node-1"\n')
    assert load_config(file, {"target": Target}).settings("target") == Target(name="node-1")


def test_a_process_with_sections_of_its_own_leaves_the_others_alone(file: Path) -> None:
    file.write_text('[agent]\nx = 1\n[detectors.other]\ny = "z"\n[detectors.thermal]\nlimit = 80\n')
    loaded = load_config(file, {"detectors.thermal": Thermal}, whole=False, rules=file.parent)
    assert loaded.settings("detectors.thermal").limit == 80.0
    assert len(mistakes(file, file.read_text())) == 2
    assert mistakes(file, "[sources.kmsg]\nbach = 1\n[other]\n", whole=False) == [
        "[sources.kmsg] bach: there is no such key; did you mean batch?"
    ]


def test_what_is_not_toml_is_told_with_its_line(file: Path) -> None:
    (found,) = mistakes(file, "[sources.kmsg]\nbatch = 1\nbatch 2\n")
    assert found.startswith("is not TOML: ")
    assert "line 3" in found
    (found,) = mistakes(file, f"a = {'[' * 5000}")
    assert found.startswith("is not TOML: ")


def test_what_is_not_text_is_told_with_its_line(file: Path) -> None:
    file.write_bytes(b"[sources.kmsg]\n# caf\xe9\n")
    with pytest.raises(ConfigInvalid, match="line 2: is not UTF-8 text; save the file as UTF-8"):
        load_config(file, SECTIONS, rules=file.parent)


def test_a_byte_order_mark_and_dos_lines_are_borne(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf[sources.kmsg]\r\nbatch = 3\r\n")
    assert load_config(file, SECTIONS, rules=file.parent).settings("sources.kmsg").batch == 3


def test_a_file_that_cannot_be_read_is_named(file: Path) -> None:
    for path, reason in ((file, "No such file"), (file.parent, "Is a directory")):
        with pytest.raises(ConfigInvalid, match=rf"{path}: cannot be read \({reason}.*--config"):
            load_config(path, SECTIONS, rules=file.parent)


def test_what_never_ends_is_no_configuration(file: Path) -> None:
    os.mkfifo(file)
    with pytest.raises(ConfigInvalid, match=rf"{file}: cannot be read \(it is no regular file\).*--config"):
        load_config(file, SECTIONS, rules=file.parent)


def test_lists_in_lists_without_end_are_a_mistake_in_the_file(file: Path) -> None:
    file.write_text("x = " + "[" * 20_000)
    with pytest.raises(ConfigInvalid, match="is not TOML: tables or lists in each other"):
        load_config(file, SECTIONS, rules=file.parent)


@pytest.mark.parametrize("key", ["path", "node"])
def test_no_name_holds_a_nul(file: Path, key: str) -> None:
    file.write_text(f'[sources.kmsg]\n{key} = "/tmp/a\\u0000b"\n[target]\nname = "n"\n')
    with pytest.raises(ConfigInvalid, match=rf"\[sources\.kmsg\] {key}: .*x00.* is not .* in quotes"):
        load_config(file, SECTIONS, rules=file.parent)


def test_a_section_that_was_not_loaded_is_our_own_bug(tmp_path: Path) -> None:
    with pytest.raises(InvariantBroken, match=r"\[policy\] was not loaded"):
        load_config(None, SECTIONS, rules=tmp_path).settings("policy")


def test_defaults_out_of_range_are_our_own_bug(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Wrong:
        count: int = 0

        def __post_init__(self) -> None:
            raise ValueError("count: must be at least 1")

    with pytest.raises(InvariantBroken, match=r"defaults of \[agent\] are out of range"):
        load_config(None, {"agent": Wrong}, rules=tmp_path)


def test_what_is_in_force_can_be_shown(file: Path) -> None:
    file.write_text('[sources.kmsg]\nlimits = { xid = 5 }\nnames = ["a"]\n')
    shown = load_config(file, SECTIONS, rules=file.parent).as_table()
    assert shown["detectors.thermal"] == {"limit": 90.0, "grace": 5.0}
    assert shown["sources.kmsg"]["limits"] == {"xid": 5}
    assert shown["sources.kmsg"]["names"] == ["a"]
    assert shown["sources.kmsg"]["path"] == "/dev/kmsg"
