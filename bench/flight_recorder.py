"""How long a dump of an NCCL flight recorder takes to read: 2,000 calls with their lines, and 100 MB of them.

usage  python bench/flight_recorder.py

Prints one JSON object: seconds for one dump of 2,000 calls in this process, the same through the child with its start
and limits, and 100 MB through the child; and how much memory the child had for it at most.
"""

import json
import pickle
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpuguard.errors import ReadFailed
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.flight_recorder import Settings, build
from gpuguard.sources.flight_recorder.child import identify
from gpuguard.sources.flight_recorder.dump import read_dump

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "sources" / "flight_recorder" / "rank_0"
FRAMES = 20


def write(path: Path, calls: int) -> None:
    """A dump with the instructions of libtorch's pickler: texts are remembered and referred to, containers are not."""
    known: dict[str, int] = {}

    def text(value: str) -> bytes:
        if value in known:
            return b"j" + known[value].to_bytes(4, "little")
        known[value] = len(known)
        data = value.encode()
        return b"X" + len(data).to_bytes(4, "little") + data + b"r" + known[value].to_bytes(4, "little")

    def value(what: object) -> bytes:
        if isinstance(what, str):
            return text(what)
        if isinstance(what, list):
            return b"](" + b"".join(map(value, what)) + b"e"
        if isinstance(what, dict):
            return b"}(" + b"".join(text(key) + value(item) for key, item in what.items()) + b"u"
        if isinstance(what, tuple):
            return b"".join(map(value, what)) + b"\x86"
        return pickle.dumps(what, 2)[2:-1]

    entry = dict(pickle.loads(FIXTURE.read_bytes())["entries"][0])
    frames = [{"name": f"call_{n}", "filename": f"/srv/train/site/torch/file_{n}.py", "line": n} for n in range(FRAMES)]
    with path.open("wb") as file:
        file.write(b"\x80\x02}(" + text("version") + text("2.10") + text("pg_config") + value({}) + text("entries"))
        file.write(b"](")
        for number in range(1, calls + 1):
            file.write(value({**entry, "frames": frames, "record_id": number, "collective_seq_id": number}))
        file.write(b"eu.")


def through_child(folder: Path, path: Path) -> float:
    """Seconds for the child to start and read it."""
    clock = ManualClock()
    source = build(Settings(read_deadline=20.0), folder, clock)  # type: ignore[arg-type]
    began = time.perf_counter()
    source._summary(identify(str(path)))
    return time.perf_counter() - began


def main() -> int:
    """0, once all was measured."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small, large = folder / "small", folder / "large"
        write(small, 2000)
        each = small.stat().st_size / 2000
        write(large, int(100e6 / each))
        best = 1e9
        for _ in range(5):
            began = time.perf_counter()
            with small.open("rb") as stream:
                read_dump(stream)
            best = min(best, time.perf_counter() - began)
        child = min(through_child(folder, small) for _ in range(5))
        result: dict[str, object] = {
            "small_bytes": small.stat().st_size, "read_s": round(best, 3), "with_child_s": round(child, 3),
            "large_bytes": large.stat().st_size,
        }  # fmt: skip
        try:
            result["large_s"] = round(through_child(folder, large), 2)
        except ReadFailed as error:  # beyond its deadline or its memory: that is the measurement
            result["large"] = str(error)
        result["child_peak_mib"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
