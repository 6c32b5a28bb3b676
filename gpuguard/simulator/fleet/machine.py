"""One node: its GPUs and ports, what is broken on it, its boots and its wall clock, and what sweeps read there.

Columns are named as the real sources name them, and stand in the sweeps of the same class. Those that nothing here
ever moves are left out: a column that always says the same can decide nothing. So are jobs.

Source  gpuguard/sources/nvml/readings.py, sources/infiniband.py, sources/edac.py; nvmlReturn_t 15: the GPU is lost
"""

from gpuguard.errors import InvariantBroken
from gpuguard.model.ids import NODE, BootId, GpuUuid, PciAddress, SubjectId, gpu
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Values
from gpuguard.simulator.fleet.causes import Signature

# When the simulated time begins, for people. Units: seconds since 1970
EPOCH = 1_750_000_000.0
ADDRESSES = tuple(PciAddress(f"0000:{bus}:00.0") for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df"))
PORTS = tuple(SubjectId(f"port:mlx5_{number}/1") for number in range(4))
GPU_IS_LOST = 15
RATE = 4e11
COOL, HOT, SLOWDOWN = 48, 96, 92
LANES, NARROW = 16, 8
ACTIVE, DOWN = 4, 1

# What a fault moves in the sweeps of its GPU.
MOVES: dict[Signature, Values] = {
    "halted": {"recovery_action": 1},
    "double_bit": {"recovery_action": 4, "row_remap_pending": 1, "ecc_dram_uncorrected": 1},
    "uncontained": {"recovery_action": 1, "ecc_dram_uncorrected": 1},
    "no_spare_row": {"recovery_action": 1, "row_remap_failure": 1, "ecc_dram_uncorrected": 1},
    "contained": {"row_remap_pending": 1, "ecc_dram_uncorrected": 1},
    "sram": {"recovery_action": 1, "ecc_sram_uncorrected": 1},
    "gsp": {"recovery_action": 1},
    "storm": {"recovery_action": 1, "ecc_dram_uncorrected": 64},
    "narrow_link": {"pcie_link_width": NARROW},
    "hot": {"temperature_celsius": HOT},
}  # fmt: skip
LOST: tuple[Signature, ...] = ("lost", "lost_silently")
# What the driver counts since it was loaded: faults add up, and a reboot begins anew.
COUNTED = ("ecc_dram_uncorrected", "ecc_sram_uncorrected")
FAST: Values = {
    "gpu_up": 1, "nvml_error": 0, "temperature_celsius": COOL, "row_remap_pending": 0, "row_remap_failure": 0,
    "recovery_action": 0,
}  # fmt: skip
MEDIUM: Values = {"ecc_dram_uncorrected": 0, "ecc_sram_uncorrected": 0, "pcie_link_width": LANES}
SLOW: Values = {"pcie_link_width_limit": LANES, "slowdown_temperature_celsius": SLOWDOWN}

Rows = dict[SubjectId, Values]


class Machine:
    """The hardware. Time is the simulation's, in seconds since its first day; an `Instant` is the machine's own."""

    def __init__(self, node: int, gpus: int) -> None:
        """It was booted a day before the first one."""
        if not 1 <= gpus <= len(ADDRESSES):
            raise InvariantBroken(f"a node has 1 to {len(ADDRESSES)} GPUs, not {gpus}")
        self.node, self.gpus = node, gpus
        self.boots, self.booted = 1, -86400.0
        self.clock = 0.0  # how far its wall clock is ahead. Units: seconds
        self.boards = [0] * gpus  # which board is in each slot: grows when one is replaced
        self.broken: dict[int, list[Signature]] = {}
        self.ports: dict[SubjectId, int] = {}
        self.flaps: dict[SubjectId, int] = {}
        self.host_memory_errors = 0
        self._rows: dict[str, Rows] = {}

    # --- time --------------------------------------------------------------------------------------------------------

    @property
    def boot(self) -> BootId:
        """Of the boot that runs."""
        return BootId(f"{self.node:08x}-0000-4000-8000-{self.boots:012d}")

    def instant(self, at: float) -> Instant:
        """The moment as the machine's own clocks show it."""
        return Instant(boot=self.boot, mono=at - self.booted, utc=EPOCH + at + self.clock)

    def reboot(self, at: float) -> None:
        """It runs anew since then: counters begin at zero."""
        self.boots, self.booted = self.boots + 1, at
        self.flaps, self.host_memory_errors = {}, 0
        self._rows = {}

    # --- what is broken ----------------------------------------------------------------------------------------------

    def breaks(self, slot: int, signature: Signature) -> None:
        """The fault shows from now on."""
        self._rows = {}
        match signature:
            case "port_down":
                self.ports[PORTS[slot % len(PORTS)]] = DOWN
            case "host_memory":
                self.host_memory_errors += 1
            case _:
                self.broken.setdefault(slot, []).append(signature)

    def mend(self) -> None:
        """Nothing is broken any more."""
        self.broken, self.ports = {}, {}
        self._rows = {}

    def replace(self, slot: int) -> None:
        """Another board is in this slot."""
        self.boards[slot] += 1
        self._rows = {}

    def flap(self, slot: int) -> None:
        """A link went down and came back between two looks."""
        port = PORTS[slot % len(PORTS)]
        self.flaps[port] = self.flaps.get(port, 0) + 1
        self._rows = {}

    def lost(self, slot: int) -> bool:
        """Whether the GPU does not answer on its bus."""
        return any(signature in LOST for signature in self.broken.get(slot, ()))

    @property
    def wedged(self) -> bool:
        """Whether a fault keeps the driver's library from answering."""
        return any("nvml_wedged" in signatures for signatures in self.broken.values())

    @property
    def well(self) -> bool:
        """Whether all that is measured is as it should be."""
        return not (self.broken or self.ports or self.host_memory_errors)

    # --- what is measured --------------------------------------------------------------------------------------------

    def uuid(self, slot: int) -> GpuUuid:
        """Of the board in this slot."""
        return GpuUuid(f"GPU-{self.node:08x}-{slot:04x}-4000-8000-{self.boards[slot]:012x}")

    def address(self, slot: int) -> PciAddress:
        """Where the slot is."""
        return ADDRESSES[slot]

    def rows(self, kind: str) -> Rows:
        """What a sweep of this kind reads now; not to be changed, as sweeps that read the same share it."""
        if kind not in self._rows:
            self._rows[kind] = self._read(kind)
        return self._rows[kind]

    def _read(self, kind: str) -> Rows:
        match kind:
            case "fast":
                return {**self._gpus(FAST, {"gpu_up": 0, "nvml_error": GPU_IS_LOST}), NODE: {"nvml_hung": 0}}
            case "medium":
                return self._gpus(MEDIUM, {})
            case "slow":
                return self._gpus(SLOW, {})
            case "infiniband":
                return {
                    port: {
                        "ib_state": self.ports.get(port, ACTIVE), "ib_rate_bits_per_second": RATE,
                        "ib_link_downed_total": self.flaps.get(port, 0),
                    }
                    for port in PORTS
                }  # fmt: skip
            case "edac":
                return {NODE: {"edac_uncorrected_total": self.host_memory_errors}}
        raise InvariantBroken(f"no sweep is called {kind!r}")

    def _gpus(self, healthy: Values, lost: Values) -> Rows:
        found: Rows = {}
        for slot in range(self.gpus):
            row = {**healthy, "gpu_index": slot} if healthy is FAST else dict(healthy)
            if self.lost(slot):
                row = dict(lost)
            else:
                self._move(row, slot)
            found[gpu(self.address(slot))] = {**row, "gpu_uuid": self.uuid(slot)} if healthy is FAST else row
        return found

    def _move(self, row: Values, slot: int) -> None:
        for signature in self.broken.get(slot, ()):
            for column, value in MOVES.get(signature, {}).items():
                before = row.get(column)
                if before is None:
                    continue
                if column in COUNTED and isinstance(before, int) and isinstance(value, int):
                    row[column] = before + value
                else:
                    row[column] = value
