"""Memory errors of the host, and machine checks, as the kernel counts them.

Reads     /sys/devices/system/edac/mc/mc*/{ce_count,ue_count}; the row MCE of /proc/interrupts
Emits     a Sweep with a row of the node
Source    Linux Documentation/admin-guide/RAS/main.rst, drivers/edac/edac_mc_sysfs.c; arch/x86/kernel/irq.c
          (arch_show_interrupts)
"""

from dataclasses import dataclass
from pathlib import Path

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.ids import NODE
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.quantities import COUNTER_TOP
from gpuguard.model.readings import Quantity, Values
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sweeping.apart import Apart
from gpuguard.sweeping.files import listed, read_text, whole
from gpuguard.sweeping.rounds import Rounds, Rows

NAME = "edac"
CONTROLLERS = "sys/devices/system/edac/mc"
INTERRUPTS = "proc/interrupts"
COUNTS = {"edac_corrected_total": "ce_count", "edac_uncorrected_total": "ue_count"}

QUANTITIES: tuple[Quantity, ...] = (
    *(
        Quantity(
            name=f"edac_{kind}_total", of="node", unit="count", kind="counter", low=0, high=COUNTER_TOP,
            metric="edac_errors_total", labels={"type": kind}, help="Errors of the host's memory, by type.",
        )
        for kind in ("corrected", "uncorrected")
    ),
    Quantity(
        name="machine_checks_total", of="node", unit="count", kind="counter", low=0, high=COUNTER_TOP,
        help="Machine check exceptions since the host started, over all its processors.",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds."""

    every: Seconds = Seconds(60.0)  # the counters are looked at this often
    # /proc/interrupts has a column for each processor: a megabyte on a big server, so seldom.
    machine_checks_every: Seconds = Seconds(600.0)
    deadline: Seconds = Seconds(2.0)  # for all of it

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin."""
        if min(self.every, self.machine_checks_every, self.deadline) <= 0:
            raise ValueError("every, machine_checks_every and deadline must be above 0")


def read_counts(root: Path) -> Values:
    """The sums over all memory controllers; unknown where one of them cannot be read, absent without controllers."""
    controllers = [name for name in listed(root / CONTROLLERS) if name.startswith("mc") and name[2:].isdigit()]
    values: Values = {}
    for column, file in COUNTS.items():
        counts: list[int | None] = []
        for name in controllers:
            try:
                counts.append(whole(read_text(root / CONTROLLERS / name / file)))
            except Absent:
                continue
            except ReadFailed:
                counts.append(None)
        known = [count for count in counts if count is not None]
        if counts:
            values[column] = sum(known) if len(known) == len(counts) else None
    return values


def read_machine_checks(root: Path) -> int | None:
    """How many machine checks all processors saw; None where the row is not understood.

    Shape   ` MCE:          0          0   Machine check exceptions`, a number for each processor
    Raises  Absent where the machine counts none (it is no x86); ReadFailed
    """
    try:
        with (root / INTERRUPTS).open("rb") as file:
            row = next((line for line in file if line.lstrip().startswith(b"MCE:")), None)
    except FileNotFoundError as error:
        raise Absent(f"{root / INTERRUPTS} does not exist") from error
    except OSError as error:
        raise ReadFailed(f"{root / INTERRUPTS} cannot be read: {error.strerror}") from error
    if row is None:
        raise Absent("this machine counts no machine checks")
    counts = []
    for word in row.split()[1:]:
        if not word.isdigit():
            break
        counts.append(int(word))
    return sum(counts) if counts else None


class Edac:
    """The counters under a root."""

    def __init__(self, settings: Settings, root: Path) -> None:
        """Reads nothing yet."""
        self._settings, self._root = settings, root
        self._apart: Apart[Values] = Apart(NAME, settings.deadline)
        self._checks: Values = {}
        self._checked: Instant | None = None

    def sweep(self, now: Instant) -> Rows:
        """One row of the node.

        Raises  Absent where nothing is counted; ReadFailed where that cannot be told
        """
        jobs = {"counts": lambda: read_counts(self._root)}
        age = None if self._checked is None else seconds_between(self._checked, now)
        if age is None or age >= self._settings.machine_checks_every:
            jobs["checks"] = self._read_checks
            self._checked = now
        found = self._apart.read(jobs)
        self._checks = found.get("checks", self._checks)
        values = {**found.get("counts", {}), **self._checks}
        if not values and not self._apart.hanging:
            if jobs.keys() - found.keys():
                raise ReadFailed("neither the counters of memory controllers nor /proc/interrupts can be read")
            raise Absent("no memory controller and no machine checks are counted here")
        return {NODE: values} if values else {}

    def _read_checks(self) -> Values:
        try:
            return {"machine_checks_total": read_machine_checks(self._root)}
        except Absent:
            return {}


def build(settings: Settings, root: Path, clock: Clock) -> Rounds:
    """The source for the machine under `root`."""
    return Rounds(NAME, Edac(settings, root).sweep, clock, every=settings.every)
