"""The parts of a test: what passes, what fails, and what stays for a person."""

from pathlib import Path

import msgspec
import pytest

from gpuguard.actuators.gpus import dcgm
from gpuguard.actuators.gpus.errand import WAITING
from gpuguard.actuators.gpus.levels import Levels, Sku
from gpuguard.actuators.gpus.site import distrusted
from gpuguard.child.program import Answer
from gpuguard.custody.remedies import Standing
from tests.support.gpu_machine import ADDRESSES, GpuMachine, at_last, document
from tests.support.wishes import remedy

FIRST, SECOND = ADDRESSES
WISH = remedy("test", f"gpu:{FIRST}")
WELL = document(("software", 4, "Pass"), ("memory", 4, "Pass"))


@pytest.fixture
def machine(tmp_path: Path) -> GpuMachine:
    return GpuMachine(tmp_path)


def own_test(machine: GpuMachine, shell: str, name: str = "own") -> str:
    path = machine.folder / name
    path.write_text(f"#!/bin/sh\n{shell}\n")
    path.chmod(0o755)
    return str(path)


def test_a_gpu_that_answers_without_a_fault_passes_and_says_what_ran(machine: GpuMachine) -> None:
    outcome = at_last(machine.hands(), WISH)
    assert outcome.result == "done"
    assert outcome.message == "quick pass: 1 answered, the driver reports no fault; dcgmi skip: switched off"
    assert not any(call.startswith(("-pm", "--gpu-reset")) for call in machine.calls)


@pytest.mark.parametrize(
    ("what", "value", "result"),
    [
        ("ecc", "3", "failed"),
        ("remapped", "1, 0", "failed"),
        ("remapped", "Yes, No", "failed"),
        ("remapped", "No, No", "done"),
        ("remapped", "[N/A], [N/A]", "done"),
        ("recovery", "Reset", "failed"),
        ("recovery", "Drain P2P", "failed"),
        ("recovery", "[Not Supported]", "done"),
        ("recovery", "[Insufficient Permissions]", "done"),
        ("recovery", "a word to come", "done"),
        ("ecc", "ERR!", "done"),
    ],
)
def test_what_the_driver_reports_counts(machine: GpuMachine, what: str, value: str, result: str) -> None:
    machine.told(what, [value, value])
    assert at_last(machine.hands(), WISH).result == result


def test_another_gpus_fault_is_not_this_ones(machine: GpuMachine) -> None:
    machine.told("ecc", ["0", "7"])
    assert at_last(machine.hands(), WISH).result == "done"
    assert at_last(machine.hands(), remedy("test")).result == "failed"


def test_an_older_driver_without_the_newer_fields_is_no_fault(machine: GpuMachine) -> None:
    for name in ("ecc", "remapped", "recovery"):
        (machine.folder / name).unlink()
    outcome = at_last(machine.hands(), WISH)
    assert (outcome.result, "does not tell of faults" in outcome.message) == ("done", True)


@pytest.mark.parametrize(
    ("shell", "result"),
    [("exit 9", "refused"), ("exit 12", "refused"), ("exec sleep 60", "refused"), ("exit 15", "failed"),
     ("echo lost; exit 255", "refused"), ("exit 127", "refused"), ("kill -9 $$", "refused"), ("exit 0", "refused"),
     ("echo '0, 0, A, B, C'; exit 0", "refused"), ("echo WARNING: fine; exit 1", "refused")],
)  # fmt: skip
def test_a_gpu_that_is_not_given_has_failed_and_a_driver_that_cannot_be_asked_says_nothing(
    machine: GpuMachine, shell: str, result: str
) -> None:
    machine.trap("trap", shell)
    assert at_last(machine.hands(ask_limit=0.5), WISH).result == result


