"""Read, judge, write, read again: over a scontrol that answers as it is told to."""

import socket
from pathlib import Path

import msgspec
import pytest

from gpuguard.actuators.slurm import Settings, Slurm
from gpuguard.custody.ownership import VERBS
from gpuguard.errors import ConfigInvalid
from gpuguard.model.units import Seconds
from tests.support.fake_scontrol import FakeScontrol
from tests.support.wishes import wish

OURS = "gpuguard:7f3a gpu3 lost xid79"


@pytest.fixture
def fake(tmp_path: Path) -> FakeScontrol:
    return FakeScontrol(tmp_path)


def actuator(fake: FakeScontrol, deadline: float = 5.0, settle: float = 0.0) -> Slurm:
    return Slurm(
        Settings(scontrol=str(fake.path), node=fake.node, deadline=Seconds(deadline), settle=Seconds(settle)), {}
    )


def test_a_drain_is_one_read_one_write_one_read(fake: FakeScontrol) -> None:
    outcome = actuator(fake).perform(wish("drain"))
    assert (outcome.result, outcome.node_state) == ("done", "IDLE")
    assert "IDLE+DRAIN" in outcome.message
    assert fake.calls == ["-o show node here", f"update nodename=here state=drain reason={OURS}", "-o show node here"]


def test_a_note_on_a_working_node_is_kept_in_the_outcome(fake: FakeScontrol) -> None:
    fake.set("MIXED", "Bob: watch the fan")
    outcome = actuator(fake).perform(wish("drain"))
    assert (outcome.result, "Bob: watch the fan" in outcome.message) == ("done", True)


def test_what_is_already_so_costs_one_read(fake: FakeScontrol) -> None:
    fake.set("IDLE+DRAIN", OURS)
    assert actuator(fake).perform(wish("drain")).result == "done"
    fake.set("IDLE")
    assert actuator(fake).perform(wish("release")).result == "done"
    assert fake.calls == ["-o show node here"] * 2


def test_a_release_undrains(fake: FakeScontrol) -> None:
    fake.set("MIXED+DRAIN", OURS)
    assert actuator(fake).perform(wish("release")).result == "done"
    assert (fake.state, fake.writes) == ("MIXED", ["update nodename=here state=undrain"])


UNKNOWN_WORD = 'case $* in *=undrain) echo "Invalid input: state=undrain" >&2; exit 1;; esac'
LEFT_STANDING = "case $* in *=undrain) exit 0;; esac"


@pytest.mark.parametrize("trap", [UNKNOWN_WORD, LEFT_STANDING])
def test_a_release_falls_back_to_resume(fake: FakeScontrol, trap: str) -> None:
    fake.set("IDLE+DRAIN", OURS)
    fake.trap("update", trap)
    assert actuator(fake).perform(wish("release")).result == "done"
    assert (fake.state, fake.writes[-1]) == ("IDLE", "update nodename=here state=resume")


@pytest.mark.parametrize(
    ("state", "reason", "result"),
    [("DOWN+DRAIN", OURS, "deferred"), ("IDLE+DRAIN", "Bob: mine now", "done"), ("IDLE", "", "done")],
)
def test_resume_is_not_sent_when_something_else_changed_after_undrain(
    fake: FakeScontrol, state: str, reason: str, result: str
) -> None:
    fake.set("IDLE+DRAIN", OURS)
    fake.trap("update", f"printf '%s' '{state}' >state; printf '%s' '{reason}' >reason; exit 0")
    assert actuator(fake).perform(wish("release")).result == result
    assert fake.writes == ["update nodename=here state=undrain"]


def test_a_release_that_slurm_does_not_carry_out_is_put_off(fake: FakeScontrol) -> None:
    fake.set("IDLE+DRAIN", OURS)
    fake.trap("update", 'echo "slurm_update error: Invalid node state specified" >&2; exit 1')
    outcome = actuator(fake).perform(wish("release"))
    assert (outcome.result, len(fake.writes)) == ("deferred", 2)
    assert "Invalid node state" in outcome.message


