"""What NVRx is told: a no for a confirmed CRITICAL or a drain of ours, a yes with its reason for everything else."""

import json
import subprocess
import sys
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.daemons import nvrx
from gpuguard.daemons.nvrx import Glance, Verdict, encode, judge
from gpuguard.model.health import Snapshot
from gpuguard.runtime import cache
from gpuguard.runtime.nvrx_settings import Settings
from tests.support.nvhcd import Response, takes_the_node
from tests.support.snapshots import BOOT, GPU, full

Facts = dict[str, Any]


def told(snapshot: Snapshot | None = None, **changes: Any) -> Facts:
    """A snapshot as the cache has it, with some of its fields changed."""
    facts: Facts = json.loads(msgspec.json.encode(snapshot or full()))
    return {**facts, **changes}


def fine(**changes: Any) -> Facts:
    return told(level=0, confirmed=False, line="nothing stands", subjects=[], drain=None) | changes


def drain(**changes: Any) -> Facts:
    known: Facts = told()["drain"]
    return known | changes


def test_a_healthy_node_is_one() -> None:
    assert judge((fine(), 3.0), BOOT) == Verdict(True, "OK", "nothing stands", (), 3.0)


def test_a_confirmed_critical_is_none_and_names_what_it_is() -> None:
    verdict = judge((told(drain=None), 3.0), BOOT)
    assert not verdict.healthy
    assert verdict.status == "CRITICAL"
    assert verdict.failed == (f"{GPU} xid79",)


def test_what_is_a_consequence_or_waits_for_a_witness_is_not_blamed() -> None:
    facts = told(drain=None)
    (subject,) = facts["subjects"]
    (finding,) = subject["findings"]
    subject["findings"] = [
        finding, finding | {"code": "xid45", "secondary_to": "xid79"}, finding | {"code": "xid109", "confirmed": False},
        finding | {"code": "xid63", "severity": "degraded"},
    ]  # fmt: skip
    assert judge((facts, 3.0), BOOT).failed == (f"{GPU} xid79",)


@pytest.mark.parametrize(("level", "status"), [(1, "WARNING"), (2, "CRITICAL"), (3, "UNKNOWN")])
def test_what_is_not_confirmed_keeps_no_job_away(level: int, status: str) -> None:
    verdict = judge((told(level=level, confirmed=False, line="kmsg is blind", drain=None), 3.0), BOOT)
    assert (verdict.healthy, verdict.status, verdict.message) == (True, status, "kmsg is blind")


@pytest.mark.parametrize("state", ["standing", "releasing"])
def test_a_drain_of_ours_keeps_the_node_out(state: str) -> None:
    verdict = judge((fine(drain=drain(state=state)), 3.0), BOOT)
    assert not verdict.healthy
    assert verdict.failed == ("drain gpuguard:7f3a 4e:00.0 lost xid79",)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "owed"}, {"state": "foreign"}, {"state": "refused"}, {"state": "held"}, {"state": "overridden"},
        {"dry_run": True}, {"by": "mia"},
    ],
)  # fmt: skip
def test_another_drain_says_nothing_of_health(changes: Facts) -> None:
    """One that a person wrote lets running jobs end, and what restarts within them is theirs."""
    assert judge((fine(drain=drain(**changes)), 3.0), BOOT).healthy


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "no cache"),
        ((told(), cache.STALE_AFTER + 1), "no sign of life"),
        ((told(boot="another"), 3.0), "earlier boot"),
        (({}, 3.0), "another version"),
        ((told(level=None), 3.0), "another version"),
        ((told(level=[]), 3.0), "another version"),
        ((told(level=-2), 3.0), "another version"),
        ((told(subjects=[1]), 3.0), "another version"),
        ((told(subjects=None), 3.0), "another version"),
        ((told(drain=7), 3.0), "another version"),
    ],
)
def test_what_cannot_be_known_never_holds_a_job_up(found: Any, words: str) -> None:
    verdict = judge(found, BOOT)
    assert (verdict.healthy, verdict.status, verdict.failed) == (True, "UNKNOWN", ())
    assert words in verdict.message
    assert "not held up" in verdict.message
    assert takes_the_node(Response.FromString(encode(verdict)))


def test_a_boot_that_is_not_known_is_not_compared() -> None:
    assert not judge((told(), 3.0), None).healthy


