"""A training loop of several processes, one of which may stop: to see what gpuguard makes of it.

usage   python -m gpuguard.progress.example [--job NAME] [--ranks N] [--fault FAULT] [--at STEP]

Each rank works for some 20 ms, tells its step and meets the others at a barrier, as an all-reduce would have them do.
At step AT the last rank meets its FAULT:

    none      nothing: the job ends well ten steps later
    deadlock  it takes a lock that it holds
    stop      SIGSTOP
    read      it reads from a pipe that nobody writes to
    kill      SIGKILL
    quiet     nothing, but nobody says that the job is done
"""

import argparse
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.synchronize import Barrier

from gpuguard import progress

WORK = 0.02
FAULTS = ("none", "deadlock", "stop", "read", "kill", "quiet")


def rank(job: str, number: int, world: int, barrier: Barrier, fault: str, at: int) -> None:
    """One rank, from its first step to its end."""
    progress.init(job=job, rank=number, world=world)
    for step in range(at + 10):
        ends = time.monotonic() + WORK
        while time.monotonic() < ends:
            sum(range(1000))
        if step == at and number == world - 1:
            meet(fault)
        progress.step(step)
        try:
            barrier.wait()
        except threading.BrokenBarrierError:
            return
    if fault != "quiet":
        progress.done()


def meet(fault: str) -> None:
    """The fault happens to this process."""
    match fault:
        case "deadlock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "read":
            readable, _ = os.pipe()
            os.read(readable, 1)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """All ranks have ended, or wait for ever. Their processes are printed first."""
    parser = argparse.ArgumentParser(prog="python -m gpuguard.progress.example", description=__doc__.split("\n")[0])
    parser.add_argument("--job", default="example", help="what the job calls itself")
    parser.add_argument("--ranks", type=int, default=4, metavar="N")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--at", type=int, default=100, metavar="STEP")
    asked = parser.parse_args(arguments)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(asked.ranks)
    processes = [
        context.Process(target=rank, args=(asked.job, number, asked.ranks, barrier, asked.fault, asked.at))
        for number in range(asked.ranks)
    ]
    for process in processes:
        process.start()
    sys.stdout.write(" ".join(str(process.pid) for process in processes) + "\n")
    sys.stdout.flush()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main(sys.argv[1:])
