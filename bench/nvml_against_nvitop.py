"""CPU of a sweep of eight GPUs: gpuguard's NVML child against nvitop's device API, on the same library in one run.

Both read the same of `h100x8`: clocks, temperature, power, P-state, utilisation, memory, why clocks are low, and the
nineteen fields of a fast sweep. GPM, which nvitop has no way to read, is read by neither: sweeps follow each other too
closely for its counters. Ours is also packed and sent to the agent. nvitop is installed by pip into an environment
of its own in the temporary folder, once. The two take turns, so that what else the machine does hits both alike.
Prints one JSON object; exit code 1 when our share of its CPU is more than LIMIT.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench._agent import process_ns
from gpuguard.child.process import Child
from gpuguard.sources.nvml.protocol import Begin, Begun, Look, Seen, decode_report, encode
from gpuguard.sources.nvml.readings import FAST_FIELDS
from tests.support.fake_nvml import FakeNvml
from tests.support.machines import machine

LIMIT = 0.5
VERSION = "1.7.2"
WITHIN = 60.0  # seconds for an answer
Answer = TypeVar("Answer", Begun, Seen)

# Reads what it is told to on each line of its input, so often, and says that it has.
THEIRS = """
import sys
from nvitop import Device, libnvml
devices = Device.all()
fields = [tuple(f) if f[1] else f[0] for f in {fields}]
def sweep():
    for device in devices:
        device.performance_state(), device.sm_clock(), device.memory_clock(), device.temperature()
        device.power_usage(), device.utilization_rates(), device.memory_info()
        libnvml.nvmlQuery("nvmlDeviceGetCurrentClocksEventReasons", device.handle)
        libnvml.nvmlQueryFieldValues(device.handle, fields)
sweep()
d = devices[0]
read = [d.performance_state()[1:], d.sm_clock(), d.memory_clock(), d.temperature(), d.power_usage(),
        *d.utilization_rates(), *d.memory_info(), libnvml.nvmlQuery("nvmlDeviceGetCurrentClocksEventReasons", d.handle),
        *(value for value, _ in libnvml.nvmlQueryFieldValues(d.handle, fields))]
print(len(devices), sum(str(value).replace('.', '').isdigit() for value in read), flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        sweep()
    print("done", flush=True)
"""


def environment() -> Path:
    """The Python that has nvitop.

    Raises  SystemExit when it cannot be installed
    """
    folder = Path(tempfile.gettempdir()) / f"gpuguard-bench-nvitop-{os.getuid()}-{VERSION}"
    python = folder / "bin/python"
    if not (folder / "complete").exists():
        sys.stderr.write(f"nvml_against_nvitop: installing nvitop {VERSION} into {folder}\n")
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", f"nvitop=={VERSION}"],
            stdout=sys.stderr, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise SystemExit("pip could not install nvitop; is there a network, or a mirror in PIP_INDEX_URL?")
        (folder / "complete").touch()
    return python


class Theirs:
    """A process with nvitop."""

    def __init__(self, env: dict[str, str]) -> None:
        program = THEIRS.format(fields=[(f.field, f.scope) for f in FAST_FIELDS])
        self._process = subprocess.Popen(
            [str(environment()), "-c", program], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.devices, self.values = map(int, self._line().split())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the process with nvitop ended; its words are above")
        return line

    def sweep_ns(self, count: int) -> float:
        """Nanoseconds of CPU of one sweep."""
        before = process_ns(self._process.pid)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        self._line()
        return (process_ns(self._process.pid) - before) / count

    def end(self) -> None:
        """It is gone."""
        self._process.kill()
        self._process.communicate()


class Ours:
    """The child that the agent has, asked as the agent asks it."""

    def __init__(self, env: dict[str, str]) -> None:
        self._child = Child([sys.executable, "-m", "gpuguard.sources.nvml.child"], environment=env)
        self._ask(Begin(), Begun)
        for rate in ("fast", "medium", "slow", "fast"):
            rows = self._ask(Look(rate), Seen).rows
        power = [row for row in rows.values() if row.get("power_watts")]
        self.devices, self.values = len(power), sum(isinstance(value, int | float) for value in power[0].values())

    def _ask(self, request: Begin | Look, wanted: type[Answer]) -> Answer:
        self._child.send(encode(request))
        ends = time.monotonic() + WITHIN
        while time.monotonic() < ends:
            message = self._child.receive(WITHIN)
            if message is not None and isinstance(report := decode_report(message), wanted):
                return report
        raise SystemExit("the NVML child does not answer")

    def sweep_ns(self, count: int) -> float:
        """Nanoseconds of CPU of one fast sweep."""
        before = process_ns(self._child.pid)
        for _ in range(count):
            self._ask(Look("fast"), Seen)
        return (process_ns(self._child.pid) - before) / count

    def end(self) -> None:
        """It is gone."""
        self._child.stop(3.0)


def main() -> int:
    """0 within the limit, 1 not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--sweeps", type=int, default=100, help="sweeps in each round")
    args = parser.parse_args()
    with FakeNvml(machine("h100x8")) as nvml:
        home = str(Path(__file__).resolve().parents[1])
        ours, theirs = Ours(nvml.env() | {"PYTHONPATH": home}), Theirs(nvml.env() | {"PYTHONPATH": ""})
        try:
            if ours.devices != theirs.devices:
                raise SystemExit(f"they do not read the same machine: {ours.devices} and {theirs.devices} GPUs")
            pairs = [(ours.sweep_ns(args.sweeps), theirs.sweep_ns(args.sweeps)) for _ in range(args.rounds)]
        finally:
            ours.end()
            theirs.end()
    # The quickest round of each is the one that the rest of the machine disturbed least.
    own, other = (min(times) for times in zip(*pairs, strict=True))
    ratio = own / other
    print(
        json.dumps(
            {
                "gpus": ours.devices,
                "our_values": ours.values,
                "their_values": theirs.values,
                "our_sweep_ms": round(own / 1e6, 3),
                "their_sweep_ms": round(other / 1e6, 3),
                "ratio": round(ratio, 3),
                "asked": {"ratio": LIMIT},
            }
        )
    )
    return 0 if ratio <= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
