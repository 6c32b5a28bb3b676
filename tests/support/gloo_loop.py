"""One rank of a real training loop: PyTorch's DistributedDataParallel on the CPU, its gradients reduced by gloo.

usage   RANK=R WORLD_SIZE=N GPUGUARD_JOB=NAME TORCH_FR_DUMP_TEMP_FILE=PREFIX \\
        PYTHONPATH=<this repository> python tests/support/gloo_loop.py --meet FILE [--fault FAULT] [--at STEP] [--early]

Runs under any interpreter that has torch; the ranks find each other by FILE. Step AT the last one begins with its
FAULT: deadlock, stop (SIGSTOP), kill (SIGKILL), read (from a pipe that nobody writes to), or none. Just before it
prints what CLOCK_MONOTONIC is. A step is told when the optimizer has made it, so all are at the same when one stops;
with --early it is told before the gradients are reduced, so the one that stops is a step behind.

On SIGUSR2 a rank writes its flight recorder to PREFIX and its number, whatever else hangs in it.
"""

import argparse
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from gpuguard import progress
from gpuguard.progress.hooks.pytorch import watch

FAULTS = ("none", "deadlock", "stop", "kill", "read")
WORK = 0.02  # seconds that a step takes besides


def meet(fault: str) -> None:
    """The fault happens to this process."""
    sys.stdout.write(f"{time.monotonic()}\n")
    sys.stdout.flush()
    match fault:
        case "deadlock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "read":
            readable, _ = os.pipe()
            os.read(readable, 1)


def write_on_request(recorder: Any, path: Path) -> None:
    """From here on SIGUSR2 has a thread write the flight recorder there."""

    def write() -> None:
        while True:
            signal.sigwait({signal.SIGUSR2})
            path.write_bytes(recorder._dump_fr_trace())

    threading.Thread(target=write, daemon=True).start()


def main(arguments: list[str]) -> None:
    """The rank has made ten steps beyond AT, or waits for ever."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--meet", required=True, metavar="FILE")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--at", type=int, default=60, metavar="STEP")
    parser.add_argument("--early", action="store_true")
    parser.add_argument("--patience", type=float, default=1800.0, metavar="SECONDS", help="gloo's time-out")
    asked = parser.parse_args(arguments)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})  # before torch begins threads, which inherit that
    torch, dist = import_module("torch"), import_module("torch.distributed")
    write_on_request(torch._C._distributed_c10d, Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{asked.meet}", rank=rank, world_size=world,
                            timeout=timedelta(seconds=asked.patience))  # fmt: skip
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if not asked.early:
        watch(optimizer)
    for step in range(1, asked.at + 11):
        time.sleep(WORK)
        if step == asked.at and rank == world - 1:
            meet(asked.fault)
        loss = model(torch.randn(8, 64)).square().mean()
        if asked.early:
            progress.step(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    progress.done()


if __name__ == "__main__":
    main(sys.argv[1:])
