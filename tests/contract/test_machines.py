"""Every recorded machine has what a real one shows, says where it comes from, and is what its name says."""

import re
from pathlib import Path

import pytest

from gpuguard.commands.demo import INCIDENT, scenes
from gpuguard.kernel_log.reader import parse_record, parse_text
from tests.support.machines import NAMES, NODES, gpus, machine

SIZES = {"a100x8": 8, "h100x8": 8, "b200x8": 8, "l40sx4": 4, "h100x8-mig": 8, "h100x8-lost": 8}


def records(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().splitlines() if not line.startswith(b"#")]


def test_the_machines_that_ship_are_these() -> None:
    assert sorted(path.name for path in NODES.iterdir()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_has_its_parts(name: str) -> None:
    root = machine(name)
    assert len(gpus(root)) == SIZES[name]
    for address in gpus(root):
        device = root / "sys/bus/pci/devices" / address
        assert (device / "vendor").read_text() == "0x10de\n"
        config = (device / "config").read_bytes()
        assert len(config) == 64
        if config != b"\xff" * 64:
            assert config[:2] == b"\xde\x10"
            assert f"0x{int.from_bytes(config[2:4], 'little'):04x}\n" == (device / "device").read_text()
        assert "GPU UUID:" in (root / "proc/driver/nvidia/gpus" / address / "information").read_text()
    assert re.fullmatch(r"[0-9a-f-]{36}\n", (root / "proc/sys/kernel/random/boot_id").read_text())
    assert (root / "proc/driver/nvidia/version").read_text().startswith("NVRM version: NVIDIA UNIX ")
    assert "invented" in (root / "ORIGIN").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_its_kernel_log_is_a_ring(name: str) -> None:
    read = [parse_record(line) for line in records(machine(name) / "dev/kmsg")]
    assert [record.sequence for record in read] == list(range(len(read)))
    stamps = [record.boot_seconds or 0.0 for record in read]
    assert stamps == sorted(stamps)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_machine_that_lost_a_gpu_has_a_fault_of_hardware(name: str) -> None:
    parsed = [parse_text(parse_record(line).text) for line in records(machine(name) / "dev/kmsg")]
    assert any(p is not None and p.fatal for p in parsed) == (name == "h100x8-lost")


def test_the_incident_continues_the_log_of_its_machine() -> None:
    root = machine("h100x8")
    newest = parse_record(records(root / "dev/kmsg")[-1])
    numbers = [parse_record(line).sequence for line in records(root / INCIDENT)]
    assert newest.sequence is not None
    assert numbers == list(range(newest.sequence + 1, newest.sequence + 1 + len(numbers)))


def test_every_scene_of_the_incident_has_words_and_records() -> None:
    told = list(scenes((machine("h100x8") / INCIDENT).read_text()))
    assert len(told) == 4
    assert all(words and played for words, played in told)
