"""Repeats over different processes accuse the hardware; one process proves nothing."""

import pytest

from gpuguard.detectors.program_repeats import MEETINGS_KEPT, Settings
from tests.support.stories import Story, told


def fault(pid: int, tpc: int = 6, at: str = "+1", gpu: str = "0f") -> str:
    place = f"Graphics SM Warp Exception on (GPC 1, TPC {tpc}, SM 0): Out Of Range Address"
    return f"{at} kmsg NVRM: Xid (PCI:0000:{gpu}:00): 13, pid={pid}, name=train, {place}"


def stand(story_and_lines: tuple[Story, list[str]]) -> list[str]:
    return [line for line in story_and_lines[1] if "program_repeats stands" in line]


def test_three_processes_on_one_tpc_ask_for_a_test() -> None:
    (line,) = stand(told(fault(1), fault(2), fault(3), given="only=program_repeats"))
    assert "advice test" in line
    assert "GPC 1 TPC 6" in line


def test_one_process_many_times_accuses_nobody() -> None:
    assert not stand(told(*[fault(1)] * 20, given="only=program_repeats"))


def test_two_processes_are_too_few() -> None:
    assert not stand(told(fault(1), fault(2), fault(1), fault(2), given="only=program_repeats"))


def test_five_processes_anywhere_on_one_gpu_are_enough() -> None:
    lines = [fault(pid, tpc=pid) for pid in range(1, 6)]
    assert not stand(told(*lines[:4], given="only=program_repeats"))
    assert "on this GPU" in stand(told(*lines, given="only=program_repeats"))[0]


def test_other_gpus_are_judged_alone() -> None:
    lines = [fault(1, gpu="0f"), fault(2, gpu="47"), fault(3, gpu="4e"), fault(4, gpu="87"), fault(5, gpu="90")]
    assert not stand(told(*lines, given="only=program_repeats"))


def test_what_lies_a_day_back_does_not_count() -> None:
    lines = [fault(1, at="0"), fault(2, at="10"), fault(3, at="86500")]
    assert not stand(told(*lines, given="only=program_repeats"))


def test_consequences_and_nameless_processes_do_not_count() -> None:
    caused = [
        f"+1 kmsg NVRM: Xid (PCI:0000:0f:00): 45, pid={n}, name=a, channel 0x1 caused by previous Xid 62"
        for n in range(9)
    ]
    nameless = ["+1 kmsg NVRM: Xid (PCI:0000:0f:00): 43, channel 0x00000008"] * 9
    assert not stand(told(*caused, *nameless, given="only=program_repeats"))


def test_memory_of_a_flood_is_bounded() -> None:
    story, _ = told(*[fault(pid) for pid in range(1, 2 * MEETINGS_KEPT)], given="only=program_repeats")
    (memory,) = story.memories.values()
    assert len(memory.meetings) == MEETINGS_KEPT


@pytest.mark.parametrize("key", ["processes_per_tpc", "processes_per_gpu"])
def test_one_process_cannot_be_set_as_the_limit(key: str) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Settings(**{key: 1})  # type: ignore[arg-type]  # the key is one of two numbers
