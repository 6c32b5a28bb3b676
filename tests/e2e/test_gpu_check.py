"""bench/gpu_check on a machine without a GPU, and through the driver's library that is fake; what it concludes."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpuguard.topology.formats import Wish, matrix
from tests.support.fake_nvml import FakeNvml, lacking
from tests.support.machines import machine
from tests.support.require import require
from tests.support.wirings import graph, h100x8

CHECKOUT = Path(__file__).resolve().parents[2]


def bench(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / "bench" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any], str]:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), **(env or {})}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, check=False,
                          cwd=CHECKOUT, env=environment)  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


RECORD = ("-c", "from gpuguard.cli import main; main()", "record")


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_ends_well() -> None:
    code, report, told = run("bench/gpu_check.py")
    assert code == 0
    assert report["skipped"].startswith("no NVIDIA GPU to check here: ")
    assert report["skipped"] in told


@pytest.fixture
def fake() -> None:
    require(
        "gcc, libc6-dev or nvidia-nvml-dev", not lacking(), "apt-get install gcc libc6-dev; pip install nvidia-nvml-dev"
    )


@pytest.mark.usefixtures("fake")
def test_through_the_drivers_library_it_records_and_times(tmp_path: Path) -> None:
    with FakeNvml(machine("h100x8"), driver="570") as nvml:
        keep = tmp_path / "kept"
        code, report, _ = run("bench/gpu_check.py", "--keep", str(keep), env=nvml.env())
    assert code == 0, report
    assert report["recording"]["gpus"] == 8
    assert report["load"]["skipped"].startswith("every GPU is in use")
    assert report["call_us"]["nvmlDeviceGetPowerUsage"]["n"] >= 8
    assert (keep / "nvml.json").exists()


@pytest.mark.usefixtures("fake")
def test_a_recording_through_the_library_is_the_machine(tmp_path: Path) -> None:
    with FakeNvml(machine("b200x8"), driver="580") as nvml:
        code, told, _ = run(
            *RECORD, str(tmp_path / "made"), "--passes", "3", "--every", "0.3", "--json", env=nvml.env()
        )
    assert (code, told["gpus"]) in ((0, 8), (1, 8))
    made = json.loads((tmp_path / "made/nvml.json").read_text())
    first = json.loads((machine("b200x8") / "nvml.json").read_text())
    assert made["system"]["nvmlSystemGetDriverVersion"].startswith("580.")
    for device, original in zip(made["devices"], first["devices"], strict=True):
        assert device["pci"] == original["pci"]
        assert device["uuid"] != original["uuid"]
        calls = {**first["all"]["calls"], **original["calls"]}
        for call in ("nvmlDeviceGetName", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetMemoryInfo_v2",
                     "nvmlDeviceGetRowRemapperHistogram", "nvmlDeviceGetEccMode"):  # fmt: skip
            assert device["calls"][call] == calls[call], call
        assert device["fields"]["165/17"] == 1
        assert device["fields"]["220/0"] == 15 << 8 | 255
        assert device["fields"]["138/4294967295"]["per_second"] == pytest.approx(18 * (20 << 20), rel=0.2)
        assert set(device["gpm"]) == {"1", "2", "3", "5", "10", "11", "12", "13", "20", "21", "60", "61"}


# --- what it concludes -----------------------------------------------------------------------------------------------

CHECK = bench("gpu_check")
IDLE = {"utilization_ratio": 0.0, "power_watts": 70.0, "sm_active_ratio": 0.0, "tensor_active_ratio": 0.0,
        "dram_active_ratio": 0.0}  # fmt: skip
PRODUCT = {"utilization_ratio": 1.0, "power_watts": 640.0, "sm_active_ratio": 0.95, "tensor_active_ratio": 0.7,
           "dram_active_ratio": 0.3}  # fmt: skip
COPY = {"utilization_ratio": 1.0, "power_watts": 300.0, "sm_active_ratio": 0.4, "tensor_active_ratio": 0.0,
        "dram_active_ratio": 0.85}  # fmt: skip


def test_a_load_that_shows_as_it_must_holds() -> None:
    assert all(CHECK.judge(IDLE, PRODUCT, COPY).values())


@pytest.mark.parametrize(
    ("kind", "column", "value", "broken"),
    [
        ("product", "tensor_active_ratio", 0.0, "tensor cores are busy with products"),
        ("product", "sm_active_ratio", 0.1, "SMs are busy with products"),
        ("copy", "dram_active_ratio", 0.0, "memory is busy with copies"),
        ("copy", "tensor_active_ratio", 0.4, "tensor cores rest while memory is copied"),
        ("product", "power_watts", 71.0, "power rises"),
        ("copy", "dram_active_ratio", 87.0, "ratios are ratios"),
    ],
)
def test_a_load_that_does_not_show_is_told(kind: str, column: str, value: float, broken: str) -> None:
    rows = {"product": PRODUCT, "copy": COPY}
    rows[kind] = {**rows[kind], column: value}
    holds = CHECK.judge(IDLE, rows["product"], rows["copy"])
    assert not holds[broken]


def test_before_hopper_only_what_there_is_is_judged() -> None:
    plain = [{key: row[key] for key in ("utilization_ratio", "power_watts")} for row in (IDLE, PRODUCT, COPY)]
    assert CHECK.judge(*plain) == {"utilisation rises": True, "power rises": True}


def test_where_nvidia_smi_differs_is_told() -> None:
    row = {"power_watts": 400.0, "power_limit_watts": 700.0, "memory_total_bytes": 81559 << 20, "gpu_name": "A"}
    later = {**row, "power_watts": 480.0}
    smi = {"power.draw": "440.12", "enforced.power.limit": "700.00", "memory.total": "81559", "name": "A",
           "temperature.gpu": "[N/A]"}  # fmt: skip
    assert CHECK.compare(smi, row, later) == []
    smi |= {"enforced.power.limit": "650.00", "name": "B", "temperature.gpu": "50"}
    differing = CHECK.compare(smi, row, later)
    assert [one["what"] for one in differing] == ["temperature.gpu", "enforced.power.limit", "name"]
    assert CHECK.disproves(differing)
    assert not CHECK.disproves(differing[:1])


def test_where_the_matrix_of_nvidia_smi_differs_is_told() -> None:
    theirs = matrix.render(graph(h100x8()), Wish())
    assert CHECK.compare_matrices(theirs, theirs) == {"same_bytes": True, "cells": 256, "differing": []}
    ours = theirs.replace("NV18", "NV17", 1).replace("56-111,168-223\t1", "56-111,168-223\t0", 1)
    told = CHECK.compare_matrices(theirs, ours)
    assert not told["same_bytes"]
    assert [one["what"] for one in told["differing"]] == ["GPU0 GPU1", "GPU1 GPU0", "affinity GPU4"]


def test_dcgmis_lines_are_read() -> None:
    out = (
        "#Entity   SMACT  TENSO  DRAMA\nID\nGPU 0  0.950  0.700  0.300\nGPU 0  0.970  0.720  0.320\nGPU 0 N/A N/A N/A\n"
    )
    assert CHECK.dcgm_means(out) == pytest.approx(
        {"sm_active_ratio": 0.96, "tensor_active_ratio": 0.71, "dram_active_ratio": 0.31}
    )
    assert CHECK.dcgm_means("Error: no profiling module\n") == {}


def test_what_we_cost_is_the_difference_of_blocks_in_turns() -> None:
    steps = [(float(n), 10.0 if n < 10 else 10.1) for n in range(20)]
    told = CHECK.overhead(steps, [(False, 0.0, 9.0), (True, 10.0, 19.0)])
    assert told["overhead"] == pytest.approx(0.01)
    assert "skipped" in CHECK.overhead([], [(False, 0.0, 9.0), (True, 10.0, 19.0)])


def test_the_kernel_of_the_load_is_one() -> None:
    """Assembled for 8.0, 9.0 and 10.0 by ptxas 12.9 when it was written; here only that it is whole."""
    text = bench("_gpu_load").ptx()
    assert text.count("mma.sync.aligned.m16n8k16") == 8
    assert text.count("{") == text.count("}")
