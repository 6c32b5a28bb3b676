"""Floods the real /dev/kmsg and holds what the source saw against a second, independent reader of the same ring.

60,000 lines in 3 s, 60 of them Xids that differ; the second reader is a process of its own that reads with os.read and
looks for the Xids' text only. Beside the source a loop takes from the mailbox as the agent does. Three floods: as it
is, beside a thread that never rests (`busy`), and with the source held up so long that it must lose (`stalled`).
Prints one JSON object. Needs root: the kernel's limit for user-space lines is lifted and put back.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

from gpuguard.model.events import Batch, LinesLost, LogLine
from gpuguard.runtime.clock import SystemClock
from gpuguard.runtime.mailbox import Mailbox
from gpuguard.runtime.supervise import Supervisor
from gpuguard.sources.kmsg import Settings, build

RATE_LIMIT = Path("/proc/sys/kernel/printk_devkmsg")
SECOND_READER = r"""
import json, os, re, sys
fd = os.open("/dev/kmsg", os.O_RDONLY)
os.lseek(fd, 0, os.SEEK_END)
sys.stdout.write("open\n"); sys.stdout.flush()
own, seen, records, last, overruns = re.compile(b"name=" + sys.argv[1].encode() + rb"-(\d+)-"), [], 0, None, 0
while True:
    try:
        data = os.read(fd, 16384)
    except BrokenPipeError:
        overruns += 1
        continue
    sequence = int(data.split(b",", 2)[1])
    last, records = sequence, records + 1
    if match := own.search(data):
        seen.append((int(match[1]), sequence))
    if b";flood-ends" in data:
        break
print(json.dumps({"seen": seen, "records": records, "last": last, "overruns": overruns}))
"""

WRITER = r"""
import os, sys, time
lines, seconds, xids, tag = *map(int, sys.argv[1:4]), sys.argv[4].encode()
fd = os.open("/dev/kmsg", os.O_WRONLY)
every = lines // xids
begin = time.monotonic()
for index in range(lines):
    if index % every == every // 2:
        n = index // every
        text = b"<4>NVRM: Xid (PCI:0000:%02x:00): 43, pid=%d, name=%b-%d-x, Ch 0000001e\n" % (n % 8 + 1, n + 1, tag, n)
    else:
        text = b"<4>nvidia-modeset: WARNING: GPU:%d: flood line %d that says nothing of any use\n" % (index % 8, index)
    os.write(fd, text)
    ahead = begin + seconds * index / lines - time.monotonic()
    if ahead > 0.002:
        time.sleep(ahead)
os.write(fd, b"<4>flood-ends\n")
print(time.monotonic() - begin)
"""


class Consumer:
    """Takes from the mailbox as the agent's loop does, and keeps what a check needs."""

    def __init__(self, mailbox: Mailbox, tag: str, *, busy: bool) -> None:
        self._own = re.compile(rf"{tag}-(\d+)-")
        self.seen: list[tuple[int, int]] = []
        self.lost = 0
        self.worst_latency = 0.0
        self._mailbox = mailbox
        self._threads = [threading.Thread(target=self._consume, daemon=True)]
        self._ends = threading.Event()
        if busy:
            self._threads.append(threading.Thread(target=self._be_busy, daemon=True))
        for thread in self._threads:
            thread.start()

    def _consume(self) -> None:
        while not (self._ends.is_set() and self._mailbox.depth() == 0):
            batch = self._mailbox.get(0.2)
            for event in batch.events if batch is not None else ():
                if isinstance(event, LogLine) and (match := self._own.match(event.parsed.process or "")):
                    self.seen.append((int(match[1]), int(event.id.rsplit(":", 1)[1])))
                    self.worst_latency = max(self.worst_latency, time.monotonic() - event.at.mono)
                elif isinstance(event, LinesLost):
                    self.lost += event.count

    def _be_busy(self) -> None:
        number = 0
        while not self._ends.is_set():
            number += 1

    def end(self) -> None:
        """All that was handed over is counted."""
        self._ends.set()
        for thread in self._threads:
            thread.join()


def flood(lines: int, seconds: int, xids: int, *, busy: bool = False, stall: float = 0.0) -> dict[str, object]:
    """What was written, seen and counted. `stall` holds the source up once for so long, so that it must lose;
    `busy` runs a thread beside it that never rests.

    Units   *_s seconds, *_mib mebibytes
    """
    mailbox = Mailbox()
    stalls = [stall] if stall else []

    def put(batch: Batch) -> None:
        mailbox.put(batch)
        if armed.is_set() and stalls:
            time.sleep(stalls.pop())

    armed = threading.Event()
    supervisor = Supervisor(SystemClock(), put)
    source = build(Settings(trust_user_records=True), Path("/"), SystemClock())
    supervisor.add(source)
    supervisor.start()
    if not supervisor.caught_up(30):
        raise SystemExit(f"ring_flood: the source did not come up: {supervisor.views()}")
    tally = source.tally
    tag = f"f{time.monotonic_ns() % 10**6}"  # a name has 15 characters
    consumer = Consumer(mailbox, tag, busy=busy)
    second = subprocess.Popen([sys.executable, "-c", SECOND_READER, tag], stdout=subprocess.PIPE, text=True)
    assert second.stdout is not None
    second.stdout.readline()
    records_before, newest_before = tally.records, tally.newest or 0
    armed.set()
    cpu_before = time.process_time()
    try:
        writer = subprocess.run(
            [sys.executable, "-c", WRITER, *map(str, (lines, seconds, xids, tag))], stdout=subprocess.PIPE, check=True
        )
        truth = json.loads(second.communicate(timeout=30)[0])
    finally:
        second.kill()
        second.communicate()
    ends = time.monotonic() + 30
    while (tally.newest or 0) < truth["last"] and time.monotonic() < ends:
        time.sleep(0.05)
    cpu = time.process_time() - cpu_before
    level = supervisor.views()[0].level
    supervisor.stop()
    consumer.end()
    records = tally.records - records_before
    agent, told = dict(consumer.seen), dict(truth["seen"])
    return {
        "written": lines,
        "took_s": round(float(writer.stdout), 3),
        "xids_written": xids,
        "second_reader_saw": len(told),
        "second_reader_records": truth["records"],
        "second_reader_overruns": truth["overruns"],
        "agent_saw": len(agent),
        "agent_records": records,
        "missed": len(told.keys() - agent.keys()),
        "twice": len(consumer.seen) - len(agent),
        "same_numbers": all(told.get(number, sequence) == sequence for number, sequence in agent.items()),
        "lost_counted": consumer.lost,
        "lost_true": truth["last"] - newest_before - records,
        "level": level,
        "worst_latency_s": round(consumer.worst_latency, 4),
        "cpu_s": round(cpu, 3),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def main() -> None:
    """Prints the result; the kernel's limit is put back whatever happens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=60_000)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--xids", type=int, default=60)
    args = parser.parse_args()
    if not (os.access("/dev/kmsg", os.R_OK | os.W_OK) and os.access(RATE_LIMIT, os.W_OK)):
        print(json.dumps({"skipped": "needs root and a writable /dev/kmsg"}))
        return
    before = RATE_LIMIT.read_text(encoding="ascii")
    RATE_LIMIT.write_text("on\n", encoding="ascii")
    try:
        size = (args.lines, args.seconds, args.xids)
        result = flood(*size)
        result["busy"] = flood(*size, busy=True)
        result["stalled"] = flood(*size, stall=args.seconds / 2)
        print(json.dumps(result))
    finally:
        RATE_LIMIT.write_text(before, encoding="ascii")


if __name__ == "__main__":
    main()
