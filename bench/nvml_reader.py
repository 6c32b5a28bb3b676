"""What a sweep of the GPUs costs: the reader and its encoding in the child, decoding and handing over in the agent.

The library's own time is taken off: answers come from the player, which is timed apart. CPU time of this thread, the
median of five runs. Prints one line for each machine and class; --json for a machine.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpuguard.model.events import Sweep
from gpuguard.model.ids import EventId
from gpuguard.model.readings import Rate
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.nvml.played import Player, load
from gpuguard.sources.nvml.protocol import Seen, decode_report, encode
from gpuguard.sources.nvml.reader import Reader
from gpuguard.sources.nvml.stopwatch import Stopwatch

NODES = Path(__file__).resolve().parents[1] / "fixtures" / "nodes"
RATES: tuple[Rate, ...] = ("fast", "medium", "slow")
METHODS = ("call", "pair", "fields", "gpm", "devices", "system", "parts")
TIMES = 200


def milliseconds(work: Callable[[], object]) -> float:
    """CPU time of one call, the median of five runs."""
    runs = []
    for _ in range(5):
        began = time.thread_time()
        for _ in range(TIMES):
            work()
        runs.append((time.thread_time() - began) / TIMES * 1000)
    return statistics.median(runs)


def measure(machine: str, rate: Rate) -> dict[str, float]:
    """What one sweep of a class costs on one machine."""
    player = Player(load(NODES / machine / "nvml.json"), time.monotonic)
    player.open()
    bare, timed = Reader(player, NODES / machine), Stopwatch(player)
    reader = Reader(timed, NODES / machine)
    for each in RATES * 4:  # what is not supported is known by then
        bare.sweep(each)
        reader.sweep(each)
    whole = milliseconds(lambda: reader.sweep(rate))
    # The same calls once more, with nothing around them.
    calls: list[tuple[str, tuple[object, ...]]] = []
    _record(player, calls)
    bare.sweep(rate)
    for name in METHODS:
        delattr(player, name)
    asked = [(getattr(player, name), arguments) for name, arguments in calls]
    library = milliseconds(lambda: [_asked(ask, arguments) for ask, arguments in asked])
    report = Seen(rate, reader.sweep(rate), 0.001, timed.histogram, False, None)
    message = encode(report)
    clock = ManualClock()

    def take() -> Sweep:
        seen = decode_report(message)
        assert isinstance(seen, Seen)
        return Sweep(id=EventId("x"), at=clock.now(), source="nvml", rate=rate, valid_for=15.0, rows=seen.rows)

    return {
        "reader_ms": whole - library, "library_ms": library, "encode_ms": milliseconds(lambda: encode(report)),
        "agent_ms": milliseconds(take), "bytes": float(len(message)), "calls": float(len(calls)),
    }  # fmt: skip


def _asked(ask: Callable[..., object], arguments: tuple[object, ...]) -> None:
    ask(*arguments)


def _record(player: Player, calls: list[tuple[str, tuple[object, ...]]]) -> None:
    """Every call of the player is written down from now on."""
    for name in METHODS:
        original = getattr(player, name)

        def noted(*arguments: object, name: str = name, original: Callable[..., object] = original) -> object:
            answer = original(*arguments)
            calls.append((name, arguments))
            return answer

        setattr(player, name, noted)


def main() -> int:
    """Exit code; 1 when a fast sweep of eight GPUs costs more than a millisecond on either side."""
    parser = argparse.ArgumentParser(description="What a sweep of the GPUs costs.")
    parser.add_argument("--json", action="store_true", help="one object for a machine to read")
    parser.add_argument("machines", nargs="*", default=["h100x8", "a100x8", "b200x8", "h100x8-mig"])
    asked = parser.parse_args()
    found = {machine: {rate: measure(machine, rate) for rate in RATES} for machine in asked.machines}
    if asked.json:
        print(json.dumps(found))
    for machine, rates in found.items() if not asked.json else ():
        for rate, cost in rates.items():
            words = "  ".join(f"{name} {value:.3f}" if name.endswith("_ms") else f"{name} {value:.0f}"
                              for name, value in cost.items())  # fmt: skip
            print(f"{machine:<12} {rate:<7} {words}")
    fast = [rates["fast"] for rates in found.values()]
    return int(any(cost["reader_ms"] + cost["encode_ms"] > 1.0 or cost["agent_ms"] > 1.0 for cost in fast))


if __name__ == "__main__":
    sys.exit(main())
