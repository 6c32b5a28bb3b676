"""When a remedy may begin: our own drain, a settled node, no work left."""

import pytest

from gpuguard.custody.ownership import SLURM
from gpuguard.custody.remedies import AT_WORK, standing
from gpuguard.model.ids import TokenId
from gpuguard.ports import NodeReport

OURS = TokenId("7f3a")
REASON = "gpuguard:7f3a gpu3 lost xid79"


def report(*flags: str, reason: str = REASON, error: str | None = None) -> NodeReport:
    return NodeReport(target="slurm", node="here", state="+".join(flags), flags=flags, reason=reason, error=error)


def test_our_own_drain_on_an_idle_node_is_all_it_takes() -> None:
    assert standing(report("IDLE", "DRAIN"), OURS).call == "go"
    assert standing(report("IDLE", "DRAIN", reason=f"{REASON} : reboot issued"), OURS).call == "go"


@pytest.mark.parametrize("reason", ["", "Bob: fan", f"{REASON} Bob: keep", "gpuguard:0001 gpu3 lost xid79"])
def test_under_anybody_elses_drain_nothing_begins(reason: str) -> None:
    assert standing(report("IDLE", "DRAIN", reason=reason), OURS).call == "never"


def test_without_a_drain_nothing_begins() -> None:
    assert standing(report("IDLE"), OURS).call == "never"
    assert standing(report("DOWN"), OURS).call == "never"


def test_work_that_is_left_is_waited_for_unless_it_is_what_shall_go() -> None:
    for word in AT_WORK - {"COMPLETING"}:
        assert standing(report(word, "DRAIN"), OURS).call == "wait"
        assert standing(report(word, "DRAIN"), OURS, idle=False).call == "go"
    assert standing(report("IDLE", "COMPLETING", "DRAIN"), OURS).call == "wait"


def test_each_other_word_of_slurm_waits() -> None:
    for word, meaning in SLURM.items():
        if meaning not in ("settled", "drain") and word not in ("DOWN", "FUTURE", "UNKNOWN"):
            now = standing(report("IDLE", "DRAIN", word), OURS)
            assert (now.call, now.retry_after is not None) == ("wait", True), word


def test_no_answer_waits() -> None:
    now = standing(report(error="slurmctld is away"), OURS)
    assert (now.call, now.why) == ("wait", "slurmctld is away")


def test_an_answer_carries_the_word_of_the_scheduler_and_silence_none() -> None:
    for flags in (("IDLE", "DRAIN"), ("MIXED", "DRAIN"), ("IDLE",), ("IDLE", "DRAIN", "MAINT"), ("IDLE", "UNHEARD_OF")):
        assert standing(report(*flags), OURS).state == "+".join(flags)
    assert standing(report("IDLE", error="slurmctld is away"), OURS).state is None
    assert standing(report(), OURS).state is None
