"""Kills the agent, and now and then the actuator, with SIGKILL at random moments while faults arrive; then counts.

A recorded machine's kernel log grows by faults and by the resets that end them, each on another address. The scheduler
is a small program that behaves like `scontrol`, keeps the node's state in a file and writes down every change. After
the last kill everything is left to settle, and then must hold: every drain that was told done was written once and
lifted once, no drain was written over another, the node is back, each line was counted once, the database is sound.
Prints one JSON object; exit code 1 when anything of that does not hold.
"""

import argparse
import contextlib
import itertools
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from gpuguard.health.state import restore
from gpuguard.runtime.assembly import assemble
from gpuguard.runtime.clock import SystemClock
from gpuguard.store.reader import open_reader

SCONTROL = r"""#!/bin/sh
# Behaves like scontrol for one node: its state and reason are in files, every change is written down.
cd {folder}/slurm || exit 1
exec 9>lock
flock 9
case "$1 $2" in
"-o show")
    echo "NodeName=node1 Arch=x86_64 CPUTot=16 State=$(cat state) ThreadsPerCore=1 Partitions=gpu $(cat reason)" ;;
"update nodename=node1"|"update NodeName=node1")
    for word; do
        case "$word" in
        state=drain|State=DRAIN) echo IDLE+DRAIN >state.new ;;
        state=undrain|state=resume|State=RESUME|State=UNDRAIN) echo IDLE >state.new; : >reason.new ;;
        reason=*|Reason=*) echo "Reason=${{word#*=}} [root@2026-11-29T10:00:00]" >reason.new ;;
        esac
    done
    if [ "$(cat state.new)" = IDLE ]; then : >reason.new; fi
    mv state.new state; mv reason.new reason
    echo "$(cat state) $(cat reason)" >>changes ;;
*) echo "unknown: $*" >>changes; exit 1 ;;
esac
"""
CONFIG = """\
[policy]
mode = "drain"
clean_for = 0.0
clean_passes = 1
releases_a_day = 1000
[agent]
sources = ["kmsg"]
[sources.kmsg]
[loop]
retry_first = 0.1
retry_longest = 1.0
[actuators.delegate]
socket = "{folder}/a.sock"
[actuator]
target = "slurm"
socket = "{folder}/a.sock"
allow_users = []
[actuators.slurm]
node = "node1"
scontrol = "{folder}/scontrol"
"""


class Machine:
    """A recorded machine whose kernel log grows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev").mkdir(parents=True)
        (root / "proc/sys/kernel/random").mkdir(parents=True)
        (root / "proc/sys/kernel/random/boot_id").write_text("5eed0000-0000-4000-8000-000000000001\n")
        self._log = (root / "dev/kmsg").open("ab", buffering=0)
        self.sequence = 0
        self.faults = 0
        self._at_fault: list[str] = []

    def _say(self, text: str) -> None:
        self.sequence += 1
        self._log.write(f"4,{self.sequence},{int(time.monotonic() * 1e6)},-;{text}\n".encode())

    def fault(self) -> None:
        """A self-evident fault on an address of its own, beside a few program faults."""
        pci = f"{self.faults // 200:04x}:{self.faults % 200 + 1:02x}:00"
        self.faults += 1
        self._at_fault.append(pci)
        self._say(f"NVRM: Xid (PCI:{pci}): 120, GSP task exception {self.faults}")
        for _ in range(3):
            # Elsewhere, because a reset ends what it counts on the same GPU.
            self._say(f"NVRM: Xid (PCI:ffff:fe:00): 43, pid={self.sequence}, name=train, Ch 00000008")

    def reset(self) -> None:
        """Every GPU that is still at fault was reset."""
        for pci in self._at_fault:
            self._say(
                f"NVRM: Xid (PCI:{pci}): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
            )
        self._at_fault.clear()


class Processes:
    """The agent and the actuator, started again whenever they are gone."""

    def __init__(self, folder: Path, log: int) -> None:
        self._folder, self._log = folder, log
        config = str(folder / "config.toml")
        self._commands = {
            "actuator": ["gpuguard.daemons.actuator", "--config", config],
            "agent": [
                "gpuguard.cli", "agent", "--config", config, "--root", str(folder / "root"), "--state-dir",
                str(folder / "state"), "--listen", "",
            ],
        }  # fmt: skip
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Whatever is gone runs again."""
        for name, command in self._commands.items():
            running = self._running.get(name)
            if running is None or running.poll() is not None:
                if name == "actuator":
                    with contextlib.suppress(FileNotFoundError):
                        (self._folder / "a.sock").unlink()
                self._running[name] = subprocess.Popen(
                    [sys.executable, "-m", *command], stdout=self._log, stderr=self._log
                )

    def kill(self, name: str) -> None:
        """As the kernel's out-of-memory killer would."""
        self._running[name].kill()
        self._running[name].wait()

    def stop(self) -> None:
        """As systemd would."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            process.wait(15)


def main() -> int:
    """0 all holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--keep", action="store_true", help="keep the folder to look into")
    args = parser.parse_args()
    dice = random.Random(args.seed)
    folder = Path(tempfile.mkdtemp(prefix="gg-kill-", dir="/tmp"))
    (folder / "slurm").mkdir()
    (folder / "slurm/state").write_text("IDLE\n")
    (folder / "slurm/reason").write_text("")
    (folder / "slurm/changes").write_text("")
    (folder / "scontrol").write_text(SCONTROL.format(folder=folder))
    (folder / "scontrol").chmod(0o755)
    (folder / "config.toml").write_text(CONFIG.format(folder=folder))
    machine = Machine(folder / "root")
    with (folder / "log.txt").open("ab") as log:
        processes = Processes(folder, log.fileno())
        try:
            storm(machine, processes, dice, args.kills)
            settle(folder, machine)
        finally:
            processes.stop()
    result = judge(folder, machine, args.kills)
    print(json.dumps(result))
    if args.keep:
        sys.stderr.write(f"kill: kept {folder}\n")
    else:
        subprocess.run(["rm", "-rf", str(folder)], check=True)
    return 0 if result["holds"] else 1