def test_long_lists_are_cut() -> None:
    facts = told(drain=None, line="x" * 10_000)
    (subject,) = facts["subjects"]
    facts["subjects"] = [subject | {"id": f"gpu:{n}"} for n in range(1000)]
    assert len(encode(judge((facts, 3.0), BOOT))) < 4096


def test_a_no_as_nvrx_reads_it() -> None:
    response = Response.FromString(encode(judge((told(), 3.0), BOOT)))
    assert (response.success, response.exit_code) == (False, 2)
    assert json.loads(response.output)["fail_count"] == 2
    assert json.loads(response.output)["failed_checks"][0] == f"{GPU} xid79"
    assert "gpuguard why" in response.error
    assert not takes_the_node(response)


def test_a_yes_as_nvrx_reads_it() -> None:
    response = Response.FromString(encode(judge((fine(), 3.26), BOOT)))
    assert (response.success, response.exit_code, response.error) == (True, 0, "")
    assert json.loads(response.output) == {
        "fail_count": 0, "failed_checks": [], "status": "OK", "message": "nothing stands", "age_s": 3.3,
    }  # fmt: skip
    assert takes_the_node(response)


@given(st.booleans(), st.text(max_size=300), st.lists(st.text(max_size=300), max_size=20), st.none() | st.floats())
def test_whatever_is_said_is_understood(healthy: bool, words: str, failed: list[str], age: float | None) -> None:
    response = Response.FromString(encode(Verdict(healthy, "WARNING", words, tuple(failed), age)))
    assert response.success is healthy
    assert json.loads(response.output)["failed_checks"] == failed
    assert json.loads(response.output)["message"] == words


def test_half_a_surrogate_pair_is_replaced() -> None:
    response = Response.FromString(encode(Verdict(False, "CRITICAL", "a\ud800b", ("c",))))
    assert "a?b" in response.error


# --- one read for all -------------------------------------------------------------------------------------------------


YES = Verdict(True, "OK", "fine")


def test_a_disk_that_hangs_costs_no_job_its_start(capsys: pytest.CaptureFixture[str]) -> None:
    reads, gone_on = [0], threading.Event()

    def hangs() -> Verdict:
        reads[0] += 1
        gone_on.wait()
        return YES

    glance = Glance(hangs, patience=0.0)
    told = [glance.look() for _ in range(5)]
    assert all(verdict.healthy and "was not read within" in verdict.message for verdict in told)
    assert reads == [1]
    gone_on.set()
    glance.close()
    assert capsys.readouterr().err.count("answer.changed") == 1


def test_each_question_is_answered_by_a_read_of_its_own_time() -> None:
    answers = iter([YES, Verdict(False, "CRITICAL", "lost", ("gpu xid79",))])
    glance = Glance(lambda: next(answers), patience=10.0)
    assert [glance.look().healthy, glance.look().healthy] == [True, False]
    glance.close()


def test_the_log_has_each_change_and_not_each_question(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = iter([YES, YES._replace(age=7.0), YES, YES._replace(message="other"), YES])
    glance = Glance(lambda: next(verdicts), patience=10.0)
    for _ in range(5):
        glance.look()
    glance.close()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == ["fine", "other", "fine"]


# --- the process ------------------------------------------------------------------------------------------------------


def test_without_the_extra_it_says_what_to_install() -> None:
    """In an interpreter of its own: what was imported once cannot be missing."""
    program = (
        "import sys; sys.modules['grpc'] = None\n"
        "from gpuguard.daemons.nvrx import run\n"
        "sys.exit(run(['--socket', '/nonexistent/nvrx.sock'], {}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'gpuguard[nvrx]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_agent_never_loads_grpc() -> None:
    program = "import sys, gpuguard.daemons.agent, gpuguard.daemons.nvrx; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("socket", ["nvrx.sock", "/" + "x" * 107])
def test_a_socket_has_a_place_that_can_be(socket: str) -> None:
    with pytest.raises(ValueError, match="socket: "):
        Settings(socket=socket)


def test_usage_errors_are_64(capsys: pytest.CaptureFixture[str]) -> None:
    assert nvrx.run(["--nonsense"], {}) == 64
    assert "usage:" in capsys.readouterr().err
