"""What breaks, how often it does, and how it shows on the node.

A cause is a row of the first source; a signature is one way in which it shows. What an agent on the node can know of
it is its *sight*:

    evident    the driver, or two witnesses, say it beyond doubt: the node must be drained
    doubtful   something is measured that is no proof: a WARNING for people, no drain by itself
    unseen     nothing on the node tells of it
    program    no fault of the node: a drain for it would be a false one

Source   counts: Llama 3 405B, 16,384 H100, 54 days, 419 interruptions that nobody planned. How a faulty GPU shows: the
         faults of GPUs in InfiniteHBD, 400 nodes over 349 days, less those of memory, which the first source has apart
Assumes  how bad memory shows (half as a double-bit error, a quarter uncontained, a tenth without spare rows, the rest
         contained), that four of five bad switches or cables show as a port that is down, and how often a reboot alone
         mends a fault (`mended`): no source counts these
"""

from typing import Literal, TypeVar

import msgspec

T = TypeVar("T")
Sight = Literal["evident", "doubtful", "unseen", "program"]
Signature = Literal[
    "lost", "lost_silently", "halted", "double_bit", "uncontained", "no_spare_row", "contained", "sram", "gsp", "storm",
    "narrow_link", "nvml_wedged", "hot", "port_down", "nvlink", "host_memory", "unseen", "program",
]  # fmt: skip

# What each signature lets the agent know, and how often a reboot alone mends it.
SIGHT: dict[Signature, Sight] = {
    "lost": "evident", "lost_silently": "evident", "halted": "evident", "double_bit": "evident",
    "uncontained": "evident", "no_spare_row": "evident", "sram": "evident", "gsp": "evident", "storm": "evident",
    "contained": "doubtful", "narrow_link": "doubtful", "nvml_wedged": "doubtful", "hot": "doubtful",
    "port_down": "doubtful", "nvlink": "doubtful", "host_memory": "doubtful", "unseen": "unseen", "program": "program",
}  # fmt: skip
MENDED: dict[Signature, float] = {
    "lost": 0.3, "lost_silently": 0.3, "halted": 0.7, "double_bit": 0.8, "uncontained": 0.6, "no_spare_row": 0.0,
    "sram": 0.5, "gsp": 0.9, "storm": 0.3,
}  # fmt: skip


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One row: how many of all faults, and how it shows, by weight."""

    name: str
    count: float
    shows: tuple[tuple[Signature, float], ...]


def _cause(name: str, count: float, *shows: tuple[Signature, float]) -> Cause:
    return Cause(name=name, count=count, shows=shows or (("unseen", 1.0),))


CAUSES: tuple[Cause, ...] = (
    _cause(
        "faulty_gpu", 148, ("lost", 40), ("narrow_link", 25), ("halted", 11), ("nvml_wedged", 9), ("lost_silently", 5),
        ("unseen", 4), ("hot", 2),
    ),
    _cause("hbm3", 72, ("double_bit", 50), ("uncontained", 25), ("contained", 15), ("no_spare_row", 10)),
    _cause("software_bug", 54, ("program", 1)),
    _cause("switch_or_cable", 35, ("port_down", 80), ("nvlink", 20)),
    _cause("host_maintenance", 32),
    _cause("gpu_sram", 19, ("sram", 1)),
    _cause("gsp", 17, ("gsp", 1)),
    _cause("nic", 7, ("port_down", 1)),
    _cause("nccl_timeout", 7, ("program", 1)),
    _cause("silent_corruption", 6),
    _cause("gpu_thermal", 6, ("hot", 1)),
    _cause("ssd", 3),
    _cause("power_supply", 3),
    _cause("chassis", 2),
    _cause("io_board", 2),
    _cause("dependency", 2, ("program", 1)),
    _cause("cpu", 2),
    _cause("host_memory", 2, ("host_memory", 1)),
)  # fmt: skip
BY_NAME = {cause.name: cause for cause in CAUSES}
# A storm is no row of the mix: it comes on top, and its GPU is as bad as any.
STORM = _cause("xid95_storm", 0, ("storm", 1))


def drawn(share: float) -> Cause:
    """The cause at this share, in [0, 1), of all faults."""
    return _at(share, tuple((cause, cause.count) for cause in CAUSES))


def shown(cause: Cause, share: float) -> Signature:
    """How the cause shows, by the share of its weights."""
    return _at(share, cause.shows)


def _at(share: float, weighed: tuple[tuple[T, float], ...]) -> T:
    left = share * sum(weight for _, weight in weighed)
    for what, weight in weighed:
        if left < weight:
            return what
        left -= weight
    return weighed[-1][0]


# How often two faults that are drawn apart have one cause.
ALIKE = sum(cause.count**2 for cause in CAUSES) / sum(cause.count for cause in CAUSES) ** 2
