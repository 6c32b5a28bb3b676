"""Lines are written after the driver's format strings, with values of our own."""

import pytest

from gpuguard.detectors.fault_codes.actions import BUCKETS, deviates
from gpuguard.detectors.fault_codes.catalogue import Catalogue, load_catalogue, parse_entry
from gpuguard.detectors.recovery_action import ACTIONS
from gpuguard.errors import ConfigInvalid
from gpuguard.model.events import DetailValue, Parsed
from gpuguard.model.ids import PciAddress
from gpuguard.runtime.assets import read_text

FILES = ("xid.toml", "sxid.toml", "nvlink5.toml")
PCI = PciAddress("0000:3b:00.0")


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue(*(read_text("rules", "detectors", "fault_codes", name) for name in FILES))


def xid(code: int, *, fatal: bool | None = None, **detail: DetailValue) -> Parsed:
    return Parsed(kind="xid", xid=code, pci=PCI, fatal=fatal, detail=detail)


def sxid(code: int, *, fatal: bool | None = None) -> Parsed:
    return Parsed(kind="sxid", xid=code, pci=PCI, fatal=fatal)


def test_an_entry_is_parsed_once(catalogue: Catalogue) -> None:
    assert catalogue.xid(79) is catalogue.xid(79)
    assert catalogue.xid(79).finding_code == "xid79"
    assert catalogue.sxid(20034).finding_code == "sxid20034"


@pytest.mark.parametrize("code", [0, 178, 9999, 4_000_000_000])
def test_an_unknown_code_is_seen_and_never_drains(catalogue: Catalogue, code: int) -> None:
    for entry in (catalogue.xid(code), catalogue.sxid(code)):
        assert (entry.known, entry.code, entry.severity, entry.action) == (False, code, "degraded", "watch")
        assert not entry.self_evident


def test_a_line_without_a_code_has_no_entry(catalogue: Catalogue) -> None:
    assert catalogue.read(Parsed(kind="xid")) is None
    assert catalogue.read(Parsed(kind="aer", xid=79)) is None


@pytest.mark.parametrize(
    ("number", "action", "remedy"),
    [
        (1, "drain", "reset"),
        (2, "drain", "reboot"),
        (3, "drain", "reset"),
        (4, "drain", "reset"),
        (5, "drain", "reboot"),
        (6, "drain", "reset"),
        (7, "drain", "reboot"),
        (9, "drain", "reset"),
    ],
)
def test_any_recovery_action_but_none_acts_at_once(catalogue: Catalogue, number: int, action: str, remedy: str) -> None:
    entry = catalogue.read(xid(154, fatal=True, to=number))
    assert entry is not None
    assert (entry.action, entry.remedy, entry.self_evident, entry.latched) == (action, remedy, True, True)
    assert entry.because


@pytest.mark.parametrize("number", [number for number, asked in ACTIONS.items() if asked.remedy != "none"])
def test_the_driver_asks_for_the_same_in_the_log_and_when_asked(catalogue: Catalogue, number: int) -> None:
    entry = catalogue.read(xid(154, fatal=True, to=number))
    assert entry is not None
    assert (entry.remedy, entry.because) == (ACTIONS[number].remedy, ACTIONS[number].reason)


def test_recovery_action_none_needs_nothing(catalogue: Catalogue) -> None:
    entry = catalogue.read(xid(154, fatal=False, to=0))
    assert entry is not None
    assert (entry.severity, entry.action, entry.self_evident) == ("info", "none", False)


@pytest.mark.parametrize("to", [None, "0x1", True])
def test_a_recovery_action_that_cannot_be_read_never_drains(catalogue: Catalogue, to: DetailValue) -> None:
    entry = catalogue.read(xid(154, to=to))
    assert entry is not None
    assert (entry.severity, entry.action, entry.self_evident) == ("degraded", "watch", False)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("Row Remapper Error: (0x00000000deadb000) - Row Remapping table is full", "replace"),
        ("Row Remapper Error: (0x00000000deadb000) - All reserved rows for bank are remapped", "replace"),
        ("Attempting to remap a row that is already pending remapping.", "reset"),
        ("", "reset"),
    ],
)
def test_the_text_of_64_chooses_between_reset_and_a_new_board(catalogue: Catalogue, text: str, remedy: str) -> None:
    entry = catalogue.read(xid(64), text)
    assert entry is not None
    assert (entry.action, entry.remedy, entry.self_evident) == ("drain", remedy, True)
    assert ("reboot" in entry.clears) is (remedy == "reset")


@pytest.mark.parametrize("code", range(144, 151))
def test_the_word_decides_for_nvlink5(catalogue: Catalogue, code: int) -> None:
    fatal, mild, silent = (catalogue.read(xid(code, fatal=word)) for word in (True, False, None))
    assert fatal is not None
    assert mild is not None
    assert silent is not None
    assert (fatal.action, fatal.severity, fatal.self_evident) == ("drain", "critical", True)
    assert (mild.action, mild.severity, mild.self_evident) == ("watch", "degraded", False)
    assert silent.action != "drain"


