"""The registers of Xid 144 to 150: which NVLink 5 event it was.

Reads   register 1: bits 25 to 20 are the reason, the low bits the unit, in one of two encodings: V1 (drivers before
        R575: ten bits) and V2 (R575 and newer: seven bits). Register 2: the error status
Theory  the driver's version names the encoding that is tried first; the other is tried when that one finds nothing,
        because branches are patched. Without a version both are tried. Among the rules that fit, one whose word agrees
        with the line's wins, then one that bears the unit's printed name. What is left is the answer; more than one is
        reported as ambiguous, and none means that the printed word alone decides
Source  NVIDIA Xid catalogue, NVLink 5 sheet
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from gpuguard.detectors.fault_codes.actions import FaultAction
from gpuguard.model.findings import Blame, Remedy, Severity

Encoding = Literal["v1", "v2"]

FIRST_V2_BRANCH = 575
V1_MASK = 0x3FF
V2_MASK = 0x7F
REASON_SHIFT = 20
REASON_MASK = 0x3F


class Nvlink5Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the sheet; `status` () means that register 2 is not looked at.

    `encoding`, `resets` and `ambiguous` are what decoding a line adds: how it was read, that the bit which asks for a
    reset was set, and that other rules with another outcome fit as well.
    """

    units: tuple[str, ...]
    sub: int
    v1: int
    v2: int
    status: tuple[int, ...] = ()
    reset_bit: bool = False
    fatal: bool
    nvidia: str
    nvidia_investigate: str
    severity: Severity
    action: FaultAction
    remedy: Remedy
    blame: Blame
    follow: str = ""
    local: str = ""
    remote: str = ""
    deviation: str = ""
    encoding: Encoding | None = None
    resets: bool = False
    ambiguous: bool = False


def encodings_of(driver: str | None) -> tuple[Encoding, ...]:
    """The encodings to try, the likelier first.

    Shape   a driver version as `570.86.10` or a branch as `R570`; anything else counts as unknown
    """
    branch = (driver or "").strip().lstrip("Rr").partition(".")[0]
    if branch.isdecimal() and int(branch) >= FIRST_V2_BRANCH:
        return ("v2", "v1")
    return ("v1", "v2")


def is_known(driver: str | None) -> bool:
    """Whether the version names a branch."""
    return (driver or "").strip().lstrip("Rr").partition(".")[0].isdecimal()


def decode(
    rules: Iterable[Nvlink5Rule],
    registers: Sequence[int],
    *,
    unit: str | None = None,
    driver: str | None = None,
    fatal: bool | None = None,
) -> tuple[Nvlink5Rule, ...]:
    """The rules that fit best, all of equal standing; empty when none does.

    `fatal` is the word in the line; a rule that contradicts it does not fit. A line cut short has no register 2: then
    every status fits.
    """
    if not registers:
        return ()
    rules = tuple(rules)
    found: dict[int, Nvlink5Rule] = {}
    for encoding in encodings_of(driver):
        for place, rule in enumerate(rules):
            read = _fit(rule, registers, encoding)
            if read is not None and fatal in (None, rule.fatal):
                found.setdefault(place, read)  # once, even when it fits in both encodings
        if found and is_known(driver):
            break
    named = [rule for rule in found.values() if unit and unit.upper() in rule.units]
    return tuple(named or found.values())


def best(fitting: Sequence[Nvlink5Rule]) -> Nvlink5Rule | None:
    """The one to act on: the worst of those that fit, marked ambiguous when they do not agree on what to do."""
    if not fitting:
        return None
    worst = max(fitting, key=lambda rule: (rule.fatal, rule.resets, rule.severity != "info"))
    outcomes = {(rule.severity, rule.action, rule.remedy, rule.follow) for rule in fitting}
    return msgspec.structs.replace(worst, ambiguous=len(outcomes) > 1)


def _fit(rule: Nvlink5Rule, registers: Sequence[int], encoding: Encoding) -> Nvlink5Rule | None:
    first = registers[0]
    mask, wanted = (V1_MASK, rule.v1) if encoding == "v1" else (V2_MASK, rule.v2)
    if first & mask != wanted or (first >> REASON_SHIFT) & REASON_MASK != rule.sub:
        return None
    if rule.status and len(registers) > 1 and registers[1] not in rule.status:
        return None
    resets = rule.reset_bit and bool(first & (mask + 1))
    return msgspec.structs.replace(rule, encoding=encoding, resets=resets, remedy="reset" if resets else rule.remedy)
