"""`nvidia-smi`, asked about single GPUs: what they are, how they are set, whether the driver reports a fault.

Exit codes say whose affair a failure is: 4, 9, 12 and 13 mean that it could not be asked (no right, no driver, no
library), 15 that the GPU is lost, 255 anything.

Source  nvidia-smi(1), section RETURN VALUE; `nvidia-smi --help-query-gpu`
"""

import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gpuguard.actuators.gpus.errand import Steps
from gpuguard.child.program import Answer
from gpuguard.errors import ActionRefused, NotUnderstood
from gpuguard.model.ids import PciAddress, parse_pci_address

PLACES: Final = ("/usr/bin", "/usr/local/bin", "/opt/bin", "/run/nvidia/driver/usr/bin")
UNASKED: Final = frozenset({2, 4, 9, 12, 13})
LOST: Final = 15
FACTS: Final = ("pci.bus_id", "index", "name", "uuid", "persistence_mode", "mig.mode.current")
# What an older driver does not know is asked for by itself: one unknown field fails the whole question.
CAPABILITY: Final = ("pci.bus_id", "compute_cap")
FAULTS: Final = (
    ("pci.bus_id", "ecc.errors.uncorrected.volatile.total"),
    ("pci.bus_id", "remapped_rows.pending", "remapped_rows.failure"),
    ("pci.bus_id", "gpu_recovery_action"),
)
# Words that say something; all others say nothing, neither for the GPU nor against it.
_CLEAN: Final = frozenset({"0", "no", "none"})
_FAULTY: Final = frozenset({"yes", "reset", "reboot", "drain p2p", "drain and reset"})


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What nvidia-smi says of one GPU."""

    pci: PciAddress
    index: int
    name: str
    uuid: str
    persistent: bool
    mig: bool


class Unlisted(NotUnderstood):
    """nvidia-smi does not give the GPU: it is broken itself, or says something that is not understood."""


class Lost(Unlisted):
    """nvidia-smi says that the GPU is lost."""


class Smi:
    """The program, for one errand. `within` is how long a question may take; the driver may have to wake GPUs up."""

    def __init__(self, path: str, steps: Steps, within: float) -> None:
        self.path, self._steps, self._within = path, steps, within
        self.whole = False  # whether nothing of it may be broken off any more

    def ask(self, *arguments: str, within: float | None = None) -> Answer:
        """Its answer.

        Raises  Unanswered
        """
        return self._steps.run(self.path, arguments, within or self._within, whole=self.whole)

    def cards(self, wanted: Sequence[PciAddress]) -> list[Card]:
        """Each of these GPUs, in that order.

        Raises  Unlisted when one does not answer; ActionRefused when nvidia-smi cannot be asked; Unanswered
        """
        rows = self._rows(FACTS, wanted)
        return [_card(pci, rows[pci]) for pci in wanted]

    def capabilities(self, wanted: Sequence[PciAddress]) -> dict[PciAddress, float]:
        """The compute capability of each that tells it: 8.0 is Ampere, 9.0 Hopper.

        Raises  Unanswered
        """
        try:
            rows = self._rows(CAPABILITY, wanted)
        except (Unlisted, ActionRefused):
            return {}
        told = {pci: row["compute_cap"] for pci, row in rows.items()}
        return {pci: float(text) for pci, text in told.items() if text.replace(".", "", 1).isdigit()}

    def faults(self, wanted: Sequence[PciAddress]) -> tuple[list[str], bool]:
        """What the driver reports against these GPUs, and whether it said anything at all.

        Raises  Unanswered
        """
        found: list[str] = []
        said = False
        for fields in FAULTS:
            try:
                rows = self._rows(fields, wanted)
            except (Unlisted, ActionRefused):
                continue  # an older driver does not know the field; the GPU itself has answered already
            for pci, row in rows.items():
                for field in fields[1:]:
                    word = row[field].strip().lower()
                    faulty = word in _FAULTY or (word.isascii() and word.isdigit() and word.strip("0") != "")
                    said = said or faulty or word in _CLEAN
                    if faulty:
                        found.append(f"{pci}: {field} is {_printable(row[field])}")
        return found, said

    def instances(self, card: Card) -> int:
        """How many MIG devices are made of the GPU.

        Shape   `GPU 0: NAME (UUID: GPU-...)` and, for each instance, a line `  MIG 1g.10gb Device 0: (UUID: MIG-...)`
        Raises  ActionRefused when the list is not understood; Unanswered
        """
        answer = self.ask("-L")
        here, count, seen = False, 0, False
        for line in answer.out.splitlines():
            if line.startswith("GPU "):
                here = card.uuid in line
                seen = seen or here
            elif here and line.lstrip().startswith("MIG "):
                count += 1
        if answer.code != 0 or not seen:
            raise ActionRefused(
                f"nvidia-smi does not tell the MIG instances of {card.pci}; nothing was reset, see `nvidia-smi -L`: "
                f"{answer.said}"
            )
        return count

    def _rows(self, fields: Sequence[str], wanted: Sequence[PciAddress]) -> dict[PciAddress, Mapping[str, str]]:
        """The fields of each of these GPUs.

        Shape   one line a GPU, values parted by comma and blank, none of which holds a comma
        """
        query = f"--query-gpu={','.join(fields)}"
        answer = self.ask(query, "--format=csv,noheader,nounits", "-i", ",".join(wanted))
        if answer.code in UNASKED:
            raise ActionRefused(
                f"nvidia-smi cannot be asked (exit code {answer.code}); run it on the node to see why, a broken "
                f"driver needs a reboot; it says: {answer.said}"
            )
        rows: dict[PciAddress, Mapping[str, str]] = {}
        for line in answer.out.splitlines():
            values = [value.strip() for value in line.split(",")]
            try:
                pci = parse_pci_address(values[0])
            except NotUnderstood:
                continue
            if len(values) == len(fields):
                rows[pci] = dict(zip(fields, values, strict=True))
        missing = [pci for pci in wanted if pci not in rows]
        if missing and (answer.code == LOST or _is_lost(answer, missing)):
            raise Lost(f"{', '.join(missing)} is lost (nvidia-smi, exit code {answer.code}): {answer.said}")
        if answer.code != 0 or missing:
            raise Unlisted(
                f"nvidia-smi does not give {', '.join(missing or wanted)} (exit code {answer.code}): {answer.said}"
            )
        return rows


def _is_lost(answer: Answer, missing: Sequence[PciAddress]) -> bool:
    """Whether a line names one of these GPUs and calls it lost.

    Shape   Unable to determine the device handle for GPU 0000:4E:00.0: GPU is lost.  Reboot the system to recover ...
    """
    lines = f"{answer.out}\n{answer.err}".lower().splitlines()
    return any("is lost" in line and any(pci in line for pci in missing) for line in lines)


def found(setting: str) -> str:
    """The program's path.

    Raises  ActionRefused where there is none
    """
    path = setting or next((f"{place}/nvidia-smi" for place in PLACES if os.access(f"{place}/nvidia-smi", os.X_OK)), "")
    if not path:
        raise ActionRefused(f"no nvidia-smi in {', '.join(PLACES)}; set `nvidia_smi` in [actuators.gpus]")
    return path


def _card(pci: PciAddress, row: Mapping[str, str]) -> Card:
    index = row["index"]
    if not (index.isascii() and index.isdigit()):
        raise Unlisted(f"nvidia-smi gives {pci} the index {_printable(index)}")
    return Card(
        pci=pci, index=int(index), name=_printable(row["name"]), uuid=row["uuid"],
        persistent=row["persistence_mode"].lower() == "enabled", mig=row["mig.mode.current"].lower() == "enabled",
    )  # fmt: skip


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in text)[:80]