def test_registers_explain_a_fatal_link(catalogue: Catalogue) -> None:
    detail: dict[str, DetailValue] = {"unit": "NETIR_LINK_EVT", "regs": ["0x022445c6", "0x00000000"]}
    entry = catalogue.read(xid(149, fatal=True, **detail))
    assert entry is not None
    assert entry.rule is not None
    assert entry.rule.nvidia_investigate == "INVESTIGATE_PEER_DEVICE"
    assert (entry.action, entry.self_evident) == ("drain", True)


def test_registers_calm_a_harmless_event_and_hand_one_over_to_154(catalogue: Catalogue) -> None:
    calm = catalogue.read(xid(145, fatal=False, unit="RLW_SRC_TRACK", regs=["0x0400a8e2", "0x00000002"]))
    handed = catalogue.read(xid(145, fatal=False, unit="RLW_SRC_TRACK", regs=["0x0400a8e2", "0x00000004"]))
    assert calm is not None
    assert handed is not None
    assert (calm.severity, calm.action) == ("info", "none")
    assert (handed.severity, handed.action, handed.follow) == ("degraded", "watch", "xid154")


def test_registers_alone_never_drain(catalogue: Catalogue) -> None:
    entry = catalogue.read(xid(149, regs=["0x022445c6", "0x00000000"]))
    assert entry is not None
    assert entry.rule is not None
    assert entry.rule.action == "drain"
    assert (entry.action, entry.self_evident) == ("watch", False)


@pytest.mark.parametrize("regs", [None, "0x1", ["junk"], [], ["0x1c6", "cut"]])
def test_registers_that_cannot_be_read_leave_the_word(catalogue: Catalogue, regs: DetailValue) -> None:
    entry = catalogue.read(xid(149, fatal=True, regs=regs))
    assert entry is not None
    assert (entry.action, entry.self_evident) == ("drain", True)


def test_the_word_decides_for_a_switch(catalogue: Catalogue) -> None:
    fatal, mild, silent = (catalogue.read(sxid(20034, fatal=word)) for word in (True, False, None))
    assert fatal is not None
    assert mild is not None
    assert silent is not None
    assert (fatal.action, fatal.remedy, fatal.self_evident) == ("drain", "reset", True)
    assert (mild.action, mild.self_evident) == ("watch", False)
    assert silent.action == "watch"


def test_a_fault_of_the_whole_switch_asks_for_a_reboot(catalogue: Catalogue) -> None:
    entry = catalogue.read(sxid(22003, fatal=True))
    assert entry is not None
    assert (entry.remedy, entry.second_remedy) == ("reboot", "replace")


def test_what_is_harmless_stays_harmless_unless_the_word_is_fatal(catalogue: Catalogue) -> None:
    mild, fatal = catalogue.read(sxid(22013, fatal=False)), catalogue.read(sxid(22013, fatal=True))
    assert mild is not None
    assert fatal is not None
    assert (mild.severity, mild.action) == ("info", "none")
    assert fatal.action == "drain"


def test_an_unknown_switch_code_follows_its_word(catalogue: Catalogue) -> None:
    entry = catalogue.read(sxid(39999, fatal=True))
    assert entry is not None
    assert (entry.known, entry.action, entry.self_evident) == (False, "drain", True)


ENTRY = {
    "name": "X", "meaning": "x", "nvidia": "IGNORE", "severity": "info", "action": "none", "blame": "program",
    "job": "lives", "rank": 1, "source": "x",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"severity": "terrible"}, "severity"),
        ({"colour": "red"}, "colour"),
        ({"rank": "high"}, "rank"),
        ({"remedy": "pray"}, "remedy"),
    ],
)
def test_a_sites_mistake_is_named_with_file_table_and_key(change: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse_entry("xid", 500, {**ENTRY, **change})
    assert "xid.toml: [500]" in caught.value.mistakes[0]
    assert said in caught.value.mistakes[0]


def test_all_mistakes_are_found_at_once() -> None:
    catalogue = load_catalogue('[1]\nname = "x"\n\n[2]\nname = \n', "", "[144]\nrules = [1]\n")
    found = catalogue.mistakes()
    for place in (
        "xid.toml: [1]", "xid.toml: [2]: not TOML", "xid.toml: [unknown] is missing", "sxid.toml: [unknown] is missing",
        "sxid.toml: [fatal] is missing", "nvlink5.toml: [nonfatal] is missing", "nvlink5.toml: [144]",
    ):  # fmt: skip
        assert any(place in mistake for mistake in found), place


def test_a_bucket_comes_to_an_action() -> None:
    assert not deviates("RESET_GPU", "drain")
    assert deviates("IGNORE", "watch")
    assert all(deviates("XID_154", action) for action in ("none", "watch", "test", "drain"))
    assert "not stated" in BUCKETS
