"""How fast `gpuguard scan` reads a mixed log, next to `grep` with the same markers.

    python bench/scan.py [--mb 1000] [--runs 3]

The log is made in a temporary directory and removed: lines as a busy GPU node prints them in several forms, one line
of the NVIDIA driver in 1,000. Both programs read it in the same run, turn by turn, and the median counts. Prints one
JSON object; progress goes to standard error. `holds` says whether the promised numbers are met.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpuguard.kernel_log.reader import marker_pattern

LINES_PER_S = 1_000_000  # at least, on one core
CPU_OVER_GREP = 3.0  # at most
MIB = 1 << 20
SMALL_MB = 20  # the size that the peak of memory is compared at
BLOCK_LINES = 100_000

NOISE = (
    "usb 1-{a}: new high-speed USB device number {b} using xhci_hcd",
    "audit: type=1400 audit(17941{b}.{a}:{b}): apparmor=\"ALLOWED\" operation=\"open\" profile=\"job{a}\" pid={b}",
    "cni0: port {a}(veth{b:x}) entered forwarding state",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{b:x}: link becomes ready",
    "EXT4-fs (nvme{a}n1): mounted filesystem with ordered data mode. Quota mode: none.",
    "nvidia-uvm: Loaded the UVM driver, major device number {a}.",
    "mlx5_core 0000:9a:00.{a}: Port module event: module {b}, Cable plugged",
    "python3[{b}]: segfault at {b:x} ip {b:x} sp {b:x} error {a} in libtorch_cuda.so[{b:x}+1000]",
    "NFS: server store-{a} not responding, still trying, xid {b:x}",
    "workqueue: kfd_process_wq hogged CPU for >{b}us {a} times, consider switching to WQ_UNBOUND",
)  # fmt: skip
DRIVER = (
    "NVRM: Xid (PCI:0000:{a:02x}:00): 43, pid={b}, name=python3, Ch 00000008",
    "NVRM: Xid (PCI:0000:{a:02x}:00): 13, pid={b}, name=trainer, Graphics SM Warp Exception on (GPC 1, TPC 2, SM 0): "
    "Illegal Address",
    "NVRM: Xid (PCI:0000:{a:02x}:00): 31, pid={b}, name=trainer, channel 0x00000002, intr 00000000. MMU Fault: "
    "ENGINE GRAPHICS GPC6 GPCCLIENT_T1_13 faulted @ 0x6f6f_320c2000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    "nvidia-nvswitch2: SXid (PCI:0000:{a:02x}:00.0): 12028, Non-fatal, Link 61 egress non-posted PRIV error (First)",
)  # fmt: skip
FORMS = (
    "Nov  2 08:15:{s:02d} gpu-17 kernel: [{t:13.6f}] {text}",
    "2026-11-02T08:15:{s:02d}.123456+00:00 gpu-17 kernel: [{t:13.6f}] {text}",
    "[{t:13.6f}] {text}",
    "6,{n},{n}000,-;{text}",
    "kern  :info  : [Mon Nov  2 08:15:{s:02d} 2026] {text}",
)


def make_block(dice: random.Random) -> tuple[bytes, int]:
    """Some 10 MB of log, and how many events are in it."""
    lines, events = [], 0
    for n in range(BLOCK_LINES):
        driver = n % 1000 == 500
        text = dice.choice(DRIVER if driver else NOISE).format(a=dice.randrange(200), b=dice.randrange(100, 4_000_000))
        form = FORMS[n // 5000 % len(FORMS)]
        lines.append(form.format(s=n % 60, t=n / 7, n=n, text=text))
        events += driver
    return ("\n".join(lines) + "\n").encode(), events


def make_log(path: Path, megabytes: int) -> tuple[int, int]:
    """Writes the log; how many lines and events it has."""
    dice = random.Random(20261102)
    blocks = [make_block(dice) for _ in range(8)]
    lines = events = size = 0
    with path.open("wb") as file:
        while size < megabytes * 1_000_000:
            block, count = blocks[lines // BLOCK_LINES % len(blocks)]
            file.write(block)
            size, lines, events = size + len(block), lines + BLOCK_LINES, events + count
    return lines, events


def make_log_apart(path: Path, megabytes: int) -> tuple[int, int]:
    """The same in a process of its own: a child's peak of memory counts what its parent held when it was started."""
    command = [sys.executable, __file__, "--make", str(path), "--mb", str(megabytes)]
    lines, events = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return lines, events


def measure(command: Sequence[str]) -> tuple[float, float, int]:
    """CPU seconds, peak of resident memory in MiB, and lines printed, of one child of its own."""
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, stdout=out, env={**os.environ, "LC_ALL": "C"})
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in (0, 1):
            raise SystemExit(f"{command[0]} failed with exit code {child.returncode}")
        out.seek(0)
        printed = sum(1 for _ in out)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, printed


def main() -> None:
    """Prints the numbers of one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=1000, help="size of the log in MB")
    parser.add_argument("--runs", type=int, default=3, help="how often each program reads it")
    parser.add_argument("--make", metavar="FILE", type=Path, help="only write the log")
    args = parser.parse_args()
    if args.make:
        print(json.dumps(make_log(args.make, args.mb)))
        return
    grep = shutil.which("grep")
    if grep is None:
        raise SystemExit("grep is missing; it is what scan is compared with")
    with tempfile.TemporaryDirectory(prefix="gpuguard-bench-") as folder:
        if shutil.disk_usage(folder).free < (args.mb + SMALL_MB + 100) * 1_000_000:
            raise SystemExit(f"{folder} has too little room for {args.mb} MB; choose less with --mb")
        large, small = Path(folder, "large.log"), Path(folder, "small.log")
        print(f"making {args.mb} MB of log", file=sys.stderr)
        lines, events = make_log_apart(large, args.mb)
        make_log_apart(small, SMALL_MB)
        scan = [sys.executable, "-m", "gpuguard.cli", "scan", "--json"]
        scans, greps = [], []
        for turn in range(args.runs):
            print(f"reading it, turn {turn + 1} of {args.runs}", file=sys.stderr)
            greps.append(measure([grep, "-cE", marker_pattern().decode(), str(large)]))
            scans.append(measure([*scan, str(large)]))
        small_peak = measure([*scan, str(small)])[1]
    cpu = statistics.median(run[0] for run in scans)
    grep_cpu = statistics.median(run[0] for run in greps)
    found = scans[0][2]
    report = {
        "mb": args.mb,
        "lines": lines,
        "lines_per_s": round(lines / cpu),
        "cpu_s": round(cpu, 3),
        "grep_cpu_s": round(grep_cpu, 3),
        "cpu_over_grep": round(cpu / grep_cpu, 3),
        "events": found,
        "events_made": events,
        "peak_rss_mib": round(max(run[1] for run in scans), 1),
        "peak_rss_small_mib": round(small_peak, 1),
    }
    report["holds"] = bool(
        report["lines_per_s"] >= LINES_PER_S and cpu <= CPU_OVER_GREP * grep_cpu and found == events
        and report["peak_rss_mib"] <= report["peak_rss_small_mib"] + 8
    )  # fmt: skip
    print(json.dumps(report))


if __name__ == "__main__":
    main()