def test_while_something_computes_nothing_is_tested(machine: GpuMachine) -> None:
    machine.process(777, "python3", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidiactl")
    outcome = at_last(machine.hands(), WISH)
    assert (outcome.result, outcome.node_state, machine.calls) == ("deferred", WAITING, [])
    assert at_last(machine.hands(), remedy("test", f"gpu:{SECOND}")).result == "done"


def test_monitors_do_not_stand_in_the_way_of_a_test(machine: GpuMachine) -> None:
    machine.process(777, "python3", "/dev/nvidia0", "/dev/nvidiactl")
    machine.process(778, "nv-hostengine", "/dev/nvidia0", "/dev/nvidia-uvm")
    assert at_last(machine.hands(), WISH).result == "done"


def test_dcgm_is_asked_by_its_own_number_at_the_level_of_the_gpu(machine: GpuMachine) -> None:
    levels = Levels(sku=(Sku(match="B200", level=4), Sku(match="h100", level=3, limit=20.0)))
    outcome = at_last(machine.hands(levels, dcgm="auto", dcgmi=str(machine.dcgm(WELL))), WISH)
    assert (outcome.result, "level 3, passed memory, software" in outcome.message) == ("done", True)
    assert machine.calls[-1] == "dcgmi diag -r 3 -j -i 4"
    assert at_last(machine.hands(levels, dcgm="auto", dcgmi=str(machine.dcgm(WELL)), level=1), WISH).result == "done"
    assert machine.calls[-1] == "dcgmi diag -r 1 -j -i 4"


@pytest.mark.parametrize(("choice", "result"), [("auto", "done"), ("required", "refused"), ("off", "done")])
def test_in_mig_mode_dcgm_is_left_out_and_said_so(machine: GpuMachine, choice: str, result: str) -> None:
    machine.told("facts", [f"{number}, H100, GPU-{number}, Disabled, Enabled" for number in (0, 1)])
    outcome = at_last(machine.hands(dcgm=choice, dcgmi=str(machine.dcgm(WELL))), WISH)
    assert (outcome.result, "dcgmi" in outcome.message) == (result, True)
    assert not any("diag" in call for call in machine.calls)


@pytest.mark.parametrize(
    ("printed", "code", "result"),
    [
        (WELL, 0, "done"),
        (document(("memory", 4, "Fail")), 226, "failed"),
        (document(("memory", 5, "Fail"), ("memory", 4, "Pass")), 0, "done"),
        (WELL, 1, "refused"),
        ("", 0, "refused"),
        ("Error: unable to establish a connection to the specified host: localhost", 255, "refused"),
    ],
)
def test_dcgms_word_is_taken_for_what_it_is(machine: GpuMachine, printed: object, code: int, result: str) -> None:
    hands = machine.hands(dcgm="auto", dcgmi=str(machine.dcgm(printed, code)))
    assert at_last(hands, WISH).result == result


def test_a_diagnostic_that_does_not_end_or_knows_no_such_gpu_says_nothing(machine: GpuMachine) -> None:
    dcgmi = str(machine.dcgm(WELL))
    machine.trap("diag_trap", "exec sleep 60")
    quick = Levels(sku=(Sku(match="H100", level=1, limit=0.3),))
    outcome = at_last(machine.hands(quick, dcgmi=dcgmi, dcgm="auto"), WISH)
    assert (outcome.result, "no answer in time" in outcome.message) == ("refused", True)
    (machine.folder / "discovery").write_text("0 GPUs found.\n")
    assert at_last(machine.hands(dcgmi=dcgmi, dcgm="auto"), WISH).result == "refused"


def test_a_test_is_broken_off_when_somebody_lifts_the_drain(machine: GpuMachine) -> None:
    dcgmi = str(machine.dcgm(WELL))
    machine.trap("diag_trap", "exec sleep 60")
    hands = machine.hands(dcgmi=dcgmi, dcgm="auto")
    assert hands.perform(WISH).result == "deferred"
    machine.standing = Standing(call="never", why="our drain does not stand")
    assert hands.perform(WISH).result == "foreign"
    assert hands._errand is not None
    assert hands._errand.ended(10.0)
    assert hands.perform(WISH).result == "foreign"
    assert not hands.busy()


def test_a_test_ends_with_the_process(machine: GpuMachine) -> None:
    dcgmi = str(machine.dcgm(WELL))
    machine.trap("diag_trap", "exec sleep 60")
    hands = machine.hands(dcgmi=dcgmi, dcgm="auto")
    assert hands.perform(WISH).result == "deferred"
    hands.stop(10.0)
    assert not hands.busy()


@pytest.mark.parametrize(
    ("shell", "result"),
    [("exit 0", "done"), ("exit 1", "failed"), ("exit 2", "refused"), ("exec /nonexistent", "refused"),
     ("kill -9 $$", "refused"), ("exec sleep 60", "refused")],
)  # fmt: skip
def test_a_sites_own_test_says_it_by_its_exit_code(machine: GpuMachine, shell: str, result: str) -> None:
    path = own_test(machine, f'echo "$GPUGUARD_GPU $GPUGUARD_GPU_INDEX" >{machine.folder}/saw\n{shell}')
    assert at_last(machine.hands(site_tests=(path,), site_limit=0.5), WISH).result == result
    assert (machine.folder / "saw").read_text() == f"{FIRST} 0\n"


def test_after_a_fault_nothing_more_is_run(machine: GpuMachine) -> None:
    path = own_test(machine, f"touch {machine.folder}/ran")
    dcgmi = str(machine.dcgm(document(("memory", 4, "Fail"))))
    assert at_last(machine.hands(site_tests=(path,), dcgm="auto", dcgmi=dcgmi), WISH).result == "failed"
    assert not (machine.folder / "ran").exists()


def test_a_program_that_others_could_change_is_not_run(machine: GpuMachine) -> None:
    path = own_test(machine, f"touch {machine.folder}/ran")
    Path(path).chmod(0o775)
    outcome = at_last(machine.hands(site_tests=(path,)), WISH)
    assert (outcome.result, "chmod go-w" in outcome.message) == ("refused", True)
    assert not (machine.folder / "ran").exists()


def test_who_may_change_a_program(tmp_path: Path) -> None:
    path = tmp_path / "own"
    path.write_text("#!/bin/sh\n")
    assert "no program" in (distrusted(str(path)) or "")
    path.chmod(0o755)
    assert distrusted(str(path)) is None
    assert distrusted(str(tmp_path)) is not None
    assert distrusted(str(tmp_path / "none")) is not None
    path.chmod(0o757)
    assert distrusted(str(path)) is not None
    path.chmod(0o755)
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    path.rename(folder / "own")
    assert distrusted(str(folder / "own")) is not None
    (tmp_path / "link").symlink_to(folder / "own")
    assert distrusted(str(tmp_path / "link")) is not None


def test_tests_may_be_switched_off(machine: GpuMachine) -> None:
    assert machine.hands(test=False).perform(WISH).result == "refused"
    assert machine.calls == []


def test_a_second_look_without_a_drain_asks_the_driver_and_nothing_else(machine: GpuMachine) -> None:
    look = msgspec.structs.replace(WISH, drain=None)
    hands = machine.hands(site_tests=(own_test(machine, "exit 1"),), dcgm="required")
    machine.process(4242, "python3", "/dev/nvidia0", "/dev/nvidia-uvm")
    outcome = at_last(hands, look)
    assert (outcome.result, outcome.message) == ("done", "quick pass: 1 answered, the driver reports no fault")
    machine.told("recovery", ["Reset", "Reset"])
    assert at_last(hands, msgspec.structs.replace(look, key="again")).result == "failed"


@pytest.mark.parametrize("gpu", ["1e300", '"\\u00b2"', "false", '"-1"', '"' + "9" * 60 + '"'])
@pytest.mark.parametrize("word", ["Pass", "Fail"])
def test_a_result_for_a_gpu_that_cannot_be_understood_says_nothing(gpu: str, word: str) -> None:
    text = '{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "x", "results": [{"entity_group": "GPU", '
    text += f'"entity_id": {gpu}, "status": "{word}"}}]}}]}}]}}}}'
    assert dcgm.verdict(Answer(code=0, out=text, err=""), [0]).verdict == "unknown"
