"""The text by which gpuguard knows its own drain again.

A scheduler keeps one line of free text with a drain and lets every administrator replace it, so that line is the only
place where ownership can be written down. The form is strict in both directions: what gpuguard writes always parses,
and a reason to which a person added a single word no longer counts as gpuguard's. That person has taken over, and
gpuguard leaves the node to them.

Shape   gpuguard:<token> <component> <verdict> <code>, at most 60 printable ASCII characters
Source  `sinfo -R` shows the first 20 characters of a reason: they hold the token and the component's beginning
"""

import re

from gpuguard.errors import InvariantBroken, NotUnderstood
from gpuguard.model.ids import TokenId

REASON_LIMIT = 60
# "gpuguard:7f3a " takes 14 characters and two blanks part the words: 16 + 12 + 16 fill the rest.
COMPONENT_LIMIT, VERDICT_LIMIT, CODE_LIMIT = 16, 12, 16

_TOKEN = re.compile(r"[0-9a-f]{4}", re.ASCII)
_WORD = r"[A-Za-z0-9_.:+-]"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:+-]+", re.ASCII)
# slurmctld appends to the reason of a node that it reboots (slurmctld/node_mgr.c, set_node_reboot_reason).
_REBOOT = r"(?: : reboot (?:requested|issued|complete|timed out|cancell?ed))*"
# `scontrol show node` prints who wrote the reason, and when, behind it.
_TAIL = r"(?: \[[^\s\[\]@]+@[^\s\[\]]+\])?"
_REASON = re.compile(
    rf"gpuguard:(?P<token>[0-9a-f]{{4}}) {_WORD}{{1,{COMPONENT_LIMIT}}} {_WORD}{{1,{VERDICT_LIMIT}}}"
    rf" {_WORD}{{1,{CODE_LIMIT}}}{_REBOOT}{_TAIL}",
    re.ASCII,
)


def parse_token(text: str) -> TokenId:
    """A token's id as it stands in a reason.

    Shape   four lower case hexadecimal digits
    Raises  NotUnderstood with the text kept
    """
    if _TOKEN.fullmatch(text) is None:
        raise NotUnderstood(f"not a token: {text[:20]!r}; expected four hexadecimal digits, as in 7f3a", text)
    return TokenId(text)


def make_reason(token: TokenId, component: str, verdict: str, code: str) -> str:
    """The reason text of a drain; whatever the words hold, it parses back to the token.

    Kernel lines carry names that an attacker may choose. Every run of characters outside letters, digits and `_.:+-`
    becomes one underscore, so no quote, `=`, blank, control or shell character reaches a command line.

    Raises  NotUnderstood when the token is none
    """
    words = (_word(component, COMPONENT_LIMIT), _word(verdict, VERDICT_LIMIT), _word(code, CODE_LIMIT))
    reason = f"gpuguard:{parse_token(token)} {' '.join(words)}"
    if len(reason) > REASON_LIMIT or parse_reason(reason) != token:
        raise InvariantBroken(f"a reason that gpuguard made is not one: {reason!r}")
    return reason


def parse_reason(text: str) -> TokenId | None:
    """The token of a reason that is gpuguard's word for word, None for anybody else's.

    Slurm's ` [user@time]` tail and its ` : reboot issued` are not a person's words and are tolerated.
    """
    match = _REASON.fullmatch(text)
    return TokenId(match["token"]) if match else None


def _word(text: str, limit: int) -> str:
    return _UNSAFE.sub("_", text)[:limit].strip("_") or "unnamed"
