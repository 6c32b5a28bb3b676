"""What `scontrol` says of one node, told apart: state, flags, reason, and the kinds of complaint.

Source  Slurm 22.05.8 as observed; src/api/node_info.c, slurm_sprint_node_table; src/common/slurm_errno.c
"""

import re
from typing import Final

from gpuguard.actuators.slurm.scontrol import Answer
from gpuguard.custody.token import parse_reason
from gpuguard.errors import ActionDeferred, ActionRefused, GpuguardError
from gpuguard.ports import NodeReport

TARGET: Final = "slurm"
# What is kept of a reason: ours has 60 characters, a foreign one may have thousands.
REASON_KEPT: Final = 400

# Free text stands at the end of a record, reason first: from the first of these fields on nothing is trusted.
_FREE_TEXT = re.compile(r" (Reason|Comment|Extra)=")
_STATE = re.compile(r" State=(\S{1,300})(?= )", re.ASCII)
# Who wrote the reason and when, then at most fields that newer releases print behind it.
_REASON = re.compile(
    r"(?P<text>.*) \[[^\s\[\]@]+@[^\s\[\]]+\](?: (?:Comment|Extra|ReservationName|InstanceId|InstanceType)=.*)?",
    re.DOTALL,
)
# Old releases print these behind the base word (man sinfo, NODE STATE CODES).
_SUFFIXES: Final = {
    "*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWER_DOWN", "%": "POWERING_DOWN",
    "$": "MAINTENANCE", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED",
}  # fmt: skip


class StateRefused(ActionDeferred):
    """slurmctld or scontrol does not take this state word now; a fresh look decides what to do."""


def parse_node(text: str, node: str) -> NodeReport:
    """What Slurm says of `node`; `error` is set when the text is not one whole record of it.

    Reads   `scontrol -o show node NAME`
    Shape   one line of Key=Value fields; State before Reason; Reason unescaped: it may hold blanks, `=` and quotes,
            and its line breaks are printed as blanks behind the `[user@time]` of its first line
    """

    def garbled(why: str) -> NodeReport:
        return NodeReport(target=TARGET, node=node, error=f"scontrol's answer is not understood: {why}")

    if not text.strip():
        return garbled("it is empty")
    if not text.endswith("\n") or "\n" in text[:-1]:
        return garbled("it is not one whole line")
    record = text[:-1]
    if not record.startswith(f"NodeName={node} "):
        return garbled(f"it does not begin with NodeName={node}")
    free = _FREE_TEXT.search(record)
    facts = record[: free.start()] if free else record
    states = _STATE.findall(f"{facts} ")
    if len(states) != 1 or facts.count("NodeName=") != 1:
        return garbled("it does not have exactly one state")
    reason = _reason_of(record[free.end() :]) if free and free[1] == "Reason" else ""
    flags = flags_of(states[0])
    drained = "DRAIN" in flags
    return NodeReport(
        target=TARGET,
        node=node,
        state=states[0],
        flags=flags,
        drained=drained,
        reason=reason[:REASON_KEPT],
        ours=parse_reason(reason) if drained else None,
    )


def flags_of(state: str) -> tuple[str, ...]:
    """The words of a state, base first, with the suffixes of old releases spelled out.

    Shape   IDLE+DRAIN, or IDLE*+DRAIN up to 20.11
    """
    words: list[str] = []
    for part in state.upper().split("+"):
        word = part.rstrip("".join(_SUFFIXES))
        words += [word, *(_SUFFIXES[suffix] for suffix in part[len(word) :])]
    return tuple(dict.fromkeys(words))


def complaint_of(answer: Answer, node: str) -> GpuguardError:
    """The error that a failed `scontrol` stands for; all of them exit with 1 and differ by text alone."""
    said = answer.said
    text = said.lower()
    if "invalid node name" in text or (text.startswith("node ") and "not found" in text):
        return ActionRefused(
            f"Slurm knows no node {node}; set `node` in [actuators.slurm] to this machine's NodeName in slurm.conf"
        )
    if any(words in text for words in ("invalid user id", "permission denied", "access denied", "not authorized")):
        return ActionRefused(f"Slurm lets only root and SlurmUser drain; run gpuguard-actuator as one of them ({said})")
    if "invalid node state" in text or "valid states are" in text or "invalid input: state" in text:
        return StateRefused(f"Slurm does not take this state now: {said}", 10.0)
    if any(words in text for words in ("must specify a reason", "unrecognized option", "invalid input", "aborted")):
        return ActionRefused(f"scontrol does not take what gpuguard asks ({said}); please report this with its version")
    if "configuration source" in text:
        return ActionDeferred(f"scontrol finds no slurm.conf; set `slurm_conf` in [actuators.slurm] ({said})", 60.0)
    if any(words in text for words in ("munge", "authentication", "credential")):
        return ActionDeferred(f"Slurm's authentication fails; is munged running? ({said})", 10.0)
    if any(words in text for words in ("unable to contact", "connect failure", "timed out", "zero bytes")):
        return ActionDeferred(f"slurmctld does not answer ({said})", 5.0)
    return ActionDeferred(f"scontrol failed with exit code {answer.code} and said: {said}", 30.0)


def _reason_of(rest: str) -> str:
    match = _REASON.fullmatch(rest)
    return match["text"] if match else rest
