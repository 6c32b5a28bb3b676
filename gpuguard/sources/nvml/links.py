"""The NVLinks of one GPU: one value for each link, and errors summed over them, for Ampere, Hopper and Blackwell alike.

All kinds of field are asked for all links in one batch; a kind that no link supports is dropped after three sweeps, so
each generation ends up with its own. What the fields do not give, the older call gives: the state on Ampere and before,
the error counters up to Hopper.
"""

import math
from collections.abc import Sequence

from gpuguard.model.readings import Scalar, Values
from gpuguard.sources.nvml import readings
from gpuguard.sources.nvml.gpu import STRIKES, Counts, Gpu
from gpuguard.sources.nvml.library import ABSENT_CODES, INVALID_ARGUMENT, Library, NvmlError, Value
from gpuguard.sources.nvml.readings import KIBIBYTE

MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS in nvml.h 13.5
STATE_CALL = "nvmlDeviceGetNvLinkState"
ERROR_CALL = "nvmlDeviceGetNvLinkErrorCounter"
VERSION_CALL = "nvmlDeviceGetNvLinkVersion"

_TX, _RX = readings.column("nvlink_tx_bytes_total"), readings.column("nvlink_rx_bytes_total")
_UP, _ACTIVE = readings.column("nvlink_up"), readings.column("nvlinks_active")
_VERSION = readings.column("nvlink_version")
_KINDS = (
    readings.LINK_STATE, readings.LINK_TX, readings.LINK_RX, readings.LINK5_TX, readings.LINK5_RX, *readings.SUMMED,
    *readings.RATES,
)  # fmt: skip

Kind = Sequence[Value]


def read_links(row: Values, gpu: Gpu, library: Library, counts: Counts) -> None:
    """The row has the links; a GPU in MIG mode has none that mean anything, and one without NVLink none at all."""
    if gpu.mig_mode == 1:
        return
    links = count_links(gpu, library, counts)
    if not links:
        return
    kinds = _batch(gpu, links, library, counts)
    states = kinds.get(readings.LINK_STATE) or _calls(gpu, STATE_CALL, (), library)
    if states is not None:
        up = tuple(_state(state, counts) for state in states)
        row[_UP.name] = up
        row[_ACTIVE.name] = None if None in up else sum(1 for one in up if one)
    _bytes(row, kinds, counts)
    for field, column in readings.SUMMED.items():
        if field in kinds:
            _sum(row, column, [kinds[field]], counts)
    for name, counters in readings.ERROR_CALLS.items():
        if name not in row:
            found = [kind for c in counters if (kind := _calls(gpu, ERROR_CALL, (c,), library)) is not None]
            if found:
                _sum(row, readings.column(name), found, counts)
    for field, column in readings.RATES.items():
        if field in kinds:
            rates = [readings.unpack_rate(packed) for v in kinds[field] if (packed := _whole(v)) is not None]
            counts.put(row, column, max(rates) if len(rates) == len(kinds[field]) else None)
    versions = _calls(gpu, VERSION_CALL, (), library, links=1)
    if versions is not None and not isinstance(versions[0], NvmlError):
        counts.put(row, _VERSION, versions[0])


def count_links(gpu: Gpu, library: Library, counts: Counts) -> int | None:
    """How many links the GPU has, which is asked once; None when that could not be learned now."""
    if gpu.link_count is None:
        gpu.link_count = _count(gpu, library, counts)
    return gpu.link_count


def _count(gpu: Gpu, library: Library, counts: Counts) -> int | None:
    """How many links the GPU has; None when that could not be learned now."""
    try:
        value = library.fields(gpu.device, ((readings.LINK_COUNT, 0),))[0]
    except NvmlError as error:
        value = error
    if not isinstance(value, NvmlError):
        number = _whole(value)
        if number is None or number < 0:
            counts.reject("nvlinks_active")
            return None
        return min(number, MOST_LINKS)
    if value.code not in ABSENT_CODES:
        counts.failed({}, (), value)
        return None
    for link in range(MOST_LINKS):
        try:
            library.call(gpu.device, STATE_CALL, link)
        except NvmlError as error:
            if error.code == INVALID_ARGUMENT or error.code in ABSENT_CODES:
                return link
            counts.failed({}, (), error)
    return MOST_LINKS


