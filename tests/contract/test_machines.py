"""Every recorded machine has what a real one shows, says where it comes from, and is what its name says."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuguard.commands.demo import INCIDENT, scenes
from gpuguard.kernel_log.reader import parse_record, parse_text
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.topology import LEARNED, Settings, Wiring
from gpuguard.topology.build import build
from tests.support import recordings
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


Json = dict[str, Any]  # Any: what JSON holds
NVLINKS = {"a100x8": 12, "h100x8": 18, "b200x8": 18, "l40sx4": 0, "h100x8-mig": 18, "h100x8-lost": 18}


def recording(name: str) -> Json:
    made: Json = json.loads((machine(name) / "nvml.json").read_text())
    return made


def devices(name: str) -> Iterator[Json]:
    """Each GPU of a recording with what all answer merged in; one that is lost is left out."""
    made = recording(name)
    for device in made["devices"]:
        calls = {**made["all"]["calls"], **device["calls"]}
        if calls["nvmlDeviceGetName"] != {"error": 15}:
            fields = {**made["all"]["fields"], **device["fields"]}
            yield {**device, "calls": calls, "fields": fields}


def highest(value: Any) -> float:
    return float(max(value["series"])) if isinstance(value, dict) else float(value)


@pytest.mark.parametrize("name", NAMES)
def test_its_recording_is_what_the_folder_makes(name: str, tmp_path: Path) -> None:
    """So the files can be made again, and nobody changes one by hand."""
    root = Path(shutil.copytree(machine(name), tmp_path / name))
    (root / "nvml.json").unlink()
    shutil.rmtree(root / "sys/class")
    recordings.write(name, root)
    for path in sorted(machine(name).rglob("*")):
        if path.is_file():
            assert (root / path.relative_to(machine(name))).read_bytes() == path.read_bytes(), path
    assert len(list(root.rglob("*"))) == len(list(machine(name).rglob("*")))


@pytest.mark.parametrize("name", NAMES)
def test_nvml_and_the_driver_tell_the_same(name: str) -> None:
    root, made = machine(name), recording(name)
    assert [device["pci"] for device in made["devices"]] == [f"0000{address}".upper() for address in gpus(root)]
    for device, address in zip(made["devices"], gpus(root), strict=True):
        information = (root / "proc/driver/nvidia/gpus" / address / "information").read_text()
        assert f"GPU UUID: \t {device['uuid']}\n" in information
    for device in devices(name):
        address = device["pci"][4:].lower()
        information = (root / "proc/driver/nvidia/gpus" / address / "information").read_text()
        for call in ("nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetVbiosVersion"):
            assert f"\t {device['calls'][call]}\n" in information
        ids = device["calls"]["nvmlDeviceGetPciInfo_v3"]
        folder = root / "sys/bus/pci/devices" / address
        assert f"0x{ids['pciDeviceId'] >> 16:04x}\n" == (folder / "device").read_text()
        assert f"0x{ids['pciSubSystemId'] >> 16:04x}\n" == (folder / "subsystem_device").read_text()
    version = made["system"]["nvmlSystemGetDriverVersion"]
    assert f"  {version}  " in (root / "proc/driver/nvidia/version").read_text()
    assert (root / "sys/module/nvidia/version").read_text() == f"{version}\n"
    assert "made by us" in made["origin"]


@pytest.mark.parametrize("name", NAMES)
def test_values_agree_with_each_other(name: str) -> None:
    for device in devices(name):
        calls, fields = device["calls"], device["fields"]
        memory = calls["nvmlDeviceGetMemoryInfo_v2"]
        assert memory["reserved"] + memory["used"] + memory["free"] == memory["total"]
        assert highest(calls["nvmlDeviceGetPowerUsage"]) < calls["nvmlDeviceGetEnforcedPowerLimit"]
        clocks, limits = calls["nvmlDeviceGetClockInfo"], calls["nvmlDeviceGetMaxClockInfo"]
        assert all(highest(clocks[domain]) <= limits[domain] for domain in clocks)
        assert highest(calls["nvmlDeviceGetTemperatureV"]["0"]) < calls["nvmlDeviceGetTemperatureThreshold"]["3"]
        assert ("82" in fields) == ("2" in calls["nvmlDeviceGetTemperatureThreshold"])
        processes = calls["nvmlDeviceGetComputeRunningProcesses_v3"]
        assert sum(process["usedGpuMemory"] for process in processes) <= memory["used"]
        assert fields["83"] == calls["nvmlDeviceGetTotalEnergyConsumption"]
        mean = sum(calls["nvmlDeviceGetPowerUsage"]["series"]) / recordings.PASSES
        assert fields["83"]["per_second"] == pytest.approx(mean, rel=0.01)
        for process in processes:
            assert (machine(name) / "proc" / str(process["pid"]) / "stat").exists()


@pytest.mark.parametrize("name", NAMES)
def test_links_are_those_of_the_product(name: str) -> None:
    for device in devices(name):
        calls, fields = device["calls"], device["fields"]
        states = calls.get("nvmlDeviceGetNvLinkState", {})
        if states == {"error": 3}:
            assert calls["nvmlDeviceGetMigMode"]["currentMode"] == 1
            assert {
                key for key, value in fields.items() if key.startswith(("138/", "165/")) and "error" not in value
            } == set()
            continue
        down = [link for link, state in states.items() if not state]
        assert len(states) == NVLINKS[name]
        assert bool(down) == (name == "h100x8-lost" and device["pci"] in ("00000000:C3:00.0", "00000000:DF:00.0"))
        assert ("gpm" in device) == (name not in ("a100x8", "l40sx4"))
        if states and not down and "gpm" in device:
            # GPM's mebibytes a second are those of the counters of kibibytes.
            moved = fields["138/4294967295"]["per_second"]
            sent = device["gpm"]["61"]["series"]
            assert sum(sent) / len(sent) * 1024 == pytest.approx(moved, rel=0.01)


def test_each_instance_has_its_capability() -> None:
    """MIG instances of the recording are those that the driver's files list."""
    root = machine("h100x8-mig")
    listed = {int(path.name[2:]) for path in (root / "proc/driver/nvidia/capabilities/gpu0/mig").glob("gi*")}
    (first, *others) = devices("h100x8-mig")
    assert {part["gi"] for part in first["mig"]} == listed
    slices = [part["calls"]["nvmlDeviceGetAttributes_v2"]["gpuInstanceSliceCount"] for part in first["mig"]]
    assert sum(slices) == 7
    assert all("mig" not in other for other in others)


