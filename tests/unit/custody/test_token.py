"""What gpuguard writes parses back, and nothing that a person touched does."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.custody.token import REASON_LIMIT, make_reason, parse_reason, parse_token
from gpuguard.errors import NotUnderstood
from gpuguard.model.ids import TokenId

TOKENS = st.text(alphabet="0123456789abcdef", min_size=4, max_size=4).map(TokenId)
OURS = "gpuguard:7f3a gpu5 lost xid79"


def test_the_promised_form() -> None:
    assert make_reason(TokenId("7f3a"), "gpu5", "lost", "xid79") == OURS


@given(TOKENS, st.text(), st.text(), st.text())
def test_whatever_the_words_hold_the_reason_is_short_printable_and_parses_back(
    token: TokenId, component: str, verdict: str, code: str
) -> None:
    reason = make_reason(token, component, verdict, code)
    assert len(reason) <= REASON_LIMIT
    assert set(reason) <= set(string.ascii_letters + string.digits + "_.:+- ")
    assert parse_reason(reason) == token


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("0000:65:00.0", "0000:65:00.0"),
        ("a=b", "a_b"),
        ("$(reboot)", "reboot"),
        ("x\ny", "x_y"),
        ("'\"`;|&", "unnamed"),
        ("", "unnamed"),
        ("g\u0440u", "g_u"),  # a Cyrillic letter that looks like p
        ("x" * 40, "x" * 16),
    ],
)
def test_hostile_words_are_made_harmless(word: str, written: str) -> None:
    assert make_reason(TokenId("7f3a"), word, "lost", "xid79").split(" ")[1] == written


@pytest.mark.parametrize(
    "text",
    [
        OURS,
        f"{OURS} [root@2026-03-04T19:02:55]",
        f"{OURS} [slurm(64030)@Unknown]",
        f"{OURS} : reboot issued",
        f"{OURS} : reboot issued : reboot complete",
        f"{OURS} : reboot issued [root@2026-03-04T19:02:55]",
    ],
)
def test_what_slurm_adds_is_tolerated(text: str) -> None:
    assert parse_reason(text) == "7f3a"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpuguard",
        "gpuguard: GPU 3 Xid 79",
        "gpuguard:7f3a",
        "gpuguard:7f3a ",
        "gpuguard:7f3a gpu5 lost",
        "gpuguard:7F3A gpu5 lost xid79",
        "gpuguard:7f3 gpu5 lost xid79",
        "gpuguard:7f3ab gpu5 lost xid79",
        "gpuguard:\u0667f3a gpu5 lost xid79",
        f" {OURS}",
        f"{OURS} ",
        f"{OURS}\n",
        f"{OURS}\nBob: keep",
        f"{OURS} -- Bob: keep",
        f"{OURS} Bob",
        f"{OURS} [root@now] Bob",
        f"{OURS} : reboot issued by Bob",
        f"was {OURS}",
        "gpuguard:7f3a  gpu5 lost xid79",
        "gpuguard:7f3a gpu=5 lost xid79",
        "GPUGUARD:7f3a gpu5 lost xid79",
        f"gpuguard:7f3a {'x' * 17} lost xid79",
    ],
)
def test_a_reason_that_somebody_touched_is_not_ours(text: str) -> None:
    assert parse_reason(text) is None


@given(st.text(max_size=100))
def test_a_prefix_alone_is_never_enough(rest: str) -> None:
    assert parse_reason(f"gpuguard:7f3a gpu5 lost xid79 {rest}".rstrip()) in (None, "7f3a")
    assert parse_reason(f"{rest}x gpuguard:7f3a gpu5 lost xid79") is None


@pytest.mark.parametrize("text", ["", "7f3", "7f3a ", "7f3g", "7F3A", "7f3a\n", "../.."])
def test_what_is_no_token_makes_no_reason(text: str) -> None:
    with pytest.raises(NotUnderstood):
        parse_token(text)
    with pytest.raises(NotUnderstood):
        make_reason(TokenId(text), "gpu5", "lost", "xid79")
