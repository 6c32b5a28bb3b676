import json
from collections.abc import Callable

import pytest

from gpuguard.cli import USAGE_ERROR, run

Told = Callable[..., str]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    def tell(line: str, code: int = 0) -> str:
        assert run(line.split()) == code
        return capsys.readouterr().out

    return tell


@pytest.mark.parametrize("code", range(1, 178))
def test_every_xid_is_explained_in_80_columns(told: Told, code: int) -> None:
    text = told(f"xid explain {code}")
    assert text.startswith(f"Xid {code}  ")
    assert max(map(len, text.splitlines())) <= 80
    for row in ("to blame", "the job", "gpuguard", "ended by", "NVIDIA says"):
        assert f"\n{row}" in text


def test_79_tells_the_whole_story(told: Told) -> None:
    text = told("xid explain 79")
    for words in ("fell off the bus", "hardware", "drains the node at once", "a reboot of the node", "RESTART_BM"):
        assert words in text


def test_a_deviation_from_nvidia_says_why(told: Told) -> None:
    assert "\nwhy " in told("xid explain 45")
    assert "\nwhy " not in told("xid explain 79")


def test_an_unknown_code_says_so_and_ends_with_1(told: Told) -> None:
    assert told("xid explain 9999", 1).startswith("Xid 9999  (unknown)\n")
    assert json.loads(told("xid explain 9999 --json", 1))["known"] is False


def test_json_has_every_fact_under_one_name(told: Told) -> None:
    answer = json.loads(told("xid explain 64 --json"))
    assert (answer["code"], answer["known"], answer["action"], answer["remedy"]) == (64, True, "drain", "reset")
    assert {variant["remedy"] for variant in answer["variants"]} == {"reset", "replace"}
    assert answer["consequence"] is False


def test_the_recovery_actions_of_154_are_all_told(told: Told) -> None:
    text = told("xid explain 154")
    assert all(f"\n  to {number} " in text for number in range(6))


def test_registers_are_decoded(told: Told) -> None:
    text = told("xid explain 149 --registers 0x022445c6 0x0 --unit NETIR_LINK_EVT --driver 570.86 --word fatal")
    assert "NETIR_LINK_EVT or NETIR_LINK_DOWN, fatal (encoding V1" in text
    assert "INVESTIGATE_PEER_DEVICE" in text
    rules = json.loads(told("xid explain 149 --registers 0x022445c6 0x0 --json"))["rules"]
    assert [rule["encoding"] for rule in rules] == ["v1"]


def test_registers_that_match_nothing_say_so(told: Told) -> None:
    assert "match no rule" in told("xid explain 149 --registers 0x3 0x0", 1)


def test_registers_that_match_more_say_how_to_tell_them_apart(told: Told) -> None:
    assert "match 2 rules; --unit" in told("xid explain 146 --registers 0x143 0x4")


@pytest.mark.parametrize("line", ["xid explain", "sxid explain", "xid explain 79 --registers 0x1"])
def test_a_question_that_makes_no_sense_is_a_usage_error(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == USAGE_ERROR
    assert capsys.readouterr().err.startswith("gpuguard ")


@pytest.mark.parametrize(
    "line",
    [
        "xid explain seventy-nine", "xid", "xid tell 3", "xid explain 149 --registers blue", "xid explain -1",
        "sxid", "sxid explain -20034", "xid explain 7.5",
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_a_usage_error(line: str) -> None:
    with pytest.raises(SystemExit) as end:
        run(line.split())
    assert end.value.code == USAGE_ERROR


@pytest.mark.parametrize("command", ["xid", "sxid"])
def test_a_bare_command_says_what_can_be_asked(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run([command])
    assert "explain|list" in capsys.readouterr().err


def test_the_lists_hold_every_code_one_a_line(told: Told) -> None:
    lines = told("xid list").splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(1, 178))
    assert max(map(len, lines)) <= 80
    assert len(json.loads(told("xid list --json"))) == 177
    assert len(told("sxid list").splitlines()) == len(json.loads(told("sxid list --json"))) == 421


@pytest.mark.parametrize("code", [10000, 11004, 20034, 22003, 22013, 26006, 28006])
def test_a_switchs_code_tells_what_each_word_does(told: Told, code: int) -> None:
    text = told(f"sxid explain {code}")
    assert text.startswith(f"SXid {code}  ")
    assert "\n  fatal " in text
    assert "\n  nonfatal " in text
    assert max(map(len, text.splitlines())) <= 80


def test_an_unknown_switch_code_ends_with_1(told: Told) -> None:
    assert "(unknown)" in told("sxid explain 99999", 1)
    answer = json.loads(told("sxid explain 99999 --json", 1))
    assert (answer["known"], answer["action"], answer["words"]["fatal"]["action"]) == (False, "watch", "drain")
