"""Stalls that point at the GPU driver, and those that do not."""

import pytest

from tests.support.stories import told

ONLY = "only=host_stalls"


@pytest.mark.parametrize("task", ["nvidia-smi", "nvidia-modeset/", "NvmlTaskRunner", "dcgm-exporter"])
def test_a_blocked_task_of_the_gpu_stack_is_worth_a_look(task: str) -> None:
    _, (line,) = told(f"1 kmsg INFO: task {task}:9911 blocked for more than 120 seconds.", given=ONLY)
    assert "node: hung_task stands: degraded, advice watch" in line


def test_a_task_blocked_on_something_else_is_history() -> None:
    _, (line,) = told("1 kmsg INFO: task kworker/u256:3:404 blocked for more than 241 seconds.", given=ONLY)
    assert "stands: info, advice none" in line


def test_memory_that_ran_out_blames_the_program() -> None:
    text = "Out of memory: Killed process 8123 (python3) total-vm:91kB, anon-rss:81kB, file-rss:0kB, shmem-rss:0kB"
    _, (line,) = told(f"1 kmsg {text}", given=ONLY)
    assert "oom stands: info" in line
    assert "python3, pid 8123" in line


def test_faults_of_gpus_are_left_to_others() -> None:
    assert told("1 kmsg NVRM: Xid (PCI:0000:0f:00): 43, channel 0x00000008", given=ONLY)[1] == []