def storm(machine: Machine, processes: Processes, dice: random.Random, kills: int) -> None:
    """Faults and resets go on while processes are killed."""
    due = [(0.3, machine.fault), (0.6, machine.reset)]
    done, began, next_kill = 0, time.monotonic(), 0.8
    processes.start()
    while done < kills:
        now = time.monotonic() - began
        for place, (at, happens) in enumerate(due):
            if now >= at:
                happens()
                due[place] = (at + 0.6 + dice.random() * 0.2, happens)
        if now >= next_kill:
            processes.kill("actuator" if dice.random() < 0.15 else "agent")
            processes.start()
            done += 1
            # An agent needs some 0.4 s to start: half of the kills strike while it does, half while it works.
            next_kill = now + dice.uniform(0.02, 1.2)
            if done % 25 == 0:
                sys.stderr.write(f"kill: {done} of {kills}\n")
        time.sleep(0.005)
    processes.start()


def settle(folder: Path, machine: Machine) -> None:
    """What is still owed is done: the last fault is mended and the node is back."""
    machine.reset()
    until = time.monotonic() + 60
    quiet = 0
    while time.monotonic() < until and quiet < 10:
        time.sleep(0.2)
        idle = (folder / "slurm/state").read_text().strip() == "IDLE"
        with contextlib.closing(open_reader(folder / "state/gpuguard.db")) as reader:
            quiet = quiet + 1 if idle and not reader.owed_actions() else 0
    time.sleep(6.0)  # counts alone are written within 5 s


def judge(folder: Path, machine: Machine, kills: int) -> dict[str, object]:
    """What was found, and whether it is as it must be."""
    changes = (folder / "slurm/changes").read_text().splitlines()
    drains = Counter(line.split("gpuguard:")[1][:4] for line in changes if line.startswith("IDLE+DRAIN"))
    lifted = sum(line.strip() == "IDLE" for line in changes)
    # A drain that a fault overtook while it was being lifted is written again, after it was lifted: that is no double.
    doubled = [after for before, after in itertools.pairwise(changes) if "DRAIN" in before and "DRAIN" in after]
    with contextlib.closing(open_reader(folder / "state/gpuguard.db")) as reader:
        actions = reader.actions()
        state = reader.load_state()
        parts = assemble(folder / "config.toml")
        health = restore(state, parts.detectors, SystemClock().now())
        told_done = {a.action.token for a in actions if a.action.verb == "drain" and a.state == "done"}
        owed = [a.action.key for a in actions if a.state == "owed"]
        story = reader.story(limit=1_000_000)
    connection = sqlite3.connect(folder / "state/gpuguard.db")
    sound = connection.execute("PRAGMA integrity_check").fetchone()[0]
    connection.close()
    counted = sum(
        s.count for subject in health.subjects.values() for s in subject.standing if s.finding.code == "xid43"
    )
    verdicts = Counter(e.subject for e in story if e.kind == "verdict" and e.detail["action"] == "drain")
    result: dict[str, object] = {
        "kills": kills,
        "faults": machine.faults,
        "verdicts_once": len(verdicts) == machine.faults and set(verdicts.values()) <= {1},
        "program_lines": 3 * machine.faults,
        "program_lines_counted": counted,
        "drains_written": sum(drains.values()),
        "written_twice": doubled,
        "told_done_but_never_written": sorted(told_done - set(drains)),
        "lifted": lifted,
        "owed_at_the_end": owed,
        "node": (folder / "slurm/state").read_text().strip(),
        "database": sound,
    }
    result["holds"] = (
        result["verdicts_once"] is True
        and counted == 3 * machine.faults
        and not result["written_twice"]
        and not result["told_done_but_never_written"]
        and lifted == sum(drains.values())
        and not owed
        and result["node"] == "IDLE"
        and sound == "ok"
    )
    return result


if __name__ == "__main__":
    raise SystemExit(main())