def test_the_lost_gpu_answers_nothing() -> None:
    lost = [device for device in recording("h100x8-lost")["devices"] if device["pci"] == "00000000:9D:00.0"]
    (gone,) = lost
    assert len(list(devices("h100x8-lost"))) == 7
    assert {str(value) for value in (*gone["calls"].values(), *gone["fields"].values())} == {"{'error': 15}"}
    healthy = next(devices("h100x8"))
    assert set(healthy["calls"]) <= set(gone["calls"])
    assert set(healthy["fields"]) <= set(gone["fields"])


@pytest.mark.parametrize("name", NAMES)
def test_it_is_wired_as_machines_of_its_kind_are(name: str) -> None:
    """Every device hangs below bridges that are on the bus, cards are near GPUs, and each link leads from something."""
    root = machine(name)
    links = dict(line.split(" ") for line in (root / "links").read_text().splitlines())
    devices = {path.name for path in (root / "sys/bus/pci/devices").iterdir()}
    assert {link.split("/")[4] for link in links if link.startswith("sys/bus/pci/")} == devices
    for link, target in links.items():
        assert (root / link).parent.is_dir()
        assert {part for part in target.split("/")[3:] if target.startswith("sys/devices")} <= devices
    graph = build(Wiring(Settings(), root, root / LEARNED).sweep(ManualClock().now()))
    ports = 0 if name == "l40sx4" else 8
    assert len(graph.nics) == ports + 2 * (name == "h100x8")
    assert [card.nic.rdma for card in graph.nics[:ports] if card.nic] == [f"mlx5_{n}" for n in range(ports)]
    near = {"a100x8": "PXB", "l40sx4": None}.get(name, "PIX")
    for gpu in range(SIZES[name]):
        levels = {graph.levels[gpu][graph.place(f"NIC{n}")] for n in range(ports)}
        assert near in levels or near is None
        assert levels <= {near, "NODE", "SYS"}
    # Groups of their own say nothing of what ACS does now.
    assert {bridge.redirects for bridge in graph.bridges if bridge.kind == "root_port"} == {None}
    assert not any(bridge.redirects for bridge in graph.bridges if bridge.kind == "downstream")
    assert [node.cpus for node in graph.numa] == ["0-55,112-167", "56-111,168-223"]