def test_somebody_who_writes_at_the_same_moment_is_told_and_not_fought(fake: FakeScontrol) -> None:
    fake.trap("update", "printf IDLE+DRAIN >state; printf 'Bob: mine' >reason; exit 0")
    outcome = actuator(fake).perform(wish("drain"))
    assert (outcome.result, fake.reason, len(fake.writes)) == ("foreign", "Bob: mine", 1)


def test_a_write_that_left_nothing_is_put_off(fake: FakeScontrol) -> None:
    fake.trap("update", "exit 0")
    assert actuator(fake).perform(wish("drain")).result == "deferred"


@pytest.mark.parametrize("reason", ["Bob: fan", "", "   ", "gpuguard: old form", f"{OURS} Bob: keep"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_foreign_drain_is_never_written_over(fake: FakeScontrol, verb: str, reason: str) -> None:
    fake.set("IDLE+DRAIN", reason)
    outcome = actuator(fake).perform(msgspec.structs.replace(wish("drain"), verb=verb))
    assert (outcome.result, fake.writes) == ("foreign", [])


@pytest.mark.parametrize(
    ("shell", "says"),
    [
        ("exit 0", "empty"),
        ("echo; exit 0", "empty"),
        ("echo 'No nodes in the system'; exit 0", "NodeName"),
        ("printf 'NodeName=here Arch=x86_64 State=IDLE Thr'; exit 0", "whole line"),
        ("echo 'NodeName=here State=IDLE x=1'; echo 'NodeName=here State=DOWN x=1'; exit 0", "whole line"),
        ("echo 'NodeName=there State=IDLE x=1'; exit 0", "NodeName"),
        ("echo 'NodeName=here State=IDLE x=1 State=DOWN y=2'; exit 0", "one state"),
        ("head -c 100000 /dev/zero; exit 0", "printed more"),
        ("head -c 5000 /dev/urandom; exit 0", "not understood"),
        ("kill -9 $$", "exit code -9"),
        ("echo 'slurm_load_node error: Unable to contact slurm controller (connect failure)' >&2; exit 1", "slurmctld"),
    ],
)
def test_without_a_usable_answer_nothing_is_written(fake: FakeScontrol, shell: str, says: str) -> None:
    fake.trap("show", shell)
    for verb in VERBS:
        outcome = actuator(fake).perform(wish(verb))
        assert outcome.result == "deferred"
        assert outcome.retry_after is not None
        assert says in outcome.message
    assert fake.writes == []
    assert says in (actuator(fake).read_state().error or "")


def test_an_unknown_state_is_read_only(fake: FakeScontrol) -> None:
    fake.set("IDLE+HIBERNATING")
    outcome = actuator(fake).perform(wish("drain"))
    assert (outcome.result, outcome.node_state, fake.writes) == ("deferred", "IDLE+HIBERNATING", [])


def test_a_hanging_read_ends_with_the_deadline(fake: FakeScontrol) -> None:
    fake.trap("show", "exec /bin/sleep 600")
    outcome = actuator(fake, deadline=0.2).perform(wish("drain"))
    assert (outcome.result, fake.writes) == ("deferred", [])


def test_no_write_is_begun_when_the_time_is_nearly_over(fake: FakeScontrol) -> None:
    fake.trap("show", "/bin/sleep 0.1")
    outcome = actuator(fake, deadline=0.55).perform(wish("drain"))
    assert (outcome.result, fake.writes) == ("deferred", [])
    assert "nothing was written" in outcome.message


def test_a_hanging_write_is_owed_still_and_found_done_the_next_time(fake: FakeScontrol) -> None:
    fake.trap("update", f"printf IDLE+DRAIN >state; printf '{OURS}' >reason; exec /bin/sleep 600")
    here = actuator(fake, deadline=0.7)
    assert here.perform(wish("drain")).result == "deferred"
    assert here.perform(wish("drain")).result == "done"
    assert len(fake.writes) == 1


def test_a_node_that_answers_again_within_the_settling_time_is_drained(fake: FakeScontrol) -> None:
    fake.set("IDLE+NOT_RESPONDING")
    fake.trap("show", "[ $(wc -l <calls) -ne 3 ] || printf IDLE >state")
    assert actuator(fake, settle=1.0).perform(wish("drain")).result == "done"


def test_a_node_that_stays_silent_is_put_off(fake: FakeScontrol) -> None:
    fake.set("IDLE+NOT_RESPONDING")
    outcome = actuator(fake, settle=0.0).perform(wish("drain"))
    assert (outcome.result, fake.writes) == ("deferred", [])


@pytest.mark.parametrize(
    ("said", "names"),
    [("Invalid user id", "SlurmUser"), ("Invalid node name specified", "[actuators.slurm]")],
)
def test_what_only_a_person_can_change_is_refused(fake: FakeScontrol, said: str, names: str) -> None:
    fake.trap("update", f"echo 'slurm_update error: {said}' >&2; exit 1")
    outcome = actuator(fake).perform(wish("drain"))
    assert outcome.result == "refused"
    assert names in outcome.message


@pytest.mark.parametrize(
    "reason", ["", "Bob: fan", "gpuguard:0000 gpu3 lost xid79", f"{OURS}\nx", f"{OURS} state=down", "x" * 5000]
)
@pytest.mark.parametrize("verb", ["drain", "update_reason", "adopt"])
def test_a_reason_that_does_not_carry_the_token_is_refused_unasked(fake: FakeScontrol, verb: str, reason: str) -> None:
    action = msgspec.structs.replace(wish("drain"), verb=verb, reason=reason)
    assert actuator(fake).perform(action).result == "refused"
    assert fake.calls == []


def test_the_same_reason_is_not_written_twice(fake: FakeScontrol) -> None:
    fake.set("IDLE+DRAIN", OURS)
    assert actuator(fake).perform(wish("update_reason")).result == "done"
    assert fake.writes == []
    assert actuator(fake).perform(wish("update_reason", code="xid95")).result == "done"
    assert fake.writes == ["update nodename=here reason=gpuguard:7f3a gpu3 lost xid95"]


def test_adoption_finds_the_drain_with_its_token_and_no_other(fake: FakeScontrol) -> None:
    fake.set("IDLE+DRAIN", OURS)
    assert actuator(fake).perform(wish("adopt")).result == "done"
    for state, reason in (("IDLE+DRAIN", "gpuguard:0bad gpu3 lost xid79"), ("IDLE+DRAIN", "Bob: fan"), ("IDLE", "")):
        fake.set(state, reason)
        assert actuator(fake).perform(wish("adopt")).result == "foreign"
        assert fake.reason == reason
    assert fake.writes == []


def test_the_nodes_name_comes_from_settings_then_slurmd_then_the_host(fake: FakeScontrol) -> None:
    bare = Settings(scontrol=str(fake.path))
    assert Slurm(Settings(scontrol=str(fake.path), node="a1"), {"SLURMD_NODENAME": "b2"}).node == "a1"
    assert Slurm(bare, {"SLURMD_NODENAME": "b2"}).node == "b2"
    assert Slurm(bare, {}).node == socket.gethostname().partition(".")[0]


@pytest.mark.parametrize("name", ["node[1-9]", "a,b", "ALL", "all", "a b", "a=b", "-x", "x" * 65, "a\n", "ü1"])
def test_what_could_name_more_than_one_node_is_no_name(name: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"\[actuators.slurm\] node"):
        Slurm(Settings(), {"SLURMD_NODENAME": name})
    with pytest.raises(ValueError, match=r"^node: "):
        Settings(node=name)


@pytest.mark.parametrize(
    ("key", "value"),
    [("scontrol", "bin/scontrol"), ("scontrol", "/no/such/scontrol"), ("slurm_conf", "slurm.conf"),
     ("deadline", 0.1), ("deadline", 31.0), ("settle", -1.0), ("settle", 5.0)],
)  # fmt: skip
def test_settings_out_of_range_name_their_key(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{key}: "):
        Settings(**{key: value})  # type: ignore[arg-type]
