"""What stands against a reset, what is done around it, and what its end means."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gpuguard.actuators.gpus.errand import WAITING
from gpuguard.custody.remedies import Standing
from gpuguard.model.actions import LET_GO
from gpuguard.model.ids import SubjectId
from tests.support.gpu_machine import ADDRESSES, GpuMachine, at_last
from tests.support.wishes import remedy

FIRST, SECOND = ADDRESSES
WISH = remedy("reset", f"gpu:{FIRST}")


@pytest.fixture
def machine(tmp_path: Path) -> GpuMachine:
    return GpuMachine(tmp_path)


def resets(machine: GpuMachine) -> list[str]:
    return [call for call in machine.calls if call.startswith("--gpu-reset")]


def test_a_gpu_that_nobody_uses_is_reset_with_persistence_mode_off_and_on_again(machine: GpuMachine) -> None:
    outcome = at_last(machine.hands(), WISH)
    assert (outcome.result, outcome.message) == ("done", f"{FIRST} was reset and answers")
    acts = [call for call in machine.calls if not call.startswith("--query")]
    assert acts == [f"-pm 0 -i {FIRST}", f"--gpu-reset -i {FIRST}", f"-pm 1 -i {FIRST}"]


def test_where_persistence_mode_is_off_it_stays_off(machine: GpuMachine) -> None:
    machine.told("facts", [f"{number}, H100, GPU-{number}, Disabled, Disabled" for number in (0, 1)])
    assert at_last(machine.hands(), WISH).result == "done"
    assert not any(call.startswith("-pm") for call in machine.calls)


def test_all_gpus_are_reset_in_one_command(machine: GpuMachine) -> None:
    assert at_last(machine.hands(), remedy("reset")).result == "done"
    assert resets(machine) == [f"--gpu-reset -i {FIRST},{SECOND}"]


def test_the_same_wish_sent_again_is_answered_and_not_done_again(machine: GpuMachine) -> None:
    hands = machine.hands()
    assert at_last(hands, WISH) == at_last(hands, WISH)
    assert len(resets(machine)) == 1
    assert at_last(hands, remedy("reset", f"gpu:{FIRST}", key="another")).result == "done"
    assert len(resets(machine)) == 2


def test_while_one_is_under_way_everything_else_waits(machine: GpuMachine) -> None:
    machine.trap("reset", "until [ -f go ]; do sleep 0.05; done")
    hands = machine.hands()
    assert hands.perform(WISH).result == "deferred"
    assert hands.busy()
    other = hands.perform(remedy("reset", f"gpu:{SECOND}", key="other"))
    assert (other.result, "one thing at a time" in other.message) == ("deferred", True)
    assert other.node_state == WAITING
    assert "under way" in hands.perform(WISH).message
    (machine.folder / "go").touch()
    assert at_last(hands, WISH).result == "done"
    assert not hands.busy()


def test_a_reset_is_not_broken_off_when_the_drain_is_lifted_or_the_process_told_to_end(machine: GpuMachine) -> None:
    machine.trap("reset", "until [ -f go ]; do sleep 0.05; done")
    hands = machine.hands()
    assert hands.perform(WISH).result == "deferred"
    while not resets(machine):
        assert hands.busy()
    machine.standing = Standing(call="never", why="our drain does not stand")
    hands.stop(0.1)
    assert hands.perform(WISH).result == "deferred"
    (machine.folder / "go").touch()
    assert at_last(hands, WISH).result == "done"
    assert machine.calls[-2] == f"-pm 1 -i {FIRST}"


@pytest.mark.parametrize(
    ("comm", "files", "result"),
    [
        ("python3", ["/dev/nvidia0", "/dev/nvidia-uvm"], "deferred"),
        ("python3", ["/run/other/dev/nvidia0"], "deferred"),
        ("nvidia-smi", ["/dev/nvidia0"], "deferred"),
        ("nv-hostengine", ["/dev/nvidia0"], "refused"),
        ("python3", ["/dev/nvidia1", "/dev/nvidia-uvm"], "done"),
        ("python3", ["/dev/nvidiactl", "/dev/null", "socket:[1]", "/dev/nvidia-modeset"], "done"),
        ("nv-fabricmanage", ["/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitchctl"], "done"),
    ],
)
def test_whoever_has_the_gpu_open_is_in_the_way(machine: GpuMachine, comm: str, files: list[str], result: str) -> None:
    machine.process(777, comm, *files)
    outcome = at_last(machine.hands(), WISH)
    assert outcome.result == result
    assert bool(resets(machine)) == (result == "done")
    assert (f"process 777 ({comm})" in outcome.message) == (result != "done")
    assert outcome.node_state == (WAITING if result == "deferred" else None)


def test_once_the_user_is_gone_the_same_wish_goes_through(machine: GpuMachine) -> None:
    machine.process(777, "python3", "/dev/nvidia0")
    hands = machine.hands()
    assert at_last(hands, WISH).result == "deferred"
    machine.gone(777)
    assert at_last(hands, WISH).result == "done"


def test_persistenced_lets_go_or_stands_in_the_way(machine: GpuMachine) -> None:
    machine.process(55, "nvidia-persiste", "/dev/nvidia0")
    machine.trap("trap", f'[ "$1" = -pm ] && rm -rf {machine.proc}/55')
    assert at_last(machine.hands(), WISH).result == "done"
    machine.process(55, "nvidia-persiste", "/dev/nvidia0")
    machine.trap("trap", ":")
    outcome = at_last(machine.hands(), WISH)
    assert (outcome.result, "nvidia-persistenced" in outcome.message) == ("refused", True)
    assert machine.calls[-1] == f"-pm 1 -i {FIRST}"


def test_mig_instances_are_not_done_away_with(machine: GpuMachine) -> None:
    machine.told("facts", ["0, H100, GPU-0, Disabled, Enabled", "1, H100, GPU-1, Disabled, Disabled"])
    listed = "GPU 0: H100 (UUID: GPU-0)\n{}GPU 1: H100 (UUID: GPU-1)\n"
    (machine.folder / "instances").write_text(listed.format("  MIG 1g.10gb     Device  0: (UUID: MIG-a)\n" * 2))
    outcome = at_last(machine.hands(), WISH)
    assert (outcome.result, "2 MIG instances" in outcome.message, resets(machine)) == ("refused", True, [])
    (machine.folder / "instances").write_text(listed.format(""))
    assert at_last(machine.hands(), WISH).result == "done"
    (machine.folder / "instances").write_text("garbage\n")
    assert at_last(machine.hands(), WISH).result == "refused"


@pytest.mark.parametrize(
    ("capability", "manager", "subject", "result"),
    [
        ("7.0", True, f"gpu:{FIRST}", "refused"),
        ("7.0", False, "node", "done"),
        ("8.0", False, f"gpu:{FIRST}", "refused"),
        ("8.0", True, f"gpu:{FIRST}", "done"),
        ("8.0", False, "node", "done"),
        ("9.0", False, f"gpu:{FIRST}", "done"),
        ("[N/A]", False, f"gpu:{FIRST}", "done"),
    ],
)
def test_on_nvswitches_it_depends_on_the_generation(
    tmp_path: Path, capability: str, manager: bool, subject: str, result: str
) -> None:
    machine = GpuMachine(tmp_path, capability=capability)
    machine.switches()
    if manager:
        machine.process(900, "nv-fabricmanage", "/dev/nvidia-nvswitch0")
    assert at_last(machine.hands(), remedy("reset", subject)).result == result


TAKEN = (
    "echo 'The following GPUs could not be reset:'; echo '  GPU 00000000:1B:00.0: In use by another client'; exit 255"
)
PEERS = "echo 'GPU 00000000:1B:00.0 and its peer GPUs must be reset in the same command.'; exit 3"


@pytest.mark.parametrize(
    ("shell", "result"),
    [
        (TAKEN, "deferred"),
        (PEERS, "refused"),
        ("echo 'Insufficient Permissions'; exit 4", "refused"),
        ("echo 'GPU Reset is not supported'; exit 3", "refused"),
        ("echo 'Unknown Error'; exit 255", "failed"),
        ("exit 15", "failed"),
        ("kill -9 $$", "failed"),
        ("rm facts; echo 'was successfully reset'; exit 0", "failed"),
        (": >facts; exit 0", "failed"),
    ],
)
def test_what_the_program_says_decides(machine: GpuMachine, shell: str, result: str) -> None:
    machine.trap("reset", shell)
    outcome = at_last(machine.hands(), WISH)
    assert outcome.result == result
    assert outcome.message.isprintable()
    assert outcome.node_state == (WAITING if result == "deferred" else None)
    assert ("reboot" in outcome.message) == (result in ("refused", "failed")), "it names the next step"
    assert f"-pm 1 -i {FIRST}" in machine.calls, "persistence mode is on again whatever came of it"


def test_a_reset_that_does_not_end_has_failed(machine: GpuMachine) -> None:
    machine.trap("reset", "exec sleep 60")
    outcome = at_last(machine.hands(reset_limit=0.3), WISH)
    assert (outcome.result, "did not end" in outcome.message) == ("failed", True)


@pytest.mark.parametrize(
    ("shell", "result"),
    [
        ("exec sleep 60", "refused"),
        ("exit 9", "refused"),
        ("exit 12", "refused"),
        ("exit 255", "refused"),
        ("exit 15", "failed"),
        (":", "done"),
    ],
)
def test_a_driver_that_does_not_answer_is_not_told_to_reset(machine: GpuMachine, shell: str, result: str) -> None:
    machine.trap("trap", shell)
    assert at_last(machine.hands(ask_limit=0.5), WISH).result == result
    assert bool(resets(machine)) == (result == "done")


@pytest.mark.parametrize(("call", "result", "after"), [("never", "foreign", None), ("wait", "deferred", 30.0)])
def test_without_our_drain_nothing_is_looked_at(
    machine: GpuMachine, call: str, result: str, after: float | None
) -> None:
    for state in ("MIXED+DRAIN", None):
        said = {"call": call, "why": "it does not", "retry_after": after, "state": state}
        machine.standing = msgspec.convert(said, Standing)
        outcome = machine.hands().perform(WISH)
        assert (outcome.result, outcome.retry_after, machine.calls) == (result, after, [])
        assert outcome.node_state == state, "the scheduler's silence is silence here too"


@pytest.mark.parametrize(
    "change",
    [
        lambda wish: msgspec.structs.replace(wish, drain=None),
        lambda wish: msgspec.structs.replace(wish, reason="Bob: fan"),
        lambda wish: msgspec.structs.replace(wish, verb="drain"),
        lambda wish: msgspec.structs.replace(wish, subject=SubjectId("gpu:0000:ff:00.0")),
        lambda wish: msgspec.structs.replace(wish, subject=SubjectId("gpu:0000:1b:00.0,0000:43:00.0")),
        lambda wish: msgspec.structs.replace(wish, subject=SubjectId("gpu:all")),
        lambda wish: msgspec.structs.replace(wish, subject=SubjectId("gpu:--gpu-reset")),
        lambda wish: msgspec.structs.replace(wish, subject=SubjectId("nvswitch:0000:1b:00.0")),
        lambda wish: msgspec.structs.replace(wish, subject=SubjectId("job:slurm/7")),
    ],
)
def test_a_wish_that_is_none_reaches_no_program(
    machine: GpuMachine, change: Callable[[msgspec.Struct], msgspec.Struct]
) -> None:
    assert machine.hands().perform(change(WISH)).result == "refused"  # type: ignore[arg-type]  # an Action it stays
    assert machine.calls == []


def test_resets_are_off_until_a_site_switches_them_on(machine: GpuMachine) -> None:
    outcome = machine.hands(reset=False).perform(WISH)
    assert (outcome.result, "reset = true" in outcome.message, machine.calls) == ("refused", True, [])


def test_without_a_driver_or_a_view_of_the_processes_nothing_is_done(machine: GpuMachine, tmp_path: Path) -> None:
    (machine.proc / "2" / "stat").write_text("2 (bash) S 1 " + "0 " * 47)
    outcome = at_last(machine.hands(), WISH)
    assert (outcome.result, "gpus.conf" in outcome.message) == ("refused", True)
    (machine.proc / "driver").rename(tmp_path / "unloaded")
    assert at_last(machine.hands(), WISH).result == "refused"
    assert machine.calls == []


def test_gpuguards_own_look_at_the_driver_is_asked_to_let_go(machine: GpuMachine) -> None:
    machine.process(77, "python3", "/dev/nvidia0")
    (machine.proc / "77" / "cmdline").write_bytes(b"/usr/bin/python3\0-m\0gpuguard.sources.nvml.child\0")
    outcome = at_last(machine.hands(), WISH)
    assert (outcome.result, outcome.node_state) == ("deferred", LET_GO)
    assert resets(machine) == []
    machine.process(78, "python3", "/dev/nvidia0")
    (machine.proc / "78" / "cmdline").write_bytes(b"python3\0train.py\0")
    busy = at_last(machine.hands(), WISH)
    assert (busy.result, busy.node_state) == ("deferred", WAITING), "others use it: nobody goes blind for that"
