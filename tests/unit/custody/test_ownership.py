"""The table of states and wishes: it is complete, and it writes nowhere that it should not."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.custody.ownership import (
    CONDITIONS,
    HOLDERS,
    LOOK_AGAIN,
    NEUTRAL,
    SLURM,
    SLURM_BASE,
    TABLE,
    VERBS,
    condition_of,
    judge,
)
from gpuguard.model.actions import Verb
from gpuguard.model.ids import TokenId
from gpuguard.ports import NodeReport

OURS, OTHER = TokenId("7f3a"), TokenId("0b0b")
REASONS = {
    "ours": "gpuguard:7f3a gpu5 lost xid79",
    "sibling": "gpuguard:0b0b gpu5 lost xid79",
    "foreign": "fan replaced tomorrow",
    "unexplained": "",
}


def report(state: str, reason: str = "", target: str = "slurm", error: str | None = None) -> NodeReport:
    flags = tuple(state.split("+")) if state else ()
    return NodeReport(target=target, node="n1", state=state, flags=flags, reason=reason, error=error)


def calls(state: str, reason: str = "") -> dict[str, str]:
    return {verb: judge(report(state, reason), verb, OURS).call for verb in VERBS}


def same(call: str) -> dict[str, str]:
    return dict.fromkeys(VERBS, call)


@pytest.mark.parametrize(
    "state", ["IDLE", "MIXED", "ALLOCATED", "IDLE+COMPLETING", "IDLE+RESERVED", "MIXED+PLANNED", "IDLE+CLOUD"]
)
def test_a_working_node_is_drained(state: str) -> None:
    assert calls(state) == {"drain": "write", "update_reason": "never", "release": "done", "adopt": "never"}


@pytest.mark.parametrize("base", ["IDLE", "MIXED", "ALLOCATED+COMPLETING"])
def test_a_settled_drain_is_touched_by_its_holder_only(base: str) -> None:
    state = f"{base}+DRAIN"
    ours = {"drain": "done", "update_reason": "write", "release": "write", "adopt": "done"}
    assert calls(state, REASONS["ours"]) == ours
    assert calls(state, REASONS["sibling"]) == same("never"), "who adopts names the token that stands: it is ours then"
    assert calls(state, REASONS["foreign"]) == same("never")
    assert calls(state, "") == calls(state, " \t ") == same("never")


OUT_OF_SERVICE = [
    "DOWN", "DOWN+NOT_RESPONDING", "IDLE+NOT_RESPONDING", "IDLE+MAINTENANCE+RESERVED", "IDLE+MAINT", "FUTURE",
    "UNKNOWN", "IDLE+INVALID_REG", "IDLE+CLOUD+POWERED_DOWN", "IDLE+POWERING_DOWN", "MIXED+POWER_DOWN",
    "IDLE+POWER_DRAIN", "IDLE+POWERING_UP", "IDLE+EXTERNAL",
]  # fmt: skip


@pytest.mark.parametrize("state", OUT_OF_SERVICE)
def test_a_node_that_is_out_of_service_is_not_written_to(state: str) -> None:
    assert calls(state)["drain"] == "wait"
    for holder, reason in REASONS.items():
        answers = calls(f"{state}+DRAIN", reason)
        assert "write" not in answers.values()
        assert answers["drain"] == ("done" if holder == "ours" else "never")


@pytest.mark.parametrize("flag", ["REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT_CANCEL"])
@pytest.mark.parametrize("reason", [*REASONS.values(), "Reboot ASAP", "gpuguard:7f3a gpu5 lost xid79 : reboot issued"])
def test_a_reboot_is_waited_for(flag: str, reason: str) -> None:
    assert calls(f"MIXED+DRAIN+{flag}", reason) == same("wait")


def test_fail_is_somebody_elses_channel() -> None:
    assert calls("IDLE+FAIL", "Action:Reboot")["drain"] == "never"
    assert "write" not in calls("ALLOCATED+FAIL+DRAIN", REASONS["ours"]).values()


@pytest.mark.parametrize(
    "broken",
    [
        report("", error="no answer"),
        report("IDLE", error="no answer"),
        report(""),
        report("HIBERNATING"),
        report("IDLE+HIBERNATING"),
        report("IDLE+MIXED"),
        report("DRAIN"),
        report("idle"),
        report("ERROR"),
        report("IDLE", target="flux"),
    ],
)
@pytest.mark.parametrize("verb", VERBS)
def test_what_is_not_understood_is_never_written_over(broken: NodeReport, verb: Verb) -> None:
    judgement = judge(broken, verb, OURS)
    assert (judgement.call, judgement.retry_after) == ("wait", LOOK_AGAIN[judgement.condition])


def test_each_combination_has_a_row_and_each_row_a_use() -> None:
    used = set()
    for condition, holder in itertools.product(CONDITIONS, HOLDERS):
        fits = [
            index
            for index, row in enumerate(TABLE)
            if (not row.conditions or condition in row.conditions) and (not row.holders or holder in row.holders)
        ]
        assert fits, (condition, holder)
        used.add(fits[0])
    assert used == set(range(len(TABLE)))
    assert set(LOOK_AGAIN) == set(CONDITIONS)


def test_neutral_words_lead_to_the_same_table() -> None:
    for target in ("kubernetes", "bundled"):
        assert judge(report("OPEN", target=target), "drain", OURS).call == "write"
        drained = report("OPEN+DRAIN", REASONS["foreign"], target=target)
        assert {judge(drained, verb, OURS).call for verb in VERBS} == {"never"}
        assert condition_of(report("OPEN+MAINTENANCE", target=target)) == "maintenance"
    assert set(NEUTRAL) >= {word.upper() for word in CONDITIONS} - {"UNREADABLE", "STRANGE"}


@given(
    st.lists(st.sampled_from([*SLURM, "SURPRISE"]), max_size=5).map(tuple),
    st.one_of(st.sampled_from(sorted(REASONS.values())), st.text(max_size=70)),
    st.sampled_from(VERBS),
    st.sampled_from([OURS, OTHER]),
)
def test_every_write_is_over_a_settled_node_that_is_free_or_ours(
    flags: tuple[str, ...], reason: str, verb: Verb, token: TokenId
) -> None:
    seen = NodeReport(target="slurm", node="n1", state="+".join(flags), flags=flags, reason=reason)
    judgement = judge(seen, verb, token)
    if judgement.call != "write":
        return
    assert {SLURM.get(flag) for flag in flags} <= {"settled", "drain"}
    assert len(SLURM_BASE.intersection(flags)) == 1
    if verb == "drain":
        assert "DRAIN" not in flags
    else:
        assert "DRAIN" in flags
        assert reason.startswith("gpuguard:")
        assert f"gpuguard:{token} " in reason