def _batch(gpu: Gpu, links: int, library: Library, counts: Counts) -> dict[int, Kind]:
    """What each kind of field gave, by link; without those that no link supports."""
    strikes = gpu.link_strikes
    # What both generations could tell is asked the newer way only where the older one is not known to be supported.
    newer_only = {readings.LINK5_TX: readings.LINK_TX, readings.LINK5_RX: readings.LINK_RX}
    asked = [
        kind for kind in _KINDS
        if strikes.get(kind, 0) < STRIKES and newer_only.get(kind) not in gpu.link_kinds
    ]  # fmt: skip
    if not asked:
        return {}
    try:
        values = library.fields(gpu.device, tuple((kind, link) for kind in asked for link in range(links)))
    except NvmlError as error:
        if error.code not in ABSENT_CODES:
            counts.failed({}, (), error)
            return {}
        values = [error] * (len(asked) * links)
    found: dict[int, Kind] = {}
    for place, kind in enumerate(asked):
        own = values[place * links : (place + 1) * links]
        if all(isinstance(value, NvmlError) and value.code in ABSENT_CODES for value in own):
            strikes[kind] = strikes.get(kind, 0) + 1
            continue
        for value in own:
            if isinstance(value, NvmlError) and value.code not in ABSENT_CODES:
                counts.failed({}, (), value)
        found[kind] = own
    gpu.link_kinds.update(found)
    return found


def _calls(
    gpu: Gpu, call: str, arguments: tuple[int, ...], library: Library, links: int | None = None
) -> list[Value] | None:
    """What a call says of each link; None where it is not supported."""
    key = f"{call}{arguments}"
    if key in gpu.off:
        return None
    found: list[Value] = []
    for link in range(gpu.link_count or 0 if links is None else links):
        try:
            answer = library.call(gpu.device, call, link, *arguments)
        except NvmlError as error:
            if error.code in ABSENT_CODES and not found:
                gpu.off.add(key)
                return None
            if error.code == INVALID_ARGUMENT:
                break
            found.append(error)
        else:
            found.append(answer if isinstance(answer, int | float) else NvmlError(INVALID_ARGUMENT))
    return found or None


def _state(state: Value, counts: Counts) -> int | None:
    if isinstance(state, NvmlError):
        if state.code not in ABSENT_CODES:
            counts.failed({}, (), state)
        return None
    number = _whole(state)
    if number is None:
        counts.reject("nvlink_up")
        return None
    return int(number in readings.LINK_UP)


def _whole(value: Value) -> int | None:
    """The value as a whole number; None for an error, and for a number that is none: NaN, or without an end."""
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _bytes(row: Values, kinds: dict[int, Kind], counts: Counts) -> None:
    for column, old, new in (
        (_TX, readings.LINK_TX, readings.LINK5_TX), (_RX, readings.LINK_RX, readings.LINK5_RX),
    ):  # fmt: skip
        factor, values = (KIBIBYTE, kinds[old]) if old in kinds else (1, kinds.get(new))
        if values is None:
            continue
        parts: list[Scalar] = []
        for value in values:
            if isinstance(value, NvmlError):
                parts.append(None)
            elif 0 <= value * factor <= column.high:
                parts.append(value * factor)
            else:
                parts.append(None)
                counts.reject(column.name)
        row[column.name] = tuple(parts)


def _sum(row: Values, column: readings.Column, kinds: Sequence[Kind], counts: Counts) -> None:
    """The sum over links; unknown while one of them is, since a sum that lacks a link would count it anew later."""
    total = 0
    for kind in kinds:
        for value in kind:
            if isinstance(value, NvmlError):
                if value.code in ABSENT_CODES:
                    continue
                row[column.name] = None
                return
            if not 0 <= value <= column.high:
                counts.reject(column.name)
                row[column.name] = None
                return
            total += int(value)
    counts.put(row, column, total)
