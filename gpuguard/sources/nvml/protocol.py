"""What the agent and its NVML child say to each other: msgpack over the socket that `child` opens.

The agent asks one thing at a time and waits for its answer with a deadline; events come in between whenever they come.
While the child is stuck in a call it can still tell in which: another of its threads answers `Doing`.
"""

import msgspec

from gpuguard.model.ids import PciAddress, SubjectId
from gpuguard.model.readings import Rate, Values


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """NVML is to be opened; `known` are GPUs that were seen before, by UUID."""

    known: dict[str, PciAddress] = {}


class Look(msgspec.Struct, frozen=True, tag="look"):
    """One sweep is wanted; the GPUs at the addresses in `held` are not to be touched."""

    rate: Rate
    held: tuple[PciAddress, ...] = ()


class Doing(msgspec.Struct, frozen=True, tag="doing"):
    """Which call are you in?"""


Request = Begin | Look | Doing


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """NVML is open. `seconds` it took."""

    seconds: float


class Seen(msgspec.Struct, frozen=True, tag="seen"):
    """What one sweep found.

    `seconds` it took; `calls` is the histogram of all calls so far; `known` are all GPUs seen by now, by UUID, given
    when that changed; `changed` says that slow and medium sweeps should follow at once.
    """

    rate: Rate
    rows: dict[SubjectId, Values]
    seconds: float
    calls: tuple[str | int | float | None, ...]
    changed: bool = False
    known: dict[str, PciAddress] | None = None


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """NVML as a whole cannot be asked any more, or could not be opened; `code` is its nvmlReturn_t."""

    code: int
    call: str


class InCall(msgspec.Struct, frozen=True, tag="in_call"):
    """The call under way, '' for none."""

    call: str


class Xid(msgspec.Struct, frozen=True, tag="xid"):
    """The driver reported an Xid; `gpu_instance` is None where it concerns the whole GPU."""

    xid: int
    pci: PciAddress
    gpu_instance: int | None = None


Report = Begun | Seen | Refused | InCall | Xid

_requests = msgspec.msgpack.Decoder(Request)
_reports = msgspec.msgpack.Decoder(Report)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Request | Report) -> bytes:
    """The message as it crosses."""
    return _encoder.encode(message)


def decode_request(message: bytes) -> Request:
    """What the agent wants.

    Raises  msgspec.MsgspecError
    """
    return _requests.decode(message)


def decode_report(message: bytes) -> Report:
    """What the child says.

    Raises  msgspec.MsgspecError
    """
    return _reports.decode(message)
