"""A machine with GPUs for the one who tests and resets them: a /proc, and nvidia-smi and dcgmi as shell scripts."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from gpuguard.actuators.gpus import Gpus, Settings
from gpuguard.actuators.gpus.levels import Levels
from gpuguard.custody.remedies import Standing
from gpuguard.model.actions import Action, Outcome
from gpuguard.model.ids import TokenId

SMI = """\
#!/bin/sh
cd {folder} || exit 99
printf '%s\\n' "$*" >>calls
[ -f trap ] && . ./trap
ids=
prev=
for word; do [ "$prev" = -i ] && ids=$word; prev=$word; done
rows() {{
  [ -f "$1" ] || {{ echo "Field is not a valid field to query."; exit 2; }}
  for id in $(echo "$ids" | tr , ' '); do
    grep -i "$id," "$1" || {{ echo "Unable to determine the device handle for GPU $id: GPU is lost"; exit 15; }}
  done
}}
case "$1" in
--query-gpu=pci.bus_id,index,*) rows facts ;;
--query-gpu=pci.bus_id,compute_cap) rows capability ;;
--query-gpu=pci.bus_id,ecc*) rows ecc ;;
--query-gpu=pci.bus_id,remapped*) rows remapped ;;
--query-gpu=pci.bus_id,gpu_recovery_action) rows recovery ;;
-L) cat instances ;;
-pm) exit 0 ;;
--gpu-reset)
  [ -f reset ] && . ./reset
  for id in $(echo "$ids" | tr , ' '); do echo "GPU $id was successfully reset."; done
  echo "All done."
  ;;
*) echo "Invalid combination of input arguments."; exit 2 ;;
esac
"""
DCGMI = """\
#!/bin/sh
cd {folder} || exit 99
printf 'dcgmi %s\\n' "$*" >>calls
case $1 in
discovery) cat discovery ;;
diag)
  [ -f diag_trap ] && . ./diag_trap
  cat diag
  exit "$(cat diag_code)" ;;
esac
"""
KTHREADD = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 1 0 0 20 0 1 0 3 0 0\n"
ADDRESSES = ("0000:1b:00.0", "0000:43:00.0")
DRAIN = TokenId("7f3a")


class GpuMachine:
    """Two GPUs in MIG mode or not, whoever holds them, and what the programs answer about them."""

    def __init__(self, folder: Path, *, name: str = "NVIDIA H100 80GB HBM3", capability: str = "9.0") -> None:
        self.folder, self.proc = folder, folder / "proc"
        self.standing = Standing(call="go", why="our drain stands")
        self.smi = self._program("nvidia-smi", SMI)
        for number, pci in enumerate(ADDRESSES):
            entry = self.proc / "driver" / "nvidia" / "gpus" / pci
            entry.mkdir(parents=True)
            entry.joinpath("information").write_text(
                f"Model: \t\t {name}\nIRQ:   \t\t 101\nGPU UUID: \t GPU-{number}\nVideo BIOS: \t 96.00\n"
                f"Bus Type: \t PCIe\nBus Location: \t {pci}\nDevice Minor: \t {number}\nGPU Excluded:\t No\n"
            )
        self.told("facts", [f"{number}, {name}, GPU-{number}, Enabled, Disabled" for number in (0, 1)])
        self.told("capability", [capability] * 2)
        self.told("ecc", ["0", "[N/A]"])
        self.told("remapped", ["0, 0"] * 2)
        self.told("recovery", ["None"] * 2)
        self._kernel_thread()

    def _program(self, name: str, script: str) -> Path:
        path = self.folder / name
        path.write_text(script.format(folder=shlex.quote(str(self.folder))))
        path.chmod(0o755)
        return path

    def _kernel_thread(self) -> None:
        (self.proc / "2").mkdir()
        (self.proc / "2" / "stat").write_text(KTHREADD)

    def told(self, what: str, values: Sequence[str]) -> None:
        """nvidia-smi answers so, a line a GPU, when it is asked for this."""
        lines = [f"0000{pci.upper()}, {value}\n" for pci, value in zip(ADDRESSES, values, strict=True)]
        (self.folder / what).write_text("".join(lines))

    def process(self, pid: int, comm: str, *files: str) -> None:
        """A process has these files open."""
        (self.proc / str(pid) / "fd").mkdir(parents=True)
        (self.proc / str(pid) / "stat").write_text(f"{pid} ({comm}) S 1 {'0 ' * 47}\n")
        for number, file in enumerate(files):
            (self.proc / str(pid) / "fd" / str(number)).symlink_to(file)

    def gone(self, pid: int) -> None:
        """The process has ended."""
        (self.proc / str(pid)).rename(self.folder / f"gone-{pid}")

    def switches(self) -> None:
        """NVSwitches join the GPUs."""
        (self.proc / "driver" / "nvidia-nvswitch" / "devices" / "0000:85:00.0").mkdir(parents=True)

    def trap(self, what: str, shell: str) -> None:
        """Each call of nvidia-smi (`trap`), each reset (`reset`), or each diag (`diag_trap`) runs these lines first."""
        (self.folder / what).write_text(f"{shell}\n")

    def dcgm(self, document: object, code: int = 0) -> Path:
        """DCGM is installed, knows both GPUs by the numbers 4 and 5, and its diagnostic prints this."""
        rows = "".join(
            f"| {4 + place}      | Name: NVIDIA H100 80GB HBM3                           |\n"
            f"|        | PCI Bus ID: 0000{pci.upper()}                          |\n"
            f"|        | Device UUID: GPU-{place}                                |\n+--------+-----+\n"
            for place, pci in enumerate(ADDRESSES)
        )
        (self.folder / "discovery").write_text(f"2 GPUs found.\n+--------+------+\n{rows}")
        (self.folder / "diag").write_text(document if isinstance(document, str) else json.dumps(document))
        (self.folder / "diag_code").write_text(str(code))
        return self._program("dcgmi", DCGMI)

    def hands(self, levels: Levels | None = None, **settings: object) -> Gpus:
        """The actuator over all this; resets are on."""
        chosen: dict[str, object] = {"nvidia_smi": str(self.smi), "reset": True, "dcgm": "off", "ask_limit": 10.0}
        made = Settings(**{**chosen, **settings})  # type: ignore[arg-type]  # settings by name, checked by the class
        return Gpus(made, lambda drain: self.standing, levels, self.proc)

    @property
    def calls(self) -> list[str]:
        """The command lines of all programs, in order."""
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


def at_last(hands: Gpus, action: Action) -> Outcome:
    """What the wish comes to, asked for until nothing is at work for it any more."""
    outcome = hands.perform(action)
    while outcome.result == "deferred" and hands._errand is not None:
        assert hands._errand.ended(20.0)
        outcome = hands.perform(action)
    return outcome


def document(*results: tuple[str, int, str], **more: object) -> dict[str, object]:
    """What DCGM 4 prints: test, GPU and word of each result."""
    tests = [
        {
            "name": test,
            "results": [{"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": word}],
            "test_summary": {"status": word},
        }
        for test, gpu, word in results
    ]
    return {
        "DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}], **more},
        "metadata": {"version": "4.2.3", "Driver Version Detected": "570.124.06"},
    }
