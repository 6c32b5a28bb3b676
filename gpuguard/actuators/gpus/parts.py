"""The parts of a test and their sum. A test passes by what passed, never by what kept silent.

fail     a fault was found in the GPU
unknown  it could not be told: the program hung, broke off, or answered in a form that is not known
skip     it does not apply here, or is not installed
pass     it ran and said so
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from gpuguard.model.actions import Outcome

Verdict = Literal["pass", "fail", "unknown", "skip"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a test and what came of it, in words for a person."""

    name: str
    verdict: Verdict
    words: str


def joined(parts: Sequence[Part]) -> Outcome:
    """One fault fails the test; one part that could not be told, or nothing that passed, leaves it to a person."""
    said = "; ".join(f"{part.name} {part.verdict}: {part.words}" for part in parts)
    message = "".join(c if c.isprintable() else "?" for c in said)[:1000] or "no part of the test is switched on"
    verdicts = {part.verdict for part in parts}
    if "fail" in verdicts:
        return Outcome(result="failed", message=message)
    if "unknown" in verdicts or "pass" not in verdicts:
        then = "mend what kept it from an answer and restart the agent, which asks again"
        return Outcome(result="refused", message=f"it could not be told whether the GPU is well ({then}): {message}")
    return Outcome(result="done", message=message)
