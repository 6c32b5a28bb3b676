"""The ports of InfiniBand and RoCE adapters: their state, rate, errors, and their modules where the driver tells.

Reads     /sys/class/infiniband/<device>/ports/<port>/{state,phys_state,rate,link_layer,counters/*,hw_counters/*},
          /sys/class/infiniband/<device>/device/hwmon/hwmon*/{temp,power}*_{label,input,crit}
Emits     a Sweep with a row for each port and one of the node
Source    Linux Documentation/ABI/stable/sysfs-class-infiniband, drivers/infiniband/core/sysfs.c (state_show, rate_show,
          show_pma_counter); drivers/net/ethernet/mellanox/mlx5/core/hwmon.c; drivers/net/phy/sfp.c
          (sfp_hwmon_read_string)

A counter is asked of the adapter's firmware: that may hang, so each adapter has a thread of its own with a deadline;
and where the firmware refuses, the driver writes a line into the kernel log. So each file is read once a sweep, a
counter that was refused is left alone for an hour, and nothing of debugfs is touched.

The counters of the older kind are narrow and stay at their top: link_downed at 255, the others of its kind at 65535.
"""

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.ids import NODE, SubjectId
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.quantities import COUNTER_TOP
from gpuguard.model.readings import Quantity, Values
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sweeping.apart import Apart
from gpuguard.sweeping.attributes import parse_rate
from gpuguard.sweeping.files import listed, take, whole
from gpuguard.sweeping.rounds import Rounds, Rows

NAME = "infiniband"
DEVICES = "sys/class/infiniband"
ACTIVE = 4
GONE = 0  # the kernel has this number for no state at all; here it is a port that was there and is not

COUNTERS: dict[str, str] = {
    "symbol_error": "Symbols that were received broken.",
    "link_error_recovery": "Times that the link trained anew and recovered.",
    "link_downed": "Times that the link went down.",
    "port_rcv_errors": "Packets that were received broken.",
    "port_xmit_discards": "Packets that could not be sent and were dropped.",
    "local_link_integrity_errors": "Times that local physical errors passed the limit.",
    "excessive_buffer_overrun_errors": "Times that buffers overran for longer than allowed.",
}
# Of RoCE and of the transport; mlx5's names.
HARDWARE_COUNTERS: dict[str, str] = {
    "local_ack_timeout_err": "Times that an answer did not come in time.",
    "out_of_sequence": "Packets that came out of order.",
    "packet_seq_err": "Negative answers for packets out of order.",
    "rx_icrc_encapsulated": "RoCE packets with a broken checksum.",
}

QUANTITIES: tuple[Quantity, ...] = (
    Quantity(
        name="ib_state", of="port", unit="code", low=0, high=5,
        help="State of the port: 0 gone, 1 down, 2 init, 3 armed, 4 active, 5 active deferred.",
    ),
    Quantity(
        name="ib_phys_state", of="port", unit="code", low=0, high=7, metric=None,
        help="What the link does: 2 polls, 3 disabled, 4 trains, 5 up, 6 recovers.",
    ),
    Quantity(name="ib_rate_bits_per_second", of="port", unit="bits_per_second", low=0, high=1e13, help="Rate now."),
    Quantity(
        name="ib_link_layer", of="port", unit="text", kind="text", metric=None, help="InfiniBand, or Ethernet for RoCE."
    ),
    *(
        Quantity(
            name=f"ib_{name}_total", of="port", unit="count", kind="counter", low=0, high=COUNTER_TOP,
            metric="ib_errors_total", labels={"error": name}, help="Errors of the port, by what went wrong.",
        )
        for name in (*COUNTERS, *HARDWARE_COUNTERS)
    ),
    Quantity(
        name="optics_temperature_celsius", of="port", unit="celsius", low=-50.0, high=200.0,
        help="Temperature of the module in the port.",
    ),
    Quantity(
        name="optics_temperature_limit_celsius", of="port", unit="celsius", low=0.0, high=200.0, metric=None,
        help="The temperature at which the module calls itself too hot.",
    ),
    Quantity(
        name="optics_received_power_watts", of="port", unit="watts", low=0.0, high=1.0,
        help="Light that the module receives.",
    ),
    Quantity(name="ib_ports", of="node", unit="count", low=0, high=4096, help="InfiniBand and RoCE ports."),
    Quantity(name="ib_ports_active", of="node", unit="count", low=0, high=4096, help="Those of them that are active."),
)  # fmt: skip

