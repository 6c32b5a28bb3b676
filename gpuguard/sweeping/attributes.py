"""What small files of sysfs say of a device, as values: the shapes that more than one source reads."""

import re

from gpuguard.model.readings import Value
from gpuguard.sweeping.files import whole

# Gigatransfers a second of each generation of PCIe.
GENERATIONS = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "32": 5, "64.0": 6, "64": 6}
MOST_LANES = 32  # the register has six bits; all ones is what a device that does not answer shows

_SPEED = re.compile(r"(\d{1,2}(?:\.\d)?) GT/s", re.ASCII)
_RATE = re.compile(r"(\d+(?:\.\d)?) Gb/sec", re.ASCII)


def parse_generation(text: str) -> int | None:
    """The PCIe generation of a link speed, None where it is unknown.

    Reads   current_link_speed, max_link_speed
    Shape   `16.0 GT/s PCIe`, before Linux 5.7 `16 GT/s`; `Unknown`, earlier `Unknown speed`
    """
    match = _SPEED.match(text)
    return GENERATIONS.get(match[1]) if match else None


def parse_lanes(text: str) -> int | None:
    """The lanes of a link, None where it is unknown.

    Reads   current_link_width, max_link_width
    Shape   one decimal number; 0 where the link is down or the device virtual, 63 or 255 where nothing answered
    """
    lanes = whole(text)
    return lanes if lanes is not None and 0 < lanes <= MOST_LANES else None


MOST_NODES = 4096  # more than any kernel can be made for


def parse_numa_node(text: str) -> int | None:
    """The NUMA node; -1 is the kernel's word for unknown."""
    node = whole(text)
    return node if node is not None and 0 <= node < MOST_NODES else None


def parse_rate(text: str) -> int | None:
    """The rate of an RDMA port in bits per second, of `400 Gb/sec (4X NDR)` or `2.5 Gb/sec (1X SDR)`."""
    match = _RATE.match(text)
    return round(float(match[1]) * 1e9) if match else None


def least(limits: list[Value]) -> int | None:
    """The lowest of all limits; None where one of them is not known, as it may be lower."""
    known = [limit for limit in limits if isinstance(limit, int)]
    return min(known) if known and len(known) == len(limits) else None
