"""Ends and what they mean."""

import pytest

from gpuguard.scheduler.outcomes import classify_end


@pytest.mark.parametrize(
    ("code", "signal", "proof", "signalled_at", "wants_proof", "ended_at", "outcome"),
    [
        (0, 0, None, None, False, None, "completed"),
        (0, 0, True, None, True, None, "completed"),
        # The framework died and returned zero.
        (0, 0, None, None, True, None, "suspicious"),
        (0, 0, False, None, True, None, "suspicious"),
        (1, 0, None, None, False, None, "failed"),
        (255, 0, None, None, False, None, "failed"),
        # Proof does not make up for a code: what came after it went wrong.
        (1, 0, True, None, True, None, "failed"),
        # SIGTERM, SIGKILL and SIGSEGV that were not ours.
        (0, 15, None, None, False, None, "failed"),
        (137, 9, True, None, True, None, "failed"),
        (0, 11, None, None, False, None, "failed"),
        # We asked: whatever it returns, it obeyed, within the grace or by SIGKILL after it.
        (0, 15, None, 100, False, 110, "preempted"),
        (1, 0, None, 100, True, 100, "preempted"),
        (0, 0, None, 100, False, 110, "preempted"),
        (0, 0, False, 100, True, 110, "preempted"),
        (0, 9, None, 100, True, 220, "preempted"),
        (3, 0, None, 100, False, None, "preempted"),
        # It was done before it could obey.
        (0, 0, True, 100, True, 110, "completed"),
        # It had ended before we asked.
        (1, 0, None, 100, False, 99, "failed"),
        (0, 0, None, 100, True, 99, "suspicious"),
        (0, 0, None, 100, False, 99, "completed"),
    ],
)
def test_every_end_has_one_meaning(
    code: int,
    signal: int,
    proof: bool | None,
    signalled_at: int | None,
    wants_proof: bool,
    ended_at: int | None,
    outcome: str,
) -> None:
    assert classify_end(code, signal, proof, signalled_at, wants_proof, ended_at) == outcome


@pytest.mark.parametrize("code", [1, 2, 99, 127, 128, 137, 143, 255, -1])
def test_any_code_but_zero_is_abnormal(code: int) -> None:
    assert classify_end(code, 0, True, None, False) == "failed"