_NUMBERED = re.compile(r"(\d): ?", re.ASCII)
# mlx5 names a module as its firmware does, `Module0`, or by its sensor's number, which begins at 64 for modules.
_MODULE = re.compile(r"module|^temperature$|^sensor(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])$", re.IGNORECASE | re.ASCII)
_RECEIVED = re.compile(r"rx_?power", re.IGNORECASE | re.ASCII)
_LABEL = re.compile(r"((?:temp|power)\d{1,3})_label", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds."""

    every: Seconds = Seconds(30.0)  # each port is looked at this often
    deadline: Seconds = Seconds(2.0)  # for all adapters together: a question to the firmware takes a tenth of a ms
    refused_for: Seconds = Seconds(3600.0)  # a counter that could not be read is left alone for so long

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin."""
        if min(self.every, self.deadline) <= 0:
            raise ValueError("every and deadline must be above 0")


def parse_code(text: str) -> int | None:
    """The number before the word, as 4 of `4: ACTIVE` and 5 of `5: LinkUp`."""
    match = _NUMBERED.match(text)
    return int(match[1]) if match else None


def parse_count(text: str) -> int | None:
    """A counter; `N/A (no PMA)` where the port has none."""
    count = whole(text)
    return count if count is not None and count >= 0 else None


def _thousandth(text: str) -> float | None:
    number = whole(text)
    return None if number is None else number / 1000.0


def _micro(text: str) -> float | None:
    number = whole(text)
    return None if number is None else number / 1e6


@dataclass(slots=True)
class _Refusals:
    """Files that could not be read, and when they may be asked again."""

    until: dict[str, Instant]
    wait: float

    def take(self, values: Values, column: str, path: str, now: Instant) -> None:
        since = self.until.get(path)
        if since is not None and 0.0 <= (seconds_between(since, now) or 0.0) < self.wait:
            values[column] = None
        elif take(values, column, path, parse_count):
            self.until.pop(path, None)
        else:
            self.until[path] = now


class Infiniband:
    """The ports under a root."""

    def __init__(self, settings: Settings, root: Path) -> None:
        """Reads nothing yet."""
        self._devices = root / DEVICES
        self._apart: Apart[Rows] = Apart(NAME, settings.deadline)
        self._refusals = _Refusals({}, settings.refused_for)
        self._modules: dict[str, dict[str, str]] = {}
        self._known: dict[str, tuple[SubjectId, ...]] = {}  # the ports of each adapter when it last answered

    def sweep(self, now: Instant) -> Rows:
        """A row for each port, unknown where its adapter did not answer in time, and one of the node. A port that was
        there since this began and is not has the state GONE, so that what stood against it does not stand for ever.

        Raises  Absent where the kernel has no adapters, and had none since this began; ReadFailed where its list of
                them cannot be read
        """
        devices = [name for name in listed(self._devices) if not (self._devices / name / "device/physfn").exists()]
        if not (devices or self._known):
            raise Absent("no InfiniBand or RoCE adapter; it is looked for again later")
        found = self._apart.read({name: partial(self._read_device, name, now) for name in devices})
        rows: Rows = {}
        silent = False
        for name in devices:
            if (ports := found.get(name)) is None:
                silent = True
                ports = {port: {"ib_state": None} for port in self._known.get(name, ())}
            else:
                self._known[name] = tuple(ports)
            rows.update(ports)
        active = sum(values.get("ib_state") == ACTIVE for values in rows.values())
        node: Values = {"ib_ports": None, "ib_ports_active": None}
        if not silent:
            node = {"ib_ports": len(rows), "ib_ports_active": active}
        gone = {port for ports in self._known.values() for port in ports} - rows.keys() if not silent else set()
        return {**rows, **{port: {"ib_state": GONE} for port in gone}, NODE: node}

    def _read_device(self, name: str, now: Instant) -> Rows:
        device = f"{self._devices}/{name}"
        rows: Rows = {}
        for port in listed(f"{device}/ports"):
            if port.isdigit():
                rows[SubjectId(f"port:{name}/{port}")] = self._read_port(f"{device}/ports/{port}", now)
        if rows:
            # A function of an adapter has one module; where one has two ports, nothing tells whose module it is.
            modules = self._read_module(device) if len(rows) == 1 else {}
            for values in rows.values():
                values.update(modules)
        return rows

    def _read_port(self, port: str, now: Instant) -> Values:
        values: Values = {}
        take(values, "ib_state", f"{port}/state", parse_code)
        take(values, "ib_phys_state", f"{port}/phys_state", parse_code)
        take(values, "ib_rate_bits_per_second", f"{port}/rate", parse_rate)
        take(values, "ib_link_layer", f"{port}/link_layer", lambda text: text or None)
        for counter in COUNTERS:
            self._refusals.take(values, f"ib_{counter}_total", f"{port}/counters/{counter}", now)
        for counter in HARDWARE_COUNTERS:
            self._refusals.take(values, f"ib_{counter}_total", f"{port}/hw_counters/{counter}", now)
        return values

    def _read_module(self, device: str) -> Values:
        if device not in self._modules:
            self._modules[device] = _find_module(Path(device) / "device/hwmon")
        files = self._modules[device]
        values: Values = {}
        for column, understand in (
            ("optics_temperature_celsius", _thousandth),
            ("optics_temperature_limit_celsius", _thousandth),
            ("optics_received_power_watts", _micro),
        ):
            if column in files:
                take(values, column, files[column], understand)
        return values


def _find_module(folder: Path) -> dict[str, str]:
    """The files that tell of the module in the port, by column; found by their labels, once."""
    files: dict[str, str] = {}
    with contextlib.suppress(ReadFailed):  # without its module the port has the rest to tell
        _find_sensors(folder, files)
    return files


def _find_sensors(folder: Path, files: dict[str, str]) -> None:
    for chip in listed(folder):
        for name in listed(folder / chip):
            match = _LABEL.fullmatch(name)
            if match is None:
                continue
            labels: Values = {}
            take(labels, "label", folder / chip / name, lambda text: text)
            label, sensor = str(labels.get("label") or ""), f"{folder / chip / match[1]}"
            if name.startswith("temp") and _MODULE.search(label):
                files["optics_temperature_celsius"] = f"{sensor}_input"
                if _is_file(f"{sensor}_crit"):
                    files["optics_temperature_limit_celsius"] = f"{sensor}_crit"
            elif name.startswith("power") and _RECEIVED.search(label):
                files["optics_received_power_watts"] = f"{sensor}_input"


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def build(settings: Settings, root: Path, clock: Clock) -> Rounds:
    """The source for the machine under `root`."""
    return Rounds(NAME, Infiniband(settings, root).sweep, clock, every=settings.every)
