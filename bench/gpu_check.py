"""Whether gpuguard tells the truth on a machine with a real NVIDIA GPU, and what that costs; at most five minutes.

usage  python bench/gpu_check.py [--keep DIR] [--gpu INDEX]

 1. the machine is recorded (`gpuguard record`, names replaced) into --keep, or a temporary folder that is named;
 2. our values and our matrix are compared with those of nvidia-smi, and our values under load with dcgmi's where it is
    installed;
 3. a GPU that nobody uses is loaded with matrix products and with copies: activity of SMs, tensor cores and DRAM must
    move as the load does, power and utilisation with it;
 4. each NVML call is timed;
 5. the agent runs beside the load, with a sweep every second: what that adds to the load's step.

Needs gpuguard and no more; the load is made by torch, cupy or the driver alone. Prints JSON; progress goes to standard
error. Exit code 0 when all that could be checked holds (also where there is no GPU: `skipped` says so), 1 otherwise.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

Row = Mapping[str, Any]  # Any: values of a row are numbers, texts or tuples of them
Report = dict[str, Any]

IDLE, LOADED, BLOCK, BLOCKS = 4.0, 12.0, 6.0, 6  # seconds, and how often the agent is switched on and off
WARM_WITHIN = 60.0  # torch takes some seconds to begin
SMI_WITHIN = 20.0
MOST_OVERHEAD = 0.01  # of the load's step time; noise of one run is about as much

# What nvidia-smi calls it, what we call it, from our unit to its, and how far apart they may be.
SMI: tuple[tuple[str, str, float, float], ...] = (
    ("temperature.gpu", "temperature_celsius", 1.0, 3.0),
    ("temperature.memory", "memory_temperature_celsius", 1.0, 3.0),
    ("power.draw", "power_watts", 1.0, 25.0),
    ("enforced.power.limit", "power_limit_watts", 1.0, 0.5),
    ("power.default_limit", "power_default_limit_watts", 1.0, 0.5),
    ("power.max_limit", "power_highest_limit_watts", 1.0, 0.5),
    ("clocks.max.sm", "sm_clock_limit_hertz", 1e-6, 0.5),
    ("clocks.current.memory", "memory_clock_hertz", 1e-6, 1e4),
    ("memory.total", "memory_total_bytes", 2.0**-20, 1.0),
    ("memory.reserved", "memory_reserved_bytes", 2.0**-20, 2.0),
    ("memory.used", "memory_used_bytes", 2.0**-20, 300.0),
    ("pcie.link.width.current", "pcie_link_width", 1.0, 0.0),
    ("pcie.link.width.max", "pcie_link_width_limit", 1.0, 0.0),
    ("pcie.link.gen.max", "pcie_link_generation_limit", 1.0, 0.0),
    ("ecc.errors.corrected.volatile.total", "ecc_corrected_volatile", 1.0, 0.0),
    ("ecc.errors.uncorrected.volatile.total", "ecc_uncorrected_volatile", 1.0, 0.0),
    ("ecc.errors.corrected.aggregate.total", "ecc_corrected_aggregate", 1.0, 0.0),
    ("ecc.errors.uncorrected.aggregate.total", "ecc_uncorrected_aggregate", 1.0, 0.0),
)
# Texts; nvidia-smi's on the left.
SMI_TEXTS = (
    ("uuid", "gpu_uuid"), ("serial", "gpu_serial"), ("name", "gpu_name"), ("vbios_version", "gpu_vbios"),
    ("inforom.img", "gpu_inforom"), ("driver_version", "driver_version"),
)  # fmt: skip
NOTHING = frozenset({"", "N/A", "[N/A]", "[Not Supported]", "[Unknown Error]"})
# dcgmi dmon: fields by number, and our columns.
DCGM = {1002: "sm_active_ratio", 1004: "tensor_active_ratio", 1005: "dram_active_ratio"}
APART = 0.1  # ratios over a second each, not of the same second


def tell(what: str) -> None:
    """Progress for whoever waits."""
    sys.stderr.write(f"gpu_check: {what}\n")
    sys.stderr.flush()


# --- 2: what others say ----------------------------------------------------------------------------------------------


def ask_smi(program: str, index: int) -> dict[str, str]:
    """What nvidia-smi says of one GPU, by its names; what this version does not know is left out."""
    names = [name for name, *_ in SMI] + [name for name, _ in SMI_TEXTS]
    told = _smi(program, index, names)
    if told is not None:
        return told
    found: dict[str, str] = {}
    for name in names:  # one name that it does not know spoils the whole question
        found.update(_smi(program, index, [name]) or {})
    return found


def _smi(program: str, index: int, names: Sequence[str]) -> dict[str, str] | None:
    command = [program, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits", "-i", str(index)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_WITHIN, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    values = [value.strip() for value in done.stdout.strip().split(",")]
    if done.returncode != 0 or len(values) != len(names):
        return None
    return dict(zip(names, values, strict=True))


def compare(smi: Mapping[str, str], before: Row, after: Row) -> list[Report]:
    """Where nvidia-smi and we differ. A value that moves may lie anywhere between what we read before and after it."""
    differing: list[Report] = []
    for name, column, factor, tolerance in SMI:
        said = smi.get(name, "")
        ours = [row[column] for row in (before, after) if row.get(column) is not None]
        if said in NOTHING or not ours:
            # Absent for both is agreement; for one of them it is told, as nvidia-smi may know it by another call.
            if (said in NOTHING) != (not ours) and name in smi:
                differing.append({"what": name, "smi": said, "ours": ours, "one_is_absent": True})
            continue
        low, high = min(ours) * factor - tolerance, max(ours) * factor + tolerance
        if not low <= float(said) <= high:
            differing.append({"what": name, "smi": said, "ours": [round(one * factor, 3) for one in ours]})
    for name, column in SMI_TEXTS:
        said, text = smi.get(name, ""), str(before.get(column) or "")
        if (said not in NOTHING or text) and name in smi and said not in NOTHING and said != text:
            differing.append({"what": name, "smi": said, "ours": text})
    return differing


def disproves(differing: Sequence[Report]) -> bool:
    """Whether a difference says that we are wrong; that one of both does not know a value does not."""
    return any(not one.get("one_is_absent") for one in differing)


class Dcgm:
    """dcgmi's samples of one GPU, taken meanwhile."""

    def __init__(self, program: str, index: int) -> None:
        fields = ",".join(map(str, DCGM))
        command = [program, "dmon", "-i", str(index), "-e", fields, "-d", "1000", "-c", str(int(LOADED) - 3)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def means(self) -> dict[str, float]:
        """The mean of each of our columns as dcgmi has it; empty where it gave no numbers."""
        try:
            out, _ = self._process.communicate(timeout=LOADED + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, _ = self._process.communicate()
        return dcgm_means(out)


def dcgm_means(out: str) -> dict[str, float]:
    """The mean of each column of `dcgmi dmon`.

    Shape   `GPU 0  0.973  0.512  0.433`, one line a sample; N/A where there is no value
    """
    samples: list[list[float]] = []
    for line in out.splitlines():
        words = line.split()
        if len(words) == len(DCGM) + 2 and words[0] == "GPU":
            try:
                samples.append([float(word) for word in words[2:]])
            except ValueError:
                continue
    if not samples:
        return {}
    return {
        column: statistics.fmean(values)
        for column, values in zip(DCGM.values(), zip(*samples, strict=True), strict=True)
    }


# --- 3: what a load must show ----------------------------------------------------------------------------------------


def judge(idle: Row, product: Row, copy: Row) -> dict[str, bool]:
    """What holds of the means over an idle GPU, one that multiplies matrices and one that copies memory. What this GPU
    does not tell is not judged."""

    def more(column: str, loaded: Row, least: float, than_idle: float) -> bool:
        return loaded[column] >= least and loaded[column] - idle.get(column, 0.0) >= than_idle

    holds: dict[str, bool] = {}
    if "utilization_ratio" in product:
        holds["utilisation rises"] = more("utilization_ratio", product, 0.7, 0.3)
    if "power_watts" in product and "power_watts" in idle:
        holds["power rises"] = product["power_watts"] > 1.2 * idle["power_watts"]
    if {"sm_active_ratio", "tensor_active_ratio", "dram_active_ratio"} <= product.keys() & copy.keys() & idle.keys():
        holds |= {
            "SMs are busy with products": more("sm_active_ratio", product, 0.4, 0.3),
            "tensor cores are busy with products": more("tensor_active_ratio", product, 0.15, 0.1),
            "tensor cores rest while memory is copied": copy["tensor_active_ratio"] < 0.05,
            "memory is busy with copies": more("dram_active_ratio", copy, 0.3, 0.2),
            "ratios are ratios": all(
                0.0 <= row[column] <= 1.05
                for row in (idle, product, copy)
                for column in ("sm_active_ratio", "tensor_active_ratio", "dram_active_ratio")
            ),
        }  # fmt: skip
    return holds


@contextmanager
def load(kind: str, seconds: float, uuid: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A load that is warm, and who makes it.

    Raises  RuntimeError where it cannot run here
    """
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}
    command = [sys.executable, str(HERE / "_gpu_load.py"), kind, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    stuck = threading.Timer(WARM_WITHIN + seconds + 30, process.kill)
    stuck.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            _, reason = process.communicate()
            raise RuntimeError(reason.strip().rpartition("\n")[2] or "the load ended at once")
        yield process, json.loads(line)["by"]
    finally:
        stuck.cancel()
        if process.poll() is None:
            process.kill()
        process.communicate()


def mean_of(rows: Sequence[Row]) -> dict[str, float]:
    """The mean of each number that every row knows."""
    first = rows[0] if rows else {}
    return {
        column: statistics.fmean(row[column] for row in rows)
        for column in first
        if all(isinstance(row.get(column), int | float) for row in rows)
    }


# --- 5: what we cost -------------------------------------------------------------------------------------------------


@contextmanager
def agent() -> Iterator[None]:
    """The agent runs, with a sweep of the GPUs every second."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        config = Path(folder) / "config.toml"
        config.write_text('[agent]\nlisten = ""\nsources = ["nvml"]\n[sources.nvml]\nfast = 1.0\n')
        code = "import sys; from gpuguard.cli import main; main()"
        command = [sys.executable, "-c", code, "agent", "--state-dir", f"{folder}/state", "--config", str(config)]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def overhead(steps: Sequence[tuple[float, float]], blocks: Sequence[tuple[bool, float, float]]) -> Report:
    """How much longer a step took while the agent ran: medians of blocks that took turns, in pairs.

    Units   milliseconds; blocks as (with agent, begin, end) in seconds since 1970
    """
    medians: dict[bool, list[float]] = {True: [], False: []}
    for beside, begin, end in blocks:
        within = [ms for at, ms in steps if begin <= at <= end]
        if within:
            medians[beside].append(statistics.median(within))
    if not medians[True] or not medians[False]:
        return {"skipped": "the load made no step"}
    alone, beside_us = statistics.median(medians[False]), statistics.median(medians[True])
    spread = (max(medians[False]) - min(medians[False])) / alone
    return {
        "step_ms_alone": round(alone, 4), "step_ms_beside_agent": round(beside_us, 4),
        "overhead": round(beside_us / alone - 1.0, 5), "spread_alone": round(spread, 5), "steps": len(steps),
    }  # fmt: skip


# --- all of it -------------------------------------------------------------------------------------------------------


class Check:
    """The machine, through the driver's own library."""

    def __init__(self, noted: Any) -> None:  # Any: imported only where there is a GPU
        from gpuguard.sources.nvml.reader import Reader

        self.noted = noted
        self.reader = Reader(noted, Path("/"))

    def row(self, pci: str) -> dict[str, Any]:
        """All that we know of the GPU now, with what is of the node."""
        row: dict[str, Any] = {}
        for rate in ("fast", "medium", "slow"):
            rows = self.reader.sweep(rate)
            row |= rows.get("node", {}) | rows.get(f"gpu:{pci}", {})
        return row

    def rows(self, pci: str, seconds: float) -> list[Row]:
        """A fast row each second."""
        rows: list[Row] = []
        self.reader.sweep("fast")  # GPM's first sample; what it measured until now is of another time
        ends = time.monotonic() + seconds
        while time.monotonic() < ends - 0.5:
            time.sleep(1.0)
            rows.append(dict(self.reader.sweep("fast").get(f"gpu:{pci}", {})))
        return rows

    def free(self, wanted: int | None) -> tuple[str, int, str] | None:
        """Address, index and UUID of the GPU to load: the one that was named, else the first that nobody uses."""
        fast, medium = self.reader.sweep("fast"), self.reader.sweep("medium")
        for subject, row in fast.items():
            if not subject.startswith("gpu:") or row.get("gpu_up") != 1:
                continue
            more = medium.get(subject, {})
            unused = more.get("process_count") == 0 and more.get("mig_mode") != 1
            if row["gpu_index"] == wanted or (wanted is None and unused):
                return subject.removeprefix("gpu:"), int(row["gpu_index"]), str(row["gpu_uuid"])
        return None


def measured(keep: Path | None, wanted: int | None) -> tuple[Report, bool]:
    """Everything, and whether all of it holds."""
    from gpuguard.sources.nvml.library import NvmlError
    from gpuguard.sources.nvml.live import Live
    from gpuguard.sources.nvml.noted import Noted

    noted = Noted(Live(), time.monotonic)
    try:
        noted.open()
    except NvmlError as error:
        why = {9: "the NVIDIA driver is not loaded", 12: "libnvidia-ml.so.1 is not installed"}.get(
            error.code, str(error)
        )
        return {"skipped": f"no NVIDIA GPU to check here: {why}"}, True
    check = Check(noted)
    report: Report = {}
    try:
        if not any(name.startswith("gpu:") for name in check.reader.sweep("fast")):
            return {"skipped": "no NVIDIA GPU to check here: NVML lists none"}, True
        report["recording"] = recorded(keep)
        free = check.free(wanted)
        good = "failed" not in report["recording"]
        pci, index, uuid = free or check.free(0) or ("", 0, "")
        good = compared(report, check, pci, index) and good
        good = wired(report) and good
        if free is None:
            report["load"] = {
                "skipped": "every GPU is in use or in MIG mode; name one with --gpu to load it all the same"
            }
        else:
            good = loaded(report, check, pci, index, uuid) and good
    finally:
        noted.close()
    report["call_us"] = {
        call: {
            "n": len(seconds),
            "median": round(1e6 * statistics.median(seconds), 1),
            "max": round(1e6 * max(seconds), 1),
        }
        for call, seconds in sorted(noted.seconds.items())
    }
    return report, good


def recorded(keep: Path | None) -> Report:
    """Where the recording of this machine is."""
    folder = keep or Path(tempfile.mkdtemp(prefix="gpu-check-recording-")) / "machine"
    tell(f"records the machine into {folder}")
    code = "import sys; from gpuguard.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "record", str(folder), "--passes", "4", "--every", "2", "--json"],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONPATH": str(HERE.parent)},
    )  # fmt: skip
    if done.returncode not in (0, 1):  # 1: some file could not be read, the kernel log without root
        return {"failed": done.stderr.strip().rpartition("\n")[2]}
    told: Report = json.loads(done.stdout)
    return told


def compared(report: Report, check: Check, pci: str, index: int) -> bool:
    """The report says where nvidia-smi says something else."""
    program = shutil.which("nvidia-smi")
    if program is None:
        report["nvidia_smi"] = {"skipped": "nvidia-smi is not installed"}
        return True
    tell("compares with nvidia-smi")
    before = check.row(pci)
    smi = ask_smi(program, index)
    differing = compare(smi, before, check.row(pci))
    report["nvidia_smi"] = {"compared": len(smi), "differing": differing}
    return bool(smi) and not disproves(differing)


def wired(report: Report) -> bool:
    """The report says where `nvidia-smi topo -m` has another matrix than we have."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return True
    tell("compares the matrix with that of nvidia-smi")
    code = "from gpuguard.cli import main; main()"
    environ = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    texts = []
    for command in (
        [program, "topo", "-m"], [sys.executable, "-c", code, "topo", "--format", "matrix", "--config", "/dev/null"],
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
        if done.returncode:
            report["matrix"] = {"failed": (done.stderr or done.stdout).strip().rpartition("\n")[2]}
            return False
        texts.append(done.stdout)
    report["matrix"] = compare_matrices(*texts)
    return not report["matrix"]["differing"]


def compare_matrices(theirs: str, ours: str) -> Report:
    """Cells and affinities that differ, and whether the texts are the same byte for byte."""
    from gpuguard.topology.facts import facts
    from gpuguard.topology.matrix import read

    told: list[Report] = [facts(read(text).topology) for text in (theirs, ours)]
    cells = [
        {
            (one, other): told_by["matrix"][i][j]
            for i, one in enumerate(told_by["devices"]) for j, other in enumerate(told_by["devices"])
        }
        for told_by in told
    ]  # fmt: skip
    differing: list[Report] = [
        {"what": " ".join(pair), "theirs": cells[0].get(pair), "ours": cells[1].get(pair)}
        for pair in sorted(cells[0].keys() | cells[1].keys()) if cells[0].get(pair) != cells[1].get(pair)
    ]  # fmt: skip
    differing += [
        {"what": f"affinity {gpu}", "theirs": affinity, "ours": told[1]["affinity"].get(gpu)}
        for gpu, affinity in told[0]["affinity"].items() if affinity != told[1]["affinity"].get(gpu)
    ]  # fmt: skip
    return {"same_bytes": theirs == ours, "cells": len(cells[0]), "differing": differing}


def loaded(report: Report, check: Check, pci: str, index: int, uuid: str) -> bool:
    """The report says how activity moved, and what we cost."""
    tell("looks at the idle GPU")
    means = {"idle": mean_of(check.rows(pci, IDLE))}
    dcgmi = shutil.which("dcgmi")
    others: dict[str, dict[str, float]] = {}
    by = ""
    try:
        for kind in ("product", "copy"):
            tell(f"loads the GPU: {kind}")
            with load(kind, LOADED, uuid) as (_, by):
                dcgm = Dcgm(dcgmi, index) if dcgmi is not None else None
                means[kind] = mean_of(check.rows(pci, LOADED - 2.0)[1:])
                if dcgm is not None:
                    others[kind] = dcgm.means()
        holds = judge(means["idle"], means["product"], means["copy"])
        shown = ("utilization_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "power_watts",
                 "sm_clock_hertz", "temperature_celsius")  # fmt: skip
        report["load"] = {
            "by": by, "holds": holds,
            "means": {
                kind: {name: round(row[name], 4) for name in shown if name in row} for kind, row in means.items()
            },
        }  # fmt: skip
        apart = {
            f"{kind} {column}": [round(value, 3), round(means[kind][column], 3)]
            for kind, told in others.items()
            for column, value in told.items()
            if column in means[kind] and abs(value - means[kind][column]) > APART
        }
        report["dcgmi"] = {"differing": apart, "means": others} if others else {"skipped": "dcgmi is not installed"}
        report["overhead"] = cost(uuid)
    except RuntimeError as error:
        report["load"] = {"skipped": str(error)}
        return True
    cheap = report["overhead"].get("overhead", 0.0) <= max(MOST_OVERHEAD, report["overhead"].get("spread_alone", 0.0))
    return all(holds.values()) and not apart and cheap


def cost(uuid: str) -> Report:
    """Steps of the load with and without the agent, in turns."""
    tell("measures what the agent costs the load")
    blocks: list[tuple[bool, float, float]] = []
    with load("product", BLOCKS * (BLOCK + 3.0) + 2.0, uuid) as (process, _):
        for n in range(BLOCKS):
            if n % 2:
                with agent():
                    time.sleep(2.5)  # it starts up, which is not what is measured
                    begin = time.time()
                    time.sleep(BLOCK)
                    blocks.append((True, begin, time.time()))
            else:
                begin = time.time()
                time.sleep(BLOCK)
                blocks.append((False, begin, time.time()))
        out, _ = process.communicate(timeout=60)
    return overhead(json.loads(out)["steps"], blocks)


def main() -> int:
    """0 all that could be checked holds, 1 something does not."""
    parser = argparse.ArgumentParser(description="Checks gpuguard on a machine with a real NVIDIA GPU.")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the recording of the machine goes")
    parser.add_argument("--gpu", type=int, metavar="INDEX", help="the GPU to load, even if somebody uses it")
    arguments = parser.parse_args()
    began = time.monotonic()
    report, good = measured(arguments.keep, arguments.gpu)
    if "skipped" in report:
        tell(report["skipped"])
    print(json.dumps({"good": good, "seconds": round(time.monotonic() - began, 1), **report}, indent=2))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
