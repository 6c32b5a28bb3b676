"""Names of devices as people list them, and found again by what people type."""

import re
from collections.abc import Iterable, Sequence

from gpuguard.errors import UsageError
from gpuguard.model.topology import Device

_NUMBERED = re.compile(r"(|.*\D)(0|[1-9]\d{0,8})")
# So many in a row are told as a range.
RUN = 3


def listed(names: Sequence[str]) -> str:
    """The names in words, a row of three or more by its ends: "GPU0 to GPU3, NIC0 and NIC1"."""
    parts: list[str] = []
    for run in _runs(names):
        parts += [f"{run[0]} to {run[-1]}"] if len(run) >= RUN else run
    return joined(parts)


def joined(parts: Iterable[object]) -> str:
    """The parts as a sentence has them: "GPU0, GPU1 and GPU2"; empty without any."""
    *most, last = [str(part) for part in parts] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _runs(names: Sequence[str]) -> list[list[str]]:
    runs: list[list[str]] = []
    before: tuple[str, int] | None = None
    for name in names:
        match = _NUMBERED.fullmatch(name)
        now = (match[1], int(match[2])) if match else None
        if runs and now is not None and before == (now[0], now[1] - 1):
            runs[-1].append(name)
        else:
            runs.append([name])
        before = now
    return runs


def places_of(devices: Sequence[Device], names: Iterable[str]) -> list[int]:
    """The places of these names among the devices, in the order asked.

    Raises  UsageError for a name that none of them has, and for one that comes twice
    """
    known = {device.name: place for place, device in enumerate(devices)}
    found: list[int] = []
    for name in names:
        place = known.get(name)
        if place is None:
            there = listed([device.name for device in devices]) or "none"
            raise UsageError(f"there is no {name[:40]!r} to choose; there is {there}")
        if place in found:
            raise UsageError(f"{name} is named twice; name each once")
        found.append(place)
    return found
